"""`trtdx check`: a question in, a report out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.check.collect import CheckQuestion, collect_environment
from trtdx.check.history import changes_since_good, keep_if_good
from trtdx.check.judges.copies import judge_copies
from trtdx.check.judges.damage import judge_damage
from trtdx.check.judges.imports import judge_imports
from trtdx.check.judges.libraries import judge_libraries
from trtdx.check.judges.limits import judge_limits
from trtdx.check.judges.pairing import judge_pairing
from trtdx.check.judges.requirements import judge_requirements
from trtdx.check.judges.shadows import judge_shadows
from trtdx.check.judges.start import judge_start
from trtdx.check.mend.lock import render_dockerfile, render_lock
from trtdx.check.mend.new_environment import build_environment, install_in_place, new_folder
from trtdx.check.mend.plan import make_plan, with_plan
from trtdx.check.order import order_causes
from trtdx.check.sections import list_sections
from trtdx.check.view import EnvironmentView
from trtdx.model import Report, Severity, Summary, headline_from_findings
from trtdx.words import format_count

if TYPE_CHECKING:
    from trtdx.check.mend.plan import MendingPlan
    from trtdx.check.nouns import EnvironmentRecord
    from trtdx.host import Host
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

JUDGES = (
    judge_start, judge_shadows, judge_damage, judge_copies, judge_pairing, judge_requirements, judge_libraries, judge_imports,
    judge_limits,
)  # fmt: skip


AGAIN = "trtdx check"


class MendingWishes(NamedTuple):
    """What is to be done with the answer, besides saying it."""

    resolves: bool = True
    lock: str = ""
    container: str = ""
    fixes: bool = False
    into: str = ""
    in_place: bool = False
    since: bool = False


def check_environment(
    host: Host, question: CheckQuestion, book: RuleBook, wishes: MendingWishes | None = None
) -> tuple[Report, EnvironmentRecord]:
    """Return what is wrong with an environment, what must be mended first in front; and the facts it is made from."""
    record = collect_environment(host, question)
    view, report = EnvironmentView(record), judge_record(record, book)
    wished = wishes or MendingWishes()
    plan = (
        make_plan(host, view, is_patient=bool(wished.lock or wished.fixes))
        if wished.resolves or wished.lock or wished.fixes
        else None
    )
    report = with_plan(report, view, plan)
    if wished.since:
        report = msgspec.structs.replace(report, sections=(changes_since_good(host, view), *report.sections))
    keep_if_good(host, view, report)
    if wished.lock:
        host.write(wished.lock, render_lock(view, plan).encode())
    if wished.container:
        host.write(wished.container, render_dockerfile(view).encode())
    if wished.fixes:
        report = _mend(host, question, book, wished, view, plan)
    return report, record


def _mend(
    host: Host,
    question: CheckQuestion,
    book: RuleBook,
    wishes: MendingWishes,
    view: EnvironmentView,
    plan: MendingPlan | None,
) -> Report:
    """Return the report on the environment after it was mended: a new one, unless the old is to be changed."""
    if wishes.in_place:
        install_in_place(host, view, [f"{name}=={version}" for name, _, version in plan.changes] if plan else [])
        python = view.record.python_path
    else:
        python = build_environment(host, view, render_lock(view, plan), wishes.into or new_folder(view))
    report = judge_record(collect_environment(host, question._replace(python=python)), book)
    text = f"mended in {python}; {report.summary.text}"
    return msgspec.structs.replace(report, summary=msgspec.structs.replace(report.summary, text=text))


def judge_record(record: EnvironmentRecord, book: RuleBook) -> Report:
    """Return the judgement of recorded facts; nothing else is looked at."""
    view = EnvironmentView(record)
    causes = [cause for judge in JUDGES for cause in judge(view)]
    findings = tuple(_with_own_verification(finding, record) for finding in order_causes(causes, book))
    findings = (*findings, *_kernel_findings(record, book))
    findings = tuple(sorted(findings, key=lambda finding: -finding.severity.badness))
    return Report(
        summary=Summary(_headline(view, findings), partial=_unread(view)),
        findings=findings,
        sections=list_sections(view),
    )


def _with_own_verification(finding: Finding, record: EnvironmentRecord) -> Finding:
    """Return a finding whose command that verifies it looks at the same environment again."""
    subject = f"--container {record.root}" if record.root else f"--python {record.python_path}"
    return msgspec.structs.replace(finding, verify=f"{AGAIN} {subject}") if finding.verify == AGAIN else finding


def _kernel_findings(record: EnvironmentRecord, book: RuleBook) -> tuple[Finding, ...]:
    """Return what the kernel's lines about GPUs mean, in the words of the pages about such lines."""
    if not record.machine.xids:
        return ()
    from trtdx.diagnose.run import diagnose_sources, source_from_text

    report = diagnose_sources([source_from_text("\n".join(record.machine.xids), "dmesg")], book)
    return tuple(msgspec.structs.replace(finding, severity=Severity.WARNING) for finding in report.findings)


def _headline(view: EnvironmentView, findings: tuple[Finding, ...]) -> str:
    if any(finding.severity is not Severity.NOTE for finding in findings):
        return headline_from_findings(findings)
    subject = view.record.root or view.record.python_path
    tried = format_count(sum(trial.outcome == "works" for trial in view.record.trials), "import")
    return f"{subject}: {format_count(len(view.in_force), 'distribution')}, {tried} tried, nothing to mend"


def _unread(view: EnvironmentView) -> tuple[str, ...]:
    notes = list(view.record.unread)
    if view.record.python.files_unread:
        notes.append("whether all installed files are there (there are too many for the time)")
    if "tensorrt-llm" not in view.in_force and view.record.has_started:
        notes.append("the release table (TensorRT-LLM is not installed in this environment)")
    return tuple(notes)
