"""What `trtdx trace` does: files in, a report out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError
from trtdx.memory.question.setup import MemoryRequest, resolve_setup
from trtdx.model import Summary
from trtdx.trace.analysis.disturbance import undisturbed_share
from trtdx.trace.analysis.executor_ledger import ledger_from_iterations, ledger_from_requests
from trtdx.trace.analysis.ledger import add_up_time
from trtdx.trace.analysis.ranks import align_ranks
from trtdx.trace.analysis.timeline import build_timeline
from trtdx.trace.causes.cause import TraceAnalysis
from trtdx.trace.causes.table import find_causes, findings_from
from trtdx.trace.compare_runs import compare_runs
from trtdx.trace.limits import compare_with_limits, limit_section, limit_sentence
from trtdx.trace.readers.open_trace import read_recordings
from trtdx.trace.report import (
    TraceReport,
    answer_sentence,
    benchmark_section,
    module_section,
    rank_section,
    step_section,
    time_section,
    trace_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.host import Host
    from trtdx.model import Section
    from trtdx.rule import RuleBook
    from trtdx.trace.analysis.ledger import TimeLedger
    from trtdx.trace.nouns import RankTimeline, Recordings


class TraceQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be told about which files."""

    paths: tuple[str, ...]
    against: tuple[str, ...] = ()  # another run of the same, to compare with
    setup: MemoryRequest | None = None  # the model and GPU, where bounds are wanted
    context: int = 0  # tokens that each request has behind it


def report_trace(host: Host, question: TraceQuestion, book: RuleBook) -> TraceReport:
    """Return where the time of a run goes and what to change.

    Raises:
        InputError: a file cannot be read, or has no times in it.
    """
    analysis = analyse_files(host, question.paths)
    if question.against:
        return compare_runs(analyse_files(host, question.against), analysis, book)
    causes = find_causes(analysis)
    findings = findings_from(causes, book)
    ledger, recordings = analysis.ledger, analysis.recordings
    text = answer_sentence(ledger, causes, findings)
    limits: tuple[Section, ...] = ()
    if question.setup is not None:
        setup = resolve_setup(host, question.setup).setup
        rows = compare_with_limits(setup, analysis, question.context)
        text, limits = f"{limit_sentence(rows)}; {text}", (limit_section(rows, setup, question.context),)
    sections: tuple[Section, ...] = (
        *limits,
        *((time_section(ledger),) if ledger.wall else ()),
        *step_section(analysis.timelines),
        *rank_section(analysis.timelines, analysis.waits),
        *module_section(ledger),
        *benchmark_section(recordings.benchmarks),
    )
    summary = Summary(
        text,
        inputs=recordings.files,
        bytes_read=recordings.bytes_read,
        ranks=tuple(timeline.rank for timeline in analysis.timelines),
        partial=tuple(recordings.problems),
    )
    return TraceReport(summary=summary, findings=findings, sections=sections, trace=trace_json(ledger, causes))


def require_traces(host: Host, folder: str, warmup: int) -> None:
    """Raise where a command that was to be recorded has left no trace.

    Raises:
        InputError: the folder has no traces in it.
    """
    if not host.files(folder):
        raise InputError(
            f"nothing was recorded: no process ran more than {warmup} steps of torch, or it profiles itself",
            fix="record earlier or more: --warmup 2 --seconds 60",
        )


def analyse_files(host: Host, paths: Sequence[str]) -> TraceAnalysis:
    """Return the time of everything that some files hold."""
    recordings = read_recordings(host, paths)
    timelines, waits = align_ranks(_build_timelines(recordings))
    ledger = _choose_ledger(timelines, recordings)
    return TraceAnalysis(timelines, ledger, recordings, waits, undisturbed_share(timelines))


def _build_timelines(recordings: Recordings) -> list[RankTimeline]:
    """Return the timelines; the spans of each file are let go once they are in one, since they may be many."""
    tables = sorted(recordings.tables, key=lambda table: table.rank or 0)
    recordings.tables = []
    timelines = []
    while tables:
        table = tables.pop(0)
        timelines.append(build_timeline(table, table.rank or 0))
    return timelines


def _choose_ledger(timelines: Sequence[RankTimeline], recordings: Recordings) -> TimeLedger:
    """Return the most detailed ledger there is: of spans, of iterations, of requests."""
    if timelines:
        return add_up_time(timelines)
    if any(iteration.wall_ms > 0 for iteration in recordings.iterations):
        return ledger_from_iterations(recordings.iterations)
    if not (recordings.requests or recordings.iterations or recordings.benchmarks):
        raise InputError("no file has times in it")
    return ledger_from_requests(recordings.requests)
