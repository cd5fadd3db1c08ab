"""One module computed alone with captured inputs, on the engine they came from or on another, beside what was captured.

On another engine the inputs have other names: they are matched by type and shape, in the order in which the module
uses them, and the cache by its layer. What is not in the capture and depends on what the model was fed alone (a mask,
rotary embeddings) is computed by the engine where it can; else it is an error that shows both sides.
"""

from __future__ import annotations

import math
import shlex
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.capture.run import open_capture
from trtdx.capture.session.recorder import Recorder
from trtdx.capture.session.selection import CaptureSelection
from trtdx.capture.session.steps import state_after, step_notes
from trtdx.capture.store.format import CaptureError, CaptureHeader
from trtdx.capture.store.writer import CaptureWriter
from trtdx.engines.generate import initial_state
from trtdx.engines.onnxruntime.replay import PartialEngine
from trtdx.engines.open_engine import EngineOptions, choose_engine, find_model, open_engine
from trtdx.errors import InputError
from trtdx.model import Section
from trtdx.tensors.cache_names import cache_key
from trtdx.tensors.difference import measure_difference
from trtdx.tensors.statistics import array_statistics
from trtdx.tensors.taps import last_indices, parse_selector, path_matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.capture.store.reader import Capture, TensorRecord
    from trtdx.engines.engine import Array, Engine
    from trtdx.model import Cell
    from trtdx.tensors.feeds import ModelInput


class ReplayedOutput(NamedTuple):
    """What left a module when it was replayed, and the record of it in the capture, if there is one."""

    name: str
    replayed: Array
    captured: TensorRecord | None


class ReplayResult(NamedTuple):
    """What came of a replay, and on another engine which captured tensor was taken for which input."""

    outputs: list[ReplayedOutput]
    matched: dict[str, str]


def replay_module(capture: Capture, engine: Engine, scope: str, *, step: int = 0) -> ReplayResult:
    """Compute one module with the inputs that a capture has of it.

    Args:
        capture: with the values of what enters the module.
        engine: a model that has the module; what it is told to watch inside goes to its sink.
        scope: the module's path, or its end: "layers.3".
        step: of which step the inputs are.

    Raises:
        CaptureError: the capture has no values of what enters the module.
        InputError: the model has no such module, or wants something the capture has not.
    """
    entering, leaving = _module_records(capture, scope, step)
    if not entering:
        raise CaptureError(
            f"{capture.folder} has no values of what enters {scope} at step {step}",
            fix=f"capture them: trtdx capture {shlex.quote(str(capture.header.details.get('model') or 'MODEL'))} --tap '{scope}:*' --values '{scope}:*'",
        )
    captured = {record.name: capture.values(record) for record in entering}
    module_inputs, fed = engine.replay_inputs(scope), _model_feeds(capture, engine, step)
    cache = _cache_before(capture, engine, fed, step)
    sources: dict[str, str] = {}
    if capture.header.engine == engine.kind:
        inputs = captured | {name: cache[key] for name in module_inputs if (key := cache_key(name)) in cache}
    else:
        matched = _match_inputs(module_inputs, captured, fed, cache)
        padded = "attention_mask" in fed and not fed["attention_mask"].all()
        missing = [
            name
            for name, module_input in module_inputs.items()
            if name not in matched and (not module_input.optional or (padded and "mask" in name))
        ]
        inputs = {name: array for name, (_, array) in matched.items()} | _compute_from_feeds(
            engine, missing, fed, cache
        )
        if any(name not in inputs for name in missing):
            raise _no_match_error(missing[0], module_inputs[missing[0]], captured)
        sources = {name: source for name, (source, _) in matched.items()}
        sources |= dict.fromkeys(missing, "computed from what the model was fed")
    outputs = engine.replay(scope, inputs, step=step)
    leaves = [
        ReplayedOutput(name, array, _matching_record(number, array, leaving))
        for number, (name, array) in enumerate(outputs.items())
    ]
    return ReplayResult(leaves, sources)


def _model_feeds(capture: Capture, engine: Engine, step: int) -> dict[str, Array]:
    """Return what the model was fed at a step, as far as an engine's model takes it too."""
    rank = capture.ranks[0]
    records = (
        record
        for record in capture.records(step=step, rank=rank)
        if not record.place.path and record.place.argument in engine.inputs
    )
    return {record.place.argument: capture.values(record) for record in records if record.kept}


def _compute_from_feeds(
    engine: Engine, names: Sequence[str], fed: Mapping[str, Array], cache: Mapping[str, Array]
) -> dict[str, Array]:
    """Return tensors that depend on what a model is fed alone, if the engine computes parts of a graph."""
    if not names or not isinstance(engine, PartialEngine):
        return {}
    past = {name: cache[key] for name in engine.inputs if (key := cache_key(name)) in cache}
    if any(name not in fed and name not in past for name in engine.inputs):
        return {}
    return engine.compute_tensors(names, {**fed, **past})


def _matching_record(number: int, array: Array, leaving: Sequence[TensorRecord]) -> TensorRecord | None:
    """Return the record of the same port, if it is of the same shape."""
    return next(
        (output for output in leaving if output.place.number == number and output.layout.shape == array.shape),
        None,
    )


def _module_records(capture: Capture, scope: str, step: int) -> tuple[list[TensorRecord], list[TensorRecord]]:
    """Return what enters, as far as its values were kept, and what leaves a module at a step."""
    last = last_indices(place for rank in capture.ranks for place in capture.files(rank).places)
    here = [
        record
        for record in capture.records(step=step, rank=capture.ranks[0])
        if not record.place.tensor and path_matches(scope, record.place.path, last)
    ]
    paths = list(dict.fromkeys(record.place.path for record in here))
    if len(paths) > 1:
        raise InputError(f"{scope!r} names {len(paths)} modules: {', '.join(paths[:4])}", fix="name one of them")
    return (
        [record for record in here if record.place.port == "in" and record.kept],
        [record for record in here if record.place.port == "out"],
    )


def _cache_before(capture: Capture, engine: Engine, fed: Mapping[str, Array], step: int) -> dict[str, Array]:
    """Return what was in the cache before a step, by layer and part: {"3.key": ...}; at first, nothing in each."""
    if not step:
        past = initial_state(engine, fed["input_ids"]).past if "input_ids" in fed else {}
        return {cache_key(name): array for name, array in past.items()}
    names = capture.header.details.get("caches", {})
    if step - 1 not in step_notes(capture) or not isinstance(names, dict):
        return {}
    state = state_after(capture, step - 1, caches=names)
    return {cache_key(name): array for name, array in state.past.items()}


def _match_inputs(
    inputs: Mapping[str, ModelInput],
    captured: Mapping[str, Array],
    fed: Mapping[str, Array],
    cache: Mapping[str, Array],
) -> dict[str, tuple[str, Array]]:
    """Return what a module of another engine is to be given, and where it comes from, by the names it has there.

    The most particular is matched first: a mask may be of any length, but an embedding has its width.
    """
    matches = {name: (f"the cache's {key}", cache[key]) for name in inputs if (key := cache_key(name)) in cache}
    for name, model_input in inputs.items():
        argument = name.rpartition(".")[2]
        if argument in fed and _fit_to_input(model_input, fed[argument]) is not None:
            matches[name] = (argument, _fit_to_input(model_input, fed[argument]))
    left = dict(captured)
    for name, model_input in sorted(inputs.items(), key=lambda item: -_fixed_elements(item[1])):
        fits = next((key for key, array in left.items() if _fit_to_input(model_input, array) is not None), None)
        if name not in matches and fits is not None:
            matches[name] = (fits, _fit_to_input(model_input, left.pop(fits)))
    return matches


def _no_match_error(name: str, model_input: ModelInput, captured: Mapping[str, Array]) -> InputError:
    descriptions = "; ".join(f"{key}: {array.dtype.name} {list(array.shape)}" for key, array in captured.items())
    return InputError(
        f"the module wants {name} ({model_input}), and nothing captured is like it; captured were {descriptions}",
        fix="replay it on the engine it was captured on, or capture the model on this one",
    )


def _fixed_elements(model_input: ModelInput) -> int:
    return math.prod(dim for dim in model_input.shape or () if isinstance(dim, int))


def _fit_to_input(model_input: ModelInput, array: Array) -> Any:
    """Return an array in the rank that is wanted, axes of length 1 added or dropped; none if it does not fit."""
    if model_input.dtype and array.dtype.name != model_input.dtype:
        return None
    if model_input.shape is None:
        return array
    for shape in _shapes_of_rank(array.shape, len(model_input.shape)):
        if all(isinstance(dim, str) or dim == size for dim, size in zip(model_input.shape, shape, strict=True)):
            return array.reshape(shape)
    return None


def _shapes_of_rank(shape: tuple[int, ...], rank: int) -> Iterator[tuple[int, ...]]:
    """Yield a shape with axes of length 1 added or dropped, those in front first."""
    if len(shape) >= rank:
        ones = [axis for axis, size in enumerate(shape) if size == 1]
        for dropped in combinations(ones, len(shape) - rank):
            yield tuple(size for axis, size in enumerate(shape) if axis not in dropped)
        return
    for added in combinations(range(rank), rank - len(shape)):
        sizes = iter(shape)
        yield tuple(1 if axis in added else next(sizes) for axis in range(rank))


def replay_section(
    folder: str, scope: str, *, model: str = "", engine: str = "", step: int = 0, out: str = ""
) -> Section:
    """Return the table of what a replayed module gave beside what was captured.

    Args:
        folder: the capture with the inputs.
        scope: the module.
        model: what has it; the model of the capture where it is not told.
        engine: what computes it; that of the capture if it can.
        step: of which step the inputs are.
        out: where to capture what is computed inside the module; nowhere if not told.
    """
    with open_capture(folder) as capture:
        source = find_model(model or _captured_model(capture))
        before = capture.header.engine
        kind = before if engine in ("", "auto") and before in source.engines else choose_engine(source, engine)
        running = open_engine(source, kind, f"{scope}, {scope}.**" if out else "", EngineOptions())
        try:
            if out:
                header = CaptureHeader(run=f"replay of {scope}, step {step}", engine=kind, selector=scope)
                with CaptureWriter(out, header) as writer:
                    everything = parse_selector("**:*")
                    running.sink = Recorder(writer, CaptureSelection(values=everything), running.places())
                    done = replay_module(capture, running, scope, step=step)
            else:
                done = replay_module(capture, running, scope, step=step)
        finally:
            running.close()
        rows = tuple(_replay_row(capture, output) for output in done.outputs)
    title = f"{scope} of step {step}, computed on {kind} with inputs captured on {before or 'another engine'}"
    columns = ("what leaves", "type and shape", "beside the capture", "largest difference", "relative")
    return Section("replay", title, columns, rows, _replay_note(done, out))


def _replay_note(done: ReplayResult, out: str) -> str:
    sources = [f"{name} is {source}" for name, source in done.matched.items()]
    inputs = f"inputs matched by type and shape: {'; '.join(sources)}" if sources else ""
    return ". ".join(part for part in (inputs, f"its inside is in {Path(out)}" if out else "") if part)


def _captured_model(capture: Capture) -> str:
    named = capture.header.details.get("model")
    if not isinstance(named, str):
        raise InputError(f"{capture.folder} does not say which model it is of", fix="name it with --model")
    return named


def _replay_row(capture: Capture, output: ReplayedOutput) -> tuple[Cell, ...]:
    layout = f"{output.replayed.dtype.name} {'x'.join(map(str, output.replayed.shape))}"
    record = output.captured
    if record is None:
        return output.name, layout, "not captured", None, None
    if array_statistics(output.replayed).hash == record.statistics.hash:
        return output.name, layout, "bitwise the same", 0.0, 0.0
    if not record.kept:
        return output.name, layout, "differs; its values were not kept", None, None
    distance = measure_difference(capture.values(record), output.replayed)
    return output.name, layout, "differs", distance.sums.max_abs, distance.relative_l2
