"""A captured run, made once more: the same model and options, fed what the capture says it was fed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.capture.run import header_details
from trtdx.capture.session.record import Recorder
from trtdx.capture.session.selection import Wanted, parse_positions, parse_steps
from trtdx.capture.session.steps import PROMPT, PROMPT_MASK, Session, step_notes
from trtdx.capture.store.format import CaptureError, Header
from trtdx.capture.store.writer import CaptureWriter
from trtdx.compare.sides.side import EVERYTHING, KINDS, Question, Side, Spec
from trtdx.engines.generate import start_state
from trtdx.engines.opening import find_model
from trtdx.errors import InputError
from trtdx.tensors.taps import parse_selector

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtdx.capture.store.reader import Capture
    from trtdx.engines.engine import Array, Engine
    from trtdx.engines.state import Sampling


class Fed(NamedTuple):
    """What a captured run was fed: a prompt and the tokens it went on with, or arrays by name for each step."""

    prompt: Array | None = None
    mask: Array | None = None
    tokens: Array | None = None  # [batch, steps]
    sampling: Sampling | None = None
    steps: tuple[Mapping[str, Array], ...] = ()

    def question(self, folder: Path) -> Question:
        """Return the same as a question; arrays go into a file of the folder."""
        import numpy as np

        if self.prompt is not None and self.mask is not None:
            rows = zip(self.prompt, self.mask, strict=True)
            prompts = tuple(tuple(row[mask != 0].tolist()) for row, mask in rows)
            return Question(prompts=prompts, new_tokens=0 if self.tokens is None else self.tokens.shape[1])
        file = folder / "inputs.npz"
        arrays = {
            f"step{number}/{name}": array
            for number, feeds in enumerate(self.steps)
            for name, array in feeds.items()
        }
        np.savez(file, **arrays)  # type: ignore[arg-type]
        return Question(inputs=str(file))


def spec_of_baseline(capture: Capture, given: Spec | None = None) -> Spec:
    """Return the model of a capture as it was run; a model that is given stands in its place.

    Raises:
        InputError: the capture does not say what was run, or that is not there.
    """
    header = capture.header
    kind = next((kind for kind, engine in KINDS.items() if engine == header.engine), "")
    if len(capture.ranks) > 1:
        raise InputError(
            f"{capture.folder} was made by {len(capture.ranks)} ranks, which are not started again here",
            fix=f"capture the ranks again, and name that: trtdx compare baseline {capture.folder} NEW_CAPTURE",
        )
    if given is None:
        return Spec(kind, _model_of(capture, kind), _options(header))
    if given.kind == kind:
        return Spec(kind, given.path, {**_options(header), **given.options})
    return given


def _model_of(capture: Capture, kind: str) -> str:
    told = capture.header.details.get("model")
    if not kind or not isinstance(told, str) or not told:
        raise InputError(
            f"{capture.folder} does not say which model it is of"
            + (f": {capture.partial[0]}" if capture.partial else ""),
            fix=f"name it, or a new capture of it: trtdx compare baseline {capture.folder} MODEL",
        )
    try:
        find_model(told)
    except InputError as err:
        raise InputError(
            f"{capture.folder} is of {told}, which cannot be run from here: {err.message}",
            fix=f"name where it is now: trtdx compare baseline {capture.folder} MODEL",
        ) from err
    return told


def _options(header: Header) -> dict[str, str]:
    """Return the options of a side that give the same run."""
    told = header.details
    names = {"dtype": "dtype", "attention": "attention", "threads": "threads", "optimisation": "level"}
    if header.engine == "tensorrt":
        return {}
    found = {name: str(told[key]) for key, name in names.items() if told.get(key) not in (None, "", 0)}
    if told.get("compiled"):
        found["compiled"] = "1"
    if told.get("disabled"):
        found["disabled"] = ",".join(map(str, told["disabled"]))
    return found | {str(name): str(value) for name, value in (told.get("settings") or {}).items()}


def fed_in(capture: Capture) -> Fed:
    """Return what a captured run was fed.

    Raises:
        InputError: it does not say.
    """
    import numpy as np

    notes = step_notes(capture, rank=capture.ranks[0])
    whole = [notes[number] for number in range(len(notes)) if number in notes]
    if whole:
        prompt, mask = _kept(capture, PROMPT, 0), _kept(capture, PROMPT_MASK, 0)
        tokens = np.array([note.tokens for note in whole], np.int64).T
        return Fed(prompt, mask, tokens, whole[0].sampling)
    runs = [note.step for note in capture.notes(rank=capture.ranks[0]) if note.data.get("kind") == "run"]
    steps = [
        {
            each.place.argument: capture.values(each)
            for each in capture.records(step=step)
            if each.place.op == "Input"
        }
        for step in sorted(runs)
    ]
    if not steps or not all(steps):
        cut = capture.partial
        raise InputError(
            f"{capture.folder} has no whole step to run again: {cut[0]}"
            if cut
            else f"{capture.folder} does not say what was fed to the model",
            fix=f"keep a new baseline with `trtdx capture`, or name a new capture: trtdx compare baseline {capture.folder} NEW_CAPTURE",
        )
    return Fed(steps=tuple(steps))


def _kept(capture: Capture, name: str, step: int) -> Array:
    found = capture.record(name, step=step, rank=capture.ranks[0])
    return capture.values(found)


def rerun(spec: Spec, capture: Capture, fed: Fed, folder: Path) -> Side:
    """Run what a capture is of into a new one: the same taps, steps and positions; values where the old one has some."""
    header = capture.header
    selector = header.selector or EVERYTHING
    engine = spec.open(selector)
    try:
        made = Header(run=spec.text, engine=engine.kind, selector=selector, details=header_details(engine))
        with CaptureWriter(folder, made, parquet=False) as writer:
            session = Session(engine, writer, Recorder(writer, _wanted(capture), engine.places()))
            _feed(session, engine, fed)
    finally:
        engine.close()
    return Side(spec, folder)


def _feed(session: Session, engine: Engine, fed: Fed) -> None:
    if fed.prompt is None:
        for feeds in fed.steps:
            session.compute({name: array for name, array in feeds.items() if name in engine.inputs})
        return
    assert fed.tokens is not None
    state = start_state(engine, fed.prompt, attention_mask=fed.mask, sampling=fed.sampling)
    for _ in session.generate(state, fed.tokens.shape[1], forced=fed.tokens):
        pass


def _wanted(capture: Capture) -> Wanted:
    """Return what of a run the capture has."""
    details: dict[str, Any] = capture.header.details
    asked = details.get("values") or (EVERYTHING if _has_values(capture) else "")
    every = details.get("every", 1)
    try:
        return Wanted(
            parse_selector(str(asked)) if asked else None,
            parse_steps(str(details.get("steps", ""))),
            every if isinstance(every, int) and every > 0 else 1,
            parse_positions(str(details.get("positions", ""))),
        )
    except InputError as err:
        raise CaptureError(f"the header of {capture.folder} is not as it should be: {err.message}") from err


def _has_values(capture: Capture) -> bool:
    """Whether values of taps were kept, not only what a run is fed and goes on with."""
    return any(each.kept for each in capture.records() if each.place.path)
