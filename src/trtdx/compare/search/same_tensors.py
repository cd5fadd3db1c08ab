"""Which tensor of one ONNX file is which of another: only those provide correct values for a part of the other file.

A name alone says nothing: exporters count their tensors, so that "slice_4" of a file in which one operation more stands
before is something else. Two tensors are the same if they are fed or come back under one name, if they are all that
leaves the same module, or if the same operation makes them of the same tensors (or another one, under one name). Types do not matter, nor values of
weights: there a mistake may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.formats.onnx.module_graph import OnnxGraph, ValueKind
from trtdx.formats.onnx.places import all_taps

if TYPE_CHECKING:
    import onnx_ir as ir

PASSED_OVER = ("Cast", "Identity", "QuantizeLinear", "DequantizeLinear")
MOST_NUMBERS = 16  # in a constant that tells which axis, where to begin, how long


class _Maker(NamedTuple):
    """What makes a tensor."""

    operator: str
    module: str
    inputs: tuple[str, ...]
    output: int


def same_tensors(graph: OnnxGraph, other: OnnxGraph) -> dict[str, str]:
    """Return the tensors of a graph that another has, too, and what they are called there."""
    same = _same_at_borders(graph, other)
    reference_makers, there = _tensors_by_maker(graph), _tensors_by_maker(other)
    for at in range(len(graph.nodes)):
        for key, value in _maker_keys(graph, at, same):
            mine = reference_makers[key._replace(inputs=tuple(_input_names(graph, at)))]
            match = _match_tensor(graph, value, mine, other, there.get(key, [])) or _match_exchanged_operator(
                key, value, other
            )
            if match:
                same.setdefault(str(value.name), match)
    return same


def _same_at_borders(graph: OnnxGraph, other: OnnxGraph) -> dict[str, str]:
    same = {
        str(value.name): str(value.name)
        for value in (*graph.inputs, *graph.outputs)
        if value.name in other.values and _have_same_shape(value, other.values[value.name])
    }
    reference_outputs, other_outputs = _module_outputs(graph), _module_outputs(other)
    for path, name in reference_outputs.items():
        if path in other_outputs and _have_same_shape(graph.values[name], other.values[other_outputs[path]]):
            same.setdefault(name, other_outputs[path])
    return same


def _module_outputs(graph: OnnxGraph) -> dict[str, str]:
    """Return what leaves each module that one tensor leaves, in one call."""
    names_by_module: dict[str, list[str]] = {}
    for tap in all_taps(graph):
        if tap.place.path and tap.place.port == "out" and not tap.place.tensor:
            names_by_module.setdefault(tap.place.path, []).append(tap.value)
    return {path: names[0] for path, names in names_by_module.items() if len(names) == 1}


def _tensors_by_maker(graph: OnnxGraph) -> dict[_Maker, list[ir.Value]]:
    """Return the tensors of a graph by what makes them, in its own names."""
    tensors: dict[_Maker, list[ir.Value]] = {}
    all_names = {name: name for name in graph.values}
    for at in range(len(graph.nodes)):
        for key, value in _maker_keys(graph, at, all_names):
            tensors.setdefault(key, []).append(value)
    return tensors


def _input_names(graph: OnnxGraph, node_number: int) -> list[str]:
    """Return the data that enter a node, changes of type passed over."""
    return [
        str(_uncast_source(graph, value).name)
        for value in graph.reads[node_number]
        if graph.kind(value) is ValueKind.DATA
    ]


def _uncast_source(graph: OnnxGraph, value: ir.Value) -> ir.Value:
    while (at := graph.producers.get(value)) is not None and graph.nodes[at].op_type in PASSED_OVER:
        before = graph.nodes[at].inputs[0]
        if before is None:
            break
        value = before
    return value


def _maker_keys(graph: OnnxGraph, node_number: int, known: dict[str, str]) -> list[tuple[_Maker, ir.Value]]:
    """Return what makes each output of a node, its inputs by the names that are known; empty if one is not."""
    node = graph.nodes[node_number]
    entering = _input_names(graph, node_number)
    if node.op_type in PASSED_OVER or any(name not in known for name in entering):
        return []
    module = graph.scopes[node_number][-1] if graph.scopes[node_number] else ""
    inputs = tuple(known[name] for name in entering)
    return [
        (_Maker(node.op_type, module, inputs, number), value)
        for number, value in enumerate(node.outputs)
        if value.name and graph.kind(value) is ValueKind.DATA
    ]


def _match_tensor(
    graph: OnnxGraph, value: ir.Value, mine: list[ir.Value], other: OnnxGraph, others: list[ir.Value]
) -> str | None:
    """Return which of another graph's tensors is a value; of several, the one with the same numbers beside it."""
    if len(mine) > 1 or len(others) > 1:
        numbers = _integer_constants(graph, value)
        mine = [candidate for candidate in mine if _integer_constants(graph, candidate) == numbers]
        others = [candidate for candidate in others if _integer_constants(other, candidate) == numbers]
    if len(mine) != len(others) or value not in mine:
        return None
    match = others[mine.index(value)]
    return str(match.name) if _have_same_shape(value, match) else None


def _match_exchanged_operator(key: _Maker, value: ir.Value, other: OnnxGraph) -> str:
    """Return a tensor of the same name that another operation makes of the same tensors; "" if there is none."""
    namesake = other.values.get(str(value.name))
    at = other.producers.get(namesake) if namesake is not None else None
    if at is None or namesake is None or not _have_same_shape(value, namesake):
        return ""
    if other.nodes[at].op_type == key.operator:
        return ""
    module = other.scopes[at][-1] if other.scopes[at] else ""
    return str(value.name) if (module, tuple(_input_names(other, at))) == (key.module, key.inputs) else ""


def _integer_constants(graph: OnnxGraph, value: ir.Value) -> list[list[int]]:
    """Return the small constants of integers that a tensor's operation uses."""
    constants = []
    for entering in graph.nodes[graph.producers[value]].inputs:
        constant = entering.const_value if entering is not None else None
        if constant is not None and constant.dtype.name.startswith("INT") and constant.size <= MOST_NUMBERS:
            constants.append([int(number) for number in constant.numpy().reshape(-1)])
    return constants


def _have_same_shape(one: ir.Value, other: ir.Value) -> bool:
    """Whether two shapes may be the same: names of dimensions may be anything."""
    if one.shape is None or other.shape is None:
        return True
    both = list(zip(one.shape, other.shape, strict=False))
    sizes = all(a == b for a, b in both if isinstance(a, int) and isinstance(b, int))
    return len(one.shape) == len(other.shape) and sizes


__all__ = ["same_tensors"]
