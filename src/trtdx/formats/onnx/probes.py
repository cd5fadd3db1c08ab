"""Models made of a model to measure it: every operation done twice, or every tensor moved a little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.formats.onnx.edit import import_onnx_ir
from trtdx.formats.onnx.lower_precision import (
    LOWER_DTYPES,
    PrecisionConverter,
    is_float,
    lift_constants,
    lowerable_tensors,
    operation_name,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx_ir as ir


def duplicate_in_lower_precision(model: ir.Model, dtype: str) -> tuple[ir.Model, dict[str, str]]:
    """Return a model with every operation done a second time in a lower precision, from the same float32 inputs.

    The second value tells for each tensor of a second operation, cast to float32, which tensor it is another form of.
    """
    doubled, graphs = lift_constants(model), import_onnx_ir()
    low, full = getattr(graphs.DataType, LOWER_DTYPES[dtype]), graphs.DataType.FLOAT
    maker = PrecisionConverter(doubled, dtype, set())
    shadows: dict[str, str] = {}
    for node in list(doubled.graph):
        fits = lowerable_tensors(node, low)
        if not any(fits.inputs) and not any(fits.outputs):
            continue
        reads = [
            maker.as_type(value, low) if value is not None and fit else value
            for value, fit in zip(node.inputs, fits.inputs, strict=True)
        ]
        makes = [
            graphs.Value(
                name=maker.unique_name(f"{value.name}__low"),
                shape=value.shape, type=graphs.TensorType(low) if fit else value.type,
            )
            for value, fit in zip(node.outputs, fits.outputs, strict=True)
        ]  # fmt: skip
        twin = graphs.Node(
            node.domain, node.op_type, reads, dict(node.attributes), outputs=makes, name=f"{node.name}__low"
        )
        if any(fits.outputs):
            maker.set_type_attribute(twin)
        doubled.graph.insert_after(node, twin)
        for value, other, fit in zip(node.outputs, makes, fits.outputs, strict=True):
            if fit and value.name:
                shadows[str(maker.as_type(other, full).name)] = str(value.name)
    doubled.graph.sort()
    return doubled, shadows


def add_output_noise(model: ir.Model, operations: Collection[str], share: float) -> ir.Model:
    """Return a model in which what some operations make is moved at random by a share of itself (root mean square).

    That is what rounding does to a number in a type whose range never ends.
    """
    noisy, graphs = lift_constants(model), import_onnx_ir()
    wide = share * 3**0.5
    results = {value.name for value in noisy.graph.outputs}
    for number, node in enumerate(list(noisy.graph)):
        if operation_name(node) not in operations:
            continue
        for value in [output for output in node.outputs if is_float(output) and output.name]:
            name = str(value.name)
            factor, moved = (
                graphs.Value(name=f"{name}__{word}", shape=value.shape, type=value.type) for word in ("factor", "moved")
            )
            value.replace_all_uses_with(moved, replace_graph_outputs=True)
            bounds = [
                graphs.AttrFloat32("low", 1 - wide),
                graphs.AttrFloat32("high", 1 + wide),
                graphs.AttrFloat32("seed", float(number)),
            ]
            draw = graphs.Node("", "RandomUniformLike", [value], bounds, outputs=[factor], name=f"{name}__draw")
            times = graphs.Node("", "Mul", [value, factor], outputs=[moved], name=f"{name}__times")
            noisy.graph.insert_after(node, [draw, times])
            if name in results:
                value.name, moved.name = f"{name}__own", name
    return noisy
