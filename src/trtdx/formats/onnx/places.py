"""The places of an ONNX graph: what enters and leaves each module, and every tensor by its own name.

    layers.3.mlp:out           what leaves the module, as on torch
    layers.3.mlp:in            what enters it, in the order in which its result is made of it
    layers.3.mlp.mul_400       a tensor inside it: an operator is one step below its module
    op:MatMul & layers.3.**    operators by their kind
    .:in.input_ids             what is fed; .:out.logits what comes back

A module leaves behind what is used outside of it and is not on the way to something else it leaves behind: of
attention the projected result, not the keys that the cache takes on the way. Numbers that only tell shapes, and
weights, neither enter nor leave. An exporter that fuses across modules (rotary embedding in opset 23) moves these
borders, and a module that does nothing (dropout) has no place at all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.formats.onnx.edit import may_be_tensor
from trtdx.formats.onnx.module_graph import OnnxGraph, ValueKind
from trtdx.formats.onnx.scopes import QUANTISERS
from trtdx.tensors.feeds import ModelInput
from trtdx.tensors.taps import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx_ir as ir

_NOT_IN_A_PATH = re.compile(r"[^\w-]+")
_DTYPES = {"float": "float32", "double": "float64", "float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2",
           "float8e4m3fnuz": "float8_e4m3fnuz", "float8e5m2fnuz": "float8_e5m2fnuz", "float8e8m0": "float8_e8m0fnu"}  # fmt: skip


class OnnxTap(NamedTuple):
    """A place, the value that passes it, and when: `at` is the node with which it is known or first used."""

    place: Place
    value: str
    node_index: int
    order: tuple[int, int]  # among those of one node: what enters, outer first; the tensor; what leaves
    call: int = 0  # which call of a module that is called several times


class ModuleCall(NamedTuple):
    """One call of a module: its nodes, what enters and what leaves."""

    nodes: list[int]
    inputs: list[tuple[ir.Value, int]]  # with the node that uses it first
    outputs: list[ir.Value]


def all_taps(graph: OnnxGraph) -> list[OnnxTap]:
    """Return every place there is with its value, in the order of the data's flow."""
    taps = [*_input_taps(graph), *_tensor_taps(graph), *_output_taps(graph)]
    for path, nodes in module_nodes(graph).items():
        for number, call in enumerate(module_calls(graph, nodes)):
            taps += _module_taps(graph, path, call, number)
    return sorted(taps, key=lambda tap: (tap.node_index, tap.order, tap.place.number))


def module_nodes(graph: OnnxGraph) -> dict[str, list[int]]:
    """Return the nodes in each module, those of the modules inside it included."""
    nodes_by_module: dict[str, list[int]] = {}
    for at, scope in enumerate(graph.scopes):
        for path in dict.fromkeys(scope):
            nodes_by_module.setdefault(path, []).append(at)
    return nodes_by_module


def module_calls(graph: OnnxGraph, nodes: list[int]) -> list[ModuleCall]:
    """Return the calls of a module: what depends on its own result by way of others is a later call."""
    inside = set(nodes)
    groups: list[list[int]] = [[]]
    produced: set[ir.Value] = set()
    returning: set[ir.Value] = set()  # made outside from what this call made
    for at in range(nodes[0], nodes[-1] + 1):
        reads, makes = graph.reads[at], _data_values(graph, graph.nodes[at].outputs)
        if at not in inside:
            if any(value in produced or value in returning for value in reads):
                returning |= makes
            continue
        if any(value in returning for value in reads):
            groups.append([])
            produced, returning = set(), set()
        groups[-1].append(at)
        produced |= makes
    return [_module_call(graph, group) for group in groups]


def _data_values(graph: OnnxGraph, values: Iterable[ir.Value]) -> set[ir.Value]:
    return {value for value in values if graph.kind(value) is ValueKind.DATA}


def _module_call(graph: OnnxGraph, nodes: list[int]) -> ModuleCall:
    inside = set(nodes)
    entering: dict[ir.Value, int] = {}
    for at in nodes:
        for value in graph.reads[at]:
            source = _before_quantiser(graph, value)
            if graph.kind(source) is ValueKind.DATA and graph.producers.get(source) not in inside:
                entering.setdefault(source, at)
    outputs = _module_outputs(graph, nodes, inside)
    first = _inputs_in_order_of_use(graph, inside, outputs)
    order = [*(value for value in first if value in entering), *entering]
    return ModuleCall(nodes, [(value, entering[value]) for value in dict.fromkeys(order)], outputs)


def _before_quantiser(graph: OnnxGraph, value: ir.Value) -> ir.Value:
    """Return what a quantiser was put behind: a module that is given quantised values has them quantised itself."""
    at = graph.producers.get(value)
    if at is None or at not in graph.inserted:
        return value
    node = graph.nodes[at]
    first = node.inputs[0] if node.inputs else None
    if first is None:
        return value
    if node.op_type == "DequantizeLinear":
        before = _before_quantiser(graph, first)
        return value if before is first else before
    maker = graph.producers.get(first)
    # Its result is quantised, not an input.
    is_own_result = maker is not None and graph.scopes[maker] == graph.scopes[at]
    return value if is_own_result or node.op_type not in QUANTISERS else first


def _inputs_in_order_of_use(graph: OnnxGraph, inside: set[int], outputs: list[ir.Value]) -> list[ir.Value]:
    """Return what enters some nodes in the order in which results need it, first operands first.

    Nodes may stand in any order that can be computed, and tools that rewrite files make use of that.
    """
    entering: dict[ir.Value, None] = {}
    visited: set[ir.Value] = set()
    waiting = outputs[::-1]
    while waiting:
        value = _before_quantiser(graph, waiting.pop())
        if value in visited:
            continue
        visited.add(value)
        at = graph.producers.get(value)
        if at in inside:
            waiting.extend(reversed(graph.reads[at]))
        elif graph.kind(value) is ValueKind.DATA:
            entering[value] = None
    return list(entering)


def _module_outputs(graph: OnnxGraph, nodes: list[int], inside: set[int]) -> list[ir.Value]:
    """Return what leaves and leads to nothing else that leaves."""
    results = set(graph.outputs)
    leads: set[int] = set()  # nodes from which something that leaves is reached
    leaving: list[ir.Value] = []
    for at in reversed(nodes):
        for value in reversed(graph.nodes[at].outputs):
            users = graph.users.get(value, ())
            leaves = value in results or any(user not in inside for user in users)
            goes_on = any(user in leads for user in users)
            if leaves or goes_on:
                leads.add(at)
            if leaves and not goes_on and graph.kind(value) is ValueKind.DATA:
                leaving.append(value)
    return leaving[::-1]


def _module_taps(graph: OnnxGraph, path: str, call: ModuleCall, number: int) -> Iterator[OnnxTap]:
    op, depth = graph.classes.get(path, ""), path.count(".")
    for port, (value, at) in enumerate(call.inputs):
        place = Place(path, "in", port, op=op, dtype=value_dtype(value))
        yield OnnxTap(place, str(value.name), at, (0, depth), number)
    for port, value in enumerate(call.outputs):
        place = Place(path, "out", port, op=op, dtype=value_dtype(value))
        yield OnnxTap(place, str(value.name), graph.producers[value], (2, -depth), number)


def _input_taps(graph: OnnxGraph) -> Iterator[OnnxTap]:
    for number, value in enumerate(graph.inputs):
        name = str(value.name)
        place = Place("", "in", 0, name, "Input", name, value_dtype(value))
        yield OnnxTap(place, name, -1, (0, number))


def _tensor_taps(graph: OnnxGraph) -> Iterator[OnnxTap]:
    for at, node in enumerate(graph.nodes):
        if node.op_type == "Constant":
            continue
        for number, value in enumerate(node.outputs):
            if not value.name or not may_be_tensor(value):
                continue
            scope = graph.scopes[at][-1:]
            path = ".".join((*scope, _path_segment(value.name)))
            place = Place(path, "out", number, "", node.op_type, value.name, value_dtype(value))
            yield OnnxTap(place, value.name, at, (1, 0))


def _output_taps(graph: OnnxGraph) -> Iterator[OnnxTap]:
    for value in graph.outputs:
        if value in graph.producers:
            place = Place("", "out", 0, str(value.name), graph.classes.get("", ""), "", value_dtype(value))
            yield OnnxTap(place, str(value.name), graph.producers[value], (3, 0))


def _path_segment(name: str) -> str:
    """Return a tensor's name as one part of a path: "present.0.key" becomes "present_0_key"."""
    return _NOT_IN_A_PATH.sub("_", name.rpartition("/")[2])


def value_dtype(value: ir.Value) -> str:
    """Return the name of a value's type, "" if the file does not tell."""
    if value.dtype is None:
        return ""
    name = value.dtype.name.lower()
    return _DTYPES.get(name, name)


def declared_input(value: ir.Value) -> ModelInput:
    """Return what the file says of a tensor."""
    dims = None
    if value.shape is not None:
        dims = tuple(dim if isinstance(dim, int) else str(dim) for dim in value.shape)
    return ModelInput(str(value.name), value_dtype(value), dims)
