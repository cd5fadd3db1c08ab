"""What `trtdx memory` does: a question in, a report out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trtdx.memory.advice.advice import advise
from trtdx.memory.advice.borrowed_findings import with_own_commands
from trtdx.memory.advice.commands import Question, advised
from trtdx.memory.advice.gpu_changes import kind_of, valid_tps
from trtdx.memory.advice.target import parse_target, reach
from trtdx.memory.ledger.calibration import Constants
from trtdx.memory.ledger.capacity import smallest_home
from trtdx.memory.ledger.frontier import frontier
from trtdx.memory.ledger.plan import plan
from trtdx.memory.nouns import Figure
from trtdx.memory.question.contradictions import contradictions
from trtdx.memory.question.gpus import all_devices
from trtdx.memory.question.setup import setup_from
from trtdx.memory.report.figures import gib, on_what
from trtdx.memory.report.frontier_table import frontier_section
from trtdx.memory.report.plan import (
    MemoryReport,
    advice_json,
    advice_section,
    does_not_fit,
    ledger_section,
    memory_json,
    ranks_section,
    requests_section,
    verdict,
)
from trtdx.memory.report.target import out_of_reach, target_json, target_section
from trtdx.model import Section, Severity, Summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.memory.advice.commands import Advised
    from trtdx.memory.advice.target import Reached
    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.nouns import Ledger, Setup
    from trtdx.memory.question.setup import Asked
    from trtdx.model import Finding
    from trtdx.rule import RuleBook


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be told about a set-up."""

    frontier: bool = False
    target: str = ""
    lengths: tuple[int, ...] = ()
    again: str = "trtdx memory MODEL --gpu GPU"  # the command, to be run again after a change
    constants: Constants | None = None
    activation: Figure | None = None  # from the compiler
    compiled: tuple[Section, ...] = ()


def memory_report(host: Host, asked: Asked, book: RuleBook, wanted: Wanted) -> MemoryReport:
    """Return the plan of what was asked about, and everything that was wanted of it."""
    answer = setup_from(host, asked)
    setup = (
        msgspec.structs.replace(answer.setup, activation=wanted.activation)
        if wanted.activation
        else answer.setup
    )
    planner = partial(plan, constants=wanted.constants)
    question = Question(host, asked, answer._replace(setup=setup), planner)
    wrong = [
        msgspec.structs.replace(
            with_own_commands(question, each), verify=f"{wanted.again}   # with that change"
        )
        for each in contradictions(question.answer, book)
    ]
    wrong.sort(key=lambda each: -each.severity.badness)
    if wrong and wrong[0].severity is Severity.ERROR:
        text = f"cannot run as asked: {wrong[0].message}"
        # It is planned all the same for those who read JSON: a rule may be mistaken, or the GPU another one.
        summary = Summary(text, partial=answer.notes)
        return MemoryReport(summary=summary, findings=tuple(wrong), memory=memory_json(planner(setup)))
    if setup.device is None:
        return _without_gpu(setup, planner, wrong, wanted, answer.notes)
    return _with_gpu(question, wrong, wanted, book)


def _with_gpu(question: Question, wrong: list[Finding], wanted: Wanted, book: RuleBook) -> MemoryReport:
    setup, notes, planner = question.answer.setup, question.answer.notes, question.planner
    ledger = planner(setup)
    devices = all_devices()
    confirm = partial(_can_be, question, book)
    reached = None
    if wanted.target:
        reached = reach(setup, parse_target(wanted.target, setup), devices, planner, confirm)
    advice = (
        advise(setup, ledger, devices, planner, confirm=confirm) if not reached or not ledger.fits else ()
    )
    points = frontier(setup, lengths=wanted.lengths, planner=planner) if wanted.frontier else ()
    findings = [*does_not_fit(ledger, advice, book, wanted.again), *wrong]
    if reached is not None and not reached.fits:
        findings.append(out_of_reach(reached, book, wanted.again))
    sections = [*_plan_sections(ledger, wanted), *wanted.compiled]
    if points:
        sections.append(frontier_section(points))
    if reached is not None:
        sections += target_section(reached)
    elif ledger.fits and not points:
        sections += advice_section(advice)
    return MemoryReport(
        summary=Summary(_sentence(ledger, reached, wanted), partial=notes),
        findings=tuple(findings),
        sections=tuple(sections),
        memory=memory_json(ledger),
        frontier=points,
        advice=advice_json(advice),
        target=target_json(reached) if reached else None,
    )


def _can_be(question: Question, book: RuleBook, after: Setup) -> Advised | None:
    """Return the commands of a change; None where nothing says it, or what it makes cannot run."""
    found = advised(question, after)
    if found is None:
        return None
    wrong = contradictions(question.answer._replace(setup=found.setup), book)
    return None if any(each.severity is Severity.ERROR for each in wrong) else found


def _plan_sections(ledger: Ledger, wanted: Wanted) -> Iterator[Section]:
    yield ledger_section(ledger)
    yield from ranks_section(ledger)
    if wanted.lengths:
        yield from requests_section(ledger, wanted.lengths)


def _sentence(ledger: Ledger, reached: Reached | None, wanted: Wanted) -> str:
    now = verdict(ledger, wanted.lengths)
    if ledger.notes:
        now = f"{now}. This is {ledger.notes[0].partition('. ')[0]}"
    if reached is None:
        return now
    if not reached.fits:
        return (
            f"{reached.target}: nothing that was tried reaches it on {on_what(reached.setup)}; now it {now}"
        )
    if not reached.changes:
        return f"{reached.target}: fits as it is; it {now}"
    words = " and ".join(each.words for each in reached.changes)
    return f"{reached.target}: needs {words}; as it is, {reached.lacking}"


def _without_gpu(
    setup: Setup, planner: Planner, wrong: list[Finding], wanted: Wanted, notes: tuple[str, ...]
) -> MemoryReport:
    """Return the ledger, and the smallest GPUs it runs on."""
    said = not setup.said.get("tp", "default").startswith("default")
    sizes = [setup.layout.tp] if said else valid_tps(setup)
    servers = tuple(each for each in all_devices() if kind_of(each) in ("desk", "server"))
    home = smallest_home(setup, servers, sizes, planner)
    ledger = planner(home or setup)
    if home is None:
        return _bare(f"{verdict(ledger)}; no GPU that trtdx knows is large enough", ledger, wrong, notes)
    home_words = verdict(ledger, wanted.lengths).removeprefix("fits on ")
    text = f"{gib(_needed(ledger))} on each GPU before its KV cache; the smallest that runs it: {home_words}"
    found = _bare(text, ledger, wrong, notes, home)
    if not wanted.frontier:
        return found
    points = frontier(home, lengths=wanted.lengths, planner=planner)
    sections = (*found.sections, frontier_section(points))
    return msgspec.structs.replace(found, frontier=points, sections=sections)


def _needed(ledger: Ledger) -> int:
    return ledger.worst.total_bytes.value - ledger.worst.bytes_of("kv_pool")


def _bare(
    text: str, ledger: Ledger, wrong: list[Finding], notes: tuple[str, ...], home: Setup | None = None
) -> MemoryReport:
    """Return the report of a plan nobody named a GPU for: whether it fits was not asked."""
    memory = memory_json(ledger) | {"fits": None}
    if home is not None and home.device is not None:
        memory["smallest"] = {"gpu": home.device.name, "count": home.layout.world}
    return MemoryReport(
        summary=Summary(text, partial=notes),
        findings=tuple(wrong),
        sections=(ledger_section(ledger), *ranks_section(ledger)),
        memory=memory,
    )
