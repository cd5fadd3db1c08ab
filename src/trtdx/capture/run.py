"""One run of a model with taps, from a plan to a report."""

from __future__ import annotations

import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.capture.not_finite import find_not_finite
from trtdx.capture.session.inputs import DUMMY_PROMPT, dummy_feeds, feeds_from_file, open_token_decoder
from trtdx.capture.session.recorder import NotFiniteError, Recorder
from trtdx.capture.session.selection import CaptureSelection, check_value_selector, parse_steps
from trtdx.capture.session.steps import CaptureSession, state_after, step_notes
from trtdx.capture.store.format import CaptureError, CaptureHeader
from trtdx.capture.store.origin import collect_origin
from trtdx.capture.store.reader import Capture
from trtdx.capture.store.writer import CaptureWriter
from trtdx.capture.tensor_table import MAX_ROWS, SORT_ORDERS, describe_capture, tensor_rows, tensor_section
from trtdx.engines.generate import cache_outputs_by_input, complete_feeds
from trtdx.engines.generation_state import GenerationState, Sampling
from trtdx.engines.open_engine import EngineOptions, choose_engine, find_model, open_engine, select_places
from trtdx.errors import InputError, UnknownNameError
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Report, Section, Summary, headline_from_findings
from trtdx.tensors.feeds import check_feeds
from trtdx.tensors.taps import parse_selector
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.capture.store.reader import TensorRecord
    from trtdx.engines.engine import Engine
    from trtdx.engines.generate import GenerationStep
    from trtdx.engines.open_engine import ComputableModel
    from trtdx.host import Host
    from trtdx.model import Cell
    from trtdx.rule import RuleBook

MAX_STEP_ROWS = 16
VALUES_DAMAGED = "DX1280"
DEFAULT_TOKENS = 8  # are generated where nobody says how many
MODULE_SELECTOR = "** & is:module"


class CapturePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, what to look at, and what to keep of it."""

    model: str
    engine: str = ""
    selector: str = ""  # what leaves each module, where it is not told; of a graph without modules, all
    out: str = ""
    prompts: tuple[tuple[int, ...], ...] = ()
    inputs: tuple[str, ...] = ()  # files
    tokens: int | None = None  # in all, those of the run that is resumed too; TOKENS where it is not said
    sampling: Sampling = Sampling()
    values: str = ""
    steps: str = ""
    every: int = 1
    positions: str = ""
    budget_bytes: int | None = None
    watch: bool = False
    options: EngineOptions = EngineOptions()
    resume: str = ""
    after_step: int | None = None
    run: str = ""  # the command line


def capture_run(
    host: Host,
    plan: CapturePlan,
    book: RuleBook,
    *,
    on_start: Callable[[Path], None] | None = None,
    on_step: Callable[[GenerationStep], None] | None = None,
    most: int | None = None,
) -> Report:
    """Run a model as planned and return what was seen; the tensors are in the capture it names.

    Args:
        host: where files of inputs are read.
        plan: what to do.
        book: the words of what may be found.
        on_start: told the folder as soon as it is there.
        on_step: told each step of a generation when its tokens are chosen and its tensors captured.
        most: how many tensors to show; 0 is all.
    """
    model = find_model(plan.model)
    kind = choose_engine(model, plan.engine)
    plan, before = _plan_to_resume(plan) if plan.resume else (plan, None)
    if plan.budget_bytes is not None and not (plan.values or plan.watch):
        raise InputError("--budget limits the values that are kept, and none are", fix="add --values '**'")
    selection = CaptureSelection.from_texts(plan.values, plan.steps, plan.every, plan.positions, plan.watch)
    began = time.monotonic()
    selector = plan.selector or ("**" if plan.watch else default_selector(model, kind))
    parse_selector(selector)
    engine = open_engine(model, kind, selector, plan.options)
    try:
        check_value_selector(plan.values, selector, engine.places(), sure=kind != "torch")
        folder, state = _prepare_folder(plan, engine, kind)
        tokens = _tokens_left(plan, state, before)
        feeds = _feeds_from_plan(host, engine, plan)
        header = CaptureHeader(run=plan.run, engine=kind, selector=selector, details=_plan_details(engine, plan))
        writer = CaptureWriter(
            folder,
            header,
            value_budget_bytes=plan.budget_bytes,
            resume=folder == Path(plan.resume),
            whole_steps=True,
        )
        if on_start is not None:
            on_start(folder)
        session = CaptureSession(
            engine, writer, Recorder(writer, selection, engine.places(), reads=engine.operator_inputs)
        )
        stopped = _run_session(session, plan, feeds if feeds is not None else state, tokens, on_step)
        notes = _run_notes(plan, engine.tap_effect.note, before=before)
        if stopped is None and not any(map(selection.has_step, range(state.step if state else 0, engine.step))):
            notes.append("no tap was captured: no step of this run is among those asked for")
    finally:
        engine.close()
    about = f"in {time.monotonic() - began:.1f} s"
    return capture_report(folder, book, stopped=stopped, notes=notes, about=about, most=most)


def default_selector(model: ComputableModel, kind: str) -> str:
    """Return what leaves each module, or everything where a graph does not tell its modules."""
    try:
        places = select_places(model, kind, MODULE_SELECTOR).places
    except InputError:
        return "**"
    return MODULE_SELECTOR if any(place.path for place in places) else "**"  # every model has borders of its own


def _plan_to_resume(plan: CapturePlan) -> tuple[CapturePlan, CaptureHeader]:
    """Return a plan to go on as before unless told otherwise, and what the capture says it is of."""
    with open_capture(plan.resume) as before:
        header = before.header
    stated = {name: header.details[name] for name in ("values", "steps", "positions") if name in header.details}
    overrides = {name: value for name, value in stated.items() if not getattr(plan, name) and isinstance(value, str)}
    return msgspec.structs.replace(plan, selector=plan.selector or header.selector, **overrides), header


def _plan_details(engine: Engine, plan: CapturePlan) -> dict[str, Any]:
    settings = {name: getattr(plan, name) for name in ("values", "steps", "every", "positions", "tokens")}
    stated = {name: value for name, value in settings.items() if value not in ("", 1, None)}
    return header_details(engine) | stated


def header_details(engine: Engine) -> dict[str, Any]:
    """Return what a capture's header has to say of an engine to repeat the run, and to see later what changed."""
    caches = cache_outputs_by_input(engine) if is_decoder(engine) else {}
    path = getattr(engine, "path", None)
    origin: dict[str, Any] = {
        **engine.details,
        **collect_origin(Path(path) if path else None),
        "caches": caches,
    }
    details: dict[str, Any] = msgspec.to_builtins(origin, enc_hook=str)
    return details


def _prepare_folder(plan: CapturePlan, engine: Engine, kind: str) -> tuple[Path, GenerationState | None]:
    """Return where the capture goes, and the state to go on from."""
    if not plan.resume:
        return Path(plan.out) if plan.out else _free_folder(plan, kind), None
    with Capture(plan.resume) as before:
        if is_decoder(engine) is False:
            raise InputError("only a generation can be taken up again", fix="run it anew")
        caches, captured_caches = cache_outputs_by_input(engine), before.header.details.get("caches")
        if isinstance(captured_caches, dict) and captured_caches.keys() != caches.keys():
            raise InputError(
                f"{plan.resume} was made on {before.header.engine} with another cache than {plan.model} has",
                fix="go on with the model and engine that it was made with",
            )
        state = state_after(before, plan.after_step, caches=caches)
        last = max(step_notes(before))
    if plan.after_step is None or plan.after_step == last:
        return Path(plan.out or plan.resume), state
    if not plan.out:
        raise InputError(
            f"{plan.resume} already goes on after step {plan.after_step}", fix="name a new folder with --out"
        )
    return Path(plan.out), state


def _tokens_left(plan: CapturePlan, state: GenerationState | None, before: CaptureHeader | None) -> int:
    """Return how many tokens to generate: what a run that is resumed has generated counts."""
    done = state.step if state is not None else 0
    planned = before.details.get("tokens") if before is not None else None
    if plan.tokens is None:
        return planned - done if isinstance(planned, int) and planned > done else DEFAULT_TOKENS
    if plan.tokens <= done:
        fix = f"--new-tokens counts those too; for {DEFAULT_TOKENS} more: --new-tokens {done + DEFAULT_TOKENS}"
        raise InputError(f"{plan.resume} has {format_count(done, 'token')} already", fix=fix)
    return plan.tokens - done


def _free_folder(plan: CapturePlan, kind: str) -> Path:
    """Return a folder in the current one that is not there yet, named after model and engine."""
    path = Path(plan.model).resolve()
    name = f"capture-{path.stem if path.is_file() else path.name}-{kind}"
    numbers = (Path(name if number == 1 else f"{name}-{number}") for number in range(1, 10_000))
    return next(path for path in numbers if not path.exists())


def is_decoder(engine: Engine) -> bool:
    """Whether an engine's model is one that generates: it takes token ids and has scores."""
    return "input_ids" in engine.inputs and ("logits" in engine.outputs or bool(cache_outputs_by_input(engine)))


def _run_session(
    session: CaptureSession,
    plan: CapturePlan,
    initial: GenerationState | Iterator[dict[str, Any]] | None,
    tokens: int,
    on_step: Callable[[GenerationStep], None] | None,
) -> NotFiniteError | None:
    """Run all steps into the capture; returns what stopped a watched run."""
    try:
        with session.writer:
            if initial is not None and not isinstance(initial, GenerationState):
                for feeds in initial:
                    session.compute(feeds)
                return None
            start = initial if initial is not None else plan.prompts or (DUMMY_PROMPT,)
            for step in session.generate(start, tokens, sampling=plan.sampling):
                if on_step is not None:
                    on_step(step)
    except NotFiniteError as err:
        return err
    return None


def _feeds_from_plan(host: Host, engine: Engine, plan: CapturePlan) -> Iterator[dict[str, Any]] | None:
    """Return what each run is fed, or none for a generation; a mistake is found before a folder is made."""
    if is_decoder(engine) and not plan.inputs:
        return None
    if plan.tokens is not None or plan.sampling != Sampling():
        option = "--new-tokens" if plan.tokens is not None else "sampling"
        reason = f"{plan.model} does not generate" if not is_decoder(engine) else "with --inputs nothing is generated"
        raise InputError(f"{option} has no effect: {reason}", fix=f"leave {option} out")
    if plan.prompts:
        raise InputError(
            f"{plan.model} does not generate: it takes {abbreviate_list(engine.inputs)}",
            fix="feed it with --inputs FILE",
        )
    if not plan.inputs:
        return iter([dummy_feeds(engine.inputs)])
    files = chain.from_iterable(feeds_from_file(host, path) for path in plan.inputs)
    feeds = ({**file_feeds, **complete_feeds(engine, file_feeds)} for file_feeds in files)
    first = next(feeds)
    check_feeds(engine.inputs, first)
    return chain([first], feeds)


def _run_notes(plan: CapturePlan, tapped: str, before: CaptureHeader | None = None) -> list[str]:
    """Return what a reader has to know to judge the numbers."""
    notes = []
    was = before.details.get("model") if before else None
    if isinstance(was, str) and Path(was).resolve() != find_model(plan.model).path.resolve():
        notes.append(f"the steps before are of another model: {was}")
    if not plan.inputs and not plan.prompts and not plan.resume:
        notes.append("the input was made up, as none was given")
    if tapped:
        notes.append(tapped)
    return notes


def capture_report(
    folder: str | Path,
    book: RuleBook,
    *,
    selector: str = "",
    steps: str = "",
    sort: str = "order",
    most: int | None = None,
    stopped: NotFiniteError | None = None,
    notes: Sequence[str] = (),
    about: str = "",
) -> Report:
    """Return what is in a capture: its tensors as a table, its tokens, and the first tensor that is not finite."""
    if sort not in SORT_ORDERS:
        raise UnknownNameError("order", sort, SORT_ORDERS)
    with open_capture(folder) as capture:
        finding = find_not_finite(capture, book, stopped)
        step_ranges = parse_steps(steps) if steps else None
        rows = tensor_rows(capture, parse_selector(selector) if selector else None, step_ranges)
        if step_ranges and not rows:
            captured_steps = sorted({record.step for record in capture.records()})
            raise InputError(
                f"{folder} has no tensors of step {steps}",
                fix=f"it has {format_count(len(captured_steps), 'step')}: {abbreviate_list(captured_steps)}",
            )
        sections = (
            Section("about", "about this run", ("",), tuple((note,) for note in notes)),
            tokens_section(capture),
            tensor_section(rows, by=sort, most=MAX_ROWS if most is None else most),
        )
        summary = Summary(
            ", ".join((describe_capture(capture), about) if about else (describe_capture(capture),)),
            partial=capture.partial,
        )
    return Report(summary, (finding,) if finding else (), tuple(table for table in sections if table.rows))


def tokens_section(capture: Capture, *, most: int = MAX_STEP_ROWS) -> Section:
    """Return which tokens were chosen at each step."""
    notes = step_notes(capture, rank=capture.ranks[0])
    decode = open_token_decoder(capture.header.details.get("model"))
    rows: list[tuple[Cell, ...]] = []
    for number, step in sorted(notes.items()):
        text = (abbreviate_list(map(decode, step.tokens), 12, " "),) if decode else ()
        rows.append((number, abbreviate_list(step.tokens, 12, " "), *text))
    left = len(rows) - most
    note = f"{format_count(left, 'more step')} not shown" if left > 0 else ""
    columns = ("step", "of each row", "text") if decode else ("step", "of each row")
    return Section("tokens", "tokens chosen", columns, tuple(rows[:most]), note)


def query_section(capture: Capture, sql: str) -> Section:
    """Return what an SQL query over the statistics answers."""
    table = capture.query(sql)
    rows = tuple(tuple(map(_query_cell, row)) for row in table.rows)
    note = f"only the first {len(rows)} rows are shown" if table.is_cut else ""
    return Section("query", format_count(len(rows), "row"), table.columns, rows, note)


def _query_cell(value: Any) -> Cell:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def selected_records(capture: Capture, selector: str, steps: str) -> list[TensorRecord] | None:
    """Return the records whose values were kept at some places and steps; none named means all."""
    if not selector and not steps:
        return None
    places = [place for rank in capture.ranks for place in capture.files(rank).places]
    chosen = set(parse_selector(selector).select_or_raise(places)) if selector else set(places)
    step_ranges = parse_steps(steps)
    return [
        record
        for record in capture.records()
        if record.kept and record.place in chosen and step_ranges.has(record.step)
    ]


def verify_capture(path: str, book: RuleBook) -> Report:
    """Return the report on whether all values of a capture are what was captured; the tensors that are not are named."""
    with open_capture(path) as capture:
        damaged = list(capture.damaged_records())
        kept = sum(record.kept for record in capture.records())
        partial = capture.partial
    if not damaged:
        return Report(
            Summary(f"{path}: the values of {format_count(kept, 'tensor')} are what was captured", partial=partial)
        )
    first = damaged[0]
    values = {"tensor": first.name, "step": first.step, "rank": first.rank, "count": len(damaged), "kept": kept}
    evidence = Evidence(
        f"{path}: step {first.step}, {first.name}", "the values' hash is another than when they were captured"
    )
    finding = finding_from(book.get(VALUES_DAMAGED), Violation((evidence,), values))
    rows = tuple((record.name, record.step, record.rank) for record in damaged)
    section = Section("damaged", "Damaged values", ("tensor", "step", "rank"), rows)
    return Report(Summary(headline_from_findings([finding]), partial=partial), (finding,), (section,))


def open_capture(path: str | Path) -> Capture:
    """Return a capture opened, or raise with what to do."""
    if not Path(path).is_dir():
        raise CaptureError(f"{path} is not a capture", fix="make one: trtdx capture MODEL --out CAPTURE")
    return Capture(path)
