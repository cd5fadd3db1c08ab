"""Where two runs first go wrong: the first tensor in data-flow order, what was still good there, and what it poisons.

    located = locate(judged, reference, candidate, runs=runs, align=align)

A verdict from local replays points at the operation itself. Any other is a suspicion, and the suspect's module is
replayed with the candidate's inputs, where the reference can be: healthy then, it was poisoned or is amplified noise,
and the next suspect has its turn. Where the captures are too coarse to tell a module's parts apart, both sides are run
again with taps inside that module alone. Runs are counted, and there are never more than MOST_RUNS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.align.data_flow import DataFlow, cache_part, is_inside, pair_layer, reference_place
from trtdx.compare.judge.honest_runs import ReferenceRuns
from trtdx.compare.judge.module_replay import ModuleReplays
from trtdx.compare.judge.verdict import GRAPH_BASIS, LOCAL_BASIS, judge_pairs
from trtdx.compare.layer_paths import count_layers, layer_number
from trtdx.compare.locate.segment_runs import SegmentRuns, replay_side_module
from trtdx.compare.nouns import JudgedPair, PairVerdict, Where
from trtdx.compare.sides.side import ALL_TENSORS, MODULE_BORDERS, open_side
from trtdx.errors import TrtdxError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.compare.nouns import TensorPair
    from trtdx.compare.sides.side import Side

    Align = Callable[[Side, Side], Sequence[TensorPair]]

MOST_RUNS = 8
MOST_NAMED = 64
MOST_GOOD = 8


class FirstDivergence(NamedTuple):
    """Where a comparison first goes wrong."""

    where: Where | None  # none where nothing is wrong
    first: JudgedPair | None  # the verdict on that tensor
    still_good: tuple[str, ...]  # what it was computed from, and was healthy
    poisoned: tuple[str, ...]  # what is wrong because of it, in data-flow order
    judged: list[JudgedPair]  # all verdicts, as they are after this
    segment_runs: int  # how often a model or a part of one was run to find the place
    notes: tuple[str, ...] = ()  # what is to be known about how it was found
    inner_verdicts: tuple[JudgedPair, ...] = ()  # verdicts on tensors that only finer taps showed
    finer_sides: tuple[Side, Side] | None = None  # the two sides that these are of


def locate_first_divergence(
    judged: Sequence[JudgedPair],
    reference: Side,
    candidate: Side,
    *,
    runs: ReferenceRuns,
    align: Align | None = None,
) -> FirstDivergence:
    """Return where two sides first go wrong.

    Sides are run again with finer taps where `align` is there to pair their tensors; else coarse captures stay as they are.
    """
    search = _DivergenceSearch(list(judged), reference, candidate, runs, align)
    return search.search()


class _DivergenceSearch:
    """The search for one place."""

    def __init__(
        self,
        judged: list[JudgedPair],
        reference: Side,
        candidate: Side,
        runs: ReferenceRuns,
        align: Align | None,
    ) -> None:
        self.flow = DataFlow(result.pair for result in judged)
        self.judged = sorted(judged, key=lambda result: self.flow.order_of(result.pair))
        self.reference, self.candidate, self.runs, self.align = reference, candidate, runs, align
        self.notes: list[str] = []
        self.inner_verdicts: list[JudgedPair] = []
        self.finer_sides: tuple[Side, Side] | None = None

    def search(self) -> FirstDivergence:
        first = self._first_confirmed()
        if first is not None:
            first = self._skip_rotary_input(first)
        if first is None:
            return FirstDivergence(None, None, (), (), self.judged, self.runs.segment_runs, tuple(self.notes))
        flow = self.flow
        finer = self._refine_inside(first)
        if finer is not None:
            first, flow = finer
        good = self._good_before(first, flow)
        where = Where(
            step=first.pair.step,
            tensor=first.pair.name,
            module=flow.module_of(first.pair),
            layer=pair_layer(first.pair),
            rank=first.pair.candidate.first.rank,
            tokens=first.tokens,
        )
        self._mark_poisoned(first)
        poisoned = (result.pair.name for result in self.judged if result.verdict is PairVerdict.POISONED)
        names = tuple(pair.name for pair in good[-MOST_GOOD:]), tuple(dict.fromkeys(poisoned))[:MOST_NAMED]
        runs, notes = self.runs.segment_runs, tuple(self.notes)
        return FirstDivergence(
            where, first, *names, self.judged, runs, notes, tuple(self.inner_verdicts), self.finer_sides
        )

    def _first_confirmed(self) -> JudgedPair | None:
        """Return the first that is wrong and stays so when its module is replayed."""
        replays = ModuleReplays(self.reference, self.candidate, self.runs)
        ill: set[int] = set()
        try:
            for number, result in enumerate(self.judged):
                if result.verdict in (PairVerdict.WRONG, PairVerdict.POISONED):
                    ill.add(number)
                if result.verdict is not PairVerdict.WRONG:
                    continue
                if not result.basis.startswith(("honest", "error model")) or self._is_spent:
                    return result
                again = replays.replay_suspect(result, self.flow, ill)
                if again is None:
                    return result
                self.judged[number] = again
                if again.verdict is PairVerdict.WRONG:
                    return again
        finally:
            replays.close()
            self.notes += replays.notes
        return None

    def _skip_rotary_input(self, first: JudgedPair) -> JudgedPair:
        """Return the same tensor where a layer takes it: rotary embeddings only look at its type."""
        place = reference_place(first.pair)
        if place.port != "in" or "rotary" not in place.path.rpartition(".")[2]:
            return first
        values_hash = first.pair.candidate.first.statistics.hash
        for result in self.judged:
            same = result.pair.step == first.pair.step and result.pair.candidate.first.statistics.hash == values_hash
            if same and "rotary" not in reference_place(result.pair).path and result.verdict is not PairVerdict.NOISE:
                return result._replace(verdict=PairVerdict.WRONG)
        return first

    @property
    def _is_spent(self) -> bool:
        return self.runs.segment_runs >= MOST_RUNS

    def _good_before(self, first: JudgedPair, flow: DataFlow) -> list[TensorPair]:
        verdicts = {id(result.pair): result.verdict for result in (*self.judged, *self.inner_verdicts)}
        before = [
            pair
            for pair in flow.computed_from(first.pair)
            if verdicts.get(id(pair)) in (PairVerdict.SAME, PairVerdict.NOISE)
        ]
        by_hash: dict[str, TensorPair] = {}
        for pair in before:
            by_hash.setdefault(pair.reference.first.statistics.hash, pair)
        return list(by_hash.values())

    def _mark_poisoned(self, first: JudgedPair) -> None:
        """Mark what is wrong after the first as poisoned by it, unless its own operation is wrong as well."""
        begun = False
        for number, result in enumerate(self.judged):
            is_first = (result.pair.name, result.pair.step) == (first.pair.name, first.pair.step)
            begun |= result.pair.step > first.pair.step or is_first
            own_mistake = is_first or result.basis in (LOCAL_BASIS, GRAPH_BASIS)
            if begun and result.verdict is PairVerdict.WRONG and not own_mistake:
                self.judged[number] = result._replace(verdict=PairVerdict.POISONED)

    def _refine_inside(self, first: JudgedPair) -> tuple[JudgedPair, DataFlow] | None:
        """Return the first wrong tensor inside a part of the model that the captures show from outside only."""
        if self.align is None or not (self.reference.spec.is_model and self.candidate.spec.is_model):
            return None
        segment = self._hidden_segment(first)
        if segment is None:
            return None
        replayed = self._refine_by_replay(first, segment)
        if replayed is not None:
            return replayed
        try:
            sides = [self._rerun_segment(side, segment) for side in (self.reference, self.candidate)]
            return self._refine_by_rerun(segment, *sides)
        except TrtdxError as err:
            self.notes.append(f"{segment.text} could not be looked into: {err}")
            return None

    def _refine_by_replay(self, first: JudgedPair, segment: ModelSegment) -> tuple[JudgedPair, DataFlow] | None:
        """Return the first wrong tensor inside a module that can be computed from its captured inputs alone."""
        if not (segment.module and self.runs.can_rerun):
            return None
        step, counted = first.pair.step, self.runs.segment_runs
        try:
            reference = self._replay_side(self.reference, segment, step)
            candidate = self._replay_side(self.candidate, segment, step)
            folder = self.runs.folder / f"inside-replay-{self.runs.segment_runs}"
            runs = SegmentRuns(self.runs, reference, candidate, folder, segment.module, step)
            refined = self._first_wrong_inside(runs, reference, candidate)
        except (TrtdxError, RuntimeError):  # of torch, which was given what it does not take
            self.runs.segment_runs = counted
            return None
        if refined is not None:
            self.notes.append(f"{segment.text} was computed again from its inputs, with taps inside")
        return refined

    def _replay_side(self, side: Side, segment: ModelSegment, step: int) -> Side:
        self.runs.segment_runs += 1
        folder = self.runs.folder / f"replay-{self.runs.segment_runs}"
        return replay_side_module(side, segment.module, segment.selector, step, folder)

    def _hidden_segment(self, first: JudgedPair) -> ModelSegment | None:
        """Return the part of the model between what was last good and what is wrong, if it hides anything."""
        module = self.flow.module_of(first.pair)
        layer = layer_number(f"{module}.") if module else None
        if layer is None and (cache := cache_part(first.pair)):
            layer = int(cache.split(".")[0])
        if layer is not None and self._is_layer_captured(first.pair.step, layer):
            return self._closed_module(module)
        hidden = self._uncaptured_modules(module if layer is None else "")
        if layer is None and any(is_inside(path, module) for path in hidden if module):
            return ModelSegment(module, 0, 0)
        before = [
            number
            for pair in self.flow.pairs[: self.flow.order_of(first.pair)]
            if pair.step == first.pair.step and (number := pair_layer(pair)) is not None
        ]
        last = count_layers(f"{path}." for path in hidden) if layer is None else layer + 1
        begin = max((number for number in before if number < last - (layer is not None)), default=-1) + 1
        containers = (layer_container(path, last - 1) for path in hidden)
        container = next((path for path in containers if path), "")
        return ModelSegment(container, begin, last) if container and begin < last else None

    def _closed_module(self, module: str) -> ModelSegment | None:
        """Return a part of a layer that has parts itself of which none was captured."""
        if self.reference.capture.header.selector in (MODULE_BORDERS, ALL_TENSORS) or not module:
            return None
        is_captured = any(is_inside(reference_place(pair).path, module) for pair in self.flow.pairs)
        hides = not is_captured and any(is_inside(path, module) for path in self._uncaptured_modules(module))
        return ModelSegment(module, 0, 0) if hides else None

    def _is_layer_captured(self, step: int, layer: int) -> bool:
        """Whether something inside a layer was captured."""
        return any(
            pair.step == step
            and layer_number(path := reference_place(pair).path) == layer
            and not path.endswith(f".{layer}")
            for pair in self.flow.pairs
        )

    def _uncaptured_modules(self, until: str) -> list[str]:
        """Return the modules of the reference that were not captured, and are computed before one that is."""
        engine = self.reference.spec.open("")
        try:
            paths = dict.fromkeys(place.path for place in engine.places() if not place.tensor and place.path)
        finally:
            engine.close()
        capture = self.reference.capture
        captured = {place.path for rank in capture.ranks for place in capture.files(rank).places}
        before = list(paths)[: list(paths).index(until) + 1] if until in paths else list(paths)
        return [path for path in paths if path not in captured and (path in before or is_inside(path, until))]

    def _rerun_segment(self, side: Side, segment: ModelSegment) -> Side:
        """Return a side run again with taps at all borders in one segment."""
        runs = self.runs
        runs.segment_runs += 1
        folder, forced = runs.folder / f"segment-{runs.segment_runs}", self.reference.step_tokens() or None
        return open_side(runs.host, side.spec, runs.question, folder, forced=forced, selector=segment.selector)

    def _refine_by_rerun(
        self, segment: ModelSegment, reference: Side, candidate: Side
    ) -> tuple[JudgedPair, DataFlow] | None:
        folder = self.runs.folder / f"inside-{self.runs.segment_runs}"
        runs = ReferenceRuns(
            self.runs.host, self.runs.question, folder, reference, candidate, selector=segment.selector
        )
        self.notes.append(f"{segment.text} was run again with taps inside")
        return self._first_wrong_inside(runs, reference, candidate)

    def _first_wrong_inside(
        self, runs: ReferenceRuns, reference: Side, candidate: Side
    ) -> tuple[JudgedPair, DataFlow] | None:
        assert self.align is not None
        pairs = list(self.align(reference, candidate))
        self.inner_verdicts = judge_pairs(pairs, reference, candidate, runs=runs, only_local=True)
        self.finer_sides = reference, candidate
        self.runs.segment_runs += len(runs.run_names)
        wrong = next((result for result in self.inner_verdicts if result.verdict is PairVerdict.WRONG), None)
        return (wrong, DataFlow(result.pair for result in self.inner_verdicts)) if wrong is not None else None


class ModelSegment(NamedTuple):
    """A part of a model: a module, or layers of a container from one to another."""

    path: str
    begin: int
    end: int  # not in it; 0 where the path is a module itself

    @property
    def selector(self) -> str:
        """All borders in it. A path is matched from its end, so that other wrappers do no harm."""
        path = f"{self.path}[{self.begin}:{self.end}]" if self.end else self.path
        return f"{path}:* & is:module, {path}.**:* & is:module"

    @property
    def module(self) -> str:
        """The module that it is, where it is one."""
        if not self.end:
            return self.path
        return f"{self.path}.{self.begin}" if self.end - self.begin == 1 else ""

    @property
    def text(self) -> str:
        if not self.end:
            return self.path
        return f"{self.path}.{self.begin}" + (f" to {self.end - 1}" if self.end - self.begin > 1 else "")


def layer_container(path: str, layer: int) -> str:
    """Return what holds the layers, if a path is of this layer: "model.layers"."""
    head, dot, _ = f"{path}.".partition(f".{layer}.")
    return head if dot and layer_number(path) == layer else ""
