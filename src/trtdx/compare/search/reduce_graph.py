"""The smallest part of a graph that still goes wrong, fed with right values (delta debugging).

A part is a set of operations that ends in one of them. What enters it are the right values of those tensors, so that
nothing but the part itself can be wrong; each part is computed by the candidate's own engine with its own options. All
samples are tried, and a part fails if one of them does.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtdx.compare.judge.error_model import accumulated_error, coarser_dtype
from trtdx.compare.search.bisect import minimal_subset
from trtdx.errors import TrtdxError
from trtdx.formats.onnx.module_graph import ValueKind
from trtdx.formats.onnx.places import value_dtype
from trtdx.tensors.difference import measure_difference
from trtdx.tensors.dtypes import FLOAT_DTYPES, numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import onnx_ir as ir

    from trtdx.compare.nouns import Array
    from trtdx.engines.onnxruntime.replay import PartialEngine
    from trtdx.formats.onnx.module_graph import OnnxGraph

    Sample = Mapping[str, Array]
    Truth = Callable[[Sequence[str], Mapping[str, Array]], Mapping[str, Array]]

LIMIT = 24.0  # times one rounding's share
MOST_RUNS = 64


class GraphPart(NamedTuple):
    """Some operations, by number: what they need and what is looked at."""

    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class PartCase(NamedTuple):
    """A part with what it is fed and what should come of it, for each sample that fails."""

    part: GraphPart
    inputs: list[Mapping[str, Array]]
    expected: list[Mapping[str, Array]]
    observed: float  # the worst relative error
    allowed: float  # what precision explains there
    runs: int
    sample: int = 0  # which one it is


class SampleRows(NamedTuple):
    """A sample's arrays: as they are fed, as they are where they are right, and what should come out."""

    inputs: Mapping[str, Array]
    right: Mapping[str, Array]
    expected: Mapping[str, Array]


def measure_error(true: Array, other: Array) -> tuple[bool, float, float]:
    """Return whether a tensor is further off than its precision explains, how far, and how far it may be."""
    if true.shape != other.shape:
        return True, float("inf"), 0.0
    if not true.size:
        return False, 0.0, 0.0
    distance = measure_difference(true, other)
    if not {true.dtype.name, other.dtype.name} <= FLOAT_DTYPES:
        return distance.sums.max_abs > 1, distance.relative_l2, 0.0
    allowed = accumulated_error(coarser_dtype(true.dtype.name, other.dtype.name), true.shape[-1] if true.ndim else 1)
    if distance.not_finite:
        return True, float("inf"), allowed
    return distance.relative_l2 > LIMIT * allowed, distance.relative_l2, allowed


def _has_differences(expected: Mapping[str, Array], computed: Mapping[str, Array]) -> bool:
    return any(measure_error(right, computed[name])[0] for name, right in expected.items())


def part_ending_in(graph: OnnxGraph, nodes: Iterable[int], last: int) -> GraphPart:
    """Return a set of operations, of which those that do not lead to the last are left out."""
    chosen = set(nodes) | {last}
    return _part_back_from(graph, last, lambda value: graph.producers.get(value) in chosen)


def part_between(graph: OnnxGraph, last: int, known: Collection[str]) -> GraphPart:
    """Return the operations from tensors that are known to the last; numbers that tell shapes are fed, too."""
    before = set(known) - {str(value.name) for value in graph.nodes[last].outputs}
    return _part_back_from(
        graph, last, lambda value: graph.kind(value) is ValueKind.DATA and str(value.name) not in before
    )


def _part_back_from(graph: OnnxGraph, last: int, is_inside: Callable[[ir.Value], bool]) -> GraphPart:
    """Return the operations that lead to the last through the values that are inside; what enters them is fed."""
    outputs = tuple(str(value.name) for value in graph.nodes[last].outputs if value.name)
    reached, waiting, inputs = {last}, [last], dict[str, None]()
    while waiting:
        for value in graph.reads[waiting.pop()]:
            at = graph.producers.get(value)
            if at is not None and is_inside(value):
                if at not in reached:
                    reached.add(at)
                    waiting.append(at)
            elif graph.kind(value) is not ValueKind.CONSTANT:
                inputs[str(value.name)] = None
    return GraphPart(tuple(sorted(reached)), tuple(inputs), outputs)


class Reducer:
    """Looks for the smallest part of a graph that fails."""

    def __init__(self, engine: PartialEngine, samples: Sequence[Sample], truth: Truth | None = None) -> None:
        """Start with the right values.

        Samples have the right value of every tensor in question. The truth computes those of a part's outputs from its
        inputs, where that can be done.
        """
        self.truth = truth
        self.engine, self.graph = engine, engine.graph
        self.samples = [{name: self._cast_to_candidate(name, sample[name]) for name in sample} for sample in samples]
        self.right = samples
        self.runs = 0

    def _cast_to_candidate(self, name: str, array: Array) -> Array:
        """Return a right value in the type that the candidate's tensor has."""
        dtype = value_dtype(self.graph.values[name])
        if dtype and "float" in dtype and array.dtype.name in FLOAT_DTYPES and array.dtype.name != dtype:
            with np.errstate(over="ignore"):  # of what overflows there, the candidate is to blame
                return array.astype(numpy_dtype(dtype))
        return array

    def compute_part(self, part: GraphPart, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return what the candidate makes of a part; None if it cannot be computed by itself."""
        self.runs += 1
        try:
            return self.engine.compute_tensors(part.outputs, {name: feeds[name] for name in part.inputs})
        except (TrtdxError, KeyError, ValueError):
            return None

    def fails(self, part: GraphPart) -> bool:
        """Whether a part goes wrong with one of the samples."""
        if self.runs >= MOST_RUNS:
            return False
        return any(self._worst_error(part, at) is not None for at in range(len(self.samples)))

    def _worst_error(self, part: GraphPart, sample: int) -> tuple[float, float] | None:
        """Return how far off a part is with a sample, and what is allowed; None if it is right."""
        computed, right = self.compute_part(part, self.samples[sample]), self.right[sample]
        if computed is None:
            return None
        errors = [measure_error(right[name], computed[name]) for name in part.outputs if name in right]
        bad = [error[1:] for error in errors if error[0]]
        return max(bad) if bad else None

    def first_wrong_node(self, nodes: Sequence[int]) -> int | None:
        """Return the first of some operations whose result differs, all of them computed at once."""
        first_nodes: list[int] = []
        names = {str(value.name): at for at in nodes for value in self.graph.nodes[at].outputs if value.name}
        for right, feeds in zip(self.right, self.samples, strict=True):
            there = [name for name in names if name in right]
            entering = _entering_names(self.graph, nodes)
            computed = self.compute_part(GraphPart(tuple(nodes), entering, tuple(there)), feeds)
            if computed is not None:
                bad = (names[name] for name in there if measure_error(right[name], computed[name])[0])
                first_nodes += list(islice(bad, 1))
        return min(first_nodes, default=None)

    def reduce_nodes(self, nodes: Sequence[int]) -> PartCase | None:
        """Return the smallest part of some operations that fails; None if none does."""
        last = self._last_failing_node(nodes)
        if last is None:
            return None
        part = self._shortest_part(part_ending_in(self.graph, [at for at in nodes if at <= last], last))
        if len(part.nodes) > 1:
            inner = [at for at in part.nodes if at != last]
            needed = minimal_subset(inner, lambda some: self.fails(part_ending_in(self.graph, some, last)))
            smaller = part_ending_in(self.graph, needed, last)
            part = smaller if len(smaller.nodes) < len(part.nodes) and self.fails(smaller) else part
        return self.failing_case(part)

    def _last_failing_node(self, nodes: Sequence[int]) -> int | None:
        """Return the operation a failing part ends in: the first wrong one, or the first of which all before it fails.

        Watching changes what is fused, so what differs when everything is watched may be right alone.
        """
        first = self.first_wrong_node(nodes)
        if first is not None and self._fails_up_to(nodes, first):
            return first
        ends = [at for at in nodes if self._has_right_value(at)]
        if not ends or not self._fails_up_to(nodes, ends[-1]):
            return None
        return ends[bisect_left(ends[:-1], True, key=lambda end: self._fails_up_to(nodes, end))]

    def _has_right_value(self, node: int) -> bool:
        return any(value.name in self.right[0] for value in self.graph.nodes[node].outputs)

    def _fails_up_to(self, nodes: Sequence[int], last: int) -> bool:
        return self.fails(part_ending_in(self.graph, [at for at in nodes if at <= last], last))

    def _shortest_part(self, part: GraphPart) -> GraphPart:
        """Return a part with as few operations before its last as still fail; one alone is tried first."""
        last, nodes = part.nodes[-1], part.nodes
        alone = part_ending_in(self.graph, (), last)
        if self.fails(alone):
            return alone

        def with_last(count: int) -> GraphPart:
            return part_ending_in(self.graph, nodes[-count:], last)

        return with_last(bisect_left(range(len(nodes)), True, 2, key=lambda count: self.fails(with_last(count))))

    def failing_case(self, part: GraphPart) -> PartCase | None:
        """Return a part with the first sample that fails; of several, one is enough."""
        for at, sample in enumerate(self.samples):
            worst = self._worst_error(part, at)
            if worst is not None:
                inputs = {name: sample[name] for name in part.inputs}
                expected = {name: self.right[at][name] for name in part.outputs if name in self.right[at]}
                return PartCase(part, [inputs], [expected], *worst, self.runs, at)
        return None

    def small_case(self, part: GraphPart) -> PartCase | None:
        """Return a part with as few rows of the first sample that fails as still fail; None if all are right."""
        case = self.failing_case(part)
        return None if case is None else self.with_fewer_rows(case)

    def with_fewer_rows(self, case: PartCase) -> PartCase:
        """Return a case with inputs cut along the axes that may have any length, as far as it still fails.

        A cut counts if what is left comes out just as it did among the rest, of the candidate and of what is right.
        Where the latter cannot be asked, only what has one input is cut, or the rows of a batch.
        """
        sample = self.right[case.sample]
        right = {name: sample[name] for name in case.part.inputs}
        rows = SampleRows(case.inputs[0], right, case.expected[0])
        for symbol in self._symbolic_dims(case.part):
            if self.truth is not None or len(case.part.inputs) == 1 or self._is_leading(case.part, symbol):
                rows = self._cut_rows(case.part, symbol, rows)
        computed = self.compute_part(case.part, rows.inputs)
        if computed is None:
            return case
        worst = max(measure_error(right, computed[name])[1:] for name, right in rows.expected.items())
        return PartCase(case.part, [rows.inputs], [rows.expected], *worst, self.runs, case.sample)

    def _is_leading(self, part: GraphPart, symbol: str) -> bool:
        """Whether a name of a dimension is that of first axes only."""
        shapes = [self.graph.values[name].shape or () for name in (*part.inputs, *part.outputs)]
        return all(str(dim) != symbol for shape in shapes for dim in list(shape)[1:])

    def _symbolic_dims(self, part: GraphPart) -> list[str]:
        dims = (dim for name in part.inputs for dim in self.graph.values[name].shape or ())
        return list(dict.fromkeys(str(dim) for dim in dims if not isinstance(dim, int)))

    def _cut_rows(self, part: GraphPart, symbol: str, rows: SampleRows) -> SampleRows:
        inputs = rows.inputs
        length = max((size for name in inputs for _, size in self._symbol_axes(name, symbol, inputs[name])), default=0)
        first, end = 0, length
        while end - first > 1:
            middle = (first + end) // 2
            halves = ((first, middle), (middle, end))
            failing_half = next((half for half in halves if self._is_same_when_cut(part, symbol, half, rows)), None)
            if failing_half is None:
                break
            first, end = failing_half
        return rows if (first, end) == (0, length) else self._slice_rows(rows, symbol, first, end)

    def _slice_rows(self, rows: SampleRows, symbol: str, first: int, end: int) -> SampleRows:
        return SampleRows(*(self._slice_arrays(arrays, symbol, first, end) for arrays in rows))

    def _is_same_when_cut(self, part: GraphPart, symbol: str, span: tuple[int, int], rows: SampleRows) -> bool:
        less = self._slice_rows(rows, symbol, *span)
        before_cut, computed = self.compute_part(part, rows.inputs), self.compute_part(part, less.inputs)
        if computed is None or before_cut is None or self.runs > 2 * MOST_RUNS:
            return False
        before = self._slice_arrays(before_cut, symbol, *span)
        is_cut = all(before[name].shape != before_cut[name].shape for name in computed)
        if not is_cut or _has_differences(before, computed):
            return False
        return _has_differences(less.expected, computed) and self._stays_right(part, less)

    def _stays_right(self, part: GraphPart, less: SampleRows) -> bool:
        """Whether what should come out of fewer rows is what should come out of them among the rest."""
        if self.truth is None:
            return True
        try:
            computed = self.truth(part.outputs, less.right)
        except (TrtdxError, KeyError, ValueError):
            return False
        return not _has_differences(less.expected, computed)

    def _slice_arrays(self, arrays: Mapping[str, Array], symbol: str, first: int, end: int) -> dict[str, Array]:
        sliced = {}
        for name, array in arrays.items():
            index = [slice(None)] * array.ndim
            for axis, _ in self._symbol_axes(name, symbol, array):
                index[axis] = slice(first, end)
            sliced[name] = array[tuple(index)]
        return sliced

    def _symbol_axes(self, name: str, symbol: str, array: Array) -> list[tuple[int, int]]:
        dims = self.graph.values[name].shape
        if dims is None or len(dims) != array.ndim:
            return []
        return [(axis, array.shape[axis]) for axis, dim in enumerate(dims) if str(dim) == symbol]


def _entering_names(graph: OnnxGraph, nodes: Sequence[int]) -> tuple[str, ...]:
    """Return what enters some operations."""
    inside = set(nodes)
    read = dict.fromkeys(value for at in nodes for value in graph.reads[at])
    return tuple(
        str(value.name)
        for value in read
        if graph.kind(value) is not ValueKind.CONSTANT and graph.producers.get(value, -1) not in inside
    )


def tensor_names(graph: OnnxGraph, nodes: Sequence[int]) -> list[str]:
    """Return every tensor in question: what enters some operations, and what each makes."""
    outputs = [str(value.name) for at in nodes for value in graph.nodes[at].outputs if value.name]
    return list(dict.fromkeys((*_entering_names(graph, nodes), *outputs)))
