"""One module of both sides computed again with taps inside it, from the inputs that were captured of it.

Nothing else of the models is computed. Where that cannot be done (its inputs were not captured, the engine cannot
compute parts), the caller runs the models as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.capture.session.recorder import Recorder
from trtdx.capture.session.replay import replay_module
from trtdx.capture.session.selection import CaptureSelection
from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.writer import CaptureWriter
from trtdx.compare.judge.honest_runs import ReferenceRuns
from trtdx.compare.sides.side import ALL_TENSORS, Side
from trtdx.tensors.statistics import source_from_array
from trtdx.tensors.taps import parse_selector

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtdx.capture.store.reader import Capture
    from trtdx.compare.sides.side import ComparisonQuestion
    from trtdx.engines.engine import Array, Engine


def replay_side_module(side: Side, scope: str, selector: str, step: int, folder: Path) -> Side:
    """Return a capture of one module of a side, computed alone from its captured inputs.

    The side has values of what enters the module, and a model. The scope is the module's path, or its end.

    Raises:
        TrtdxError: it cannot be computed alone.
    """
    engine = side.spec.open(selector)
    try:
        _replay_into(engine, side.capture, scope, step, folder)
    finally:
        engine.close()
    return Side(side.spec, folder)


def _replay_into(engine: Engine, capture: Capture, scope: str, step: int, folder: Path) -> None:
    header = CaptureHeader(run=f"replay of {scope}", engine=engine.kind, selector=scope, details=capture.header.details)
    with CaptureWriter(folder, header, parquet=False) as writer:
        _copy_model_inputs(capture, writer, step)
        engine.sink = Recorder(writer, CaptureSelection(values=parse_selector(ALL_TENSORS)), engine.places())
        replay_module(capture, _CastingEngine(engine), scope, step=step)  # type: ignore[arg-type]


def _copy_model_inputs(capture: Capture, writer: CaptureWriter, step: int) -> None:
    """Copy what the model was fed at a step: it tells which row is which token."""
    rank = capture.ranks[0]
    for note in capture.notes(rank=rank):
        writer.note(note.step, note.data)
    for record in capture.records(step=step, rank=rank):
        if not record.place.path and record.place.port == "in" and record.kept:
            writer.add(step, record.place, source_from_array(capture.values(record)), values=True)


class _CastingEngine:
    """An engine whose floating-point inputs are cast to the type of its weights, if it is torch's."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def replay(self, scope: str, inputs: Mapping[str, Array], *, step: int = 0) -> Any:
        if self._engine.kind == "torch":
            parameters = self._engine.model.parameters()
            dtype = next((weight.dtype for weight in parameters if weight.is_floating_point()), None)
            inputs = {name: _cast_array(array, dtype) for name, array in inputs.items()}
        return self._engine.replay(scope, inputs, step=step)


def _cast_array(array: Array, dtype: Any) -> Any:
    from trtdx.engines.torch.values import tensor_from_array

    tensor = tensor_from_array(array, "cpu")
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


class SegmentRuns(ReferenceRuns):
    """Runs of one module of the reference instead of the whole: only local ones, which need no more."""

    def __init__(self, around: ReferenceRuns, reference: Side, candidate: Side, folder: Path, scope: str, step: int):
        """Plan runs."""
        super().__init__(around.host, around.question, folder, reference, candidate, selector=f"{scope}, {scope}.**")
        self._model_side, self._scope, self._step = around.reference, scope, step

    def _into(self, engine: Any, question: ComparisonQuestion, name: str, forced: list[list[int]] | None) -> None:
        engine.step = self._step + 1  # what is exchanged is told by it
        _replay_into(engine, self._model_side.capture, self._scope, self._step, self.folder / name)
