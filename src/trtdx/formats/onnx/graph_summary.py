"""An ONNX graph walked once: its names, tensors and external data, without its weights."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from trtdx.formats.onnx.proto import (
    Dims,
    OnnxNode,
    OnnxValue,
    OnnxWeight,
    module_from_name,
    parse_node,
    parse_value,
    parse_value_name,
    parse_weight,
)
from trtdx.formats.protobuf_wire import LENGTH_DELIMITED, WireStream, int64_from_varint, iter_fields

# Field numbers (onnx 1.23; a number never changes its meaning).
MODEL_IR, MODEL_PRODUCER, MODEL_PRODUCER_VERSION, MODEL_GRAPH, MODEL_OPSET, MODEL_FUNCTION = 1, 2, 3, 7, 8, 25
GRAPH_NODE, GRAPH_NAME, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT = 1, 2, 5, 11, 12
GRAPH_VALUE_INFO, GRAPH_SPARSE = 13, 15
ATTRIBUTE_NAME, ATTRIBUTE_I, ATTRIBUTE_T, ATTRIBUTE_G = 1, 3, 5, 6
ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS = 10, 11
FUNCTION_NAME, FUNCTION_INPUT, FUNCTION_NODE, FUNCTION_DOMAIN = 1, 4, 7, 10

MAX_BODY_DEPTH = 16  # of bodies inside bodies; protobuf itself stops at about 30
MAX_NAMES = 1000  # of operators and domains
STANDARD_DOMAINS = ("", "ai.onnx")
# Operators whose attributes are looked at; any other attribute is, when it is too large to be a number.
INSPECTED_OPERATORS = {"Constant", "Gather", "If", "Loop", "Scan", "SequenceMap"}
SMALL_ATTRIBUTE = 256


class GatherNode(NamedTuple):
    """A look-up by index: which node, in what, by what, along which axis."""

    node: str
    data: str
    indices: str
    axis: int


class BodyNames:
    """The names of one graph body: what it makes and what it uses."""

    def __init__(self, depth: int) -> None:
        self.depth = depth  # 0: the model's own graph
        self.defined: set[str] = set()
        self.inputs: set[str] = set()
        self.used: dict[str, str] = {}  # by which node, first
        self.repeated: list[str] = []

    def define(self, name: str) -> None:
        if not name:
            return
        if name in self.defined:
            self.repeated.append(name)
        self.defined.add(name)

    def unresolved(self) -> dict[str, str]:
        return {name: node for name, node in self.used.items() if name not in self.defined and name not in self.inputs}


class GraphSummary:
    """All that one walk finds out; a walk that ends early leaves what it saw until then."""

    def __init__(self) -> None:
        self.has_graph = False
        self.ir_version = 0
        self.producer: list[str] = []
        self.opsets: dict[str, int] = {}
        self.inputs: dict[str, OnnxValue] = {}
        self.outputs: dict[str, OnnxValue] = {}
        self.weights: dict[str, OnnxWeight] = {}  # of the model's own graph; bodies may use a name again
        self.external: list[OnnxWeight] = []
        self.weights_bytes = 0
        self.node_count = 0
        self.operators: Counter[str] = Counter()
        self.domains: dict[str, None] = {}
        self.functions: list[str] = []  # domain::name
        self.node_names: Counter[str] = Counter()
        self.modules: dict[str, str] = {}  # by node
        self.gathers: list[GatherNode] = []
        self.gather_sources: set[str] = set()  # what they look up in
        self.declared_shapes: dict[str, Dims] = {}  # the shapes of that
        self.shape_sources: dict[str, str] = {}  # outputs of Shape nodes, and what they are the shape of
        self.undefined_names: dict[str, str] = {}
        self.repeated_names: list[str] = []
        self.too_deep = 0


class GraphWalker:
    """Walks a model and fills a graph."""

    def __init__(self, source: WireStream, graph: GraphSummary) -> None:
        self._source, self._graph = source, graph

    def walk_model(self) -> None:
        source, graph = self._source, self._graph
        for number, kind, start, end in iter_fields(source, 0, source.size, clip=True):
            if number == MODEL_IR and kind != LENGTH_DELIMITED:
                graph.ir_version = start
            elif kind != LENGTH_DELIMITED:
                continue
            elif number in (MODEL_PRODUCER, MODEL_PRODUCER_VERSION):
                graph.producer.append(source.read_text(start, end))
            elif number == MODEL_OPSET:
                self._walk_opset(start, end)
            elif number == MODEL_GRAPH:
                graph.has_graph = True
                self._finish_body(self._walk_body(start, end, BodyNames(0)))
            elif number == MODEL_FUNCTION:
                self._walk_function(start, end)

    def _finish_body(self, scope: BodyNames) -> None:
        if scope.depth == 0:
            for name in self._graph.outputs:
                scope.used.setdefault(name, "the model as an output")
        self._graph.undefined_names.update(scope.unresolved())
        self._graph.repeated_names += scope.repeated

    def _walk_opset(self, start: int, end: int) -> None:
        domain, version = "", 0
        for number, kind, first, after in iter_fields(self._source, start, end):
            if number == 1 and kind == LENGTH_DELIMITED:
                domain = self._source.read_text(first, after)
            elif number == 2:
                version = int64_from_varint(first)
        if len(self._graph.opsets) < MAX_NAMES:
            self._graph.opsets[domain] = version

    def _walk_function(self, start: int, end: int) -> None:
        """Walk a function: it sees only its own inputs, and its nodes count where it is called."""
        scope = BodyNames(1)
        called = {FUNCTION_NAME: "", FUNCTION_DOMAIN: ""}
        for number, kind, first, after in iter_fields(self._source, start, end):
            if kind != LENGTH_DELIMITED:
                continue
            if number in called:
                called[number] = self._source.read_text(first, after)
            elif number == FUNCTION_INPUT:
                scope.inputs.add(self._source.read_text(first, after))
            elif number == FUNCTION_NODE:
                self._walk_node(first, after, scope)
        self._graph.functions.append(f"{called[FUNCTION_DOMAIN]}::{called[FUNCTION_NAME]}")
        self._finish_body(scope)

    def _walk_body(self, start: int, end: int, scope: BodyNames) -> BodyNames:
        for number, kind, first, after in iter_fields(self._source, start, end):
            if kind != LENGTH_DELIMITED:
                continue
            if number == GRAPH_NODE:
                self._graph.node_count += 1
                self._walk_node(first, after, scope)
            elif number == GRAPH_INITIALIZER:
                scope.define(self._walk_weight(first, after, scope))
            elif number == GRAPH_SPARSE:
                self._walk_sparse_weight(first, after, scope)
            elif number in (GRAPH_INPUT, GRAPH_OUTPUT):
                self._walk_value(number, first, after, scope)
            elif number == GRAPH_VALUE_INFO and scope.depth == 0:
                self._walk_declared_shape(first, after)
        return scope

    def _walk_value(self, number: int, start: int, end: int, scope: BodyNames) -> None:
        value = parse_value(self._source, start, end)
        if number == GRAPH_INPUT:
            scope.inputs.add(value.name)
        if scope.depth == 0:
            declared = self._graph.inputs if number == GRAPH_INPUT else self._graph.outputs
            declared.setdefault(value.name, value)

    def _walk_declared_shape(self, start: int, end: int) -> None:
        """Keep the declared shape of a tensor that is looked up by index, of no other."""
        if self._graph.gather_sources and parse_value_name(self._source, start, end) in self._graph.gather_sources:
            value = parse_value(self._source, start, end)
            self._graph.declared_shapes[value.name] = value.dims

    def _walk_weight(self, start: int, end: int, scope: BodyNames, name: str = "") -> str:
        weight = parse_weight(self._source, start, end)
        name = name or weight.name
        self._graph.weights_bytes += weight.stored_bytes if weight.external is None else weight.needed_bytes or 0
        if weight.external is not None:
            self._graph.external.append(weight)
        if scope.depth == 0:
            self._graph.weights.setdefault(name, weight)
        return name

    def _walk_sparse_weight(self, start: int, end: int, scope: BodyNames) -> None:
        """Take a sparse initializer: it goes by the name of its values."""
        for number, kind, first, after in iter_fields(self._source, start, end):
            if kind == LENGTH_DELIMITED and number in (1, 2):
                name = self._walk_weight(first, after, BodyNames(1))
                scope.define(name if number == 1 else "")

    def _walk_node(self, start: int, end: int, scope: BodyNames) -> None:
        node = parse_node(self._source, start, end)
        self._count_operator(node)
        for output in node.outputs:
            scope.define(output)
        for operand in node.inputs:
            if operand:
                scope.used.setdefault(operand, node.label)
        axis = 0
        for first, after in node.attributes:
            if node.op in INSPECTED_OPERATORS or after - first > SMALL_ATTRIBUTE:
                axis = self._walk_attribute(first, after, node, scope) or axis
        if scope.depth == 0:
            self._record_lookup(node, axis)

    def _count_operator(self, node: OnnxNode) -> None:
        graph = self._graph
        is_standard = node.domain in STANDARD_DOMAINS
        called = node.op if is_standard else f"{node.domain}::{node.op}"
        if called in graph.operators or len(graph.operators) < MAX_NAMES:
            graph.operators[called] += 1
        if not is_standard and len(graph.domains) < MAX_NAMES:
            graph.domains[node.domain] = None
        if node.name:
            graph.node_names[node.name] += 1
            if module := node.module or module_from_name(node.name):
                graph.modules[node.name] = module

    def _record_lookup(self, node: OnnxNode, axis: int) -> None:
        graph = self._graph
        if node.domain not in STANDARD_DOMAINS:
            return
        if node.op == "Gather" and len(node.inputs) == 2:
            graph.gathers.append(GatherNode(node.label, *node.inputs, axis))
            graph.gather_sources.add(node.inputs[0])
        elif node.op == "Shape" and len(node.inputs) == len(node.outputs) == 1 and not node.attributes:
            graph.shape_sources[node.outputs[0]] = node.inputs[0]

    def _walk_attribute(self, start: int, end: int, node: OnnxNode, scope: BodyNames) -> int:
        """Walk the bodies and constants of an attribute; return its number where it is the axis."""
        name, value = "", 0
        for number, kind, first, after in iter_fields(self._source, start, end):
            if number == ATTRIBUTE_I and kind != LENGTH_DELIMITED:
                value = int64_from_varint(first)
            elif kind != LENGTH_DELIMITED:
                continue
            elif number == ATTRIBUTE_NAME:
                name = self._source.read_text(first, after)
            elif number in (ATTRIBUTE_T, ATTRIBUTE_TENSORS):
                constant_name = node.outputs[0] if node.op == "Constant" and node.outputs else ""
                self._walk_weight(first, after, scope if constant_name else BodyNames(1), constant_name)
            elif number in (ATTRIBUTE_G, ATTRIBUTE_GRAPHS):
                self._walk_inner_body(first, after, scope)
        return value if name == "axis" else 0

    def _walk_inner_body(self, start: int, end: int, scope: BodyNames) -> None:
        """Walk the body of an If or Loop; what it does not make itself comes from around it."""
        if scope.depth >= MAX_BODY_DEPTH:
            self._graph.too_deep += 1
            return
        body = self._walk_body(start, end, BodyNames(scope.depth + 1))
        self._graph.repeated_names += body.repeated
        for name, node in body.unresolved().items():
            scope.used.setdefault(name, node)
