"""Which tensor of one ONNX file is which of another: only those are right values for a part of the other file.

A name alone says nothing: exporters count their tensors, so that "slice_4" of a file in which one operation more stands
before is something else. Two tensors are the same if they are fed or come back under one name, if they are all that
leaves the same module, or if the same operation makes them of the same tensors (or another one, under one name). Types do not matter, nor values of
weights: there a mistake may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.formats.onnx.graph import Graph, Kind
from trtdx.formats.onnx.places import all_taps

if TYPE_CHECKING:
    import onnx_ir as ir

PASSED_OVER = ("Cast", "Identity", "QuantizeLinear", "DequantizeLinear")
MOST_NUMBERS = 16  # in a constant that tells which axis, where to begin, how long


class _Made(NamedTuple):
    """What makes a tensor."""

    operator: str
    module: str
    inputs: tuple[str, ...]
    output: int


def same_tensors(graph: Graph, other: Graph) -> dict[str, str]:
    """Return the tensors of a graph that another has, too, and what they are called there."""
    same = _at_borders(graph, other)
    reference_makers, there = _by_maker(graph), _by_maker(other)
    for at in range(len(graph.nodes)):
        for key, value in _keys(graph, at, same):
            mine = reference_makers[key._replace(inputs=tuple(_entering(graph, at)))]
            match = _match(graph, value, mine, other, there.get(key, [])) or _exchanged(key, value, other)
            if match:
                same.setdefault(str(value.name), match)
    return same


def _at_borders(graph: Graph, other: Graph) -> dict[str, str]:
    same = {
        str(value.name): str(value.name)
        for value in (*graph.inputs, *graph.outputs)
        if value.name in other.values and _alike(value, other.values[value.name])
    }
    reference_outputs, other_outputs = _leaving(graph), _leaving(other)
    for path, name in reference_outputs.items():
        if path in other_outputs and _alike(graph.values[name], other.values[other_outputs[path]]):
            same.setdefault(name, other_outputs[path])
    return same


def _leaving(graph: Graph) -> dict[str, str]:
    """Return what leaves each module that one tensor leaves, in one call."""
    names_by_module: dict[str, list[str]] = {}
    for tap in all_taps(graph):
        if tap.place.path and tap.place.port == "out" and not tap.place.tensor:
            names_by_module.setdefault(tap.place.path, []).append(tap.value)
    return {path: names[0] for path, names in names_by_module.items() if len(names) == 1}


def _by_maker(graph: Graph) -> dict[_Made, list[ir.Value]]:
    """Return the tensors of a graph by what makes them, in its own names."""
    tensors: dict[_Made, list[ir.Value]] = {}
    all_names = {name: name for name in graph.values}
    for at in range(len(graph.nodes)):
        for key, value in _keys(graph, at, all_names):
            tensors.setdefault(key, []).append(value)
    return tensors


def _entering(graph: Graph, at: int) -> list[str]:
    """Return the data that enter a node, changes of type passed over."""
    return [str(_source(graph, value).name) for value in graph.reads[at] if graph.kind(value) is Kind.DATA]


def _source(graph: Graph, value: ir.Value) -> ir.Value:
    while (at := graph.made.get(value)) is not None and graph.nodes[at].op_type in PASSED_OVER:
        before = graph.nodes[at].inputs[0]
        if before is None:
            break
        value = before
    return value


def _keys(graph: Graph, at: int, known: dict[str, str]) -> list[tuple[_Made, ir.Value]]:
    """Return what makes each output of a node, its inputs by the names that are known; nothing where one is not."""
    node = graph.nodes[at]
    entering = _entering(graph, at)
    if node.op_type in PASSED_OVER or any(name not in known for name in entering):
        return []
    module = graph.scopes[at][-1] if graph.scopes[at] else ""
    inputs = tuple(known[name] for name in entering)
    return [
        (_Made(node.op_type, module, inputs, number), value)
        for number, value in enumerate(node.outputs)
        if value.name and graph.kind(value) is Kind.DATA
    ]


def _match(
    graph: Graph, value: ir.Value, mine: list[ir.Value], other: Graph, others: list[ir.Value]
) -> str | None:
    """Return which of another graph's tensors is a value; of several, the one with the same numbers beside it."""
    if len(mine) > 1 or len(others) > 1:
        numbers = _numbers(graph, value)
        mine = [candidate for candidate in mine if _numbers(graph, candidate) == numbers]
        others = [candidate for candidate in others if _numbers(other, candidate) == numbers]
    if len(mine) != len(others) or value not in mine:
        return None
    match = others[mine.index(value)]
    return str(match.name) if _alike(value, match) else None


def _exchanged(key: _Made, value: ir.Value, other: Graph) -> str:
    """Return a tensor of the same name that another operation makes of the same tensors; "" where there is none."""
    namesake = other.values.get(str(value.name))
    at = other.made.get(namesake) if namesake is not None else None
    if at is None or namesake is None or not _alike(value, namesake):
        return ""
    if other.nodes[at].op_type == key.operator:
        return ""
    module = other.scopes[at][-1] if other.scopes[at] else ""
    return str(value.name) if (module, tuple(_entering(other, at))) == (key.module, key.inputs) else ""


def _numbers(graph: Graph, value: ir.Value) -> list[list[int]]:
    """Return the small constants of integers that a tensor's operation uses."""
    constants = []
    for entering in graph.nodes[graph.made[value]].inputs:
        constant = entering.const_value if entering is not None else None
        if constant is not None and constant.dtype.name.startswith("INT") and constant.size <= MOST_NUMBERS:
            constants.append([int(number) for number in constant.numpy().reshape(-1)])
    return constants


def _alike(one: ir.Value, other: ir.Value) -> bool:
    """Whether two shapes may be the same: names of dimensions may be anything."""
    if one.shape is None or other.shape is None:
        return True
    both = list(zip(one.shape, other.shape, strict=False))
    sizes = all(a == b for a, b in both if isinstance(a, int) and isinstance(b, int))
    return len(one.shape) == len(other.shape) and sizes


__all__ = ["same_tensors"]
