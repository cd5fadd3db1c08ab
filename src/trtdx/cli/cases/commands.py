"""`trtdx cases list|show|search|note|resolve|link|stats`: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.cli.cases.output import CaseArgument, data_from_case, emit_cases
from trtdx.cli.options import OutputOptions, ReportOptions
from trtdx.cli.output import write_output
from trtdx.errors import CaseError, InputError
from trtdx.host import RealHost

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from trtdx.cases.store import CaseStore
    from trtdx.rule import RuleBook


class CaseStatus(str, Enum):
    """Whether a case is resolved."""

    OPEN = "open"
    RESOLVED = "resolved"


def _opened(*, writes: bool = False) -> AbstractContextManager[CaseStore]:
    from trtdx.cases.store import opened_store

    return opened_store(RealHost(), writes=writes)


def list_cases(
    output: OutputOptions,
    status: Annotated[
        CaseStatus | None, typer.Option("--status", help="Only these: open or resolved.", show_default=False)
    ] = None,
    code: Annotated[str, typer.Option("--code", metavar="CODE", help="Only with this finding.")] = "",
    tool: Annotated[str, typer.Option("--tool", metavar="COMMAND", help="Only those of diagnose, run, ...")] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100_000, help="How many at most.")] = 30,
) -> None:
    """List past cases, the newest first."""
    from trtdx.cases.reports import list_report

    with _opened() as store:
        cases = store.list_cases(limit=limit, status=status.value if status else "", code=code, tool=tool)
        emit_cases(list_report(cases, store.count_cases()), [data_from_case(case) for case in cases], output)


def show_case(case_id: CaseArgument, output: ReportOptions) -> None:
    """Show a case: what it is, how it was resolved, what was noted, and the report it was made of."""
    from trtdx.cases.case_file import open_body
    from trtdx.cases.reports import case_report
    from trtdx.cases.search import recurrences

    with _opened() as store:
        case = store.find(case_id)
        opened = open_body(store.read_body(case), case.id, is_own=True)
        remarks = store.remarks(case)
        recurrence = recurrences(store, [case.group]).get(case.group)
    data = data_from_case(case) | {
        "command": opened.command,
        "remarks": remarks,
        "recurrence": recurrence,
        "errors": case.facts.errors,
        "frames": case.facts.frames,
        "logs": sorted(opened.texts),
        "report": opened.report,
    }
    emit_cases(case_report(case, opened, remarks, recurrence), data, output, details=output.details)


def search_past(
    question: Annotated[
        list[str], typer.Argument(metavar="WORDS|LOG|ID", help="Words, logs (- for standard input), or a case's id.")
    ],
    output: OutputOptions,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="How many at most.")] = 10,
    rules: Annotated[
        list[str] | None,
        typer.Option("--rules", metavar="DIR", help="Also use the rule pages in this folder. May be repeated."),
    ] = None,
) -> None:
    """Find past cases and rule pages that are like a problem, and what helped."""
    from trtdx.cases.reports import search_report
    from trtdx.cases.run import search_store

    host = RealHost()

    def load_rules() -> RuleBook:
        from trtdx.cli.project import load_project_defaults
        from trtdx.knowledge.load import load_book

        return load_book(host, [*load_project_defaults(host).rules, *(rules or ())])

    with _opened_if_there() as store:
        hits = search_store(host, store, load_rules, question, limit=limit)
    emit_cases(search_report(hits, " ".join(question)), hits, output)


def _opened_if_there() -> AbstractContextManager[CaseStore | None]:
    """Give the store, or None where nothing was kept yet: rule pages are searched all the same."""
    from trtdx.cases.store import has_store

    return _opened() if has_store(RealHost()) else nullcontext(None)


def add_note(
    case_id: CaseArgument, text: Annotated[list[str], typer.Argument(help="What is to be remembered.")]
) -> None:
    """Add a note to a case; its words are searched from then on."""
    with _opened(writes=True) as store:
        case = store.find(case_id)
        store.add_remark(case, "note", " ".join(text))
    write_output(f"noted on case {case.id}\n")


def link_case(
    case_id: CaseArgument,
    target: Annotated[str, typer.Argument(metavar="ID|URL", help="Another case, or the address of an issue.")],
) -> None:
    """Link a case to another one, on both sides, or to an address."""
    with _opened(writes=True) as store:
        case = store.find(case_id)
        if "://" in target:
            store.add_remark(case, "link", target)
            write_output(f"linked case {case.id} to {target}\n")
            return
        other = store.find(target)
        if other.id == case.id:
            raise InputError(f"{case.id} cannot be linked to itself")
        store.add_remark(case, "link", other.id)
        store.add_remark(other, "link", case.id)
    write_output(f"linked cases {case.id} and {other.id}\n")


def resolve_case(
    case_id: CaseArgument,
    cause: Annotated[str, typer.Option("--cause", help="What it really was.", show_default=False)] = "",
    fix: Annotated[str, typer.Option("--fix", help="What fixed it; best a command.", show_default=False)] = "",
    verified_by: Annotated[
        str, typer.Option("--verified-by", metavar="COMMAND", help="What showed that it is gone.", show_default=False)
    ] = "",
) -> None:
    """Say what a case really was, what fixed it, and which command showed it; asks where it is not told."""
    from trtdx.cases.nouns import Resolution

    with _opened(writes=True) as store:
        case = store.find(case_id)
        if not cause:
            cause, fix, verified_by = _ask_resolution(case.id, fix, verified_by)
        store.resolve(case, Resolution(cause, fix, verified_by, RealHost().now()))
    write_output(f"resolved case {case.id}\n")


def _ask_resolution(case_id: str, fix: str, verified_by: str) -> tuple[str, str, str]:
    """Return what the user answers; nobody is asked where nobody can answer."""
    if not sys.stdin.isatty():
        raise CaseError(
            "nothing says what the cause was, and there is no terminal to ask on",
            fix=f"trtdx cases resolve {case_id} --cause TEXT --fix TEXT --verified-by COMMAND",
        )
    cause = typer.prompt("What was it really?", err=True)
    fix = fix or typer.prompt("What fixed it?", default="", show_default=False, err=True)
    verified_by = verified_by or typer.prompt("Which command showed it?", default="", show_default=False, err=True)
    return cause, fix, verified_by


def show_statistics(output: OutputOptions) -> None:
    """Show how many cases there are, how long they take, and what comes back."""
    from trtdx.cases.reports import statistics_report
    from trtdx.cases.statistics import collect_statistics

    with _opened() as store:
        statistics = collect_statistics(store)
    emit_cases(statistics_report(statistics), statistics, output)
