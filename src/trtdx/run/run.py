"""`trtdx run`: the same command, supervised; its report says which rank failed first and why."""

from __future__ import annotations

import contextlib
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.case import CaseWriter
from trtdx.errors import InputError
from trtdx.host import open_closed_streams
from trtdx.model import Report, Summary, headline_from_findings
from trtdx.redact import redact_report
from trtdx.render import render_json
from trtdx.run.case_files import keep_logs
from trtdx.run.job.live import read_agents
from trtdx.run.job.signals import SignalDesk
from trtdx.run.job.stories import build_stories
from trtdx.run.job.supervise import CommandStartError, Supervisor, exit_status
from trtdx.run.modes import mode_environment
from trtdx.run.nouns import JobRecord
from trtdx.run.start_failure import report_of_start
from trtdx.run.verdict.findings import JobView
from trtdx.run.verdict.judge import job_state, judge_job
from trtdx.run.verdict.tables import job_sections, shape_section
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from trtdx.host import Host
    from trtdx.rule import RuleBook
    from trtdx.run.nouns import RunRequest


class JobResult(msgspec.Struct, frozen=True):
    """How a supervised command ended and what there is to say about it."""

    status: int
    report: Report
    record: JobRecord


class PreparedRules:
    """The rule book, read once: when it is needed, or before, beside a job that has been quiet for a while."""

    def __init__(self, load_rules: Callable[[], RuleBook]) -> None:
        self._load_rules, self._lock = load_rules, threading.Lock()
        self._book: RuleBook | None = None

    def __call__(self) -> RuleBook:
        with self._lock:
            if self._book is None:
                self._book = self._load_rules()
            return self._book

    def prepare(self) -> None:
        threading.Thread(target=self, daemon=True).start()


def run_command(
    host: Host, request: RunRequest, load_rules: Callable[[], RuleBook], show: Callable[[Report], None]
) -> JobResult:
    """Run a command under supervision and return its status and the report.

    Args:
        host: where the case is written.
        request: what was asked for.
        load_rules: gives the rule book; asked only when there is something to judge.
        show: called with the report on a hang while the job is still there.
    """
    closed = open_closed_streams()
    # Until the report is written: an impatient Ctrl-C while a job is judged must not cost its case.
    with contextlib.closing(SignalDesk()) as desk:
        return _run_and_judge(host, request, load_rules, show, (desk, closed))


def _run_and_judge(
    host: Host,
    request: RunRequest,
    load_rules: Callable[[], RuleBook],
    show: Callable[[Report], None],
    surroundings: tuple[SignalDesk, Collection[int]],
) -> JobResult:
    desk, closed = surroundings
    folder = Path(request.case)
    case = CaseWriter(host, request.case)
    case.record("command", {"argv": list(request.command), "tool": "run"})
    environment = mode_environment(request, folder, host.environment())

    load_rules = PreparedRules(load_rules)
    hangs: list[Report] = []

    def on_hang(record: JobRecord) -> None:
        hangs.append(_judge_safely(record, supervisor.live, load_rules))
        _write_report(host, request, case, hangs[-1])
        if request.on_hang == "report":
            show(hangs[-1])

    supervisor = Supervisor(request, folder, environment, on_hang, load_rules.prepare, closed)
    try:
        record = supervisor.run(desk)
    except CommandStartError as err:
        report = report_of_start(request.command, err, environment, load_rules())
        _write_report(host, request, case, report)
        return JobResult(err.status, report, supervisor.record)
    report = _judge_safely(record, supervisor.live, load_rules)
    if hangs and record.hang_seen and report.findings:  # what was seen while it hung says more than what was left of it
        report = _report_after_hang(record, hangs[-1])
    notes = [*keep_logs(case, folder), *dict.fromkeys(record.problems[:5])]
    lost = f"; what it printed could not be written ({record.output_lost})" if record.output_lost else ""
    text, partial = report.summary.text + lost, (*report.summary.partial, *notes)
    summary = msgspec.structs.replace(report.summary, text=text, partial=partial)
    report = msgspec.structs.replace(report, summary=summary)
    if problem := _write_report(host, request, case, report):
        summary = msgspec.structs.replace(summary, partial=(*summary.partial, problem))
        report = msgspec.structs.replace(report, summary=summary)
    return JobResult(exit_status(record.launcher_end) or int(bool(record.output_lost)), report, record)


def _judge_safely(record: JobRecord, live: Path, load_rules: Callable[[], RuleBook]) -> Report:
    """Return the report; a mistake of ours in judging is told in it, and the command's own status still counts."""
    try:
        return redact_report(judge(record, live, load_rules))
    except Exception:
        words = traceback.format_exc()[-2000:]
        text = "the job could not be judged: this is a bug in trtdx, and says nothing about the job"
        return Report(Summary(text=text, partial=(words,)))


def _report_after_hang(record: JobRecord, report: Report) -> Report:
    assert record.launcher_end is not None
    by = "trtdx ended it" if record.was_killed_by_us else "it was ended"
    text = f"{report.summary.text}; {by}: {record.launcher_end.in_words()} after {record.ended - record.started:.1f} s"
    return msgspec.structs.replace(report, summary=msgspec.structs.replace(report.summary, text=text))


def _write_report(host: Host, request: RunRequest, case: CaseWriter, report: Report) -> str:
    """Write the report where it is wanted, and return why it could not be: the command's status counts all the same."""
    case.add_report(report)
    try:
        if request.report_file:
            host.write(request.report_file, render_json(report).encode())
    except InputError as err:
        return err.message
    return f"the case is not whole: {case.problem}" if case.problem else ""


def judge(record: JobRecord, live: Path, load_rules: Callable[[], RuleBook]) -> Report:
    """Return the report on a job as it stands."""
    agents = read_agents(live)
    record.stories = build_stories(record, agents)
    view = JobView(record, record.stories, live, load_rules)
    findings = tuple(judge_job(view))
    ranks = tuple(story.rank for story in view.ranks if story.rank is not None)
    problems = [f"the agent in process {agent.pid}: {problem}" for agent in agents for problem in agent.problems]
    problems += [str(event["problem"]) for agent in agents for event in agent.events if event.get("problem")]
    problems += [f"the agent did not start: {path.name}" for path in sorted(live.glob("agent-failed-*.txt"))]
    return Report(
        Summary(text=_headline(view, findings), ranks=ranks, partial=tuple(problems[:20])),
        findings,
        (*(job_sections(view) if findings else ()), *shape_section(view)),
    )


def _headline(view: JobView, findings: tuple[object, ...]) -> str:
    record = view.record
    ran = f"{format_count(len(view.ranks), 'rank')}, " if view.ranks else ""
    if record.launcher_end is None:
        how = f"no progress for {record.hang_seen - record.quiet_since:.0f} s"
    else:
        how = f"{record.launcher_end.in_words()} after {record.ended - record.started:.1f} s"
    if findings:
        return f"{ran}{how}: {headline_from_findings(findings)}"  # type: ignore[arg-type]
    quiet = " (it was quiet for long, and then went on)" if record.hang_seen and not job_state(view).is_hanging else ""
    left = f"; {format_count(len(record.left_behind), 'process')} of it still there" if record.left_behind else ""
    return f"no problem seen: {ran}{how}{quiet}{left}".replace("processs", "processes")
