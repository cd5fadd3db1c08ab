"""`trtdx diagnose`: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trtdx.cli.groups import refuse_pair
from trtdx.cli.options import FindingOptions, ReportOptions, emit_report
from trtdx.cli.output import OutputFormat, reaches_severity
from trtdx.host import RealHost

if TYPE_CHECKING:
    from collections.abc import Sequence


def diagnose_logs(
    findings: FindingOptions,
    output: ReportOptions,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG",
            help="Log files (.gz, .xz, .zst too), directories, cases, or - for standard input.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Keep reading while the log is being written; report each new cause."),
    ] = False,
    redact_hosts: Annotated[
        bool,
        typer.Option("--redact-hosts", help="Hide host names and addresses too; secrets are always hidden."),
    ] = False,
    save: Annotated[
        str,
        typer.Option(
            "--save",
            metavar="[CASE]",
            help="Keep the redacted logs and the report: in the store, or as a new folder or file NAME.trtdx.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Read logs and name the root cause first, with its evidence, the fix, and how to verify it."""
    named = paths or ([] if sys.stdin.isatty() else ["-"])
    if not named:
        raise typer.BadParameter("name a log file, a directory, a case, or - for standard input")
    if not follow:
        _diagnose_whole(named, findings, output, redact_hosts=redact_hosts, save=save)
    if save:
        refuse_pair("--save", "--follow", "a case is made of logs that have ended")
    if output.chosen_format not in (OutputFormat.TEXT, OutputFormat.JSON):
        flag = "--markdown" if output.markdown else f"--format {output.chosen_format.value}"
        refuse_pair(flag, "--follow", "causes are told one by one, as text or JSON lines")
    _follow_logs(named, findings, output, redact_hosts=redact_hosts)


def _follow_logs(
    named: Sequence[str], findings: FindingOptions, output: ReportOptions, *, redact_hosts: bool
) -> NoReturn:
    from trtdx.cli.follow import follow_until_interrupted

    host = RealHost()
    report = follow_until_interrupted(
        host,
        named,
        findings.load_rules(host),
        redact_hosts=redact_hosts,
        json=output.is_json,
        color=output.color,
        ignored=findings.ignored_codes(host),
    )
    emit_report(report, output, findings, one_line=True)


def _diagnose_whole(
    named: Sequence[str], findings: FindingOptions, output: ReportOptions, *, redact_hosts: bool, save: str
) -> NoReturn:
    """Diagnose logs that have ended, print the report and end."""
    from trtdx.cli.progress import show_reading
    from trtdx.cli.saving import open_case
    from trtdx.diagnose.logs.sources import LogSource, open_sources
    from trtdx.diagnose.run import diagnose_sources
    from trtdx.errors import InputError
    from trtdx.memory.logs.diagnose_hook import with_memory_figures
    from trtdx.redact import make_redactor

    host = RealHost()
    book = findings.load_rules(host)
    logs, skipped = open_sources(host, named)
    notes = [entry.reason if entry.is_unreadable else f"{entry.name}: {entry.reason}" for entry in skipped]
    with (
        open_case(host, save, make_redactor(hide_hosts=redact_hosts)) as case,
        show_reading(host, [log.name for log in logs]) as progress,
    ):
        report = diagnose_sources(
            [LogSource(log.name, partial(case.keep_blocks, log)) for log in logs],
            book,
            redact_hosts=redact_hosts,
            progress=progress,
            notes=notes,
            refine=with_memory_figures,
        )
        case.add_report(report)
    if not report.summary.bytes_read:  # not a clean bill of health
        empty = "the input is empty" if logs else "there is no log in " + ", ".join(named)
        raise InputError(f"nothing was read: {'; '.join(report.summary.partial) or empty}")
    is_cut = any(problem.startswith(tuple(f"{path}: " for path in named)) for problem in report.summary.partial)
    kept = findings.set_aside_ignored(report, host)
    fails = reaches_severity(kept, findings.chosen_severity(host))
    is_incomplete = (is_cut or any(entry.is_unreadable for entry in skipped)) and not fails
    # What was not read may hold the error.
    emit_report(report, output, findings, status=2 if is_incomplete else None)
