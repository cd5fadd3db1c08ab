"""A case: all evidence of one problem in one folder, or packed into one `.trtdx` file.

The folder holds `case.jsonl`, one record a line, written append-only so that a killed process leaves a readable
case, and `files/`, the evidence itself. Text is redacted on the way in. Opening a case runs and unpacks nothing:
a `.trtdx` file is a ZIP that is read in place, with bounds on what it may claim.
"""

from __future__ import annotations

import io
import lzma
import re
import stat
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from trtdx.errors import CaseError, InputError
from trtdx.host import RecordedHost
from trtdx.redact import redact_secrets, redact_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trtdx.host import Host
    from trtdx.model import Report

RECORDS_FILE = "case.jsonl"
CASE_SUFFIX = ".trtdx"
CASE_VERSION = 1
CUT_WINDOW = 8 << 10  # longer than any secret but a private key
LONGEST_PENDING = 1 << 20  # what a line without an end may hold back
MOST_PENDING = 2 << 20
MAX_CASE_FILES = 10_000
MAX_CASE_BYTES = 512 << 20  # a packed case is held in memory while it is read


# What reading a damaged or hostile ZIP raises, whichever compression its members claim.
_BAD_ARCHIVE = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, NotImplementedError, EOFError, RuntimeError,
    OSError, ValueError, OverflowError, IndexError, KeyError, struct.error,
)  # fmt: skip


class CaseRecord(msgspec.Struct, frozen=True):
    """One line of `case.jsonl`."""

    kind: str  # created, command, file, report, note
    time: float
    data: Any


class CaseWriter:
    """Adds evidence to a case folder; whatever happens, what was added stays readable.

    A case is kept beside the work it is about and never in its way: when it cannot be written (a full disk), writing
    ends and `problem` says why.
    """

    def __init__(self, host: Host, folder: str, redact: Callable[[str], str] = redact_secrets) -> None:
        self._host, self._folder, self._redact = host, Path(folder), redact
        self.problem = ""
        if host.kind(str(self._folder / RECORDS_FILE)) == "absent":
            if host.kind(folder) == "file" or (host.kind(folder) == "directory" and host.files(folder)):
                raise CaseError(f"{folder} is there and is not a case", fix="name a new folder")
            self.record("created", {"case_version": CASE_VERSION})

    def record(self, kind: str, data: Any) -> None:
        line = msgspec.json.encode(CaseRecord(kind, self._host.now(), redact_value(data, self._redact)))
        self._append(str(self._folder / RECORDS_FILE), line + b"\n")

    def copy_log(self, name: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the blocks of a log while adding them under `files/`, redacted."""
        safe = self._free_name(self._redact(name))
        self.record("file", {"name": safe, "from": name})
        target = str(self._folder / "files" / safe)
        pending = b""
        for block in blocks:
            if not self.problem:
                text, pending = _split_for_redaction(pending + block, self._redact)
                self._append_redacted(target, text)
            yield block
        self._append_redacted(target, pending)

    def _append_redacted(self, target: str, data: bytes) -> None:
        self._append(target, self._redact(data.decode("utf-8", "replace")).encode())

    def _append(self, target: str, data: bytes) -> None:
        if self.problem:
            return
        try:
            self._host.append(target, data)
        except InputError as err:
            self.problem = err.message

    def add_report(self, report: Report) -> None:
        self.record("report", msgspec.to_builtins(report))

    def pack(self, path: str) -> None:
        """Write the case as one file; an existing file is never overwritten.

        Raises:
            CaseError: the file already exists, or cannot be written.
        """
        if self._host.kind(path) != "absent":
            raise CaseError(f"{path} already exists", fix="name a new file")
        self._host.write(path, pack_members(read_folder(self._host, str(self._folder))))

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
            return parse_records(stream.read())

    def text_paths(self) -> list[str]:
        """Return the paths, for `host`, of the texts in the case."""
        return [path for path in self.host.files(f"{self._root}files") if not path.endswith(".part")]


def read_folder(host: Host, folder: str, max_file_bytes: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield the redacted files of a case folder by name; what a run keeps beside them is not part of the case.

    Args:
        host: where the folder lies.
        folder: the case.
        max_file_bytes: of a longer file only the beginning and the end are taken; 0: all of it.
    """
    names = [str(Path(folder) / RECORDS_FILE), *host.files(str(Path(folder) / "files"))]
    for name in names:
        if Path(host.real(name)) != Path(host.real(folder)) / Path(name).relative_to(folder):
            raise CaseError(f"{name} is a link, and a case holds none", fix="ask for the case as one .trtdx file")
        with host.open(name) as stream:
            yield str(Path(name).relative_to(folder)), _read_bounded(stream, host.size(name), max_file_bytes)


def _read_bounded(stream: BinaryIO, size: int, limit: int) -> bytes:
    if not limit or size <= limit:
        return stream.read()
    half = limit // 2
    start = stream.read(half)
    stream.seek(size - half)
    left_out = f"\n... {size - 2 * half} bytes were left out by trtdx ...\n".encode()
    return start[: start.rfind(b"\n") + 1 or None] + left_out + stream.read(half).partition(b"\n")[2]


def pack_members(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return files as one `.trtdx` file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return packed.getvalue()


def read_members(data: bytes, path: str) -> dict[str, bytes]:
    """Return the files in a `.trtdx` file by name; nothing is unpacked to disk.

    Raises:
        CaseError: it is no case, is damaged, or claims what a case may not hold.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = dict(_bounded_members(archive, path))
    except _BAD_ARCHIVE as err:
        raise CaseError(
            f"{path} is not a readable case: {err}", fix="ask for it again, or for the case folder"
        ) from err
    if RECORDS_FILE not in files:
        raise CaseError(f"{path} holds no {RECORDS_FILE}, so it is not a case")
    return files


def is_case(host: Host, path: str) -> bool:
    if host.kind(path) == "directory":
        return host.kind(str(Path(path) / RECORDS_FILE)) == "file"
    return path.endswith(CASE_SUFFIX) and host.kind(path) == "file"


def open_case(host: Host, path: str) -> Case:
    """Return the case at a path, a folder or a `.trtdx` file."""
    if host.kind(path) == "directory":
        return Case(path, host, str(Path(path)) + "/")
    with host.open(path) as stream:
        data = stream.read(MAX_CASE_BYTES + 1)
    if len(data) > MAX_CASE_BYTES:
        raise CaseError(f"{path} holds more than a case may hold ({MAX_CASE_BYTES >> 20} MiB)")
    return case_from_bytes(data, path)


def case_from_bytes(data: bytes, name: str) -> Case:
    """Return the case that a `.trtdx` file holds, whatever it lies in."""
    files = read_members(data, name)
    return Case(name, RecordedHost({f"{name}!/{member}": content for member, content in files.items()}), f"{name}!/")


def _bounded_members(archive: zipfile.ZipFile, path: str) -> Iterator[tuple[str, bytes]]:
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) > MAX_CASE_FILES or sum(member.file_size for member in members) > MAX_CASE_BYTES:
        raise CaseError(f"{path} claims more than a case may hold ({MAX_CASE_FILES} files, {MAX_CASE_BYTES >> 20} MiB)")
    for member in members:
        parts = PurePosixPath(member.filename).parts
        if ".." in parts or member.filename.startswith("/") or "\\" in member.filename:
            raise CaseError(f"{path} holds the name {member.filename!r}, which points outside the case")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
            raise CaseError(f"{path} holds {member.filename!r}, which is a link or a device and not a file")
        with archive.open(member) as stream:
            content = stream.read(member.file_size + 1)
        if len(content) > member.file_size:
            raise CaseError(f"{path}: {member.filename} is larger than it claims")
        yield str(PurePosixPath(*parts)), content


def parse_records(data: bytes) -> list[CaseRecord]:
    """Return the whole records of `case.jsonl`."""
    return [record for record in map(_parse_record, data.splitlines()) if record is not None]


def _parse_record(line: bytes) -> CaseRecord | None:
    try:
        return msgspec.json.decode(line, type=CaseRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _split_for_redaction(data: bytes, redact: Callable[[str], str]) -> tuple[bytes, bytes]:
    """Return what can be redacted now, and what must wait for more: a secret that is cut in two is known in neither.

    Text is cut at its last line end, a line without end at a mebibyte; earlier where redaction would see something
    else in the halves than in the whole, as it does inside a private key.
    """
    cut = data.rfind(b"\n") + 1
    if cut == 0:
        cut = len(data) - CUT_WINDOW if len(data) > LONGEST_PENDING else 0
    least = max(0, len(data) - MOST_PENDING)
    while cut > least and not _is_safe_cut(data, cut, redact):
        cut = max(data.rfind(b"\n", 0, cut - 1) + 1, cut - CUT_WINDOW)
    return data[:cut], data[cut:]


def _is_safe_cut(data: bytes, cut: int, redact: Callable[[str], str]) -> bool:
    before = data[max(0, cut - CUT_WINDOW) : cut].decode("utf-8", "replace")
    after = data[cut : cut + CUT_WINDOW].decode("utf-8", "replace")
    is_inside_key = before.rfind("-----BEGIN ") > before.rfind("-----END ")
    return not is_inside_key and redact(before) + redact(after) == redact(before + after)
