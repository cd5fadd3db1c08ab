"""One module of the reference replayed with the candidate's inputs, to tell a mistake from what came from before.

For references that cannot be computed in float64, such as ONNX files: the module is computed in its own precision, and
what one module's rounding may do is expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.capture.session.replay import replay_from
from trtdx.compare.judge.error_model import accumulated, coarser
from trtdx.compare.locate.data_flow import parent_of, place_of
from trtdx.compare.nouns import Verdict
from trtdx.errors import TrtdxError
from trtdx.tensors.difference import Comparer

if TYPE_CHECKING:
    from collections.abc import Collection

    from trtdx.compare.judge.envelope import Runs
    from trtdx.compare.locate.data_flow import Flow
    from trtdx.compare.nouns import Array, Judged, Pair
    from trtdx.compare.sides.side import Side
    from trtdx.engines.engine import Engine


LIMIT = 24.0  # times one rounding's share: a module is some ten operations
BASIS = "local replay of the reference's module"


class Replays:
    """Replays modules of the reference from the candidate's capture."""

    def __init__(self, reference: Side, candidate: Side, runs: Runs) -> None:
        self.notes: list[str] = []
        self._reference, self._candidate, self._runs = reference, candidate, runs
        self._engine: Engine | None = None
        self._seen: dict[tuple[int, str], list[Array] | None] = {}

    def confirmed(self, suspect: Judged, flow: Flow, ill: Collection[int]) -> Judged | None:
        """Return the verdict on a suspect after its module was replayed; none where that cannot be done.

        Args:
            suspect: what is wrong, as far as is known.
            flow: all pairs.
            ill: where in the flow those stand that are wrong already.
        """
        if not self._reference.spec.is_model:
            return None
        pair = suspect.pair
        place = place_of(pair)
        if place.port == "in":
            same = flow.handed_on(pair)
            if same is not None and flow.at(same) in ill:
                return suspect._replace(verdict=Verdict.POISONED, note=f"it is {same.name}, handed on")
        scope = place.path if place.port == "out" else parent_of(place.path)
        if place.port == "in" or not scope:
            return None
        outputs = self._replayed(scope, pair.step)
        if outputs is None or place.number >= len(outputs):
            return None
        return self._judged(suspect, pair, outputs[place.number])

    def _replayed(self, scope: str, step: int) -> list[Array] | None:
        """Return what leaves a module that is given the candidate's inputs, computed once."""
        key = step, scope
        if key not in self._seen:
            try:
                self._runs.segment_runs += 1
                done = replay_from(self._candidate.capture, self._opened(), scope, step=step)
                self._seen[key] = [output.replayed for output in done.leaving]
            except TrtdxError as err:
                self.notes.append(f"{scope} could not be replayed: {err}")
                self._seen[key] = None
        return self._seen[key]

    def _opened(self) -> Engine:
        if self._engine is None:
            self._engine = self._reference.spec.open("")
        return self._engine

    def _judged(self, suspect: Judged, pair: Pair, replayed: Array) -> Judged | None:
        captured = pair.candidate.first
        if captured.layout.elements != replayed.size or len(pair.candidate.records) > 1:
            return None
        comparer = Comparer(replayed.size)
        comparer.add(replayed, self._candidate.capture.values(captured))
        difference = comparer.result()
        dtype = coarser(pair.reference.first.layout.dtype, captured.layout.dtype)
        expected = accumulated(dtype, replayed.shape[-1] if replayed.ndim else 1)
        wrong = difference.relative_l2 > LIMIT * expected or difference.not_finite > 0
        return suspect._replace(
            observed=difference.relative_l2,
            expected=expected,
            limit=LIMIT,
            verdict=Verdict.WRONG if wrong else Verdict.POISONED,
            confidence=0.97,
            basis=BASIS,
            note="" if wrong else "right for the inputs it had",
        )

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
