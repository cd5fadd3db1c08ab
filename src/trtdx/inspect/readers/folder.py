"""A directory whose files are read one by one: what cannot be used is noted and the rest is still read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError
from trtdx.formats.documents import (
    GIT_LFS_MAGIC,
    Document,
    UnreadableError,
    encoding_fault,
    parse_json,
    read_range,
)
from trtdx.inspect.facts.artifact import FactCollector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.host import Host

MAX_FILE_BYTES = 64 << 20  # the largest tokenizer.json in use has about 35 MB
MAX_DOCUMENT_BYTES = 16 << 20  # the quantisation of 50,000 layers has about 8 MB
MAX_JSON_ENTRIES = 1_500_000  # the largest vocabulary in use has about a million; keeps memory bounded
MAX_LISTED_FAULTS = 100  # items of a list of faults; a model with more is no better told


class ArtifactFolder:
    """The files of one directory, the facts read from them, and notes on what could not be looked at."""

    def __init__(self, host: Host, path: str) -> None:
        self.host = host
        self.path = path
        self.facts = FactCollector()
        self.unread: list[str] = []
        self.names = self._list_names()

    def _list_names(self) -> frozenset[str]:
        try:
            return frozenset(self.host.entries(self.path))
        except (InputError, OSError) as err:
            self.unread.append(f"the directory could not be listed ({_error_reason(err)})")
            return frozenset()

    def path_of(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def is_file(self, name: str) -> bool:
        """Return whether a name is there and a file; pipes, devices and dangling links are not."""
        return name in self.names and self.host.kind(self.path_of(name)) == "file"

    def file_size(self, name: str) -> int:
        try:
            return self.host.size(self.path_of(name))
        except (OSError, KeyError):  # it vanished after it was listed
            return 0

    def first_bytes(self, name: str, length: int = 256) -> bytes:
        """Return a file's first bytes; none where it cannot be read."""
        try:
            return read_range(self.host, self.path_of(name), 0, length) if self.is_file(name) else b""
        except UnreadableError:
            return b""

    def read_bytes(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes | None:
        """Return a whole file, or None with a note or a fact that says why not."""
        if name not in self.names:
            return None
        if not self.is_file(name):
            self.unread.append(f"{name} is a link to nothing, or no plain file")
            return None
        try:
            data = read_range(self.host, self.path_of(name), 0, max_bytes + 1)
        except UnreadableError as err:
            self.unread.append(f"{name} could not be read ({err})")
            return None
        if len(data) > max_bytes:
            self.note_unparsed(name, f"is larger than {max_bytes:,} bytes, which no such file is")
            return None
        if data.startswith(GIT_LFS_MAGIC):
            self.note_unparsed(name, "is a Git-LFS pointer, not the file itself")
            return None
        return data

    def read_text(self, name: str, max_bytes: int) -> str | None:
        """Return a whole text file, or None with a note or a fact that says why not."""
        data = self.read_bytes(name, max_bytes)
        return None if data is None else data.decode("utf-8", "replace")

    def read_json_object(self, name: str) -> Document | None:
        """Return a JSON object, or None with a note or a fact that says why not."""
        data = self.read_bytes(name, MAX_DOCUMENT_BYTES)
        if data is None or self._has_too_many_entries(name, data):
            return None
        try:
            document = Document(self.path_of(name), parse_json(data))
        except UnreadableError as err:
            self.note_unparsed(name, str(err))
            return None
        if fault := encoding_fault(data):  # read all the same: the rest of what is wrong can be told
            self.note_unparsed(name, fault)
        return document

    def decode_json(self, name: str, json_type: Any) -> Any:
        """Return a large JSON file as a type, which leaves out what the type does not name."""
        data = self.read_bytes(name)
        if data is None or self._has_too_many_entries(name, data):
            return None
        try:
            return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=json_type)
        except msgspec.ValidationError as err:
            self.note_unparsed(name, f"is not what such a file holds: {err}")
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            self.note_unparsed(name, f"is not JSON: {err}" if data.strip() else "is empty")
        except RecursionError:
            self.note_unparsed(name, "is nested too deeply")
        return None

    def _has_too_many_entries(self, name: str, data: bytes) -> bool:
        """Return whether a file would become gigabytes of Python objects, and tell."""
        if len(data) < MAX_JSON_ENTRIES or max(map(data.count, (b":", b"[", b"{"))) <= MAX_JSON_ENTRIES:
            return False
        self.note_unparsed(name, "has more entries than any such file")
        return True

    def note_unparsed(self, name: str, problem: str) -> None:
        self.facts.add("unparsed", f"{name}: {problem}", self.path_of(name))

    def put_list_fact(self, name: str, items: Iterable[str], where: str) -> None:
        """Keep a list as a fact where it has items; a very long one is cut and says so."""
        entries = list(items)
        if len(entries) > MAX_LISTED_FAULTS:
            entries[MAX_LISTED_FAULTS:] = [f"and {len(entries) - MAX_LISTED_FAULTS:,} more"]
        if entries:
            self.facts.put(name, entries, where)


def _error_reason(err: Exception) -> str:
    message = getattr(err, "message", "") or getattr(err, "strerror", "") or str(err)
    return message.rpartition(": ")[2]
