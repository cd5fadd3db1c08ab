"""A captured run, made once more: the same model and options, fed what the capture says it was fed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trtdx.capture.session.selection import Wanted, parse_positions, parse_steps
from trtdx.capture.session.steps import PROMPT, PROMPT_MASK, step_notes
from trtdx.capture.store.format import CaptureError
from trtdx.compare.sides.packages import ENGINES
from trtdx.compare.sides.side import EVERYTHING, Question, Side, Spec, record_session
from trtdx.engines.generate import start_state
from trtdx.engines.opening import find_model
from trtdx.errors import InputError
from trtdx.tensors.taps import parse_selector

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtdx.capture.session.steps import Session
    from trtdx.capture.store.format import Header
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
    kind = next((kind for kind, engine in ENGINES.items() if engine == header.engine), "")
    if len(capture.ranks) > 1:
        raise InputError(
            f"{capture.folder} was made by {len(capture.ranks)} ranks, which are not started again here",
            fix=f"capture the ranks again, and name that: trtdx compare --baseline {capture.folder} NEW_CAPTURE",
        )
    if given is None:
        return Spec(kind, _model_of(capture, kind), _options(header))
    if given.kind == kind:
        return Spec(kind, given.path, {**_options(header), **given.options})
    return given


def _model_of(capture: Capture, kind: str) -> str:
    model = capture.header.details.get("model")
    if not kind or not isinstance(model, str) or not model:
        raise InputError(
            f"{capture.folder} does not say which model it is of"
            + (f": {capture.partial[0]}" if capture.partial else ""),
            fix=f"name it, or a new capture of it: trtdx compare --baseline {capture.folder} MODEL",
        )
    try:
        find_model(model)
    except InputError as err:
        raise InputError(
            f"{capture.folder} is of {model}, which cannot be run from here: {err.message}",
            fix=f"name where it is now: trtdx compare --baseline {capture.folder} MODEL",
        ) from err
    return model


def _options(header: Header) -> dict[str, str]:
    """Return the options of a side that give the same run."""
    details = header.details
    names = {"dtype": "dtype", "attention": "attention", "threads": "threads", "optimisation": "level"}
    if header.engine == "tensorrt":
        return {}
    options = {
        name: str(details[key]) for key, name in names.items() if details.get(key) not in (None, "", 0)
    }
    if details.get("compiled"):
        options["compiled"] = "1"
    if details.get("disabled"):
        options["disabled"] = ",".join(map(str, details["disabled"]))
    return options | {str(name): str(value) for name, value in (details.get("settings") or {}).items()}


def fed_in(capture: Capture) -> Fed:
    """Return what a captured run was fed.

    Raises:
        InputError: it does not say.
    """
    notes = step_notes(capture, rank=capture.ranks[0])
    complete = [notes[number] for number in range(len(notes)) if number in notes]
    if complete:
        prompt, mask = _kept(capture, PROMPT, 0), _kept(capture, PROMPT_MASK, 0)
        tokens = np.array([note.tokens for note in complete], np.int64).T
        return Fed(prompt, mask, tokens, complete[0].sampling)
    runs = [note.step for note in capture.notes(rank=capture.ranks[0]) if note.data.get("kind") == "run"]
    steps = [
        {
            record.place.argument: capture.values(record)
            for record in capture.records(step=step)
            if record.place.op == "Input"
        }
        for step in sorted(runs)
    ]
    if not steps or not all(steps):
        problem = "does not say what was fed to the model"
        if capture.partial:
            problem = f"has no whole step to run again: {capture.partial[0]}"
        raise InputError(
            f"{capture.folder} {problem}",
            fix=f"keep a new baseline with `trtdx capture`, or name a new capture: trtdx compare --baseline {capture.folder} NEW_CAPTURE",
        )
    return Fed(steps=tuple(steps))


def _kept(capture: Capture, name: str, step: int) -> Array:
    record = capture.record(name, step=step, rank=capture.ranks[0])
    return capture.values(record)


def rerun(spec: Spec, capture: Capture, fed: Fed, folder: Path) -> Side:
    """Run what a capture is of into a new one: the same taps, steps and positions; values where the old one has some."""
    selector = capture.header.selector or EVERYTHING
    engine = spec.open(selector)
    try:
        with record_session(engine, folder, _wanted(capture), run=spec.text, selector=selector) as session:
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
    values_selector = details.get("values") or (EVERYTHING if _has_values(capture) else "")
    every = details.get("every", 1)
    try:
        return Wanted(
            parse_selector(str(values_selector)) if values_selector else None,
            parse_steps(str(details.get("steps", ""))),
            every if isinstance(every, int) and every > 0 else 1,
            parse_positions(str(details.get("positions", ""))),
        )
    except InputError as err:
        raise CaptureError(f"the header of {capture.folder} is not as it should be: {err.message}") from err


def _has_values(capture: Capture) -> bool:
    """Whether values of taps were kept, not only what a run is fed and goes on with."""
    return any(record.kept for record in capture.records() if record.place.path)
