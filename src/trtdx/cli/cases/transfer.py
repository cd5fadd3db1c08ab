"""`trtdx cases export|import`: the arguments, and nothing of the work."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trtdx.cli.cases.output import CaseArgument, emit_cases
from trtdx.cli.options import OutputOptions
from trtdx.errors import CaseError, TrtdxError
from trtdx.host import RealHost
from trtdx.words import format_count

if TYPE_CHECKING:
    from trtdx.cases.keep import ImportedCase
    from trtdx.model import Report


def export_file(
    case_id: CaseArgument,
    output: OutputOptions,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE.trtdx", help="The new file; by default ID.trtdx.")
    ] = "",
    redact_hosts: Annotated[
        bool, typer.Option("--redact-hosts", help="Hide host names and addresses too; secrets are always hidden.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what the file would contain.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask on a terminal.")] = False,
) -> None:
    """List what a case contains, then write it as one redacted file to send."""
    from trtdx.cases.case_file import export_case
    from trtdx.cases.reports import listing_report
    from trtdx.cases.store import opened_store
    from trtdx.redact import make_redactor

    host = RealHost()
    with opened_store(host, writes=False) as store:
        case = store.find(case_id)
        redact = make_redactor(hide_hosts=redact_hosts)
        data, files = export_case(store.read_body(case), case, store.remarks(case), redact)
    target = out or f"{case.id}.trtdx"
    if host.kind(target) != "absent":
        raise CaseError(f"{target} already exists", fix="name a new file with -o")
    listing = {"id": case.id, "file": target, "bytes": len(data), "contents": files}
    emit_cases(listing_report(case, files, target), listing, output)
    if dry_run or (sys.stdin.isatty() and not yes and not typer.confirm(f"Write {target}?", default=True, err=True)):
        return
    host.write(target, data)


def import_files(
    paths: Annotated[list[str], typer.Argument(metavar="FILE.trtdx", help="Case files or case folders.")],
    output: OutputOptions,
) -> None:
    """Take in cases that others sent; each is checked, and secrets are looked for again."""
    from trtdx.cases.keep import import_case
    from trtdx.cases.store import opened_store

    host = RealHost()
    imported, errors = [], list[TrtdxError]()
    with opened_store(host, writes=True) as store:
        for path in paths:
            try:
                imported.append(import_case(host, store, path))
            except TrtdxError as err:  # noqa: PERF203 - one bad file does not keep the others out
                errors.append(err)
    emit_cases(_import_report(imported, errors), imported, output)
    if errors:
        raise errors[0]


def _import_report(imported: list[ImportedCase], errors: list[TrtdxError]) -> Report:
    from trtdx.model import Report, Section, Summary

    rows = tuple(
        (one.id, one.path, "new" if one.is_new else "was here", one.hidden or "", one.title) for one in imported
    )
    columns = ("id", "file", "status", "secrets hidden in", "what")
    refused = f", {format_count(len(errors), 'file')} refused" if errors else ""
    text = f"{format_count(sum(one.is_new for one in imported), 'new case')}{refused}"
    return Report(Summary(text=text), sections=(Section("imported", "Imported", columns, rows),) if rows else ())
