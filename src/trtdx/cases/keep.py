"""Runs on their way into the store: a report and its texts become a case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.case import CaseWriter, pack_members, read_folder
from trtdx.cases.case_file import MAX_FILE_BYTES, open_body, open_folder, opened_case, own_members
from trtdx.cases.facts import facts_from_report
from trtdx.cases.nouns import NewCase
from trtdx.errors import CaseError
from trtdx.host import RecordedHost
from trtdx.redact import redact_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtdx.cases.nouns import OpenedCase
    from trtdx.cases.store import CaseStore
    from trtdx.host import Host
    from trtdx.model import Report

MAX_TITLE = 300


def keep_report(
    host: Host, store: CaseStore, tool: str, report: Report, *, argv: Sequence[str], attachments: Iterable[tuple[str, bytes]] = ()
) -> str:  # fmt: skip
    """Keep a report, and texts beside it, as a case; return its id."""
    memory = RecordedHost(now=host.now())
    writer = CaseWriter(memory, "case")
    writer.record("command", {"argv": list(argv)})
    for name, data in attachments:
        for _ in writer.copy_log(name, [data]):
            pass
    writer.add_report(report)
    return _keep_members(host, store, tool, own_members(memory, "case"))


def keep_folder(host: Host, store: CaseStore, tool: str, folder: str) -> str:
    """Keep what lies in a case folder; return its id."""
    return _keep_members(host, store, tool, own_members(host, folder))


def _keep_members(host: Host, store: CaseStore, tool: str, members: dict[str, bytes]) -> str:
    opened = opened_case(members, "this run", is_own=True)
    return store.add(new_case(tool, opened, pack_members(members.items()), host.now()))


def new_case(tool: str, opened: OpenedCase, body: bytes, now: float) -> NewCase:
    """Return a case for the store, made of what its file says."""
    report = opened.report
    worst = report.worst_severity() if report else None
    return NewCase(
        tool=tool,
        title=_title(report, opened)[:MAX_TITLE],
        severity=worst.value if worst else "none",
        created=opened.created or now,
        facts=facts_from_report(report, opened.texts.values()),
        body=body,
        id=opened.id,
        resolution=opened.resolution,
        remarks=opened.remarks,
    )


def _title(report: Report | None, opened: OpenedCase) -> str:
    """Return what a list shows of a case: its cause, else what came of it."""
    if report and report.findings:
        return redact_secrets(report.findings[0].message)
    return report.summary.text if report else opened.command or "a case without a report"


class ImportedCase(msgspec.Struct, frozen=True):
    """What became of a case file that was imported."""

    path: str
    id: str
    title: str
    is_new: bool
    hidden: int  # texts in which secrets were hidden


def import_case(host: Host, store: CaseStore, path: str) -> ImportedCase:
    """Take in a case from anywhere, and say under which id; one that is here already is not taken twice.

    Raises:
        CaseError: it is not a case, or holds what no case holds.
    """
    opened = _open_path(host, path)
    case = new_case(_tool(opened), opened, _clean_body(opened), host.now())
    same = _same_case(store, case)
    case_id = same or store.add(case)
    return ImportedCase(path, case_id, case.title, not same, opened.hidden)


def _open_path(host: Host, path: str) -> OpenedCase:
    if host.kind(path) == "directory":
        return open_folder(host, path)
    if host.kind(path) != "file":
        raise CaseError(f"there is no case {path}", fix="name a .trtdx file or a case folder")
    with host.open(path) as stream:
        return open_body(stream.read(MAX_FILE_BYTES + 1), path)


def _clean_body(opened: OpenedCase) -> bytes:
    """Return the case as a file of our own making: nothing of a stranger's archive is kept but checked text."""
    memory = RecordedHost(now=opened.created)
    writer = CaseWriter(memory, "case")
    writer.record("command", {"argv": opened.command.split(" ") if opened.command else []})
    for name, text in opened.texts.items():
        for _ in writer.copy_log(name, [text.encode()]):
            pass
    if opened.report:
        writer.add_report(opened.report)
    return pack_members(read_folder(memory, "case"))


def _tool(opened: OpenedCase) -> str:
    words = opened.command.split()
    known = ("diagnose", "run", "check", "compare", "memory", "build", "watch")
    return next((word for word in words[1:3] if word in known), "import")


def _same_case(store: CaseStore, case: NewCase) -> str:
    """Return the id of the case in the store that this one is, or nothing."""
    if not case.id:
        return ""
    try:
        kept = store.find(case.id)
    except CaseError:
        return ""
    return kept.id if kept.id == case.id and kept.facts == case.facts else ""
