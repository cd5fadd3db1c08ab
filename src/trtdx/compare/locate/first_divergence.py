"""Where two runs first go wrong: the first tensor in data-flow order, what was still good there, and what it poisons.

    located = locate(judged, reference, candidate, runs=runs, align=align)

A verdict from local replays points at the operation itself. Any other is a suspicion, and the suspect's module is
replayed with the candidate's inputs, where the reference can be: healthy then, it was poisoned or is amplified noise,
and the next suspect has its turn. Where the captures are too coarse to tell a module's parts apart, both sides are run
again with taps inside that module alone. Runs are counted, and there are never more than MOST_RUNS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.judge.envelope import Runs
from trtdx.compare.judge.module_replay import Replays
from trtdx.compare.judge.verdict import IN_GRAPH, LOCAL, judge
from trtdx.compare.layer_paths import layer_of, layers_in
from trtdx.compare.locate.data_flow import Flow, cache_of, is_inside, layer_of_pair, place_of
from trtdx.compare.locate.segments import SegmentRuns, replayed_side
from trtdx.compare.nouns import Judged, Verdict, Where
from trtdx.compare.sides.side import BORDERS, EVERYTHING, open_side
from trtdx.errors import TrtdxError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.compare.nouns import Pair
    from trtdx.compare.sides.side import Side

    Align = Callable[[Side, Side], Sequence[Pair]]

MOST_RUNS = 8
MOST_NAMED = 64
MOST_GOOD = 8


class Located(NamedTuple):
    """Where a comparison first goes wrong."""

    where: Where | None  # none where nothing is wrong
    first: Judged | None  # the verdict on that tensor
    still_good: tuple[str, ...]  # what it was computed from, and was healthy
    poisoned: tuple[str, ...]  # what is wrong because of it, in data-flow order
    judged: list[Judged]  # all verdicts, as they are after this
    segment_runs: int  # how often a model or a part of one was run to find the place
    notes: tuple[str, ...] = ()  # what is to be known about how it was found
    inner: tuple[Judged, ...] = ()  # verdicts on tensors that only finer taps showed
    finer: tuple[Side, Side] | None = None  # the two sides that these are of


def locate(
    judged: Sequence[Judged], reference: Side, candidate: Side, *, runs: Runs, align: Align | None = None
) -> Located:
    """Return where two sides first go wrong.

    Sides are run again with finer taps where `align` is there to pair their tensors; else coarse captures stay as they are.
    """
    search = _Search(list(judged), reference, candidate, runs, align)
    return search.located()


class _Search:
    """The search for one place."""

    def __init__(
        self, judged: list[Judged], reference: Side, candidate: Side, runs: Runs, align: Align | None
    ) -> None:
        self.flow = Flow(result.pair for result in judged)
        self.judged = sorted(judged, key=lambda result: self.flow.at(result.pair))
        self.reference, self.candidate, self.runs, self.align = reference, candidate, runs, align
        self.notes: list[str] = []
        self.inner: list[Judged] = []
        self.finer: tuple[Side, Side] | None = None

    def located(self) -> Located:
        first = self._first()
        if first is not None:
            first = self._where_it_counts(first)
        if first is None:
            return Located(None, None, (), (), self.judged, self.runs.segment_runs, tuple(self.notes))
        flow = self.flow
        finer = self._refined(first)
        if finer is not None:
            first, flow = finer
        good = self._still_good(first, flow)
        where = Where(
            step=first.pair.step,
            tensor=first.pair.name,
            module=flow.module_of(first.pair),
            layer=layer_of_pair(first.pair),
            rank=first.pair.candidate.first.rank,
            tokens=first.tokens,
        )
        self._poison(first)
        poisoned = (result.pair.name for result in self.judged if result.verdict is Verdict.POISONED)
        names = tuple(pair.name for pair in good[-MOST_GOOD:]), tuple(dict.fromkeys(poisoned))[:MOST_NAMED]
        runs, notes = self.runs.segment_runs, tuple(self.notes)
        return Located(where, first, *names, self.judged, runs, notes, tuple(self.inner), self.finer)

    def _first(self) -> Judged | None:
        """Return the first that is wrong and stays so when its module is replayed."""
        replays = Replays(self.reference, self.candidate, self.runs)
        ill: set[int] = set()
        try:
            for number, result in enumerate(self.judged):
                if result.verdict in (Verdict.WRONG, Verdict.POISONED):
                    ill.add(number)
                if result.verdict is not Verdict.WRONG:
                    continue
                if not result.basis.startswith(("honest", "error model")) or self._spent:
                    return result
                again = replays.confirmed(result, self.flow, ill)
                if again is None:
                    return result
                self.judged[number] = again
                if again.verdict is Verdict.WRONG:
                    return again
        finally:
            replays.close()
            self.notes += replays.notes
        return None

    def _where_it_counts(self, first: Judged) -> Judged:
        """Return the same tensor where a layer takes it: rotary embeddings only look at its type."""
        place = place_of(first.pair)
        if place.port != "in" or "rotary" not in place.path.rpartition(".")[2]:
            return first
        values_hash = first.pair.candidate.first.statistics.hash
        for result in self.judged:
            same = (
                result.pair.step == first.pair.step
                and result.pair.candidate.first.statistics.hash == values_hash
            )
            if same and "rotary" not in place_of(result.pair).path and result.verdict is not Verdict.NOISE:
                return result._replace(verdict=Verdict.WRONG)
        return first

    @property
    def _spent(self) -> bool:
        return self.runs.segment_runs >= MOST_RUNS

    def _still_good(self, first: Judged, flow: Flow) -> list[Pair]:
        verdicts = {id(result.pair): result.verdict for result in (*self.judged, *self.inner)}
        before = [
            pair
            for pair in flow.before(first.pair)
            if verdicts.get(id(pair)) in (Verdict.SAME, Verdict.NOISE)
        ]
        by_hash: dict[str, Pair] = {}
        for pair in before:
            by_hash.setdefault(pair.reference.first.statistics.hash, pair)
        return list(by_hash.values())

    def _poison(self, first: Judged) -> None:
        """Mark what is wrong after the first as poisoned by it, unless its own operation is wrong as well."""
        begun = False
        for number, result in enumerate(self.judged):
            is_first = (result.pair.name, result.pair.step) == (first.pair.name, first.pair.step)
            begun |= result.pair.step > first.pair.step or is_first
            own_mistake = is_first or result.basis in (LOCAL, IN_GRAPH)
            if begun and result.verdict is Verdict.WRONG and not own_mistake:
                self.judged[number] = result._replace(verdict=Verdict.POISONED)

    def _refined(self, first: Judged) -> tuple[Judged, Flow] | None:
        """Return the first wrong tensor inside a part of the model that the captures show from outside only."""
        if self.align is None or not (self.reference.spec.is_model and self.candidate.spec.is_model):
            return None
        segment = self._segment(first)
        if segment is None:
            return None
        replayed = self._replayed_inside(first, segment)
        if replayed is not None:
            return replayed
        try:
            sides = [self._finer(side, segment) for side in (self.reference, self.candidate)]
            return self._judged_inside(segment, *sides)
        except TrtdxError as err:
            self.notes.append(f"{segment.text} could not be looked into: {err}")
            return None

    def _replayed_inside(self, first: Judged, segment: Segment) -> tuple[Judged, Flow] | None:
        """Return the first wrong tensor inside a module that can be computed from its captured inputs alone."""
        if not (segment.module and self.runs.possible):
            return None
        step, counted = first.pair.step, self.runs.segment_runs
        try:
            reference = self._replayed(self.reference, segment, step)
            candidate = self._replayed(self.candidate, segment, step)
            folder = self.runs.folder / f"inside-replay-{self.runs.segment_runs}"
            runs = SegmentRuns(self.runs, reference, candidate, folder, segment.module, step)
            refined = self._wrong_inside(runs, reference, candidate)
        except (TrtdxError, RuntimeError):  # of torch, which was given what it does not take
            self.runs.segment_runs = counted
            return None
        if refined is not None:
            self.notes.append(f"{segment.text} was computed again from its inputs, with taps inside")
        return refined

    def _replayed(self, side: Side, segment: Segment, step: int) -> Side:
        self.runs.segment_runs += 1
        folder = self.runs.folder / f"replay-{self.runs.segment_runs}"
        return replayed_side(side, segment.module, segment.selector, step, folder)

    def _segment(self, first: Judged) -> Segment | None:
        """Return the part of the model between what was last good and what is wrong, if it hides anything."""
        module = self.flow.module_of(first.pair)
        layer = layer_of(f"{module}.") if module else None
        if layer is None and (cache := cache_of(first.pair)):
            layer = int(cache.split(".")[0])
        if layer is not None and self._is_open(first.pair.step, layer):
            return self._closed_module(module)
        hidden = self._hidden(module if layer is None else "")
        if layer is None and any(is_inside(path, module) for path in hidden if module):
            return Segment(module, 0, 0)
        before = [
            number
            for pair in self.flow.pairs[: self.flow.at(first.pair)]
            if pair.step == first.pair.step and (number := layer_of_pair(pair)) is not None
        ]
        last = layers_in(f"{path}." for path in hidden) if layer is None else layer + 1
        begin = max((number for number in before if number < last - (layer is not None)), default=-1) + 1
        containers = (container_of(path, last - 1) for path in hidden)
        container = next((path for path in containers if path), "")
        return Segment(container, begin, last) if container and begin < last else None

    def _closed_module(self, module: str) -> Segment | None:
        """Return a part of a layer that has parts itself of which none was captured."""
        if self.reference.capture.header.selector in (BORDERS, EVERYTHING) or not module:
            return None
        is_captured = any(is_inside(place_of(pair).path, module) for pair in self.flow.pairs)
        hides = not is_captured and any(is_inside(path, module) for path in self._hidden(module))
        return Segment(module, 0, 0) if hides else None

    def _is_open(self, step: int, layer: int) -> bool:
        """Whether something inside a layer was captured."""
        return any(
            pair.step == step
            and layer_of(path := place_of(pair).path) == layer
            and not path.endswith(f".{layer}")
            for pair in self.flow.pairs
        )

    def _hidden(self, until: str) -> list[str]:
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

    def _finer(self, side: Side, segment: Segment) -> Side:
        """Return a side run again with taps at all borders in one segment."""
        runs = self.runs
        runs.segment_runs += 1
        folder, forced = runs.folder / f"segment-{runs.segment_runs}", self.reference.tokens() or None
        return open_side(
            runs.host, side.spec, runs.question, folder, forced=forced, selector=segment.selector
        )

    def _judged_inside(
        self, segment: Segment, reference: Side, candidate: Side
    ) -> tuple[Judged, Flow] | None:
        folder = self.runs.folder / f"inside-{self.runs.segment_runs}"
        runs = Runs(
            self.runs.host, self.runs.question, folder, reference, candidate, selector=segment.selector
        )
        self.notes.append(f"{segment.text} was run again with taps inside")
        return self._wrong_inside(runs, reference, candidate)

    def _wrong_inside(self, runs: Runs, reference: Side, candidate: Side) -> tuple[Judged, Flow] | None:
        assert self.align is not None
        pairs = list(self.align(reference, candidate))
        self.inner = judge(pairs, reference, candidate, runs=runs, only_local=True)
        self.finer = reference, candidate
        self.runs.segment_runs += len(runs.made)
        wrong = next((result for result in self.inner if result.verdict is Verdict.WRONG), None)
        return (wrong, Flow(result.pair for result in self.inner)) if wrong is not None else None


class Segment(NamedTuple):
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


def container_of(path: str, layer: int) -> str:
    """Return what holds the layers, if a path is of this layer: "model.layers"."""
    head, dot, _ = f"{path}.".partition(f".{layer}.")
    return head if dot and layer_of(path) == layer else ""
