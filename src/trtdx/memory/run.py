"""What `trtdx memory` does: a question in, a report out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trtdx.memory.advice.advice import advise_changes
from trtdx.memory.advice.borrowed_findings import rewrite_finding_commands
from trtdx.memory.advice.commands import MemoryQuestion, write_commands
from trtdx.memory.advice.gpu_changes import device_kind, valid_tp_sizes
from trtdx.memory.advice.target import parse_target, reach_target
from trtdx.memory.ledger.calibration import CalibrationConstants
from trtdx.memory.ledger.capacity import smallest_placement
from trtdx.memory.ledger.frontier import compute_frontier
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import Figure
from trtdx.memory.question.contradictions import find_contradictions
from trtdx.memory.question.gpus import all_devices
from trtdx.memory.question.setup import resolve_setup
from trtdx.memory.report.figures import render_gib, render_gpus
from trtdx.memory.report.frontier_table import frontier_section
from trtdx.memory.report.plan import (
    MemoryReport,
    advice_json,
    advice_section,
    capacity_findings,
    ledger_section,
    memory_json,
    ranks_section,
    render_verdict,
    requests_section,
)
from trtdx.memory.report.target import out_of_reach_finding, target_json, target_section
from trtdx.model import Section, Severity, Summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.memory.advice.commands import AdvisedCommands
    from trtdx.memory.advice.target import TargetResult
    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.nouns import MemoryLedger, Setup
    from trtdx.memory.question.setup import MemoryRequest
    from trtdx.model import Finding
    from trtdx.rule import RuleBook


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be told about a set-up."""

    frontier: bool = False
    target: str = ""
    lengths: tuple[int, ...] = ()
    again: str = "trtdx memory MODEL --gpu GPU"  # the command, to be run again after a change
    constants: CalibrationConstants | None = None
    activation: Figure | None = None  # from the compiler
    compiled: tuple[Section, ...] = ()


def memory_report(host: Host, asked: MemoryRequest, book: RuleBook, wanted: Wanted) -> MemoryReport:
    """Return the plan of what was asked about, and everything that was wanted of it."""
    answer = resolve_setup(host, asked)
    setup = (
        msgspec.structs.replace(answer.setup, activation=wanted.activation)
        if wanted.activation
        else answer.setup
    )
    planner = partial(plan_memory, constants=wanted.constants)
    question = MemoryQuestion(host, asked, answer._replace(setup=setup), planner)
    wrong = [
        msgspec.structs.replace(
            rewrite_finding_commands(question, each), verify=f"{wanted.again}   # with that change"
        )
        for each in find_contradictions(question.resolved, book)
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


def _with_gpu(question: MemoryQuestion, wrong: list[Finding], wanted: Wanted, book: RuleBook) -> MemoryReport:
    setup, notes, planner = question.resolved.setup, question.resolved.notes, question.planner
    ledger = planner(setup)
    devices = all_devices()
    confirm = partial(_can_be, question, book)
    reached = None
    if wanted.target:
        reached = reach_target(setup, parse_target(wanted.target, setup), devices, planner, confirm)
    advice = (
        advise_changes(setup, ledger, devices, planner, confirm=confirm)
        if not reached or not ledger.fits
        else ()
    )
    points = compute_frontier(setup, lengths=wanted.lengths, planner=planner) if wanted.frontier else ()
    findings = [*capacity_findings(ledger, advice, book, wanted.again), *wrong]
    if reached is not None and not reached.fits:
        findings.append(out_of_reach_finding(reached, book, wanted.again))
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


def _can_be(question: MemoryQuestion, book: RuleBook, after: Setup) -> AdvisedCommands | None:
    """Return the commands of a change; None where nothing says it, or what it makes cannot run."""
    found = write_commands(question, after)
    if found is None:
        return None
    wrong = find_contradictions(question.resolved._replace(setup=found.setup), book)
    return None if any(each.severity is Severity.ERROR for each in wrong) else found


def _plan_sections(ledger: MemoryLedger, wanted: Wanted) -> Iterator[Section]:
    yield ledger_section(ledger)
    yield from ranks_section(ledger)
    if wanted.lengths:
        yield from requests_section(ledger, wanted.lengths)


def _sentence(ledger: MemoryLedger, reached: TargetResult | None, wanted: Wanted) -> str:
    now = render_verdict(ledger, wanted.lengths)
    if ledger.notes:
        now = f"{now}. This is {ledger.notes[0].partition('. ')[0]}"
    if reached is None:
        return now
    if not reached.fits:
        return f"{reached.target}: nothing that was tried reaches it on {render_gpus(reached.setup)}; now it {now}"
    if not reached.changes:
        return f"{reached.target}: fits as it is; it {now}"
    words = " and ".join(each.words for each in reached.changes)
    return f"{reached.target}: needs {words}; as it is, {reached.shortage}"


def _without_gpu(
    setup: Setup, planner: Planner, wrong: list[Finding], wanted: Wanted, notes: tuple[str, ...]
) -> MemoryReport:
    """Return the ledger, and the smallest GPUs it runs on."""
    said = not setup.said.get("tp", "default").startswith("default")
    sizes = [setup.layout.tp] if said else valid_tp_sizes(setup)
    servers = tuple(each for each in all_devices() if device_kind(each) in ("desk", "server"))
    home = smallest_placement(setup, servers, sizes, planner)
    ledger = planner(home or setup)
    if home is None:
        return _bare(
            f"{render_verdict(ledger)}; no GPU that trtdx knows is large enough", ledger, wrong, notes
        )
    home_words = render_verdict(ledger, wanted.lengths).removeprefix("fits on ")
    text = f"{render_gib(_needed(ledger))} on each GPU before its KV cache; the smallest that runs it: {home_words}"
    found = _bare(text, ledger, wrong, notes, home)
    if not wanted.frontier:
        return found
    points = compute_frontier(home, lengths=wanted.lengths, planner=planner)
    sections = (*found.sections, frontier_section(points))
    return msgspec.structs.replace(found, frontier=points, sections=sections)


def _needed(ledger: MemoryLedger) -> int:
    return ledger.tightest_rank.total_bytes.value - ledger.tightest_rank.component_bytes("kv_pool")


def _bare(
    text: str, ledger: MemoryLedger, wrong: list[Finding], notes: tuple[str, ...], home: Setup | None = None
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
