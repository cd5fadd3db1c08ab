"""A statically quantised graph computed in floats: what its quantisers do by their steps alone, or without them.

Between QuantizeLinear and DequantizeLinear numbers are integers. Here they stay floats all the way: a quantiser becomes
the rounding to its step, or nothing. What it does beyond that, holding values at the end of its range or being undone
with another scale, is no longer in the graph: the noise that the file's own steps make can be told from its mistakes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import TrtdxError
from trtdx.formats.onnx.edit import add_constant, import_onnx_ir, insert_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from trtdx.formats.onnx.module_graph import OnnxGraph

# What moves numbers and does not change them.
MOVING_OPERATORS = {
    "Transpose", "Reshape", "Slice", "Concat", "Gather", "Squeeze", "Unsqueeze", "Expand", "Identity", "Split", "Flatten",
}  # fmt: skip
BINARY_OPERATORS = {"QLinearMatMul": "MatMul", "QLinearAdd": "Add", "QLinearMul": "Mul"}
UNARY_OPERATORS = {"QLinearSigmoid": "Sigmoid", "QLinearSoftmax": "Softmax", "QLinearLeakyRelu": "LeakyRelu"}
KEPT_ATTRIBUTES = ("axis", "alpha", "transA", "transB")
INTEGER_OPERATORS = {"QLinearConcat", "QGemm", *BINARY_OPERATORS, *UNARY_OPERATORS}
STATIC_QUANTISERS = {"QuantizeLinear", *INTEGER_OPERATORS}
PRODUCTS = re.compile(r"MatMul|Gemm|Conv|Gather|Transpose")
INT8_STEPS = 255.0
# Times the step that the numbers need: calibration saw larger ones; beyond that it is no honest step.
MAX_HONEST_STEP_FACTOR = 8.0


class NotInFloatsError(TrtdxError):
    """A quantised operator that has no form in floats here."""


def has_static_steps(graph: OnnxGraph) -> bool:
    """Whether a graph quantises what it computes with scales that are in the file."""
    from trtdx.formats.onnx.module_graph import ValueKind

    return any(
        node.op_type in STATIC_QUANTISERS and any(graph.kind(value) is ValueKind.DATA for value in node.inputs if value)
        for node in graph.nodes
    )


class Quantiser(NamedTuple):
    """A quantiser as it was: what it is given, what comes of it, and where its range ends."""

    input_name: str
    output_name: str
    low: float
    high: float
    step: float


def steps_quantised_early(graph: OnnxGraph) -> dict[str, float]:
    """Return the step of each value that an engine may quantise earlier than its file says.

    Rounding and moving numbers can change places, so optimisers put a quantiser before what moves its input.
    """
    steps: dict[str, float] = {}
    for node in graph.nodes:
        scale = node.inputs[1] if node.op_type == "QuantizeLinear" else None
        if scale is None or scale.const_value is None or scale.const_value.size > 1:
            continue
        step, waiting = float(scale.const_value.numpy().reshape(-1)[0]), [node.inputs[0]]
        while waiting:
            value = waiting.pop()
            maker = None if value is None else value.producer()
            if maker is None or maker.op_type not in MOVING_OPERATORS:
                continue
            before = [source for source in maker.inputs if source is not None and source.dtype == scale.dtype]
            for source in before:
                steps[str(source.name)] = max(steps.get(str(source.name), 0.0), step)
            waiting += before
    return steps


def cache_quantisation_steps(graph: OnnxGraph) -> dict[str, float]:
    """Return the step of each value that is a cache, or moved from one, where what a step of the run hands on is quantised."""
    from trtdx.tensors.cache_names import cache_key

    handed: dict[str, float] = {}
    for value in graph.outputs:
        maker, key = value.producer(), cache_key(str(value.name))
        scale = maker.inputs[1] if maker is not None and maker.op_type == "DequantizeLinear" else None
        if key and scale is not None and scale.const_value is not None and scale.const_value.size == 1:
            handed[key] = float(scale.const_value.numpy().reshape(-1)[0])
    steps: dict[str, float] = {}
    waiting = [(fed, handed[key]) for fed in graph.inputs if (key := cache_key(str(fed.name))) in handed]
    while waiting:
        value, step = waiting.pop()
        steps[str(value.name)] = max(steps.get(str(value.name), 0.0), step)
        for use in value.uses():
            if use.node.op_type in MOVING_OPERATORS:
                waiting += [(output, step) for output in use.node.outputs]
    return steps


def dequantise_graph(graph: OnnxGraph, *, steps: bool) -> list[Quantiser]:
    """Change a graph so that it computes in floats; returns the quantisers it had.

    Args:
        graph: changed in place; its values keep their names.
        steps: whether quantisers still round to their steps.

    Raises:
        NotInFloatsError: it has an operator that is not known.
    """
    floats = _GraphDequantiser(graph, steps)
    floats.dequantise()
    return floats.quantisers


class _GraphDequantiser:
    """The change of one graph."""

    def __init__(self, graph: OnnxGraph, steps: bool) -> None:
        self._graph, self._steps = graph, steps
        self._ir: Any = import_onnx_ir()
        self._dequantised_values: set[ir.Value] = set()  # that were integers
        self._count = 0
        self.quantisers: list[Quantiser] = []

    def dequantise(self) -> None:
        from trtdx.formats.onnx.module_graph import ValueKind

        for node in self._graph.nodes:
            data = [value for value in node.inputs if value is not None and self._graph.kind(value) is ValueKind.DATA]
            if node.op_type == "QuantizeLinear":
                self._replace_quantiser(node, constant=not data)
            elif not data and node.inputs and node.inputs[0] not in self._dequantised_values:
                if self._steps and node.op_type == "DequantizeLinear":
                    self._perturb_constant(node)
            elif node.op_type in INTEGER_OPERATORS:
                self._replace_integer_operator(node)
            elif any(operand in self._dequantised_values for operand in node.inputs if operand is not None):
                self._rewire_reader(node)

    def _replace_quantiser(self, node: ir.Node, *, constant: bool) -> None:
        quantised, scale = node.inputs[0], node.inputs[1]
        assert quantised is not None
        assert scale is not None
        if constant and (scale.const_value is None or scale.const_value.size > 1):
            return  # a weight by channels: the honest runs of the reference round it
        self._round_result(node, quantised, scale, node.inputs[2] if len(node.inputs) > 2 else None)

    def _replace_integer_operator(self, node: ir.Node) -> None:
        """Put an operator on floats into the place of one on integers, and round its result."""
        inputs: Sequence[Any] = list(node.inputs)
        if node.op_type == "QLinearConcat":
            reads = [inputs[at : at + 3] for at in range(2, len(inputs), 3)]
            op, scale, zero = "Concat", *inputs[:2]
        elif node.op_type == "QGemm":
            self._replace_gemm(node)
            return
        elif node.op_type in BINARY_OPERATORS:
            reads, op, scale, zero = [inputs[:3], inputs[3:6]], BINARY_OPERATORS[node.op_type], *inputs[6:8]
        else:
            reads, op, scale, zero = [inputs[:3]], UNARY_OPERATORS[node.op_type], *inputs[3:5]
        floats = [self._dequantise_input(node, *operands) for operands in reads]
        more = [attribute for attribute in node.attributes.values() if attribute.name in KEPT_ATTRIBUTES]
        self._round_result(node, self._insert_node(node, op, floats, more), scale, zero)

    def _replace_gemm(self, node: ir.Node) -> None:
        """Do the same with a product that has a bias: its integers have the product of both scales."""
        inputs: Sequence[Any] = [*node.inputs, *[None] * (9 - len(node.inputs))]
        if inputs[7] is None:
            raise NotInFloatsError("QGemm gives floats")
        floats = [self._dequantise_input(node, *inputs[:3]), self._dequantise_input(node, *inputs[3:6])]
        if inputs[6] is not None:
            wide = [self._ir.AttrInt64("to", int(self._ir.DataType.FLOAT))]
            step = self._insert_node(node, "Mul", [inputs[1], inputs[4]])
            floats.append(self._insert_node(node, "Mul", [self._insert_node(node, "Cast", [inputs[6]], wide), step]))
        more = [attribute for attribute in node.attributes.values() if attribute.name in KEPT_ATTRIBUTES]
        self._round_result(node, self._insert_node(node, "Gemm", floats, more), inputs[7], inputs[8])

    def _dequantise_input(self, node: ir.Node, value: Any, scale: Any, zero: Any) -> Any:
        if value in self._dequantised_values:
            return value
        per_channel = scale.const_value is None or scale.const_value.size > 1
        axis = [self._ir.AttrInt64("axis", len(value.shape or (0, 0)) - 1)] if per_channel else []
        return self._insert_node(node, "DequantizeLinear", [value, scale, zero], axis)

    def _perturb_constant(self, node: ir.Node) -> None:
        """Move a quantised constant by half a step at most, as rounding has: nobody knows what it was before.

        Weights of products and embeddings stay as they are: the honest runs of the reference round those.
        """
        import numpy as np

        constant, scale = (None if operand is None else operand.const_value for operand in node.inputs[:2])
        readers = [use.node.op_type for use in node.outputs[0].uses()]
        if constant is None or scale is None or scale.size > 1 or any(map(PRODUCTS.search, readers)):
            return
        moved = np.random.default_rng(0).uniform(-0.5, 0.5, constant.numpy().shape) * float(
            scale.numpy().reshape(-1)[0]
        )
        dequantised = self._insert_node(node, "DequantizeLinear", list(node.inputs))
        self._replace_node(node, "Add", [dequantised, self._add_constant(moved.astype(scale.numpy().dtype))])

    def _rewire_reader(self, node: ir.Node) -> None:
        """Let a node that reads what was an integer read the float."""
        if node.op_type == "DequantizeLinear":
            self._replace_node(node, "Identity", [node.inputs[0]])
        elif node.op_type in MOVING_OPERATORS:
            for value in node.outputs:
                self._mark_float(value)
        else:
            raise NotInFloatsError(f"{node.op_type} reads quantised numbers")

    def _round_result(self, node: ir.Node, value: Any, scale: Any, zero: Any) -> None:
        """Turn a node into the rounding of a value to a step, or into nothing."""
        self._record_range(node, value, scale, zero)
        if not self._steps:
            self._replace_node(node, "Identity", [value])
        else:
            if scale.const_value is None or scale.const_value.size > 1:
                raise NotInFloatsError("a quantiser has no scale, or several")
            step = self._honest_step(node, value, scale)
            count = self._insert_node(node, "Round", [self._insert_node(node, "Div", [value, step])])
            self._replace_node(node, "Mul", [count, step])
        self._mark_float(node.outputs[0])

    def _record_range(self, node: ir.Node, value: Any, scale: Any, zero: Any) -> None:
        """Keep where a quantiser's range ends."""
        import numpy as np

        constants = [None if operand is None else operand.const_value for operand in (scale, zero)]
        if constants[0] is None or constants[0].size > 1:
            return
        step = float(constants[0].numpy().reshape(-1)[0])
        point = np.zeros(1, np.uint8) if constants[1] is None else constants[1].numpy().reshape(-1)
        if point.dtype.kind not in "iu":
            return
        ends, at = np.iinfo(point.dtype), float(point[0])
        quantiser = Quantiser(
            str(value.name), str(node.outputs[0].name), (ends.min - at) * step, (ends.max - at) * step, step
        )
        self.quantisers.append(quantiser)

    def _honest_step(self, node: ir.Node, value: Any, scale: Any) -> Any:
        """Return the step, or the largest that is honest for these numbers."""
        floats = [
            self._insert_node(node, op, [value], [self._ir.AttrInt64("keepdims", 0)])
            for op in ("ReduceMax", "ReduceMin")
        ]
        width = self._insert_node(node, "Sub", floats)
        scale_array = scale.const_value.numpy()
        most = self._add_constant(scale_array.dtype.type(MAX_HONEST_STEP_FACTOR / INT8_STEPS))
        least = self._add_constant(scale_array.dtype.type(1e-30))
        roomy = self._insert_node(node, "Max", [self._insert_node(node, "Mul", [width, most]), least])
        bits = 1 if "16" not in str(node.outputs[0].dtype) else 0  # of 16 bits a step is small enough anyway
        return self._insert_node(node, "Min", [scale, roomy]) if bits else scale

    def _mark_float(self, value: Any) -> None:
        value.type = self._ir.TensorType(self._ir.DataType.FLOAT)
        self._dequantised_values.add(value)

    def _replace_node(self, node: Any, op: str, inputs: Sequence[Any]) -> None:
        node.resize_inputs(len(inputs))
        for at, value in enumerate(inputs):
            node.replace_input_with(at, value)
        node.attributes.clear()
        node.op_type, node.domain = op, ""

    def _insert_node(self, before: Any, op: str, inputs: Sequence[Any], more: Sequence[Any] = ()) -> Any:
        return insert_node(self._graph.model.graph, before, op, inputs, self._new_name(op), attributes=more)

    def _add_constant(self, number: Any) -> Any:
        return add_constant(self._graph.model.graph, self._new_name("constant"), number)

    def _new_name(self, op: str) -> str:
        self._count += 1
        return f"__in_floats_{op}_{self._count}"


__all__ = [
    "NotInFloatsError",
    "Quantiser",
    "cache_quantisation_steps",
    "dequantise_graph",
    "has_static_steps",
    "steps_quantised_early",
]
