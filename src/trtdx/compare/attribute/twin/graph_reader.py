"""What an ONNX graph tells about its modules: weights and constants, and which of them is a norm, a product, a table.

Names tell nothing here: what a module is, its operators and the shapes of its constants tell.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.twin.operators import compute_operator, node_settings
from trtdx.engines.onnxruntime.segments import ValueSizes
from trtdx.engines.torch.values import tensor_from_array
from trtdx.errors import InputError
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.module_graph import OnnxGraph, ValueKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import onnx_ir as ir

    from trtdx.formats.onnx.places import ModuleCall

    Tensor = Any

SHAPE_OPERATORS = {"Reshape", "Transpose", "Identity", "Cast", "Squeeze", "Unsqueeze", "Flatten", "Dropout"}
NORM_OPERATORS = {"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
LARGEST_EPSILON = 0.3


def load_graph(path: str) -> OnnxGraph:
    """Return the graph of a file; the last two are kept, as both sides are looked at several times."""
    at = Path(path).stat()
    return _load_graph(path, at.st_mtime_ns, at.st_size)


@lru_cache(maxsize=2)
def _load_graph(path: str, _changed: int, _size: int) -> OnnxGraph:
    return OnnxGraph(open_model(path))


def is_in_scope(scopes: Sequence[str], scope: str) -> bool:
    """Whether one of a node's modules is the one of a path, or of the end of a path."""
    return any(path == scope or path.endswith(f".{scope}") for path in scopes)


class GraphLinear(NamedTuple):
    """A matrix product: weight is [out, in]."""

    weight: Tensor
    bias: Tensor | None


class GraphNorm(NamedTuple):
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centred: bool


class GraphEmbedding(NamedTuple):
    """Rows that are looked up, and what they are multiplied by."""

    weight: Tensor
    scale: float


class GraphReader:
    """A graph whose constants can be asked for, with the shapes of one step."""

    def __init__(self, graph: OnnxGraph, shapes: Mapping[str, Sequence[int]]) -> None:
        self.graph, self.shapes = graph, shapes
        known_shapes = {name: shape for name, shape in shapes.items() if name in graph.values}
        self.sizes = ValueSizes(graph, known_shapes)
        self._constants: dict[ir.Value, Tensor] = {}

    def is_data(self, value: ir.Value | None) -> bool:
        return value is not None and self.graph.kind(value) is ValueKind.DATA

    def is_weight(self, value: ir.Value | None) -> bool:
        return value is not None and self.graph.kind(value) is ValueKind.CONSTANT

    def producer(self, value: ir.Value | None) -> ir.Node | None:
        at = None if value is None else self.graph.producers.get(value)
        return None if at is None else self.graph.nodes[at]

    def constant(self, value: ir.Value) -> Tensor:
        """Return what depends on weights and shapes alone, in the type it has in the file."""
        if value not in self._constants:
            for output, tensor in self._compute_constant(value):
                self._constants[output] = tensor
        return self._constants[value]

    def _compute_constant(self, value: ir.Value) -> Iterator[tuple[ir.Value, Tensor]]:
        from trtdx.engines.torch.lazy_import import torch

        if value.const_value is not None:
            yield value, tensor_from_array(value.const_value.numpy())
            return
        node = self.producer(value)
        if node is None:
            raise InputError(f"{value.name} is not a constant")
        settings = node_settings(node) | {"_outputs": len(node.outputs)}
        first = node.inputs[0] if node.inputs else None
        if node.op_type in ("Shape", "Size") and first is not None and self.is_data(first):
            shape = self.shapes.get(str(first.name)) or self.sizes.value_shape(str(first.name))
            if shape is None:
                raise InputError(f"the shape of {first.name} is not known")
            inputs: list[Any] = [torch.empty(tuple(shape), device="meta")]
        else:
            inputs = [None if input_value is None else self.constant(input_value) for input_value in node.inputs]
        yield from zip(
            node.outputs,
            compute_operator(node.op_type, inputs, settings, torch.float32, domain=node.domain),
            strict=False,
        )

    def scalar(self, value: ir.Value | None) -> float | None:
        """Return the number that a constant is, if it is one."""
        if value is None or not self.is_weight(value):
            return None
        tensor = self.constant(value)
        return float(tensor) if tensor.numel() == 1 and tensor.dtype.is_floating_point else None

    def vector(self, value: ir.Value | None, width: int = 0) -> Tensor | None:
        """Return the row of numbers that a constant is, if it is one."""
        if value is None or not self.is_weight(value):
            return None
        tensor = self.constant(value)
        if tensor.numel() < 2 or tensor.shape[-1] != tensor.numel() or not tensor.dtype.is_floating_point:
            return None
        return tensor.reshape(-1) if not width or tensor.numel() == width else None

    def split_constant(self, node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
        """Return what a node of two inputs computes with, data first, if the other is a constant."""
        if len(node.inputs) != 2:
            return None
        one, other = node.inputs
        if one is None or other is None:
            return None
        if self.is_data(one) and self.is_weight(other):
            return one, other
        return (other, one) if self.is_data(other) and self.is_weight(one) else None

    def data_nodes(self, numbers: Iterable[int]) -> list[ir.Node]:
        """Return the nodes that compute with what is fed, not with weights or shapes alone."""
        nodes = (self.graph.nodes[at] for at in numbers)
        return [node for node in nodes if any(self.is_data(value) for value in node.outputs)]


def identify_part(reader: GraphReader, call: ModuleCall) -> GraphLinear | GraphNorm | GraphEmbedding | None:
    """Return what a module is, if it is one of the simple parts."""
    if len(call.inputs) != 1 or len(call.outputs) != 1:
        return None
    nodes = reader.data_nodes(call.nodes)
    try:
        return _match_linear(reader, nodes) or _match_norm(reader, nodes) or _match_embedding(reader, nodes)
    except (InputError, RuntimeError, TypeError, ValueError):  # a constant nobody can compute here
        return None


def _match_linear(reader: GraphReader, nodes: list[ir.Node]) -> GraphLinear | None:
    products = [node for node in nodes if node.op_type in ("MatMul", "Gemm")]
    others = {node.op_type for node in nodes} - SHAPE_OPERATORS - {"MatMul", "Gemm", "Add"}
    if len(products) != 1 or others:
        return None
    product, settings = products[0], node_settings(products[0])
    if not reader.is_data(product.inputs[0]) or not reader.is_weight(product.inputs[1]):
        return None
    assert product.inputs[1] is not None
    matrix = reader.constant(product.inputs[1])
    if matrix.ndim != 2 or settings.get("transA"):
        return None
    weight = (matrix if settings.get("transB") else matrix.T) * float(settings.get("alpha", 1.0))
    bias = _match_bias(reader, nodes, product, int(weight.shape[0]))
    added = [node for node in nodes if node.op_type == "Add"]
    return None if added and bias is None else GraphLinear(weight, bias)


def _match_bias(reader: GraphReader, nodes: list[ir.Node], product: ir.Node, width: int) -> Tensor | None:
    beta = node_settings(product).get("beta", 1.0)
    if product.op_type == "Gemm" and len(product.inputs) > 2 and product.inputs[2] is not None:
        vector = reader.vector(product.inputs[2], width)
        return None if vector is None else vector * float(beta)
    for node in nodes:
        both = reader.split_constant(node) if node.op_type == "Add" else None
        if both is not None:
            return reader.vector(both[1], width)
    return None


def _match_norm(reader: GraphReader, nodes: list[ir.Node]) -> GraphNorm | None:
    norm_nodes = [node for node in nodes if node.op_type in NORM_OPERATORS]
    if norm_nodes:
        return _match_norm_node(reader, nodes, norm_nodes[0])
    means = [node for node in nodes if node.op_type == "ReduceMean"]
    if not means or not {"Sqrt", "Pow", "Rsqrt"} & {node.op_type for node in nodes}:
        return None
    if any(node.op_type in ("MatMul", "Gemm", "Softmax") for node in nodes):
        return None
    weight = bias = eps = None
    for node in nodes:
        both = reader.split_constant(node)
        if both is None or node.op_type not in ("Add", "Mul"):
            continue
        row, number = reader.vector(both[1]), reader.scalar(both[1])
        if row is not None and node.op_type == "Mul":
            weight = row
        elif row is not None:
            bias = row
        elif number is not None and node.op_type == "Add" and 0 < number < LARGEST_EPSILON:
            eps = number
    centred = any(node.op_type == "Sub" for node in nodes)
    return None if eps is None else GraphNorm(weight, bias, eps, centred)


def _match_norm_node(reader: GraphReader, nodes: list[ir.Node], norm: ir.Node) -> GraphNorm | None:
    if {node.op_type for node in nodes} - SHAPE_OPERATORS - NORM_OPERATORS or len(norm.inputs) < 2:
        return None
    inputs = [*norm.inputs, None]
    eps = float(node_settings(norm).get("epsilon", 1e-5))
    bias = reader.vector(inputs[2])
    return GraphNorm(reader.vector(inputs[1]), bias, eps, norm.op_type == "LayerNormalization")


def _match_embedding(reader: GraphReader, nodes: list[ir.Node]) -> GraphEmbedding | None:
    gathers = [node for node in nodes if node.op_type == "Gather"]
    if len(gathers) != 1 or {node.op_type for node in nodes} - SHAPE_OPERATORS - {"Gather", "Mul"}:
        return None
    rows, ids = gathers[0].inputs[:2]
    if rows is None or not reader.is_weight(rows) or not reader.is_data(ids):
        return None
    table, scale = reader.constant(rows), 1.0
    if table.ndim != 2 or int(node_settings(gathers[0]).get("axis", 0)):
        return None
    for node in nodes:
        both = reader.split_constant(node) if node.op_type == "Mul" else None
        factor = reader.scalar(both[1]) if both else None
        if node.op_type == "Mul" and factor is None:
            return None
        scale *= factor or 1.0
    return GraphEmbedding(table, scale)


def find_head_width(reader: GraphReader, numbers: Iterable[int]) -> int:
    """Return how wide the heads are into which a module reshapes; 0 where it makes none."""
    widths = []
    for at in numbers:
        node = reader.graph.nodes[at]
        if node.op_type != "Reshape" or not reader.is_data(node.outputs[0]) or len(node.inputs) < 2:
            continue
        shape = node.inputs[1]
        if shape is None:
            continue
        last = reader.producer(shape)
        if last is not None and last.op_type == "Concat" and len(last.inputs) == 4:
            shape = last.inputs[3]
        elif not reader.is_weight(shape) or reader.constant(shape).numel() != 4:
            continue
        if shape is not None and reader.is_weight(shape):
            widths.append(int(reader.constant(shape).reshape(-1)[-1]))
    return max(set(widths), key=widths.count) if widths else 0


def find_rotary_frequencies(reader: GraphReader, nodes: list[ir.Node]) -> Tensor | None:
    """Return the frequencies of a module that makes cosines and sines, or the angles that they are of."""
    for node in nodes:
        if node.op_type not in ("Mul", "MatMul", "Einsum"):
            continue
        for value in node.inputs:
            if value is None or not reader.is_weight(value):
                continue
            tensor = reader.constant(value)
            if are_rotary_frequencies(tensor):
                return tensor.reshape(-1)
    return None


def are_rotary_frequencies(tensor: Tensor) -> bool:
    """Whether a constant is a row of rotary frequencies: from at most one down, never up, none of them negative."""
    if tensor.numel() < 2 or max(tensor.shape) != tensor.numel() or not tensor.dtype.is_floating_point:
        return False
    row = tensor.double().reshape(-1)
    falls = bool((row[1:] <= row[:-1]).all()) and float(row[-1]) < float(row[0])
    return falls and float(row[-1]) > 0 and 1e-3 < float(row[0]) < 1.01
