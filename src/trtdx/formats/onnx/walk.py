"""An ONNX graph walked once: its names, tensors and external data, without its weights."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from trtdx.formats.onnx.proto import (
    Dims,
    Node,
    Value,
    Weight,
    module_from_name,
    name_from,
    node_from,
    value_from,
    weight_from,
)
from trtdx.formats.wire import SPAN, Source, fields, signed

# Field numbers (onnx 1.23; a number never changes its meaning).
MODEL_IR, MODEL_PRODUCER, MODEL_PRODUCER_VERSION, MODEL_GRAPH, MODEL_OPSET, MODEL_FUNCTION = 1, 2, 3, 7, 8, 25
GRAPH_NODE, GRAPH_NAME, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT = 1, 2, 5, 11, 12
GRAPH_VALUE_INFO, GRAPH_SPARSE = 13, 15
ATTRIBUTE_NAME, ATTRIBUTE_I, ATTRIBUTE_T, ATTRIBUTE_G = 1, 3, 5, 6
ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS = 10, 11
FUNCTION_NAME, FUNCTION_INPUT, FUNCTION_NODE, FUNCTION_DOMAIN = 1, 4, 7, 10

MOST_DEPTH = 16  # of bodies inside bodies; protobuf itself stops at about 30
MOST_NAMES = 1000  # of operators and domains
OWN_DOMAINS = ("", "ai.onnx")
# Operators whose attributes are looked at; any other attribute is, when it is too large to be a number.
LOOKED_INTO = {"Constant", "Gather", "If", "Loop", "Scan", "SequenceMap"}
SMALL_ATTRIBUTE = 256


class Gather(NamedTuple):
    """A look-up by index: which node, in what, by what, along which axis."""

    node: str
    data: str
    indices: str
    axis: int


class Scope:
    """The names of one graph body: what it makes and what it uses."""

    def __init__(self, depth: int) -> None:
        self.depth = depth  # 0: the model's own graph
        self.made: set[str] = set()
        self.inputs: set[str] = set()
        self.used: dict[str, str] = {}  # by which node, first
        self.repeated: list[str] = []

    def make(self, name: str) -> None:
        if not name:
            return
        if name in self.made:
            self.repeated.append(name)
        self.made.add(name)

    def unresolved(self) -> dict[str, str]:
        return {
            name: node
            for name, node in self.used.items()
            if name not in self.made and name not in self.inputs
        }


class Graph:
    """All that one walk finds out; a walk that ends early leaves what it saw until then."""

    def __init__(self) -> None:
        self.found = False
        self.ir_version = 0
        self.producer: list[str] = []
        self.opsets: dict[str, int] = {}
        self.inputs: dict[str, Value] = {}
        self.outputs: dict[str, Value] = {}
        self.weights: dict[str, Weight] = {}  # of the model's own graph; bodies may use a name again
        self.external: list[Weight] = []
        self.weights_bytes = 0
        self.nodes = 0
        self.operators: Counter[str] = Counter()
        self.domains: dict[str, None] = {}
        self.functions: list[str] = []  # domain::name
        self.node_names: Counter[str] = Counter()
        self.modules: dict[str, str] = {}  # by node
        self.gathers: list[Gather] = []
        self.gathered: set[str] = set()  # what they look up in
        self.declared: dict[str, Dims] = {}  # the shapes of that
        self.shapes: dict[str, str] = {}  # outputs of Shape nodes, and what they are the shape of
        self.dangling: dict[str, str] = {}
        self.repeated: list[str] = []
        self.too_deep = 0


class Walker:
    """Walks a model and fills a graph."""

    def __init__(self, source: Source, graph: Graph) -> None:
        self._source, self._graph = source, graph

    def model(self) -> None:
        source, graph = self._source, self._graph
        for number, kind, start, end in fields(source, 0, source.size, clip=True):
            if number == MODEL_IR and kind != SPAN:
                graph.ir_version = start
            elif kind != SPAN:
                continue
            elif number in (MODEL_PRODUCER, MODEL_PRODUCER_VERSION):
                graph.producer.append(source.text(start, end))
            elif number == MODEL_OPSET:
                self._opset(start, end)
            elif number == MODEL_GRAPH:
                graph.found = True
                self._finish(self._body(start, end, Scope(0)))
            elif number == MODEL_FUNCTION:
                self._function(start, end)

    def _finish(self, scope: Scope) -> None:
        if scope.depth == 0:
            for name in self._graph.outputs:
                scope.used.setdefault(name, "the model as an output")
        self._graph.dangling.update(scope.unresolved())
        self._graph.repeated += scope.repeated

    def _opset(self, start: int, end: int) -> None:
        domain, version = "", 0
        for number, kind, first, after in fields(self._source, start, end):
            if number == 1 and kind == SPAN:
                domain = self._source.text(first, after)
            elif number == 2:
                version = signed(first)
        if len(self._graph.opsets) < MOST_NAMES:
            self._graph.opsets[domain] = version

    def _function(self, start: int, end: int) -> None:
        """Walk a function: it sees only its own inputs, and its nodes count where it is called."""
        scope = Scope(1)
        called = {FUNCTION_NAME: "", FUNCTION_DOMAIN: ""}
        for number, kind, first, after in fields(self._source, start, end):
            if kind != SPAN:
                continue
            if number in called:
                called[number] = self._source.text(first, after)
            elif number == FUNCTION_INPUT:
                scope.inputs.add(self._source.text(first, after))
            elif number == FUNCTION_NODE:
                self._node(first, after, scope)
        self._graph.functions.append(f"{called[FUNCTION_DOMAIN]}::{called[FUNCTION_NAME]}")
        self._finish(scope)

    def _body(self, start: int, end: int, scope: Scope) -> Scope:
        for number, kind, first, after in fields(self._source, start, end):
            if kind != SPAN:
                continue
            if number == GRAPH_NODE:
                self._graph.nodes += 1
                self._node(first, after, scope)
            elif number == GRAPH_INITIALIZER:
                scope.make(self._weight(first, after, scope))
            elif number == GRAPH_SPARSE:
                self._sparse(first, after, scope)
            elif number in (GRAPH_INPUT, GRAPH_OUTPUT):
                self._value(number, first, after, scope)
            elif number == GRAPH_VALUE_INFO and scope.depth == 0:
                self._declared(first, after)
        return scope

    def _value(self, number: int, start: int, end: int, scope: Scope) -> None:
        value = value_from(self._source, start, end)
        if number == GRAPH_INPUT:
            scope.inputs.add(value.name)
        if scope.depth == 0:
            declared = self._graph.inputs if number == GRAPH_INPUT else self._graph.outputs
            declared.setdefault(value.name, value)

    def _declared(self, start: int, end: int) -> None:
        """Keep the declared shape of a tensor that is looked up by index, of no other."""
        if self._graph.gathered and name_from(self._source, start, end) in self._graph.gathered:
            value = value_from(self._source, start, end)
            self._graph.declared[value.name] = value.dims

    def _weight(self, start: int, end: int, scope: Scope, name: str = "") -> str:
        weight = weight_from(self._source, start, end)
        name = name or weight.name
        self._graph.weights_bytes += weight.bytes if weight.external is None else weight.needs or 0
        if weight.external is not None:
            self._graph.external.append(weight)
        if scope.depth == 0:
            self._graph.weights.setdefault(name, weight)
        return name

    def _sparse(self, start: int, end: int, scope: Scope) -> None:
        """Take a sparse initializer: it goes by the name of its values."""
        for number, kind, first, after in fields(self._source, start, end):
            if kind == SPAN and number in (1, 2):
                name = self._weight(first, after, Scope(1))
                scope.make(name if number == 1 else "")

    def _node(self, start: int, end: int, scope: Scope) -> None:
        node = node_from(self._source, start, end)
        self._count(node)
        for output in node.outputs:
            scope.make(output)
        for operand in node.inputs:
            if operand:
                scope.used.setdefault(operand, node.label)
        axis = 0
        for first, after in node.attributes:
            if node.op in LOOKED_INTO or after - first > SMALL_ATTRIBUTE:
                axis = self._attribute(first, after, node, scope) or axis
        if scope.depth == 0:
            self._remember(node, axis)

    def _count(self, node: Node) -> None:
        graph = self._graph
        is_standard = node.domain in OWN_DOMAINS
        called = node.op if is_standard else f"{node.domain}::{node.op}"
        if called in graph.operators or len(graph.operators) < MOST_NAMES:
            graph.operators[called] += 1
        if not is_standard and len(graph.domains) < MOST_NAMES:
            graph.domains[node.domain] = None
        if node.name:
            graph.node_names[node.name] += 1
            if module := node.module or module_from_name(node.name):
                graph.modules[node.name] = module

    def _remember(self, node: Node, axis: int) -> None:
        graph = self._graph
        if node.domain not in OWN_DOMAINS:
            return
        if node.op == "Gather" and len(node.inputs) == 2:
            graph.gathers.append(Gather(node.label, *node.inputs, axis))
            graph.gathered.add(node.inputs[0])
        elif node.op == "Shape" and len(node.inputs) == len(node.outputs) == 1 and not node.attributes:
            graph.shapes[node.outputs[0]] = node.inputs[0]

    def _attribute(self, start: int, end: int, node: Node, scope: Scope) -> int:
        """Walk the bodies and constants of an attribute; return its number where it is the axis."""
        name, value = "", 0
        for number, kind, first, after in fields(self._source, start, end):
            if number == ATTRIBUTE_I and kind != SPAN:
                value = signed(first)
            elif kind != SPAN:
                continue
            elif number == ATTRIBUTE_NAME:
                name = self._source.text(first, after)
            elif number in (ATTRIBUTE_T, ATTRIBUTE_TENSORS):
                constant_name = node.outputs[0] if node.op == "Constant" and node.outputs else ""
                self._weight(first, after, scope if constant_name else Scope(1), constant_name)
            elif number in (ATTRIBUTE_G, ATTRIBUTE_GRAPHS):
                self._inner(first, after, scope)
        return value if name == "axis" else 0

    def _inner(self, start: int, end: int, scope: Scope) -> None:
        """Walk the body of an If or Loop; what it does not make itself comes from around it."""
        if scope.depth >= MOST_DEPTH:
            self._graph.too_deep += 1
            return
        body = self._body(start, end, Scope(scope.depth + 1))
        self._graph.repeated += body.repeated
        for name, node in body.unresolved().items():
            scope.used.setdefault(name, node)
