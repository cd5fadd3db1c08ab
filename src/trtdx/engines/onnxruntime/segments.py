"""A graph cut into parts that are computed one after the other, so that what is watched fits into memory.

A part is a run of nodes. What crosses from one to the next is handed over; what depends on weights alone is
computed anew where it is needed, so that no weight crosses. Weights are referred to and never copied.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.formats.onnx.fused_nodes import NodePiece
from trtdx.formats.onnx.module_graph import OnnxGraph, ValueKind
from trtdx.formats.onnx.places import OnnxTap, value_dtype
from trtdx.formats.onnx.scopes import common_scope
from trtdx.optional import import_optional
from trtdx.tensors.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import onnx_ir as ir

UNCUTTABLE = 1 << 20  # modules: where nothing can be cut
UNKNOWN_ELEMENT_BYTES = 1  # of an element whose size nobody knows


class GraphSegment(NamedTuple):
    """The nodes from `first` to before `end`: what it needs, what it hands over, and what is seen with it."""

    first: int
    end: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    taps: tuple[OnnxTap, ...]
    needed_later: frozenset[str]  # what is still needed afterwards


def split_graph(graph: OnnxGraph, taps: Sequence[OnnxTap], bounds: Sequence[int]) -> list[GraphSegment]:
    """Return the parts between bounds; `[0, number of nodes]` is the whole in one."""
    tapped = {tap.value for tap in taps}
    results = {str(value.name) for value in graph.outputs}
    parts: list[GraphSegment] = []
    later = frozenset(results)
    for first, end in reversed(list(pairwise(bounds))):
        segment_taps = tuple(
            tap for tap in taps if first <= tap.node_index < end or (first == 0 and tap.node_index < 0)
        )
        produced = [value for node in graph.nodes[first:end] for value in node.outputs]
        outputs = tuple(str(v.name) for v in produced if v.name and (v.name in later or v.name in tapped))
        inputs = _segment_inputs(graph, first, end)
        if outputs or segment_taps:
            parts.append(GraphSegment(first, end, inputs, outputs, segment_taps, later))
        later |= {*inputs, *(tap.value for tap in segment_taps)}
    return parts[::-1]


def _segment_inputs(graph: OnnxGraph, first: int, end: int) -> tuple[str, ...]:
    read = dict.fromkeys(value for reads in graph.reads[first:end] for value in reads)
    return tuple(
        str(value.name)
        for value in read
        if graph.kind(value) is not ValueKind.CONSTANT and not first <= graph.producers.get(value, -1) < end
    )


def extract_subgraph(graph: OnnxGraph, inputs: Iterable[str], outputs: Iterable[str]) -> ir.Graph:
    """Return a part of a graph as one of its own, with weights by reference."""
    convenience = import_optional("onnx_ir", extra="onnx", purpose="cut ONNX graphs").convenience
    ends = [[graph.values[name] for name in dict.fromkeys(names)] for names in (inputs, outputs)]
    try:
        part: ir.Graph = convenience.extract(graph.model.graph, inputs=ends[0], outputs=ends[1])
    except ValueError as err:  # a fused node needs more than its module is given
        raise InputError(f"a part of the graph cannot be computed alone: {err}") from err
    return part


def weight_bytes(part: ir.Graph) -> int:
    return sum(value.const_value.nbytes for value in part.initializers.values() if value.const_value)


class ValueSizes:
    """How many bytes values will have, told from their symbolic shapes and what is fed."""

    def __init__(self, graph: OnnxGraph, shapes: Mapping[str, Sequence[int]]) -> None:
        self._graph = graph
        self.symbols = bound_symbols(graph, shapes)
        self._unknown = max(self.symbols.values(), default=1)
        self._dims: dict[str, int] = {}

    def value_bytes(self, name: str) -> int | None:
        value = self._graph.values[name]
        if value.shape is None:
            return None
        dtype = DTYPES.get(value_dtype(value))
        return math.prod(self._dim_size(dim) for dim in value.shape) * (dtype.bytes if dtype else UNKNOWN_ELEMENT_BYTES)

    def bytes_by_name(self, names: Collection[str]) -> dict[str, int]:
        """Return the size of each; one without any shape is taken to be as large as the largest."""
        known_bytes = {name: self.value_bytes(name) for name in names}
        largest = max((size for size in known_bytes.values() if size is not None), default=0)
        return {name: largest if size is None else size for name, size in known_bytes.items()}

    def value_shape(self, name: str) -> list[int] | None:
        """Return a value's shape where all of it can be told."""
        value = self._graph.values[name]
        dims = [evaluate_dim(dim, self.symbols) for dim in value.shape] if value.shape is not None else [None]
        return None if None in dims else [dim for dim in dims if dim is not None]

    def _dim_size(self, dim: int | ir.SymbolicDim) -> int:
        key = str(dim)
        if key not in self._dims:
            size = evaluate_dim(dim, self.symbols)
            self._dims[key] = self._unknown if size is None else size
        return self._dims[key]


def bound_symbols(graph: OnnxGraph, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return what names of dimensions stand for, given the shapes of some values."""
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        declared = graph.values[name].shape
        if declared is not None and len(declared) == len(shape):
            pairs = zip(declared, shape, strict=True)
            symbols |= {str(dim): size for dim, size in pairs if not isinstance(dim, int)}
    return symbols


def evaluate_dim(dim: int | ir.SymbolicDim, symbols: Mapping[str, int]) -> int | None:
    """Return what a dimension such as `past + seq` comes to, None where something in it is unknown."""
    if isinstance(dim, int):
        return dim
    if str(dim) in symbols:
        return symbols[str(dim)]
    value = dim.evaluate(symbols)
    return value if isinstance(value, int) else None


def bounds_within_budget(graph: OnnxGraph, cost: Sequence[int], budget_bytes: int, start: Sequence[int]) -> list[int]:
    """Return bounds between which nodes cost no more than a budget, where they can; those given stay.

    A cut is made where the fewest modules are left open: between layers sooner than inside one.
    """
    bounds = [0]
    for end in start[1:]:
        bounds += _find_cuts(bounds[-1], end, cost, budget_bytes, lambda at: _count_open_modules(graph, at))
        bounds.append(end)
    return bounds


def tap_bytes_by_node(graph: OnnxGraph, taps: Sequence[OnnxTap], size_of: Mapping[str, int]) -> list[int]:
    """Return for each node how many bytes of it are seen."""
    cost = [0] * len(graph.nodes)
    for name in {tap.value for tap in taps}:
        at = graph.producers.get(graph.values[name])
        if at is not None:
            cost[at] += size_of[name]
    return cost


def weight_bytes_by_node(graph: OnnxGraph) -> list[int]:
    """Return for each node how many bytes of weights it is the first to use."""
    cost = [0] * len(graph.nodes)
    for value in graph.model.graph.initializers.values():
        if value in graph.users and value.const_value is not None:
            cost[min(graph.users[value])] += value.const_value.nbytes
    return cost


def _count_open_modules(graph: OnnxGraph, node_index: int) -> int:
    before, after = (
        node.whole if isinstance(node, NodePiece) else node for node in graph.nodes[node_index - 1 : node_index + 1]
    )
    return UNCUTTABLE if before is after else len(common_scope(graph.scopes[node_index - 1 : node_index + 1]))


def _find_cuts(first: int, end: int, cost: Sequence[int], budget_bytes: int, depth: Callable[[int], int]) -> list[int]:
    """Return where to cut between two bounds."""
    cuts: list[int] = []
    while (window := _cut_window(first, end, cost, budget_bytes)) is not None:
        first = _best_cut(first, window, cost, budget_bytes, depth)
        cuts.append(first)
    return cuts


def _cut_window(first: int, end: int, cost: Sequence[int], budget_bytes: int) -> range | None:
    """Return where the next cut may be, from the first node with something to see to the one that is too much.

    A node that is too much alone is left alone: the cut comes after it.
    """
    total, start = 0, None
    for at in range(first, end):
        total += cost[at]
        if total > budget_bytes and cost[at] and start is not None:
            return range(start + 1, at + 1)
        if cost[at] and start is None:
            start = at
    return None


def _best_cut(first: int, window: range, cost: Sequence[int], budget_bytes: int, depth: Callable[[int], int]) -> int:
    """Return the cut that leaves the fewest modules open, late enough to use half of the budget if it can."""
    candidates, total = [], sum(cost[first : window.start - 1])
    for at in window:
        total += cost[at - 1]
        candidates.append((2 * total < budget_bytes, depth(at), -at))
    return -min(candidates)[2]
