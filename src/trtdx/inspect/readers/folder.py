"""A directory whose files are read one by one: what cannot be used is noted and the rest is still read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError
from trtdx.formats.documents import LFS_MARK, Document, UnreadableError, encoding_fault, parse_json, read_at
from trtdx.inspect.facts.artifact import Facts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.host import Host

MOST_FILE_BYTES = 64 << 20  # the largest tokenizer.json in use has about 35 MB
MOST_DOCUMENT_BYTES = 16 << 20  # the quantisation of 50,000 layers has about 8 MB
MOST_ENTRIES = 1_500_000  # the largest vocabulary in use has about a million; keeps memory bounded
MOST_NAMED = 100  # items of a list of faults; a model with more is no better told


class Folder:
    """The files of one directory, the facts read from them, and notes on what could not be looked at."""

    def __init__(self, host: Host, path: str) -> None:
        self.host = host
        self.path = path
        self.facts = Facts()
        self.unread: list[str] = []
        self.names = self._listed()

    def _listed(self) -> frozenset[str]:
        try:
            return frozenset(self.host.entries(self.path))
        except (InputError, OSError) as err:
            self.unread.append(f"the directory could not be listed ({_reason(err)})")
            return frozenset()

    def at(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def is_file(self, name: str) -> bool:
        """Return whether a name is there and a file; pipes, devices and dangling links are not."""
        return name in self.names and self.host.kind(self.at(name)) == "file"

    def size(self, name: str) -> int:
        try:
            return self.host.size(self.at(name))
        except (OSError, KeyError):  # it vanished after it was listed
            return 0

    def start(self, name: str, length: int = 256) -> bytes:
        """Return a file's first bytes; none where it cannot be read."""
        try:
            return read_at(self.host, self.at(name), 0, length) if self.is_file(name) else b""
        except UnreadableError:
            return b""

    def content(self, name: str, most: int = MOST_FILE_BYTES) -> bytes | None:
        """Return a whole file, or None with a note or a fact that says why not."""
        if name not in self.names:
            return None
        if not self.is_file(name):
            self.unread.append(f"{name} is a link to nothing, or no plain file")
            return None
        try:
            data = read_at(self.host, self.at(name), 0, most + 1)
        except UnreadableError as err:
            self.unread.append(f"{name} could not be read ({err})")
            return None
        if len(data) > most:
            self.unparsed(name, f"is larger than {most:,} bytes, which no such file is")
            return None
        if data.startswith(LFS_MARK):
            self.unparsed(name, "is a Git-LFS pointer, not the file itself")
            return None
        return data

    def text(self, name: str, most: int) -> str | None:
        """Return a whole text file, or None with a note or a fact that says why not."""
        data = self.content(name, most)
        return None if data is None else data.decode("utf-8", "replace")

    def document(self, name: str) -> Document | None:
        """Return a JSON object, or None with a note or a fact that says why not."""
        data = self.content(name, MOST_DOCUMENT_BYTES)
        if data is None or self._overfull(name, data):
            return None
        try:
            document = Document(self.at(name), parse_json(data))
        except UnreadableError as err:
            self.unparsed(name, str(err))
            return None
        if fault := encoding_fault(data):  # read all the same: the rest of what is wrong can be told
            self.unparsed(name, fault)
        return document

    def typed(self, name: str, form: Any) -> Any:
        """Return a large JSON file as a type, which leaves out what the type does not name."""
        data = self.content(name)
        if data is None or self._overfull(name, data):
            return None
        try:
            return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=form)
        except msgspec.ValidationError as err:
            self.unparsed(name, f"is not what such a file holds: {err}")
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            self.unparsed(name, f"is not JSON: {err}" if data.strip() else "is empty")
        except RecursionError:
            self.unparsed(name, "is nested too deeply")
        return None

    def _overfull(self, name: str, data: bytes) -> bool:
        """Return whether a file would become gigabytes of Python objects, and tell."""
        if len(data) < MOST_ENTRIES or max(map(data.count, (b":", b"[", b"{"))) <= MOST_ENTRIES:
            return False
        self.unparsed(name, "has more entries than any such file")
        return True

    def unparsed(self, name: str, problem: str) -> None:
        self.facts.add("unparsed", f"{name}: {problem}", self.at(name))

    def put_list(self, name: str, items: Iterable[str], where: str) -> None:
        """Keep a list as a fact where it has items; a very long one is cut and says so."""
        entries = list(items)
        if len(entries) > MOST_NAMED:
            entries[MOST_NAMED:] = [f"and {len(entries) - MOST_NAMED:,} more"]
        if entries:
            self.facts.put(name, entries, where)


def _reason(err: Exception) -> str:
    message = getattr(err, "message", "") or getattr(err, "strerror", "") or str(err)
    return message.rpartition(": ")[2]
