"""Replays one module of the reference with the candidate's inputs, to tell a mistake from an inherited error.

For references that cannot be computed in float64, such as ONNX files: the module is computed in its own precision, and
what one module's rounding may do is expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.capture.session.replay import replay_module
from trtdx.compare.align.data_flow import parent_path, reference_place
from trtdx.compare.judge.error_model import accumulated_error, coarser_dtype
from trtdx.compare.nouns import PairVerdict
from trtdx.errors import TrtdxError
from trtdx.tensors.difference import TensorComparer

if TYPE_CHECKING:
    from collections.abc import Collection

    from trtdx.compare.align.data_flow import DataFlow
    from trtdx.compare.judge.honest_runs import ReferenceRuns
    from trtdx.compare.nouns import Array, JudgedPair, TensorPair
    from trtdx.compare.sides.side import Side
    from trtdx.engines.engine import Engine


REPLAY_LIMIT = 24.0  # times one rounding's share: a module is some ten operations
REPLAY_BASIS = "local replay of the reference's module"


class ModuleReplays:
    """Replays modules of the reference from the candidate's capture."""

    def __init__(self, reference: Side, candidate: Side, runs: ReferenceRuns) -> None:
        self.notes: list[str] = []
        self._reference, self._candidate, self._runs = reference, candidate, runs
        self._engine: Engine | None = None
        self._replayed_outputs: dict[tuple[int, str], list[Array] | None] = {}

    def replay_suspect(
        self, suspect: JudgedPair, flow: DataFlow, wrong_positions: Collection[int]
    ) -> JudgedPair | None:
        """Return the verdict on a suspect after its module was replayed; None if that cannot be done.

        Args:
            suspect: what is wrong, as far as is known.
            flow: all pairs.
            wrong_positions: where in the flow those stand that are wrong already.
        """
        if not self._reference.spec.is_model:
            return None
        pair = suspect.pair
        place = reference_place(pair)
        if place.port == "in":
            same = flow.passed_on_from(pair)
            if same is not None and flow.order_of(same) in wrong_positions:
                return suspect._replace(verdict=PairVerdict.POISONED, note=f"it is {same.name}, handed on")
        scope = place.path if place.port == "out" else parent_path(place.path)
        if place.port == "in" or not scope:
            return None
        outputs = self._replay_module(scope, pair.step)
        if outputs is None or place.number >= len(outputs):
            return None
        return self._judge_replay(suspect, pair, outputs[place.number])

    def _replay_module(self, scope: str, step: int) -> list[Array] | None:
        """Return what leaves a module that is given the candidate's inputs, computed once."""
        key = step, scope
        if key not in self._replayed_outputs:
            try:
                self._runs.segment_runs += 1
                done = replay_module(self._candidate.capture, self._open_engine(), scope, step=step)
                self._replayed_outputs[key] = [output.replayed for output in done.outputs]
            except TrtdxError as err:
                self.notes.append(f"{scope} could not be replayed: {err}")
                self._replayed_outputs[key] = None
        return self._replayed_outputs[key]

    def _open_engine(self) -> Engine:
        if self._engine is None:
            self._engine = self._reference.spec.open("")
        return self._engine

    def _judge_replay(self, suspect: JudgedPair, pair: TensorPair, replayed: Array) -> JudgedPair | None:
        captured = pair.candidate.first
        if captured.layout.elements != replayed.size or len(pair.candidate.records) > 1:
            return None
        comparer = TensorComparer(replayed.size)
        comparer.add(replayed, self._candidate.capture.values(captured))
        difference = comparer.result()
        dtype = coarser_dtype(pair.reference.first.layout.dtype, captured.layout.dtype)
        expected = accumulated_error(dtype, replayed.shape[-1] if replayed.ndim else 1)
        wrong = difference.relative_l2 > REPLAY_LIMIT * expected or difference.not_finite > 0
        return suspect._replace(
            observed=difference.relative_l2,
            expected=expected,
            limit=REPLAY_LIMIT,
            verdict=PairVerdict.WRONG if wrong else PairVerdict.POISONED,
            confidence=0.97,
            basis=REPLAY_BASIS,
            note="" if wrong else "right for the inputs it had",
        )

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
