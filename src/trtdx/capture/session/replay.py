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

from trtdx.capture.run import checked_capture
from trtdx.capture.session.record import Recorder
from trtdx.capture.session.selection import Wanted
from trtdx.capture.session.steps import state_after, step_notes
from trtdx.capture.store.format import CaptureError, Header
from trtdx.capture.store.writer import CaptureWriter
from trtdx.engines.generate import start_state
from trtdx.engines.onnxruntime.replay import InParts
from trtdx.engines.opening import Options, chosen_engine, find_model, open_engine
from trtdx.errors import InputError
from trtdx.model import Section
from trtdx.tensors.cache_names import cache_key
from trtdx.tensors.difference import difference
from trtdx.tensors.statistics import statistics
from trtdx.tensors.taps import last_indices, parse_selector, path_matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.capture.store.reader import Capture, Record
    from trtdx.engines.engine import Array, Engine
    from trtdx.model import Cell
    from trtdx.tensors.feeds import Input


class Leaving(NamedTuple):
    """What left a module when it was replayed, and the record of it in the capture, if there is one."""

    name: str
    replayed: Array
    captured: Record | None


class Replayed(NamedTuple):
    """What came of a replay, and on another engine which captured tensor was taken for which input."""

    leaving: list[Leaving]
    matched: dict[str, str]


def replay_from(capture: Capture, engine: Engine, scope: str, *, step: int = 0) -> Replayed:
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
    entering, leaving = _borders(capture, scope, step)
    if not entering:
        raise CaptureError(
            f"{capture.folder} has no values of what enters {scope} at step {step}",
            fix=f"capture them: trtdx capture {shlex.quote(str(capture.header.details.get('model') or 'MODEL'))} --tap '{scope}:*' --values '{scope}:*'",
        )
    captured = {record.name: capture.values(record) for record in entering}
    module_inputs, fed = engine.entering(scope), _fed(capture, engine, step)
    cache = _cache_before(capture, engine, fed, step)
    sources: dict[str, str] = {}
    if capture.header.engine == engine.kind:
        inputs = captured | {name: cache[key] for name in module_inputs if (key := cache_key(name)) in cache}
    else:
        matched = _matched(module_inputs, captured, fed, cache)
        padded = "attention_mask" in fed and not fed["attention_mask"].all()
        missing = [
            name
            for name, module_input in module_inputs.items()
            if name not in matched and (not module_input.optional or (padded and "mask" in name))
        ]
        inputs = {name: array for name, (_, array) in matched.items()} | _computed(
            engine, missing, fed, cache
        )
        if any(name not in inputs for name in missing):
            raise _unlike(missing[0], module_inputs[missing[0]], captured)
        sources = {name: source for name, (source, _) in matched.items()}
        sources |= dict.fromkeys(missing, "computed from what the model was fed")
    outputs = engine.replay(scope, inputs, step=step)
    leaves = [
        Leaving(name, array, _counterpart(number, array, leaving))
        for number, (name, array) in enumerate(outputs.items())
    ]
    return Replayed(leaves, sources)


def _fed(capture: Capture, engine: Engine, step: int) -> dict[str, Array]:
    """Return what the model was fed at a step, as far as an engine's model takes it too."""
    rank = capture.ranks[0]
    records = (
        record
        for record in capture.records(step=step, rank=rank)
        if not record.place.path and record.place.argument in engine.inputs
    )
    return {record.place.argument: capture.values(record) for record in records if record.kept}


def _computed(
    engine: Engine, names: Sequence[str], fed: Mapping[str, Array], cache: Mapping[str, Array]
) -> dict[str, Array]:
    """Return tensors that depend on what a model is fed alone, if the engine computes parts of a graph."""
    if not names or not isinstance(engine, InParts):
        return {}
    past = {name: cache[key] for name in engine.inputs if (key := cache_key(name)) in cache}
    if any(name not in fed and name not in past for name in engine.inputs):
        return {}
    return engine.part(names, {**fed, **past})


def _counterpart(number: int, array: Array, leaving: Sequence[Record]) -> Record | None:
    """Return the record of the same port, if it is of the same shape."""
    return next(
        (
            output
            for output in leaving
            if output.place.number == number and output.layout.shape == array.shape
        ),
        None,
    )


def _borders(capture: Capture, scope: str, step: int) -> tuple[list[Record], list[Record]]:
    """Return what enters, as far as its values were kept, and what leaves a module at a step."""
    last = last_indices(place for rank in capture.ranks for place in capture.files(rank).places)
    here = [
        record
        for record in capture.records(step=step, rank=capture.ranks[0])
        if not record.place.tensor and path_matches(scope, record.place.path, last)
    ]
    paths = list(dict.fromkeys(record.place.path for record in here))
    if len(paths) > 1:
        raise InputError(
            f"{scope!r} names {len(paths)} modules: {', '.join(paths[:4])}", fix="name one of them"
        )
    return (
        [record for record in here if record.place.port == "in" and record.kept],
        [record for record in here if record.place.port == "out"],
    )


def _cache_before(capture: Capture, engine: Engine, fed: Mapping[str, Array], step: int) -> dict[str, Array]:
    """Return what was in the cache before a step, by layer and part: {"3.key": ...}; at first, nothing in each."""
    if not step:
        past = start_state(engine, fed["input_ids"]).past if "input_ids" in fed else {}
        return {cache_key(name): array for name, array in past.items()}
    names = capture.header.details.get("caches", {})
    if step - 1 not in step_notes(capture) or not isinstance(names, dict):
        return {}
    state = state_after(capture, step - 1, caches=names)
    return {cache_key(name): array for name, array in state.past.items()}


def _matched(
    wanted: Mapping[str, Input],
    given: Mapping[str, Array],
    fed: Mapping[str, Array],
    cache: Mapping[str, Array],
) -> dict[str, tuple[str, Array]]:
    """Return what a module of another engine is to be given, and where it comes from, by the names it has there.

    The most particular is matched first: a mask may be of any length, but an embedding has its width.
    """
    matches = {
        name: (f"the cache's {key}", cache[key]) for name in wanted if (key := cache_key(name)) in cache
    }
    for name, model_input in wanted.items():
        argument = name.rpartition(".")[2]
        if argument in fed and _shaped(model_input, fed[argument]) is not None:
            matches[name] = (argument, _shaped(model_input, fed[argument]))
    left = dict(given)
    for name, model_input in sorted(wanted.items(), key=lambda item: -_particular(item[1])):
        fits = next((key for key, array in left.items() if _shaped(model_input, array) is not None), None)
        if name not in matches and fits is not None:
            matches[name] = (fits, _shaped(model_input, left.pop(fits)))
    return matches


def _unlike(name: str, wanted: Input, given: Mapping[str, Array]) -> InputError:
    descriptions = "; ".join(f"{key}: {array.dtype.name} {list(array.shape)}" for key, array in given.items())
    return InputError(
        f"the module wants {name} ({wanted}), and nothing captured is like it; captured were {descriptions}",
        fix="replay it on the engine it was captured on, or capture the model on this one",
    )


def _particular(wanted: Input) -> int:
    return math.prod(dim for dim in wanted.shape or () if isinstance(dim, int))


def _shaped(wanted: Input, array: Array) -> Any:
    """Return an array in the rank that is wanted, axes of length 1 added or dropped; none if it does not fit."""
    if wanted.dtype and array.dtype.name != wanted.dtype:
        return None
    if wanted.shape is None:
        return array
    for shape in _of_rank(array.shape, len(wanted.shape)):
        if all(isinstance(dim, str) or dim == size for dim, size in zip(wanted.shape, shape, strict=True)):
            return array.reshape(shape)
    return None


def _of_rank(shape: tuple[int, ...], rank: int) -> Iterator[tuple[int, ...]]:
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
    with checked_capture(folder) as capture:
        source = find_model(model or _model_of(capture))
        before = capture.header.engine
        kind = (
            before if engine in ("", "auto") and before in source.engines else chosen_engine(source, engine)
        )
        running = open_engine(source, kind, f"{scope}, {scope}.**" if out else "", Options())
        try:
            if out:
                header = Header(run=f"replay of {scope}, step {step}", engine=kind, selector=scope)
                with CaptureWriter(out, header) as writer:
                    everything = parse_selector("**:*")
                    running.sink = Recorder(writer, Wanted(values=everything), running.places())
                    done = replay_from(capture, running, scope, step=step)
            else:
                done = replay_from(capture, running, scope, step=step)
        finally:
            running.close()
        rows = tuple(_row(capture, output) for output in done.leaving)
    title = f"{scope} of step {step}, computed on {kind} with inputs captured on {before or 'another engine'}"
    columns = ("what leaves", "type and shape", "beside the capture", "largest difference", "relative")
    return Section("replay", title, columns, rows, _note(done, out))


def _note(done: Replayed, out: str) -> str:
    sources = [f"{name} is {source}" for name, source in done.matched.items()]
    inputs = f"inputs matched by type and shape: {'; '.join(sources)}" if sources else ""
    return ". ".join(part for part in (inputs, f"its inside is in {Path(out)}" if out else "") if part)


def _model_of(capture: Capture) -> str:
    named = capture.header.details.get("model")
    if not isinstance(named, str):
        raise InputError(f"{capture.folder} does not say which model it is of", fix="name it with --model")
    return named


def _row(capture: Capture, each: Leaving) -> tuple[Cell, ...]:
    layout = f"{each.replayed.dtype.name} {'x'.join(map(str, each.replayed.shape))}"
    record = each.captured
    if record is None:
        return each.name, layout, "not captured", None, None
    if statistics(each.replayed).hash == record.statistics.hash:
        return each.name, layout, "bitwise the same", 0.0, 0.0
    if not record.kept:
        return each.name, layout, "differs; its values were not kept", None, None
    distance = difference(capture.values(record), each.replayed)
    return each.name, layout, "differs", distance.sums.max_abs, distance.relative_l2
