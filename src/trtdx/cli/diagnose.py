"""`trtdx diagnose`: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trtdx.cli.output import Color, FailOn, emit
from trtdx.host import RealHost


def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG...",
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
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rules", metavar="DIR", help="Also use the rule pages in this folder. May be repeated."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a block that pastes well into a GitHub issue.")
    ] = False,
    redact_hosts: Annotated[
        bool,
        typer.Option("--redact-hosts", help="Hide host names and addresses too; secrets are always hidden."),
    ] = False,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="Exit with 1 when a finding is at least this severe.")
    ] = FailOn.ERROR,
    color: Annotated[Color, typer.Option("--color", help="When to colour.")] = Color.AUTO,
    details: Annotated[
        bool, typer.Option("--details", "-v", help="Also show all evidence and every folded symptom.")
    ] = False,
) -> None:
    """Read logs and name the root cause first, with its evidence, the fix, and how to verify it."""
    from trtdx.cli.progress import reading
    from trtdx.diagnose import diagnose
    from trtdx.diagnose.follow import follow_source
    from trtdx.diagnose.sources import sources
    from trtdx.knowledge import load_book

    host = RealHost()
    named = paths or ([] if sys.stdin.isatty() else ["-"])
    if not named:
        raise typer.BadParameter("name a log file, a directory, a case, or - for standard input")
    book = load_book(host, rules or [])
    found, skipped = sources(host, named)
    if follow:
        follow_source(host, found, book, redact_hosts=redact_hosts, json=json)
    with reading(host, found) as progress:
        report = diagnose(
            found,
            book,
            redact_hosts=redact_hosts,
            progress=progress,
            notes=[f"{each.name}: {each.reason}" for each in skipped],
        )
    emit(report, json=json, markdown=markdown, color=color, details=details, fail_on=fail_on)
