"""One run of a model with taps, from a plan to a report."""

from __future__ import annotations

import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.capture.not_finite import not_finite_finding
from trtdx.capture.overview import MOST_ROWS, SORTED_BY, tensor_rows, tensor_section, told
from trtdx.capture.session.inputs import MADE_UP_PROMPT, decoder_beside, feeds_from, made_up_feeds
from trtdx.capture.session.record import NotFiniteError, Recorder
from trtdx.capture.session.selection import Wanted, check_values, parse_positions, parse_steps
from trtdx.capture.session.steps import Session, state_after, step_notes
from trtdx.capture.store.format import CaptureError, Header
from trtdx.capture.store.origin import origin_of
from trtdx.capture.store.reader import Capture
from trtdx.capture.store.writer import CaptureWriter
from trtdx.engines.generate import cache_names, completed_feeds
from trtdx.engines.opening import Options, chosen_engine, find_model, open_engine, places_in
from trtdx.engines.state import Sampling, State
from trtdx.errors import InputError, UnknownNameError
from trtdx.model import Report, Section, Summary
from trtdx.tensors.feeds import checked_feeds
from trtdx.tensors.taps import parse_selector
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.capture.store.reader import Record
    from trtdx.engines.engine import Engine
    from trtdx.engines.generate import Step
    from trtdx.engines.opening import Model
    from trtdx.host import Host
    from trtdx.model import Cell
    from trtdx.rule import RuleBook

MOST_STEPS = 16
TOKENS = 8  # are generated where nobody says how many
MODULES = "** & is:module"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
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
    options: Options = Options()
    resume: str = ""
    after_step: int | None = None
    run: str = ""  # the command line


def capture_run(
    host: Host,
    plan: Plan,
    book: RuleBook,
    *,
    on_start: Callable[[Path], None] | None = None,
    on_step: Callable[[Step], None] | None = None,
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
    kind = chosen_engine(model, plan.engine)
    plan, before = _as_before(plan) if plan.resume else (plan, None)
    wanted = _wanted(plan)
    began = time.monotonic()
    selector = plan.selector or ("**" if plan.watch else default_selector(model, kind))
    parse_selector(selector)
    engine = open_engine(model, kind, selector, plan.options)
    try:
        check_values(plan.values, selector, engine.places(), sure=kind != "torch")
        folder, state = _start(plan, engine, kind)
        tokens = _tokens_left(plan, state, before)
        feeds = _feeds(host, engine, plan)
        header = Header(run=plan.run, engine=kind, selector=selector, details=_details(engine, plan))
        writer = CaptureWriter(
            folder,
            header,
            value_budget_bytes=plan.budget_bytes,
            resume=folder == Path(plan.resume),
            whole_steps=True,
        )
        if on_start is not None:
            on_start(folder)
        session = Session(engine, writer, Recorder(writer, wanted, engine.places(), reads=engine.reads))
        stopped = _carry_out(session, plan, feeds if feeds is not None else state, tokens, on_step)
        notes = _notes(plan, engine.tapped.note, before=before)
        if stopped is None and not any(map(wanted.has_step, range(state.step if state else 0, engine.step))):
            notes.append("no tap was captured: no step of this run is among those asked for")
    finally:
        engine.close()
    about = f"in {time.monotonic() - began:.1f} s"
    return capture_report(folder, book, stopped=stopped, notes=notes, about=about, most=most)


def default_selector(model: Model, kind: str) -> str:
    """Return what leaves each module, or everything where a graph does not tell its modules."""
    try:
        found = places_in(model, kind, MODULES).places
    except InputError:
        return "**"
    return MODULES if any(place.path for place in found) else "**"  # every model has borders of its own


def _as_before(plan: Plan) -> tuple[Plan, Header]:
    """Return a plan to go on as before unless told otherwise, and what the capture says it is of."""
    with checked_capture(plan.resume) as before:
        header = before.header
    kept = {name: header.details[name] for name in ("values", "steps", "positions") if name in header.details}
    told = {name: value for name, value in kept.items() if not getattr(plan, name) and isinstance(value, str)}
    return msgspec.structs.replace(plan, selector=plan.selector or header.selector, **told), header


def _wanted(plan: Plan) -> Wanted:
    return Wanted(
        parse_selector(plan.values) if plan.values else None,
        parse_steps(plan.steps),
        plan.every,
        parse_positions(plan.positions),
        plan.watch,
    )


def _details(engine: Engine, plan: Plan) -> dict[str, Any]:
    kept = {name: getattr(plan, name) for name in ("values", "steps", "every", "positions", "tokens")}
    told = {name: value for name, value in kept.items() if value not in ("", 1, None)}
    return header_details(engine) | told


def header_details(engine: Engine) -> dict[str, Any]:
    """Return what a capture's header has to say of an engine to repeat the run, and to see later what changed."""
    caches = cache_names(engine) if is_decoder(engine) else {}
    path = getattr(engine, "path", None)
    made: dict[str, Any] = {**engine.details, **origin_of(Path(path) if path else None), "caches": caches}
    details: dict[str, Any] = msgspec.to_builtins(made, enc_hook=str)
    return details


def _start(plan: Plan, engine: Engine, kind: str) -> tuple[Path, State | None]:
    """Return where the capture goes, and the state to go on from."""
    if not plan.resume:
        return Path(plan.out) if plan.out else _free_folder(plan, kind), None
    with Capture(plan.resume) as before:
        if is_decoder(engine) is False:
            raise InputError("only a generation can be taken up again", fix="run it anew")
        caches, told = cache_names(engine), before.header.details.get("caches")
        if isinstance(told, dict) and told.keys() != caches.keys():
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


def _tokens_left(plan: Plan, state: State | None, before: Header | None) -> int:
    """Return how many tokens to generate: what a run that is resumed has generated counts."""
    done = state.step if state is not None else 0
    planned = before.details.get("tokens") if before is not None else None
    if plan.tokens is None:
        return planned - done if isinstance(planned, int) and planned > done else TOKENS
    if plan.tokens <= done:
        fix = f"--new-tokens counts those too; for {TOKENS} more: --new-tokens {done + TOKENS}"
        raise InputError(f"{plan.resume} has {counted(done, 'token')} already", fix=fix)
    return plan.tokens - done


def _free_folder(plan: Plan, kind: str) -> Path:
    """Return a folder in the current one that is not there yet, named after model and engine."""
    path = Path(plan.model).resolve()
    name = f"capture-{path.stem if path.is_file() else path.name}-{kind}"
    numbers = (Path(name if number == 1 else f"{name}-{number}") for number in range(1, 10_000))
    return next(path for path in numbers if not path.exists())


def is_decoder(engine: Engine) -> bool:
    """Whether an engine's model is one that generates: it takes token ids and has scores."""
    return "input_ids" in engine.inputs and ("logits" in engine.outputs or bool(cache_names(engine)))


def _carry_out(
    session: Session,
    plan: Plan,
    given: State | Iterator[dict[str, Any]] | None,
    tokens: int,
    on_step: Callable[[Step], None] | None,
) -> NotFiniteError | None:
    """Run all steps into the capture; returns what stopped a watched run."""
    try:
        with session.writer:
            if given is not None and not isinstance(given, State):
                for feeds in given:
                    session.compute(feeds)
                return None
            start = given if given is not None else plan.prompts or (MADE_UP_PROMPT,)
            for step in session.generate(start, tokens, sampling=plan.sampling):
                if on_step is not None:
                    on_step(step)
    except NotFiniteError as err:
        return err
    return None


def _feeds(host: Host, engine: Engine, plan: Plan) -> Iterator[dict[str, Any]] | None:
    """Return what each run is fed, or none for a generation; a mistake is found before a folder is made."""
    if is_decoder(engine) and not plan.inputs:
        return None
    if plan.prompts:
        raise InputError(
            f"{plan.model} does not generate: it takes {listed(engine.inputs)}",
            fix="feed it with --inputs FILE",
        )
    if not plan.inputs:
        return iter([made_up_feeds(engine.inputs)])
    files = chain.from_iterable(feeds_from(host, path) for path in plan.inputs)
    feeds = ({**given, **completed_feeds(engine, given)} for given in files)
    first = next(feeds)
    checked_feeds(engine.inputs, first)
    return chain([first], feeds)


def _notes(plan: Plan, tapped: str, before: Header | None = None) -> list[str]:
    """Return what a reader has to know to judge the numbers."""
    found = []
    was = before.details.get("model") if before else None
    if isinstance(was, str) and Path(was).resolve() != find_model(plan.model).path.resolve():
        found.append(f"the steps before are of another model: {was}")
    if not plan.inputs and not plan.prompts and not plan.resume:
        found.append("the input was made up, as none was given")
    if tapped:
        found.append(tapped)
    return found


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
    if sort not in SORTED_BY:
        raise UnknownNameError("order", sort, SORTED_BY)
    with checked_capture(folder) as capture:
        finding = not_finite_finding(capture, book, stopped)
        wanted = parse_steps(steps) if steps else None
        rows = tensor_rows(capture, parse_selector(selector) if selector else None, wanted)
        if wanted and not rows:
            seen = sorted({each.step for each in capture.records()})
            raise InputError(
                f"{folder} has no tensors of step {steps}",
                fix=f"it has {counted(len(seen), 'step')}: {listed(seen)}",
            )
        sections = (
            Section("about", "about this run", ("",), tuple((each,) for each in notes)),
            tokens_section(capture),
            tensor_section(rows, by=sort, most=MOST_ROWS if most is None else most),
        )
        summary = Summary(
            ", ".join((told(capture), about) if about else (told(capture),)),
            partial=capture.partial,
        )
    return Report(summary, (finding,) if finding else (), tuple(each for each in sections if each.rows))


def tokens_section(capture: Capture, *, most: int = MOST_STEPS) -> Section:
    """Return which tokens were chosen at each step."""
    notes = step_notes(capture, rank=capture.ranks[0])
    decode = decoder_beside(capture.header.details.get("model"))
    rows: list[tuple[Cell, ...]] = []
    for number, step in sorted(notes.items()):
        text = (listed(map(decode, step.tokens), 12, " "),) if decode else ()
        rows.append((number, listed(step.tokens, 12, " "), *text))
    left = len(rows) - most
    note = f"{counted(left, 'more step')} not shown" if left > 0 else ""
    columns = ("step", "of each row", "text") if decode else ("step", "of each row")
    return Section("tokens", "tokens chosen", columns, tuple(rows[:most]), note)


def query_section(capture: Capture, sql: str) -> Section:
    """Return what an SQL query over the statistics answers."""
    table = capture.query(sql)
    rows = tuple(tuple(map(_cell, row)) for row in table.rows)
    note = f"only the first {len(rows)} rows are shown" if table.cut else ""
    return Section("query", counted(len(rows), "row"), table.columns, rows, note)


def _cell(value: Any) -> Cell:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def selected_records(capture: Capture, selector: str, steps: str) -> list[Record] | None:
    """Return the records whose values were kept at some places and steps; none named means all."""
    if not selector and not steps:
        return None
    places = [place for rank in capture.ranks for place in capture.files(rank).places]
    chosen = set(parse_selector(selector).selected(places)) if selector else set(places)
    wanted = parse_steps(steps)
    return [
        each for each in capture.records() if each.kept and each.place in chosen and wanted.has(each.step)
    ]


def checked_capture(path: str | Path) -> Capture:
    """Return a capture opened, or raise with what to do."""
    if not Path(path).is_dir():
        raise CaptureError(f"{path} is not a capture", fix="make one: trtdx capture MODEL --out CAPTURE")
    return Capture(path)
