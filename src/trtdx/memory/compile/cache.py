"""What was compiled before, so that it is compiled once: one file, replaced whole, and never longer than it should be.

Entries are found by the content of what was asked. A file that is damaged, or of another version, is one that holds
nothing: it is replaced by the next entry.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError

if TYPE_CHECKING:
    from trtdx.host import Host

CACHE_VERSION = 1
CACHE_FILE = "compiled-activation.json"
MOST_ENTRIES = 1024
MOST_BYTES = 1 << 20  # a file that is longer was not written here


class _CacheEntry(msgspec.Struct, frozen=True):
    bytes: int
    check: str  # of key and bytes: one damaged number must not become a plan


class _CacheFile(msgspec.Struct, frozen=True):
    version: int
    entries: dict[str, _CacheEntry] = {}  # the oldest first


class CompileCache:
    """Figures of earlier compiles."""

    def __init__(self, host: Host) -> None:
        self._host = host
        environment = host.environment()
        home = environment.get("XDG_CACHE_HOME") or str(PurePosixPath(environment.get("HOME", "/")) / ".cache")
        self.path = str(PurePosixPath(home) / "trtdx" / CACHE_FILE)

    def find(self, key: str) -> int | None:
        """Return the bytes kept for a key, None where there are none that can be trusted."""
        entry = self._entries().get(key)
        if entry is None or entry.check != _entry_checksum(key, entry.bytes) or entry.bytes <= 0:
            return None
        return entry.bytes

    def store(self, key: str, size: int) -> None:
        """Keep a figure; where nothing can be written, nothing is kept."""
        entries = self._entries()
        entries.pop(key, None)
        entries[key] = _CacheEntry(size, _entry_checksum(key, size))
        newest = dict(list(entries.items())[-MOST_ENTRIES:])
        try:
            self._host.write(self.path, msgspec.json.encode(_CacheFile(CACHE_VERSION, newest)))
        except InputError:
            return

    def _entries(self) -> dict[str, _CacheEntry]:
        try:
            if self._host.kind(self.path) != "file" or self._host.size(self.path) > MOST_BYTES:
                return {}
            with self._host.open(self.path) as stream:
                stored = msgspec.json.decode(stream.read(), type=_CacheFile)
        except (OSError, InputError, msgspec.MsgspecError):
            return {}
        return dict(stored.entries) if stored.version == CACHE_VERSION else {}


def compile_cache_key(*parts: str) -> str:
    """Return the name of what was asked for, by its content."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()


def _entry_checksum(key: str, size: int) -> str:
    return hashlib.blake2b(f"{key} {size}".encode(), digest_size=6).hexdigest()
