"""`trtdx diagnose`: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from trtdx.cli.options import ColorOption, FailOnOption, JsonOption, MarkdownOption, RulesOption
from trtdx.cli.output import Color, FailOn, emit, fails
from trtdx.host import RealHost


def command(
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
        typer.Option(
            "--follow", "-f", help="Keep reading while the log is being written; report each new cause."
        ),
    ] = False,
    rules: RulesOption = None,
    json: JsonOption = False,
    markdown: MarkdownOption = False,
    redact_hosts: Annotated[
        bool,
        typer.Option("--redact-hosts", help="Hide host names and addresses too; secrets are always hidden."),
    ] = False,
    fail_on: FailOnOption = FailOn.ERROR,
    color: ColorOption = Color.AUTO,
    save: Annotated[
        str,
        typer.Option(
            "--save",
            metavar="CASE",
            help="Keep the redacted logs and the report as a case: a new folder, or one file NAME.trtdx.",
            show_default=False,
        ),
    ] = "",
    details: Annotated[
        bool, typer.Option("--details", "-v", help="Also show all evidence and every folded symptom.")
    ] = False,
) -> None:
    """Read logs and name the root cause first, with its evidence, the fix, and how to verify it."""
    from trtdx.cli.follow import follow_until_interrupted
    from trtdx.cli.progress import reading
    from trtdx.cli.saving import saving
    from trtdx.diagnose.run import diagnose_sources
    from trtdx.diagnose.sources import LogSource, open_sources
    from trtdx.errors import InputError
    from trtdx.knowledge.load import load_book
    from trtdx.memory.logs.diagnose_hook import with_memory_figures
    from trtdx.redact import make_redactor

    host = RealHost()
    named = paths or ([] if sys.stdin.isatty() else ["-"])
    if not named:
        raise typer.BadParameter("name a log file, a directory, a case, or - for standard input")
    if (json and markdown) or (follow and (save or markdown)):
        raise typer.BadParameter(
            "--json and --markdown exclude each other; --follow goes with neither --save nor --markdown"
        )
    book = load_book(host, rules or [])
    if follow:
        report = follow_until_interrupted(
            host, named, book, redact_hosts=redact_hosts, json=json, color=color
        )
        emit(report, json=json, markdown=False, color=color, details=details, fail_on=fail_on, one_line=True)
    found, skipped = open_sources(host, named)
    notes = [each.reason if each.is_unreadable else f"{each.name}: {each.reason}" for each in skipped]
    with (
        saving(host, save, make_redactor(hide_hosts=redact_hosts)) as case,
        reading(host, [each.name for each in found]) as progress,
    ):
        kept = [LogSource(each.name, partial(case.keeping, each)) for each in found]
        report = diagnose_sources(
            kept,
            book,
            redact_hosts=redact_hosts,
            progress=progress,
            notes=notes,
            refine=with_memory_figures,
        )
        case.add_report(report)
    if not report.summary.bytes_read:  # not a clean bill of health
        empty = "the input is empty" if found else "there is no log in " + ", ".join(named)
        raise InputError(f"nothing was read: {'; '.join(report.summary.partial) or empty}")
    cut = any(problem.startswith(tuple(f"{path}: " for path in named)) for problem in report.summary.partial)
    incomplete = (cut or any(each.is_unreadable for each in skipped)) and not fails(report, fail_on)
    status = 2 if incomplete else None  # what was not read may hold the error
    emit(report, json=json, markdown=markdown, color=color, details=details, fail_on=fail_on, status=status)
