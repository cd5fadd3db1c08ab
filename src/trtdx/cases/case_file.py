"""A case as one file: packed for the store, listed before it is sent, and read again whoever it came from.

What strangers send is read in memory, within bounds, and only as text: names that lead outside, links, devices,
pickles, HTML and other programs' files are refused, and secrets are looked for once more.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.case import CASE_VERSION, RECORDS_FILE, CaseRecord, pack_members, parse_records, read_folder, read_members
from trtdx.cases.nouns import CaseRemark, OpenedCase, Resolution
from trtdx.errors import CaseError
from trtdx.model import Report
from trtdx.redact import redact_secrets, redact_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trtdx.cases.nouns import StoredCase
    from trtdx.host import Host

MAX_FILE_BYTES = 256 << 20
MAX_TEXT_BYTES = 128 << 20  # of all texts together
MAX_TEXTS = 2000
KEPT_BYTES = 16 << 20  # of one log in the store; the report quotes what matters in between
MAX_REMARKS = 1000

_FOREIGN_SUFFIX = re.compile(
    r"(?i)\.(?:html?|xhtml|svg|mht|js|pkl|pickle|pt|pth|bin|joblib|npy|npz|so|dll|exe|pyc|zip|tar|jar|whl|engine|plan)$"
)
_HTML = re.compile(r"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--.{0,2000}?-->\s*)?<(?:!doctype\s+html|html|head|body|script|svg|iframe)\b", re.IGNORECASE | re.DOTALL)  # fmt: skip
_PICKLE = re.compile(
    rb"\x80[\x02-\x05]|\(?[cdl](?:os|posix|nt|builtins|__builtin__|subprocess|sys)\n|(?:\(dp|\(lp)\d*\n"
)


def own_members(host: Host, folder: str) -> dict[str, bytes]:
    """Return the files of a case that a run of ours wrote, as far as the store keeps them and any reader takes them."""
    count = len(host.files(str(Path(folder) / "files")))
    limit = min(KEPT_BYTES, MAX_TEXT_BYTES // 2 // max(1, count))
    return dict(_as_log(name, content) for name, content in read_folder(host, folder, limit))


def _as_log(name: str, content: bytes) -> tuple[str, bytes]:
    """Return a program's output as a log that `open_body` takes, whatever the program printed or called it."""
    if name == RECORDS_FILE:
        return name, content
    content = content.replace(b"\0", b"")
    if _PICKLE.match(content) or _HTML.match(content[:4096].decode("utf-8", "replace")):
        content = b"trtdx: the output begins here\n" + content
    return (f"{name}.log" if _FOREIGN_SUFFIX.search(name) else name), content


def open_body(data: bytes, name: str, *, is_own: bool = False) -> OpenedCase:
    """Return what a case file holds; all of it is checked, and secrets are hidden that still stand in it.

    Args:
        data: the file.
        name: what messages call it.
        is_own: it comes from our own store, where secrets were hidden on the way in.

    Raises:
        CaseError: it holds what no case holds, or too much.
    """
    if len(data) > MAX_FILE_BYTES:
        raise CaseError(f"{name} is larger than a case may be ({MAX_FILE_BYTES >> 20} MiB)")
    return opened_case(read_members(data, name), name, is_own=is_own)


def open_folder(host: Host, folder: str) -> OpenedCase:
    """Return what a case folder holds, checked in the same way."""
    return opened_case(dict(read_folder(host, folder, KEPT_BYTES)), folder)


def opened_case(members: dict[str, bytes], name: str, *, is_own: bool = False) -> OpenedCase:
    """Return the case that files make, checked."""
    if len(members) > MAX_TEXTS or sum(map(len, members.values())) > MAX_TEXT_BYTES:
        raise CaseError(f"{name} holds more than a case may ({MAX_TEXTS} files, {MAX_TEXT_BYTES >> 20} MiB)")
    texts = {member: _checked_text(member, content, name) for member, content in members.items()}
    if is_own:
        del texts[RECORDS_FILE]
        return _case_from_records(parse_records(members[RECORDS_FILE]), texts, 0)
    clean = {member: redact_secrets(text) for member, text in texts.items() if member != RECORDS_FILE}
    hidden = sum(clean[member] != texts[member] for member in clean)
    records, hidden_records = _clean_records(parse_records(members[RECORDS_FILE]))
    return _case_from_records(records, clean, hidden + hidden_records)


def _checked_text(member: str, content: bytes, name: str) -> str:
    """Return a file of a case as text.

    Raises:
        CaseError: it is not one that a case holds.
    """
    if member != RECORDS_FILE and not re.fullmatch(r"files/[^/\x00-\x1f]{1,255}", member):
        raise CaseError(f"{name} holds {member!r}, which is no file of a case")
    if _FOREIGN_SUFFIX.search(member) or _PICKLE.match(content) or b"\0" in content[:4096]:
        raise CaseError(f"{name} holds {member!r}, which is not a log", fix="ask for the logs as text")
    text = content.decode("utf-8", "replace")
    if _HTML.match(text):
        raise CaseError(f"{name} holds {member!r}, which is a web page and not a log", fix="ask for the logs as text")
    return text


def _clean_records(records: Iterable[CaseRecord]) -> tuple[list[CaseRecord], int]:
    clean, hidden = [], 0
    for record in records:
        try:
            data = redact_value(record.data)
        except RecursionError:
            continue  # nested deeper than any record of ours
        hidden += data != record.data
        clean.append(CaseRecord(redact_secrets(record.kind)[:80], record.time, data))
    return clean, hidden


def _case_from_records(records: Sequence[CaseRecord], texts: dict[str, str], hidden: int) -> OpenedCase:
    by_kind: dict[str, list[CaseRecord]] = {}
    for record in records:
        by_kind.setdefault(record.kind, []).append(record)
    reports = [report for record in by_kind.get("report", ()) if (report := _converted(record.data, Report))]
    resolutions = [noun for record in by_kind.get("resolution", ()) if (noun := _converted(record.data, Resolution))]
    remarks = [noun for record in by_kind.get("remark", ()) if (noun := _converted(record.data, CaseRemark))]
    stored = [str(record.data.get("id", "")) for record in by_kind.get("stored", ()) if isinstance(record.data, dict)]
    return OpenedCase(
        report=reports[-1] if reports else None,
        texts={name.removeprefix("files/"): text for name, text in texts.items()},
        command=_command_text(by_kind.get("command", ())),
        created=_first_time(records),
        id=stored[-1] if stored and re.fullmatch(r"[0-9a-z]{9}", stored[-1]) else "",
        resolution=resolutions[-1] if resolutions else None,
        remarks=tuple(remarks[:MAX_REMARKS]),
        hidden=hidden,
    )


def _converted(data: Any, kind: Any) -> Any:
    """Return data as one of our nouns; None where it is not one."""
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, RecursionError):
        return None


def _command_text(records: Sequence[CaseRecord]) -> str:
    data = records[0].data if records else None
    argv = data.get("argv") if isinstance(data, dict) else None
    words = [str(word) for word in argv] if isinstance(argv, list) else []
    if words:
        words[0] = Path(words[0]).name.replace("__main__.py", "trtdx")
    return " ".join(words)[:2000]


def _first_time(records: Sequence[CaseRecord]) -> float:
    return records[0].time if records and 0 < records[0].time < 1e11 else 0.0


class FileListing(msgspec.Struct, frozen=True):
    """A file of a case, for the list that is shown before it is sent."""

    name: str
    size: int
    lines: int


def export_case(
    data: bytes, case: StoredCase, remarks: Sequence[CaseRemark], redact: Callable[[str], str]
) -> tuple[bytes, list[FileListing]]:
    """Return a stored case as one file to send, and what it contains; redacted once more."""
    members = read_members(data, case.id)
    opened = opened_case(members, case.id)
    records, _ = _clean_records(parse_records(members[RECORDS_FILE]))
    kept = [record for record in records if record.kind not in ("stored", "resolution", "remark")]
    added = [CaseRecord("stored", case.created, {"id": case.id, "case_version": CASE_VERSION})]
    added += [CaseRecord("remark", remark.time, msgspec.to_builtins(remark)) for remark in remarks]
    if case.resolution:
        added.append(CaseRecord("resolution", case.resolution.resolved_at, msgspec.to_builtins(case.resolution)))
    lines = [
        msgspec.json.encode(CaseRecord(record.kind, record.time, redact_value(record.data, redact)))
        for record in (*kept, *added)
    ]
    files = {RECORDS_FILE: b"\n".join(lines) + b"\n"}
    files |= {f"files/{redact(name)}": redact(text).encode() for name, text in opened.texts.items()}
    listing = [FileListing(name, len(content), content.count(b"\n")) for name, content in files.items()]
    return pack_members(files.items()), listing
