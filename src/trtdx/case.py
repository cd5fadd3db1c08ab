"""A case: all evidence of one problem in one folder, or packed into one `.trtdx` file.

The folder holds `case.jsonl`, one record a line, written append-only so that a killed process leaves a readable
case, and `files/`, the evidence itself. Text is redacted on the way in. Opening a case runs and unpacks nothing:
a `.trtdx` file is a ZIP that is read in place, with bounds on what it may claim.
"""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import CaseError
from trtdx.host import RecordedHost
from trtdx.redact import redact_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trtdx.host import Host
    from trtdx.model import Report

RECORDS_FILE = "case.jsonl"
CASE_SUFFIX = ".trtdx"
CASE_VERSION = 1
MAX_CASE_FILES = 10_000
MAX_CASE_BYTES = 512 << 20  # a packed case is held in memory while it is read


class CaseRecord(msgspec.Struct, frozen=True):
    """One line of `case.jsonl`."""

    kind: str  # created, command, file, report, note
    time: float
    data: Any


class CaseWriter:
    """Adds evidence to a case folder; whatever happens, what was added stays readable."""

    def __init__(self, host: Host, folder: str, redact: Callable[[str], str] = redact_secrets) -> None:
        self._host, self._folder, self._redact = host, Path(folder), redact
        if host.kind(str(self._folder / RECORDS_FILE)) == "absent":
            if host.kind(folder) == "file" or (host.kind(folder) == "directory" and host.files(folder)):
                raise CaseError(f"{folder} is there and is not a case", fix="name a new folder")
            self.record("created", {"case_version": CASE_VERSION})

    def record(self, kind: str, data: Any) -> None:
        line = msgspec.json.encode(CaseRecord(kind, self._host.now(), self._redact_data(data)))
        self._host.append(str(self._folder / RECORDS_FILE), line + b"\n")

    def copy_log(self, name: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the blocks of a log while adding them under `files/`, redacted line by line."""
        safe = self._free_name(name)
        self.record("file", {"name": safe, "from": name})
        target = str(self._folder / "files" / safe)
        pending = b""
        for block in blocks:
            lines, pending = _split_at_last_newline(pending + block)
            self._append_redacted(target, lines)
            yield block
        self._append_redacted(target, pending)

    def _redact_data(self, data: Any) -> Any:
        if isinstance(data, str):
            return self._redact(data)
        if isinstance(data, dict):
            return {key: self._redact_data(value) for key, value in data.items()}
        return [self._redact_data(value) for value in data] if isinstance(data, (list, tuple)) else data

    def _append_redacted(self, target: str, data: bytes) -> None:
        self._host.append(target, self._redact(data.decode("utf-8", "replace")).encode())

    def add_report(self, report: Report) -> None:
        self.record("report", msgspec.to_builtins(report))

    def pack(self, path: str) -> None:
        """Write the case as one file; an existing file is never overwritten."""
        if self._host.kind(path) != "absent":
            raise CaseError(f"{path} is there already", fix="name a new file")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in self._host.files(str(self._folder)):
                with self._host.open(name) as stream:
                    archive.writestr(str(Path(name).relative_to(self._folder)), stream.read())
        self._host.write(path, packed.getvalue())

    def _free_name(self, name: str) -> str:
        plain = re.sub(r"[^\w.-]+", "_", name.lstrip("/")).lstrip(".") or "log"
        safe, number = plain, 1
        while self._host.kind(str(self._folder / "files" / safe)) != "absent":
            number += 1
            safe = f"{number}-{plain}"
        return safe


class Case:
    """A case opened for reading, wherever it came from."""

    def __init__(self, name: str, host: Host, root: str) -> None:
        self.name, self.host, self._root = name, host, root

    def records(self) -> list[CaseRecord]:
        """Return all whole records; a last line that was cut off by a kill is left out."""
        with self.host.open(f"{self._root}{RECORDS_FILE}") as stream:
            lines = stream.read().splitlines()
        return [record for record in map(_parse_record, lines) if record is not None]

    def text_paths(self) -> list[str]:
        """Return the paths, for `host`, of the texts in the case."""
        return [path for path in self.host.files(f"{self._root}files") if not path.endswith(".part")]


def is_case(host: Host, path: str) -> bool:
    if host.kind(path) == "directory":
        return host.kind(str(Path(path) / RECORDS_FILE)) == "file"
    return path.endswith(CASE_SUFFIX) and host.kind(path) == "file"


def open_case(host: Host, path: str) -> Case:
    """Return the case at a path, a folder or a `.trtdx` file."""
    if host.kind(path) == "directory":
        return Case(path, host, str(Path(path)) + "/")
    with host.open(path) as stream:
        data = stream.read()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = dict(_bounded_members(archive, path))
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, RuntimeError) as err:
        raise CaseError(
            f"{path} is not a readable case: {err}", fix="ask for it again, or for the case folder"
        ) from err
    if RECORDS_FILE not in files:
        raise CaseError(f"{path} holds no {RECORDS_FILE}, so it is not a case")
    return Case(path, RecordedHost({f"{path}!/{name}": content for name, content in files.items()}), f"{path}!/")


def _bounded_members(archive: zipfile.ZipFile, path: str) -> Iterator[tuple[str, bytes]]:
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) > MAX_CASE_FILES or sum(member.file_size for member in members) > MAX_CASE_BYTES:
        raise CaseError(f"{path} claims more than a case may hold ({MAX_CASE_FILES} files, {MAX_CASE_BYTES >> 20} MiB)")
    for member in members:
        parts = PurePosixPath(member.filename).parts
        if ".." in parts or member.filename.startswith("/"):
            raise CaseError(f"{path} holds the name {member.filename!r}, which points outside the case")
        with archive.open(member) as stream:
            content = stream.read(member.file_size + 1)
        if len(content) > member.file_size:
            raise CaseError(f"{path}: {member.filename} is larger than it claims")
        yield str(PurePosixPath(*parts)), content


def _parse_record(line: bytes) -> CaseRecord | None:
    try:
        return msgspec.json.decode(line, type=CaseRecord)
    except msgspec.DecodeError:
        return None


def _split_at_last_newline(data: bytes) -> tuple[bytes, bytes]:
    """Return the data up to its last line end, and the rest; a line without end is cut at a mebibyte."""
    cut = data.rfind(b"\n") + 1
    if cut == 0 and len(data) > 1 << 20:
        cut = len(data)
    return data[:cut], data[cut:]
