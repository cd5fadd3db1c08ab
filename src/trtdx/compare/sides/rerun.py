"""A captured run, made once more: the same model and options, fed what the capture says it was fed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trtdx.capture.session.selection import CaptureSelection, parse_positions, parse_steps
from trtdx.capture.session.steps import PROMPT, PROMPT_MASK, step_notes
from trtdx.capture.store.format import CaptureError
from trtdx.compare.sides.needed_packages import ENGINE_OF_KIND
from trtdx.compare.sides.side import ALL_TENSORS, ComparisonQuestion, Side, SideSpec, record_session
from trtdx.engines.generate import initial_state
from trtdx.engines.open_engine import find_model
from trtdx.errors import InputError
from trtdx.tensors.taps import parse_selector

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtdx.capture.session.steps import CaptureSession
    from trtdx.capture.store.format import CaptureHeader
    from trtdx.capture.store.reader import Capture
    from trtdx.engines.engine import Array, Engine
    from trtdx.engines.generation_state import Sampling


class CapturedFeeds(NamedTuple):
    """What a captured run was fed: a prompt and the tokens it went on with, or arrays by name for each step."""

    prompt: Array | None = None
    mask: Array | None = None
    tokens: Array | None = None  # [batch, steps]
    sampling: Sampling | None = None
    steps: tuple[Mapping[str, Array], ...] = ()

    def to_question(self, folder: Path) -> ComparisonQuestion:
        """Return the same as a question; arrays go into a file of the folder."""
        if self.prompt is not None and self.mask is not None:
            rows = zip(self.prompt, self.mask, strict=True)
            prompts = tuple(tuple(row[mask != 0].tolist()) for row, mask in rows)
            return ComparisonQuestion(prompts=prompts, new_tokens=0 if self.tokens is None else self.tokens.shape[1])
        file = folder / "inputs.npz"
        arrays = {
            f"step{number}/{name}": array for number, feeds in enumerate(self.steps) for name, array in feeds.items()
        }
        np.savez(file, **arrays)  # type: ignore[arg-type]
        return ComparisonQuestion(inputs=str(file))


def spec_from_capture(capture: Capture, model: SideSpec | None = None) -> SideSpec:
    """Return the model of a capture as it was run; a model that is given stands in its place.

    Raises:
        InputError: the capture does not say what was run, or that is not there.
    """
    header = capture.header
    kind = next((kind for kind, engine in ENGINE_OF_KIND.items() if engine == header.engine), "")
    if len(capture.ranks) > 1:
        raise InputError(
            f"{capture.folder} was made by {len(capture.ranks)} ranks, which are not started again here",
            fix=f"capture the ranks again, and name that: trtdx compare baseline {capture.folder} NEW_CAPTURE",
        )
    if model is None:
        return SideSpec(kind, _captured_model(capture, kind), _captured_options(header))
    if model.kind == kind:
        return SideSpec(kind, model.path, {**_captured_options(header), **model.options})
    return model


def _captured_model(capture: Capture, kind: str) -> str:
    model = capture.header.details.get("model")
    if not kind or not isinstance(model, str) or not model:
        raise InputError(
            f"{capture.folder} does not say which model it is of"
            + (f": {capture.partial[0]}" if capture.partial else ""),
            fix=f"name it, or a new capture of it: trtdx compare baseline {capture.folder} MODEL",
        )
    try:
        find_model(model)
    except InputError as err:
        raise InputError(
            f"{capture.folder} is of {model}, which cannot be run from here: {err.message}",
            fix=f"name where it is now: trtdx compare baseline {capture.folder} MODEL",
        ) from err
    return model


def _captured_options(header: CaptureHeader) -> dict[str, str]:
    """Return the options of a side that give the same run."""
    details = header.details
    names = {"dtype": "dtype", "attention": "attention", "threads": "threads", "optimisation": "level"}
    if header.engine == "tensorrt":
        return {}
    options = {name: str(details[key]) for key, name in names.items() if details.get(key) not in (None, "", 0)}
    if details.get("compiled"):
        options["compiled"] = "1"
    if details.get("disabled"):
        options["disabled"] = ",".join(map(str, details["disabled"]))
    return options | {str(name): str(value) for name, value in (details.get("settings") or {}).items()}


def read_captured_feeds(capture: Capture) -> CapturedFeeds:
    """Return what a captured run was fed.

    Raises:
        InputError: it does not say.
    """
    notes = step_notes(capture, rank=capture.ranks[0])
    complete = [notes[number] for number in range(len(notes)) if number in notes]
    if complete:
        prompt, mask = _kept_values(capture, PROMPT, 0), _kept_values(capture, PROMPT_MASK, 0)
        tokens = np.array([note.tokens for note in complete], np.int64).T
        return CapturedFeeds(prompt, mask, tokens, complete[0].sampling)
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
            fix=f"keep a new baseline with `trtdx capture`, or name a new capture: trtdx compare baseline {capture.folder} NEW_CAPTURE",
        )
    return CapturedFeeds(steps=tuple(steps))


def _kept_values(capture: Capture, name: str, step: int) -> Array:
    record = capture.record(name, step=step, rank=capture.ranks[0])
    return capture.values(record)


def rerun_capture(spec: SideSpec, capture: Capture, feeds: CapturedFeeds, folder: Path) -> Side:
    """Run what a capture is of into a new one: the same taps, steps and positions; values where the old one has some."""
    selector = capture.header.selector or ALL_TENSORS
    engine = spec.open(selector)
    try:
        with record_session(engine, folder, _captured_selection(capture), run=spec.text, selector=selector) as session:
            _feed_session(session, engine, feeds)
    finally:
        engine.close()
    return Side(spec, folder)


def _feed_session(session: CaptureSession, engine: Engine, captured: CapturedFeeds) -> None:
    if captured.prompt is None:
        for feeds in captured.steps:
            session.compute({name: array for name, array in feeds.items() if name in engine.inputs})
        return
    assert captured.tokens is not None
    state = initial_state(engine, captured.prompt, attention_mask=captured.mask, sampling=captured.sampling)
    for _ in session.generate(state, captured.tokens.shape[1], forced=captured.tokens):
        pass


def _captured_selection(capture: Capture) -> CaptureSelection:
    """Return what of a run the capture has."""
    details: dict[str, Any] = capture.header.details
    values_selector = details.get("values") or (ALL_TENSORS if _has_values(capture) else "")
    every = details.get("every", 1)
    try:
        return CaptureSelection(
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
