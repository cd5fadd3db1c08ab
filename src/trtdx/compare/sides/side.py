"""One side of a comparison: a capture, and where it was given as a model, how to run it again.

hf:DIR?dtype=bfloat16&attention=sdpa    a Hugging Face folder on torch
onnx:FILE?level=none                    an ONNX file on ONNX Runtime; also threads, disabled=OPTIMISER,..., session.KEY=VALUE
trt:FILE                                an ONNX file as TensorRT's network, computed on the CPU
FILE.json?runner=NAME                   one of the runs in a Polygraphy file, by name or number
DIR or FILE                             a capture, a dump of another tool, or a model: told by what it is
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import msgspec
import numpy as np

from trtdx.capture.dumps.import_dump import import_capture
from trtdx.capture.run import header_details, is_decoder
from trtdx.capture.session.inputs import DUMMY_PROMPT, dummy_feeds, feeds_from_file
from trtdx.capture.session.recorder import Recorder
from trtdx.capture.session.selection import CaptureSelection
from trtdx.capture.session.steps import CaptureSession, step_notes
from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.reader import Capture, is_capture
from trtdx.capture.store.writer import CaptureWriter
from trtdx.compare.sides.needed_packages import ENGINE_OF_KIND
from trtdx.engines.generate import complete_feeds
from trtdx.engines.open_engine import EngineOptions, find_model, open_engine
from trtdx.errors import InputError, UnknownNameError
from trtdx.tensors.taps import parse_selector
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.capture.store.reader import TensorRecord
    from trtdx.engines.engine import Array, Engine
    from trtdx.host import Host

KNOWN_OPTIONS = {
    "hf": ("dtype", "attention", "threads", "compiled"),
    "onnx": ("level", "threads", "disabled"),
    "trt": (),
}
SESSION_SETTINGS = ("session.", "optimization.", "mlas.")  # how entries of ONNX Runtime's configuration begin
RUNNER_QUERY = "?runner="  # which of the runs in a Polygraphy file
MODULE_BORDERS = "**:* & is:module"
ALL_TENSORS = "**:*"


class SideSpec(msgspec.Struct, frozen=True):
    """What was given for one side."""

    kind: str  # "hf", "onnx", "trt", "capture" or "dump"
    path: str
    options: dict[str, str] = {}

    @property
    def is_model(self) -> bool:
        return self.kind in ENGINE_OF_KIND

    @property
    def text(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.kind}:{self.path}" + (f"?{query}" if query else "")

    def open(self, selector: str = "", **changed: str) -> Engine:
        """Return the model on its engine, some options changed."""
        options = {**self.options, **changed}
        engine_options = EngineOptions(
            optimisation=options.get("level", "all"),
            dtype=options.get("dtype", "auto"),
            attention=options.get("attention", ""),
            threads=int(options.get("threads", "0")),
            compiled=options.get("compiled", "") in ("1", "yes", "true"),
            settings=tuple(option for option in options.items() if option[0].startswith(SESSION_SETTINGS)),
            disabled=tuple(filter(None, options.get("disabled", "").split(","))),
        )
        return open_engine(find_model(self.path), ENGINE_OF_KIND[self.kind], selector, engine_options)


class ComparisonQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What both sides are given."""

    prompts: tuple[tuple[int, ...], ...] = ()
    new_tokens: int = 1
    inputs: str = ""  # a file of arrays


def check_question(question: ComparisonQuestion, specs: Sequence[SideSpec]) -> None:
    """Refuse what would have no effect on these sides.

    Raises:
        InputError: nothing is run that could be fed, or it cannot be fed all of this.
    """
    fed = {"--tokens": question.prompts, "--inputs": question.inputs, "--new-tokens": question.new_tokens > 1}
    named = [option for option, value in fed.items() if value]
    if named and not any(spec.is_model for spec in specs):
        raise InputError(
            f"{named[0]} has no effect: neither side is a model, both were run before",
            fix="leave it out, or name a model to run: hf:DIR, onnx:FILE.onnx, trt:FILE.onnx",
        )
    if question.inputs and len(named) > 1:
        other = next(option for option in named if option != "--inputs")
        raise InputError(
            f"{other} does not go with --inputs: a model is fed the arrays of the file, and generates nothing",
            fix=f"leave {other} or --inputs out",
        )


def parse_side(host: Host, text: str) -> SideSpec:
    """Return what a text means."""
    kind, colon, rest = text.partition(":")
    if colon and kind in ENGINE_OF_KIND:
        path, _, query = rest.partition("?")
        options = _parse_options(query, text)
        for name in options:
            if name not in KNOWN_OPTIONS[kind] and not (kind == "onnx" and name.startswith(SESSION_SETTINGS)):
                raise UnknownNameError(f"option of {kind}:", name, KNOWN_OPTIONS[kind])
        if not options.get("threads", "0").isdigit():
            raise InputError(f"threads={options['threads']} is not a number")
        find_model(path)
        return SideSpec(kind, path, options)
    if is_capture(text):
        return SideSpec("capture", text)
    file, mark, runner = text.rpartition(RUNNER_QUERY)
    if mark and host.kind(file) == "file":
        return SideSpec("dump", file, {"runner": runner})
    if host.kind(text) == "absent":
        raise InputError(
            f"there is no {text}",
            fix="name a capture, a dump or a model: hf:DIR, onnx:FILE.onnx, trt:FILE.onnx",
        )
    try:
        engine = find_model(text).engines[0]
    except InputError:
        return SideSpec("dump", text)
    return SideSpec(next(kind for kind, name in ENGINE_OF_KIND.items() if name == engine), text)


def _parse_options(query: str, text: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as err:
        fix = "write options as NAME=VALUE, joined by &: hf:DIR?dtype=bfloat16&seed=1"
        raise InputError(f"{query!r} in {text} is not an option with a value", fix=fix) from err


def _check_values(capture: Capture) -> None:
    """Raise if values are not what was captured: equal hashes would call them bitwise the same without a look."""
    for record in capture.damaged_records():
        if (
            record.offset + record.layout.bytes <= capture.files(record.rank).value_bytes
        ):  # else cut off: told elsewhere
            capture.values(record)


class Side:
    """One side: its capture, open, and its model if it has one."""

    def __init__(self, spec: SideSpec, folder: Path, notes: tuple[str, ...] = ()) -> None:
        self.spec, self.folder = spec, folder
        self.notes = notes  # what is to be known of how it came here
        self.selector = ""  # what was captured, where it is less than all module borders
        self.capture = Capture(folder)
        if spec.kind == "capture":
            _check_values(self.capture)

    @property
    def name(self) -> str:
        return self.spec.text

    @property
    def kind(self) -> str:
        """The engine that computed it, "" if nobody knows."""
        return self.capture.header.engine

    def kept_records(self, path: str, port: str, step: int) -> list[TensorRecord]:
        """Return what enters ("in") or leaves ("out") a module at a step, of the first rank, where values were kept."""
        records = self.capture.records(step=step, rank=self.capture.ranks[0])
        return [record for record in records if (record.place.path, record.place.port) == (path, port) and record.kept]

    def step_tokens(self) -> list[list[int]]:
        """Return the tokens that each step went on with, a list for each step; empty if it was no generation."""
        notes = step_notes(self.capture, rank=self.capture.ranks[0])
        return [notes[number].tokens for number in sorted(notes)]

    def chosen_tokens(self) -> list[list[int]]:
        """Return the tokens that the model chose at each step, also where others were forced on it."""
        notes = step_notes(self.capture, rank=self.capture.ranks[0])
        return [notes[number].chosen or notes[number].tokens for number in sorted(notes)]


def open_side(
    host: Host,
    spec: SideSpec,
    question: ComparisonQuestion,
    folder: Path,
    *,
    forced: list[list[int]] | None = None,
    selector: str = MODULE_BORDERS,
    changed: Mapping[str, str] | None = None,
    budget_bytes: int | None = None,
) -> Side:
    """Return a side: a capture as it is, a dump imported, a model run.

    Args:
        host: where dumps and inputs are read.
        spec: what was given.
        question: what a model is fed.
        folder: where a new capture goes.
        forced: tokens to go on with at each step, those of the other side.
        selector: what to look at; of a graph without modules everything.
        changed: options of the model to be other than given, such as dtype.
        budget_bytes: how many bytes of values to keep; of what does not fit there are statistics.
    """
    if spec.kind == "capture":
        return Side(spec, Path(spec.path))
    if spec.kind == "dump":
        notes = import_capture(host, spec.path, str(folder), runner=spec.options.get("runner", "")).notes
        return Side(spec, folder, notes)
    engine, selector = _open_with_selector(spec, selector, dict(changed or {}))
    try:
        record_run(
            host,
            engine,
            question,
            folder,
            forced=forced,
            run=spec.text,
            selector=selector,
            budget_bytes=budget_bytes,
        )
    except (RuntimeError, IndexError) as err:  # of torch: sizes that do not fit, an unknown token
        raise InputError(f"{spec.text} cannot be computed: {' '.join(str(err).split())}") from err
    finally:
        engine.close()
    return Side(spec, folder)


def _open_with_selector(spec: SideSpec, selector: str, changed: dict[str, str]) -> tuple[Engine, str]:
    try:
        return spec.open(selector, **changed), selector
    except InputError as err:
        if selector != MODULE_BORDERS or "nothing is selected" not in err.message:
            raise
    return spec.open(ALL_TENSORS, **changed), ALL_TENSORS


def record_run(
    host: Host,
    engine: Engine,
    question: ComparisonQuestion,
    folder: Path,
    *,
    forced: list[list[int]] | None = None,
    run: str = "",
    selector: str = ALL_TENSORS,
    budget_bytes: int | None = None,
) -> None:
    """Run an engine's model on a question, and keep everything it taps in a new capture, with values."""
    selection = CaptureSelection(values=parse_selector(ALL_TENSORS))
    with record_session(engine, folder, selection, run=run, selector=selector, budget_bytes=budget_bytes) as session:
        if question.inputs or not is_decoder(engine):
            for feeds in question_feeds(host, engine, question):
                session.compute(feeds)
            return
        tokens = np.array(forced, np.int64).T if forced else None
        steps = len(forced) if forced else question.new_tokens
        for _ in session.generate(question.prompts or (DUMMY_PROMPT,), steps, forced=tokens):
            pass


@contextmanager
def record_session(
    engine: Engine,
    folder: Path,
    selection: CaptureSelection,
    *,
    run: str,
    selector: str,
    budget_bytes: int | None = None,
) -> Iterator[CaptureSession]:
    """Give a session of an engine whose steps go into a new capture."""
    header = CaptureHeader(run=run, engine=engine.kind, selector=selector, details=header_details(engine))
    with CaptureWriter(folder, header, parquet=False, value_budget_bytes=budget_bytes) as writer:
        yield CaptureSession(engine, writer, Recorder(writer, selection, engine.places()))


def question_feeds(host: Host, engine: Engine, question: ComparisonQuestion) -> list[dict[str, Array]]:
    """Return what each run is fed: inputs that only the other side takes are left out, derived ones are added."""
    if question.prompts and not question.inputs:
        raise InputError(
            f"{getattr(engine, 'path', None) or 'the model'} does not generate: it takes {abbreviate_list(engine.inputs)}",
            fix="feed it with --inputs FILE instead of --tokens",
        )
    if not question.inputs:
        return [dummy_feeds(engine.inputs)]
    return [complete_feeds(engine, feeds) for feeds in feeds_from_file(host, question.inputs)]
