"""A float graph computed as an honest quantiser would have it: its own weights on the grid that the candidate declares.

So what quantisation costs is known from the weights themselves, module by module, and need not be guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.formats.onnx.edit import add_constant, import_onnx_ir
from trtdx.formats.onnx.lower_precision import is_float

if TYPE_CHECKING:
    import onnx_ir as ir

    from trtdx.compare.judge.quantised_modules import QuantisationScheme, QuantisedModules
    from trtdx.compare.nouns import Array
    from trtdx.formats.onnx.module_graph import OnnxGraph

WEIGHT_BLOCK = 32
MATRIX_RANK = 2
TINY_STEP = 1e-30


def quantise_graph_weights(graph: OnnxGraph, quantised: QuantisedModules) -> int:
    """Round the weights of products, and what enters them, as a quantised candidate does; returns how many.

    Args:
        graph: changed in place; its values keep their names.
        quantised: which modules are quantised, and how.
    """
    changed = 0
    for node_index, node in enumerate(graph.nodes):
        path = graph.scopes[node_index][-1] if graph.scopes[node_index] else ""
        how = quantised.scheme_of(path) if node.op_type in ("MatMul", "Gemm", "Gather") else None
        if how is not None:
            inputs = how.activations or quantised.quantises_inputs
            changed += _ProductQuantiser(graph, node, how._replace(activations=inputs)).quantise_product(
                quantised.by_channel
            )
    return changed


class _ProductQuantiser:
    """The change of one product."""

    def __init__(self, graph: OnnxGraph, node: ir.Node, how: QuantisationScheme) -> None:
        self._graph, self._node, self._scheme = graph, node, how
        self._ir: Any = import_onnx_ir()

    def quantise_product(self, by_channel: bool) -> bool:
        is_table = self._node.op_type == "Gather"
        weight_index = 0 if is_table else 1
        weight = _constant_array(self._node.inputs[weight_index])
        if weight is None or weight.ndim != MATRIX_RANK or weight.dtype.kind != "f":
            return False
        across = 0 if is_table or not self._node.attributes.get_int("transB", 0) else 1  # what is summed over
        rounded_weight = round_weight_to_grid(weight, self._scheme.bits, across, by_channel=by_channel and not is_table)
        constant = add_constant(self._graph.model.graph, self._value_name("weight"), rounded_weight)
        self._node.replace_input_with(weight_index, constant)
        if not is_table and self._scheme.activations:
            self._quantise_input()
        return True

    def _quantise_input(self) -> None:
        activation: Any = self._node.inputs[0]
        if activation is None or not is_float(activation) or activation.dtype != self._ir.DataType.FLOAT:
            return
        types = self._ir.DataType
        small, scale, zero = (
            self._ir.Value(name=self._value_name(suffix), type=self._ir.TensorType(dtype))
            for suffix, dtype in (("small", types.UINT8), ("scale", types.FLOAT), ("zero", types.UINT8))
        )
        wide = self._ir.Value(name=self._value_name("wide"), type=activation.type)
        graph = self._graph.model.graph
        for op, reads, makes in (
            ("DynamicQuantizeLinear", [activation], [small, scale, zero]),
            ("DequantizeLinear", [small, scale, zero], [wide]),
        ):
            graph.insert_before(self._node, self._ir.Node("", op, reads, outputs=makes, name=f"{makes[0].name}_{op}"))
        self._node.replace_input_with(0, wide)

    def _value_name(self, suffix: str) -> str:
        return f"__honest_{self._node.outputs[0].name}_{suffix}"


def _constant_array(value: ir.Value | None) -> Array | None:
    """Return a constant, also one that is turned before it is used."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    maker = value.producer()
    if maker is None or maker.op_type != "Transpose" or len(maker.inputs) != 1:
        return None
    inner = _constant_array(maker.inputs[0])
    return None if inner is None or inner.ndim != MATRIX_RANK else inner.T.copy()


def round_weight_to_grid(weight: Array, bits: int, sum_axis: int, *, by_channel: bool) -> Array:
    """Return a weight on the grid of a symmetrical quantiser: a step for each channel, or one for all; in blocks where bits are few.

    Args:
        weight: a matrix.
        bits: of an integer.
        sum_axis: the axis that is summed over; the other one has the channels.
        by_channel: whether each has its own step.
    """
    import numpy as np

    most = 2 ** (bits - 1) - 1
    if bits < 8 and weight.shape[sum_axis] % WEIGHT_BLOCK == 0:
        rows = weight if sum_axis == 1 else weight.T
        blocks = rows.reshape(rows.shape[0], -1, WEIGHT_BLOCK)
        step = np.maximum(np.abs(blocks).max(2, keepdims=True), TINY_STEP) / most
        rounded_rows = (np.rint(blocks / step) * step).reshape(rows.shape).astype(weight.dtype)
        return np.ascontiguousarray(rounded_rows if sum_axis == 1 else rounded_rows.T)
    peak = np.abs(weight).max(sum_axis, keepdims=True) if by_channel else np.abs(weight).max()
    step = np.maximum(peak, TINY_STEP) / most
    return np.asarray(np.rint(weight / step) * step, weight.dtype)
