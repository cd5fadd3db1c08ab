"""The second run after a failure, with synchronous launches and all logs, and what it tells beside the first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from trtdx.model import Evidence
from trtdx.redact import redact_report
from trtdx.render import render_json
from trtdx.run.run import run_command
from trtdx.run.verdict.findings import JobView, make_finding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtdx.host import Host
    from trtdx.model import Finding, Report
    from trtdx.rule import RuleBook
    from trtdx.run.nouns import RunRequest
    from trtdx.run.run import JobResult


def run_again(
    host: Host, request: RunRequest, first: JobResult, load_rules: Callable[[], RuleBook], live: Path
) -> Report:
    """Run the command once more and return the first report with what both runs tell together."""
    again = msgspec.structs.replace(
        request, case=f"{request.case}-sync", sync=True, trace=True, report_file="", on_hang="kill"
    )
    second = run_command(host, again, load_rules, lambda report: None)
    view = JobView(first.record, first.record.stories, live, load_rules)
    words = compare_runs(first, second)
    evidence = [
        Evidence("first run", _first_line(first.report)),
        Evidence(f"second run, synchronous ({again.case})", _first_line(second.report)),
    ]
    note = make_finding(view, "DX1265", (), evidence, {"what": words}, confidence=0.8)
    report = msgspec.structs.replace(first.report, findings=(*first.report.findings, note))
    if request.report_file:
        host.write(request.report_file, render_json(redact_report(report)).encode())
    return report


def compare_runs(first: JobResult, second: JobResult) -> str:
    """Return in one sentence what synchronous launches changed."""
    if second.status == 0:
        return "run again with synchronous launches it ended well: the failure depends on timing"
    one, two = _place(first.report), _place(second.report)
    if one == two:
        return f"run again with synchronous launches it failed at the same place ({one}): that is where it happens"
    return f"run again with synchronous launches the error moved from {one} to {two}: believe the second"


def _place(report: Report) -> str:
    if not report.findings:
        return "nowhere in particular"
    finding: Finding = report.findings[0]
    where = finding.evidence[0].where if finding.evidence else str(finding.where)
    return f"{finding.code} at {re.sub(r'process [0-9]+', 'the process', where)}"


def _first_line(report: Report) -> str:
    return f"{report.findings[0].code} {report.findings[0].message}" if report.findings else report.summary.text
