"""What `trtdx memory` does: a question in, a report out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError
from trtdx.memory.advice.advice import advise_changes
from trtdx.memory.advice.borrowed_findings import rewrite_finding_commands
from trtdx.memory.advice.commands import MemoryQuestion, write_commands
from trtdx.memory.advice.gpu_changes import device_kind, valid_tp_sizes
from trtdx.memory.advice.target import parse_target, reach_target
from trtdx.memory.ledger.calibration import CalibrationConstants, load_constants
from trtdx.memory.ledger.capacity import smallest_placement
from trtdx.memory.ledger.frontier import compute_frontier
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import Figure
from trtdx.memory.question.contradictions import find_contradictions
from trtdx.memory.question.gpus import all_devices
from trtdx.memory.question.setup import resolve_setup
from trtdx.memory.report.figures import render_gib, render_gpus
from trtdx.memory.report.frontier_table import frontier_section, speed_section
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
    from collections.abc import Callable, Iterator

    from trtdx.engines.tensorrt.build.nouns import BuildProgress
    from trtdx.host import Host
    from trtdx.memory.advice.commands import AdvisedCommands
    from trtdx.memory.advice.target import TargetResult
    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.nouns import MemoryLedger, Setup
    from trtdx.memory.question.setup import MemoryRequest
    from trtdx.model import Finding
    from trtdx.rule import RuleBook


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be told about a set-up."""

    frontier: bool = False
    plot: str = ""  # a file for a picture of the frontier
    target: str = ""
    lengths: tuple[int, ...] = ()
    compiles: bool = False  # whether TensorRT's builder says how large activations are
    again: str = "trtdx memory MODEL --gpu GPU"  # the command, to be run again after a change
    constants: CalibrationConstants | None = None
    activation: Figure | None = None  # from the compiler
    compiled: tuple[Section, ...] = ()


def report_memory_plan(
    host: Host,
    memory_request: MemoryRequest,
    book: RuleBook,
    request: PlanRequest,
    progress: Callable[[BuildProgress], None] | None = None,
) -> MemoryReport:
    """Return a plan with what this machine has learnt and, where asked for, what the compiler says and a picture.

    Raises:
        InputError: the set-up cannot be understood, or there is no frontier to draw.
    """
    request = msgspec.structs.replace(request, constants=request.constants or load_constants(host))
    if request.plot:
        request = msgspec.structs.replace(request, frontier=True)
    if request.compiles:
        from trtdx.memory.compile.growth_curve import with_compiled_activation

        request = with_compiled_activation(host, memory_request, request, progress)
    report = _report_plan(host, memory_request, book, request)
    if request.plot:
        _draw_frontier(report, request.plot)
    return report


def _draw_frontier(report: MemoryReport, path: str) -> None:
    from trtdx.memory.report.pictures import write_frontier

    if not report.frontier:
        raise InputError(f"there is no frontier to draw: {report.summary.text}")
    write_frontier(report, path)


def _report_plan(host: Host, memory_request: MemoryRequest, book: RuleBook, request: PlanRequest) -> MemoryReport:
    """Return the plan of what was asked about, and everything requested of it."""
    answer = resolve_setup(host, memory_request)
    setup = msgspec.structs.replace(answer.setup, activation=request.activation) if request.activation else answer.setup
    planner = partial(plan_memory, constants=request.constants)
    question = MemoryQuestion(host, memory_request, answer._replace(setup=setup), planner)
    wrong = [
        msgspec.structs.replace(
            rewrite_finding_commands(question, finding), verify=f"{request.again}   # with that change"
        )
        for finding in find_contradictions(question.resolved, book)
    ]
    wrong.sort(key=lambda finding: -finding.severity.badness)
    if wrong and wrong[0].severity is Severity.ERROR:
        text = f"cannot run as asked: {wrong[0].message}"
        # It is planned all the same for those who read JSON: a rule may be mistaken, or the GPU another one.
        summary = Summary(text, partial=answer.notes)
        return MemoryReport(summary=summary, findings=tuple(wrong), memory=memory_json(planner(setup)))
    if setup.device is None:
        if request.target:
            raise InputError("whether a --target can be reached depends on the GPU", fix="name one: --gpu H100")
        return _report_without_gpu(setup, planner, wrong, request, answer.notes)
    return _report_with_gpu(question, wrong, request, book)


def _report_with_gpu(
    question: MemoryQuestion, wrong: list[Finding], request: PlanRequest, book: RuleBook
) -> MemoryReport:
    setup, notes, planner = question.resolved.setup, question.resolved.notes, question.planner
    ledger = planner(setup)
    devices = all_devices()
    confirm = partial(_confirm_change, question, book)
    reached = None
    if request.target:
        reached = reach_target(setup, parse_target(request.target, setup), devices, planner, confirm)
    advice = advise_changes(setup, ledger, devices, planner, confirm=confirm) if not reached or not ledger.fits else ()
    points = compute_frontier(setup, lengths=request.lengths, planner=planner) if request.frontier else ()
    findings = [*capacity_findings(ledger, advice, book, request.again), *wrong]
    if reached is not None and not reached.fits:
        findings.append(out_of_reach_finding(reached, book, request.again))
    sections = [*_plan_sections(ledger, request), *request.compiled]
    if points:
        sections += [frontier_section(points), speed_section(points, setup)]
    if reached is not None:
        sections += target_section(reached)
    elif ledger.fits and not points:
        sections += advice_section(advice)
    return MemoryReport(
        summary=Summary(_render_verdict(ledger, reached, request), partial=notes),
        findings=tuple(findings),
        sections=tuple(sections),
        memory=memory_json(ledger),
        frontier=points,
        advice=advice_json(advice),
        target=target_json(reached) if reached else None,
    )


def _confirm_change(question: MemoryQuestion, book: RuleBook, after: Setup) -> AdvisedCommands | None:
    """Return the commands of a change; None where nothing says it, or what it makes cannot run."""
    change = write_commands(question, after)
    if change is None:
        return None
    wrong = find_contradictions(question.resolved._replace(setup=change.setup), book)
    return None if any(finding.severity is Severity.ERROR for finding in wrong) else change


def _plan_sections(ledger: MemoryLedger, request: PlanRequest) -> Iterator[Section]:
    yield ledger_section(ledger)
    yield from ranks_section(ledger)
    if request.lengths:
        yield from requests_section(ledger, request.lengths)


def _render_verdict(ledger: MemoryLedger, reached: TargetResult | None, request: PlanRequest) -> str:
    now = render_verdict(ledger, request.lengths)
    if ledger.notes:
        now = f"{now}. This is {ledger.notes[0].partition('. ')[0]}"
    if reached is None:
        return now
    if not reached.fits:
        return f"{reached.target}: nothing that was tried reaches it on {render_gpus(reached.setup)}; now it {now}"
    if not reached.changes:
        return f"{reached.target}: fits as it is; it {now}"
    words = " and ".join(change.words for change in reached.changes)
    return f"{reached.target}: needs {words}; as it is, {reached.shortage}"


def _report_without_gpu(
    setup: Setup, planner: Planner, wrong: list[Finding], request: PlanRequest, notes: tuple[str, ...]
) -> MemoryReport:
    """Return the ledger, and the smallest GPUs it runs on."""
    is_tp_given = not setup.said.get("tp", "default").startswith("default")
    sizes = [setup.layout.tp] if is_tp_given else valid_tp_sizes(setup)
    servers = tuple(device for device in all_devices() if device_kind(device) in ("desk", "server"))
    home = smallest_placement(setup, servers, sizes, planner)
    ledger = planner(home or setup)
    if home is None:
        return _report_ledger(
            f"{render_verdict(ledger)}; no GPU that trtdx knows is large enough", ledger, wrong, notes
        )
    home_words = render_verdict(ledger, request.lengths).removeprefix("fits on ")
    text = f"{render_gib(_bytes_before_cache(ledger))} on each GPU before its KV cache; the smallest that runs it: {home_words}"
    report = _report_ledger(text, ledger, wrong, notes, home)
    if not request.frontier:
        return report
    points = compute_frontier(home, lengths=request.lengths, planner=planner)
    sections = (*report.sections, frontier_section(points), speed_section(points, home))
    return msgspec.structs.replace(report, frontier=points, sections=sections)


def _bytes_before_cache(ledger: MemoryLedger) -> int:
    return ledger.tightest_rank.total_bytes.value - ledger.tightest_rank.component_bytes("kv_pool")


def _report_ledger(
    text: str, ledger: MemoryLedger, wrong: list[Finding], notes: tuple[str, ...], home: Setup | None = None
) -> MemoryReport:
    """Return the report of a plan that no GPU was named for: whether it fits was not asked."""
    memory = memory_json(ledger) | {"fits": None}
    if home is not None and home.device is not None:
        memory["smallest"] = {"gpu": home.device.name, "count": home.layout.world}
    return MemoryReport(
        summary=Summary(text, partial=notes),
        findings=tuple(wrong),
        sections=(ledger_section(ledger), *ranks_section(ledger)),
        memory=memory,
    )
