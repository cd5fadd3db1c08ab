"""Products of an ONNX graph in int8, all but some: explicit quantisation, as a strongly typed network wants it.

Weights are int8 with a scale for each channel; what they are multiplied with is quantised with one scale, from the
largest number that samples showed. Zero points are 0. Every pair of QuantizeLinear and DequantizeLinear stands around
one operation, so that keeping an operation touches no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import UnknownNameError
from trtdx.formats.onnx.edit import add_constant, drop_unused_weights, import_onnx_ir, insert_node
from trtdx.formats.onnx.lower_precision import is_float, lift_constants, operation_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    import onnx_ir as ir

    Array = np.ndarray[Any, Any]
    Ranges = dict[str, float]

INT8_MAX, SMALLEST_RANGE = 127, 1e-12
MATRIX_AXES = 2  # axes


class QuantisableProduct(NamedTuple):
    """An operation that can be done in int8: what is multiplied with its weights, and their axis of channels."""

    operation: str
    data: str
    axis: int


def list_quantisable_products(model: ir.Model) -> list[QuantisableProduct]:
    """Return the products of a model that have constant weights, in their order."""
    return [product for node in lift_constants(model).graph if (product := _quantisable_product(node)) is not None]


def _quantisable_product(node: ir.Node) -> QuantisableProduct | None:
    if node.op_type not in ("MatMul", "Gemm", "Conv") or node.domain:
        return None
    data, weight = node.inputs[:MATRIX_AXES]
    if (
        data is None
        or weight is None
        or not is_float(data)
        or weight.const_value is None
        or data.const_value is not None
    ):
        return None
    rank = len(weight.const_value.shape)
    first, turned = (node.attributes.get_int(name, 0) for name in ("transA", "transB"))
    if node.op_type != "Conv" and (rank != MATRIX_AXES or first):
        return None
    axis = 0 if node.op_type == "Conv" or turned else rank - 1
    return QuantisableProduct(operation_name(node), str(data.name), axis)


def measure_input_ranges(model: ir.Model, engine: Any, samples: Sequence[Mapping[str, Array]]) -> Ranges:
    """Return the largest number of each tensor that is multiplied with weights."""
    import numpy as np

    names = list(dict.fromkeys(product.data for product in list_quantisable_products(model)))
    ranges = dict.fromkeys(names, SMALLEST_RANGE)
    for feeds in samples:
        inner = [name for name in names if name not in feeds]
        values = {name: feeds[name] for name in names if name in feeds}
        values |= engine.compute_tensors(inner, feeds) if inner else {}
        for name, array in values.items():
            ranges[name] = max(ranges[name], float(np.abs(array).max(initial=0.0)))
    engine.close()
    return ranges


def quantise_products(model: ir.Model, ranges: Ranges, keep: Collection[str] = ()) -> ir.Model:
    """Return a model with its products in int8.

    Args:
        model: the float32 model; it stays as it is.
        ranges: the largest number of each tensor that is multiplied, see `ranges_of`.
        keep: the operations that stay in float32.
    """
    converted = lift_constants(model)
    products = {product.operation: product for product in list_quantisable_products(model)}
    for name in keep:
        if name not in products:
            raise UnknownNameError("product of the graph", name, products)
    maker = _Int8InputMaker(converted, ranges)
    for node in list(converted.graph):
        product = products.get(operation_name(node))
        if product is not None and product.operation not in keep:
            for at, value in enumerate(maker.quantise_inputs(node, product)):
                node.replace_input_with(at, value)
    drop_unused_weights(converted.graph)
    return converted


def add_int8_twins(model: ir.Model, ranges: Ranges) -> tuple[ir.Model, dict[str, str]]:
    """Return a model with every product done a second time in int8, and which tensor each of those is a form of."""
    doubled, graphs = lift_constants(model), import_onnx_ir()
    products = {product.operation: product for product in list_quantisable_products(model)}
    maker, twins = _Int8InputMaker(doubled, ranges), {}
    for node in list(doubled.graph):
        product = products.get(operation_name(node))
        if product is None:
            continue
        value = node.outputs[0]
        name = f"{value.name}__low"
        result = graphs.Value(name=name, shape=value.shape, type=value.type)
        reads = [*maker.quantise_inputs(node, product), *node.inputs[MATRIX_AXES:]]
        twin = graphs.Node("", node.op_type, reads, dict(node.attributes), outputs=[result], name=name)
        doubled.graph.insert_after(node, twin)
        twins[name] = str(value.name)
    doubled.graph.sort()
    return doubled, twins


class _Int8InputMaker:
    """Makes the quantised forms of tensors, each once for an operation."""

    def __init__(self, model: ir.Model, ranges: Ranges) -> None:
        self.ir, self.graph, self.ranges = import_onnx_ir(), model.graph, ranges

    def quantise_inputs(self, node: ir.Node, product: QuantisableProduct) -> list[ir.Value]:
        """Return what an operation reads in the place of its data and its weights."""
        data, weight = node.inputs[:MATRIX_AXES]
        assert data is not None
        assert weight is not None
        return [self._quantise_data(node, data), self._quantise_weight(node, weight, product.axis)]

    def _quantise_data(self, node: ir.Node, value: ir.Value) -> ir.Value:
        import numpy as np

        stem = f"{operation_name(node)}__data"
        scale = self._add_constant(
            f"{stem}_scale", np.float32(max(self.ranges[str(value.name)], SMALLEST_RANGE) / INT8_MAX)
        )
        zero = self._add_constant(f"{stem}_zero", np.int8(0))
        small = self._insert_node("QuantizeLinear", [value, scale, zero], f"{stem}_int8", self.ir.DataType.INT8, node)
        return self._insert_node("DequantizeLinear", [small, scale, zero], stem, self.ir.DataType.FLOAT, node)

    def _quantise_weight(self, node: ir.Node, value: ir.Value, axis: int) -> ir.Value:
        import numpy as np

        assert value.const_value is not None
        array, stem = value.const_value.numpy(), f"{operation_name(node)}__weight"
        others = tuple(at for at in range(array.ndim) if at != axis)
        scales = (np.maximum(np.abs(array).max(others), SMALLEST_RANGE) / INT8_MAX).astype(np.float32)
        wide = scales.reshape([-1 if at == axis else 1 for at in range(array.ndim)])
        small = self._add_constant(f"{stem}_int8", np.clip(np.rint(array / wide), -INT8_MAX, INT8_MAX).astype(np.int8))
        scale, zero = (
            self._add_constant(f"{stem}_scale", scales),
            self._add_constant(f"{stem}_zero", np.zeros(len(scales), np.int8)),
        )
        more = [self.ir.AttrInt64("axis", axis)]
        return self._insert_node("DequantizeLinear", [small, scale, zero], stem, self.ir.DataType.FLOAT, node, more)

    def _add_constant(self, name: str, array: Any) -> ir.Value:
        return add_constant(self.graph, name, array)

    def _insert_node(
        self, op: str, reads: list[Any], name: str, dtype: Any, before: ir.Node, more: Sequence[Any] = ()
    ) -> ir.Value:
        shape = reads[0].shape
        return insert_node(self.graph, before, op, reads, name, dtype=dtype, shape=shape, attributes=more)
