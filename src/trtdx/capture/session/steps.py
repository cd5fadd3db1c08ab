"""A run of many steps with everything that the next step depends on in the capture: it can be cut anywhere and go on.

    session = Session(engine, writer, Recorder(writer, wanted, engine.places()))
    for step in session.generate([[1, 5, 9]], 16):   # tokens as they come, tensors on their way to the disk
        print(step.tokens)

    state = state_after(Capture(folder), 7)           # where it stood after step 7; generate() goes on from there

Each step leaves what was fed (token ids, mask, positions), what was new in the cache, and a note with the tokens
chosen and where the random numbers stand. The note comes last: a step without one was cut off and is done again.
"""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.capture.session.recorder import NotFiniteError
from trtdx.capture.session.selection import TokenPositions
from trtdx.capture.store.format import CaptureError
from trtdx.engines.generate import GenerationStep, cache_outputs_by_input, generate_tokens, initial_state
from trtdx.engines.generation_state import GenerationState, Sampling
from trtdx.tensors.statistics import source_from_array
from trtdx.tensors.taps import Place, Port, Selector, SelectorAtom, SelectorTerm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.capture.session.recorder import Recorder
    from trtdx.capture.store.reader import Capture
    from trtdx.capture.store.writer import CaptureWriter
    from trtdx.engines.engine import Array, Engine, TappedTensor
    from trtdx.tensors.feeds import ModelInput

PROMPT, PROMPT_MASK = "prompt", "prompt_mask"
CACHE = "Cache"  # the operator that what a step adds to the cache is captured under


class StepNote(msgspec.Struct, frozen=True):
    """What is noted when a step is whole."""

    tokens: list[int]  # gone on with, one of each row
    generator: tuple[str, str]  # 128 bits each: more than a JSON number holds
    cached: int
    grown: dict[str, int]  # along which axis each part of the cache grew; one not named is captured whole
    sampling: Sampling
    chosen: list[int] = []  # by the model, where that was not what it went on with
    kind: str = "step"


class CaptureSession:
    """An engine whose steps are recorded; to a generation it is an engine itself."""

    def __init__(self, engine: Engine, writer: CaptureWriter, recorder: Recorder) -> None:
        self.engine, self.writer, self.recorder = engine, writer, recorder
        self._caches: Mapping[str, str] = {}
        engine.sink = recorder

    @property
    def inputs(self) -> Mapping[str, ModelInput]:
        return self.engine.inputs

    @property
    def outputs(self) -> Sequence[str]:
        return self.engine.outputs

    @property
    def step(self) -> int:
        return self.engine.step

    @step.setter
    def step(self, number: int) -> None:
        self.engine.step = number

    def generate(
        self,
        start: GenerationState | Sequence[Sequence[int]] | Array,
        steps: int,
        *,
        sampling: Sampling | None = None,
        extra: Mapping[str, Any] | None = None,
        forced: Array | None = None,
    ) -> Iterator[GenerationStep]:
        """Yield each step of a generation when it is computed and recorded; see `engines.generate`."""
        state = start if isinstance(start, GenerationState) else initial_state(self.engine, start, sampling=sampling)
        self._caches = cache_outputs_by_input(self.engine)
        if not state.step:
            self._record_array(0, PROMPT, state.tokens)
            self._record_array(0, PROMPT_MASK, state.mask)
        for step in generate_tokens(self, state, steps, extra=extra, forced=forced):
            grown = self._record_cache_growth(step, state.past)
            state = step.state
            self.writer.note(step.number, msgspec.to_builtins(_note_from_step(step, grown)))
            self.writer.flush()
            yield step

    def compute(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Compute one step of any model, and record what comes back too."""
        number = self.step
        results = self.run(feeds)
        for name, array in results.items():
            place = Place("", "out", 0, name)
            self.writer.add(number, place, source_from_array(array), values=True, budgeted=False)
        self.writer.note(number, {"kind": "run"})
        return results

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Compute one step, what is fed in the capture; called by `generate`."""
        number = self.step
        self.recorder.begin(number, _tokens_from_feeds(feeds))
        for name, value in feeds.items():
            if name not in self._caches:
                self._record_array(number, name, value, op="Input")
        try:
            return self.engine.run(feeds)
        except NotFiniteError as err:
            if not err.has_inputs:
                self._record_inputs(err, feeds)
            raise

    def _record_array(self, step: int, name: str, array: Any, *, port: str = "in", op: str = "") -> None:
        place = Place("", port, 0, name, op, name)
        self.writer.add(step, place, source_from_array(array), values=True, budgeted=False)

    def _record_cache_growth(self, step: GenerationStep, before: Mapping[str, Array]) -> dict[str, int]:
        """Record what a step added to the cache, and return along which axis each part of it grew."""
        grown = {}
        for name, output in self._caches.items():
            now, was = step.state.past[name], before[name]
            axis = _grown_axis(was.shape, now.shape)
            if axis is not None:
                grown[name] = axis
                now = now.take(range(was.shape[axis], now.shape[axis]), axis)
            self._record_array(step.number, f"{output}:new", now, port="out", op=CACHE)
        return grown

    def _record_inputs(self, err: NotFiniteError, feeds: Mapping[str, Any]) -> None:
        """Compute the step once more to see what the operator read that gave the first NaN."""
        selector = _select_inputs_of(self.engine, err.place)
        if selector is None:
            return

        def keep(tapped: TappedTensor) -> None:
            self.writer.add(err.step, tapped.place, source_from_array(tapped.tensor), values=True)
            err.has_inputs = True

        again = self.engine.with_selector(selector, keep)
        again.step = err.step
        try:
            again.run(feeds)
        finally:
            again.close()


def _tokens_from_feeds(feeds: Mapping[str, Any]) -> TokenPositions | None:
    """Return which positions a step computes, as far as what is fed tells."""
    ids, mask = feeds.get("input_ids"), feeds.get("attention_mask")
    if ids is None:
        return None
    count = ids.shape[-1]
    return TokenPositions(mask.shape[-1] - count if mask is not None and mask.ndim == ids.ndim else 0, count)


def _note_from_step(step: GenerationStep, grown: dict[str, int]) -> StepNote:
    state = step.state
    generator = (str(state.generator[0]), str(state.generator[1]))
    forced = [] if (step.tokens == step.chosen).all() else step.chosen.tolist()
    return StepNote(step.tokens.tolist(), generator, state.cached, grown, state.sampling, forced)


def _grown_axis(was: Sequence[int], now: Sequence[int]) -> int | None:
    """Return the one axis along which a shape grew."""
    if len(was) != len(now):
        return None
    changed = [axis for axis, (before, after) in enumerate(zip(was, now, strict=True)) if before != after]
    return changed[0] if len(changed) == 1 and was[changed[0]] < now[changed[0]] else None


def _select_inputs_of(engine: Engine, place: Place) -> Selector | None:
    """Return a selector of what the operator or module behind a place reads."""
    reads = [read.tensor for read in engine.operator_inputs(place) if read.constant is None]
    if reads:
        atoms = [SelectorAtom("tensor", glob.escape(name)) for name in reads]
    elif engine.kind == "torch":
        atoms = [SelectorAtom("path", f".{place.path}", Port("in"))]
    else:
        return None
    return Selector(f"what {place.name} reads", tuple(SelectorTerm((atom,)) for atom in atoms))


def step_notes(capture: Capture, *, rank: int = 0) -> dict[int, StepNote]:
    """Return the notes of the whole steps of a generation, by their numbers."""
    notes = {note.step: note.data for note in capture.notes(rank=rank) if note.data.get("kind") == "step"}
    try:
        return {step: msgspec.convert(data, StepNote) for step, data in notes.items()}
    except msgspec.ValidationError as err:
        raise CaptureError(f"{capture.folder} has a note that is not as it should be: {err}") from err


def state_after(capture: Capture, step: int | None = None, *, caches: Mapping[str, str]) -> GenerationState:
    """Return where a recorded generation stood after a step, or after its last whole one.

    Args:
        capture: of a generation.
        step: the number of a step.
        caches: the model's cache, as `engines.generate.cache_names` tells.

    Raises:
        CaptureError: there is no such step, or what it needs was not kept.
    """
    import numpy as np

    notes = step_notes(capture)
    last = max(notes, default=-1) if step is None else step
    if any(number not in notes for number in range(last + 1)) or last < 0:
        raise CaptureError(
            f"{capture.folder} has no whole generation up to step {max(last, 0)}",
            fix=f"it has steps {min(notes)} to {max(notes)}" if notes else "start a generation anew",
        )
    chosen = np.array([notes[number].tokens for number in range(last + 1)], np.int64).T
    prompt, mask = _recorded_values(capture, PROMPT, 0), _recorded_values(capture, PROMPT_MASK, 0)
    note = notes[last]
    return GenerationState(
        tokens=np.concatenate([prompt, chosen], 1),
        mask=np.concatenate([mask, np.ones_like(chosen)], 1),
        done=np.asarray(np.isin(chosen, note.sampling.eos).any(1)),
        past={name: _cache_after(capture, name, output, notes, last) for name, output in caches.items()},
        cached=note.cached,
        step=last + 1,
        sampling=note.sampling,
        generator=(int(note.generator[0]), int(note.generator[1])),
    )


def _recorded_values(capture: Capture, name: str, step: int) -> Array:
    return capture.values(capture.record(name, step=step))


def _cache_after(capture: Capture, name: str, output: str, notes: Mapping[int, StepNote], last: int) -> Array:
    """Return a part of the cache as it was after a step: what was added since it was last captured whole."""
    import numpy as np

    first = next((step for step in range(last, -1, -1) if name not in notes[step].grown), 0)
    # Looked for once: to search the capture for each step would take longer the longer it is.
    records = {record.step: record for record in capture.records(name=f"{output}:new", rank=0) if record.kept}
    parts = [
        capture.values(records[step]) if step in records else _recorded_values(capture, f"{output}:new", step)
        for step in range(first, last + 1)
    ]
    return np.concatenate(parts, notes[last].grown[name]) if len(parts) > 1 else parts[0]
