"""What files are, by content: BLAKE3, remembered by inode, size and times so that nothing is read twice."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trtdx.host import Host

CHUNK_BYTES = 8 << 20
# A file written within the granularity of its times may change once more without changing them.
RACY_NS = 50_000_000
MAX_DOCUMENT_BYTES = 256 << 10
MAX_DOCUMENT_KEYS = 2000
DOCUMENT_SUFFIXES = (".json", ".yaml", ".yml")
CachedDigest = tuple[int, int, int, str]  # size, mtime_ns, ctime_ns, digest


class FileHasher:
    """Digests of files, from memory where a file has not changed."""

    def __init__(self, host: Host, memory: Path | None) -> None:
        self._host, self._memory = host, memory
        self._known: dict[str, CachedDigest] = self._load()
        self._changed = False
        self.bytes_read = 0
        self._blake3: Any = import_optional("blake3", extra="build", purpose="tell files apart by content").blake3

    def _load(self) -> dict[str, CachedDigest]:
        try:
            data = self._memory.read_bytes() if self._memory else b""
            return msgspec.msgpack.decode(data, type=dict[str, CachedDigest]) if data else {}
        except (OSError, msgspec.MsgspecError):
            return {}  # what is forgotten is read again

    def save(self) -> None:
        """Keep what was learned; a full disk only costs time later."""
        if self._memory and self._changed and self._memory.parent.is_dir():
            try:
                self._host.write(str(self._memory), msgspec.msgpack.encode(self._known))
            except InputError:
                return
            self._changed = False

    def digest(self, path: Path) -> str:
        """Return a file's digest.

        Raises:
            InputError: it cannot be read, or changes all the time.
        """
        for _ in range(3):
            status = _status_of(path)
            known = self._known.get(_inode_key(status))
            if known and known[:3] == (status.st_size, status.st_mtime_ns, status.st_ctime_ns):
                return known[3]
            digest = self._read(path)
            after = _status_of(path)
            if (after.st_mtime_ns, after.st_size) == (status.st_mtime_ns, status.st_size):
                self.remember(after, digest)
                return digest
        raise InputError(f"{path} changes while it is read", fix="wait until whatever writes it has ended")

    def remember(self, status: os.stat_result, digest: str) -> None:
        if self._host.now() * 1e9 - max(status.st_mtime_ns, status.st_ctime_ns) < RACY_NS:
            return
        self._known[_inode_key(status)] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, digest)
        self._changed = True

    def remember_moved(self, path: Path, digest: str) -> None:
        """Keep the digest of a file that was renamed, which changes the time of its inode only."""
        status = _status_of(path)
        self._known[_inode_key(status)] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, digest)
        self._changed = True

    def _read(self, path: Path) -> str:
        hasher = self._blake3(max_threads=self._blake3.AUTO)
        try:
            with path.open("rb", buffering=0) as file:
                buffer = bytearray(CHUNK_BYTES)
                while size := file.readinto(buffer):
                    hasher.update(memoryview(buffer)[:size])
                    self.bytes_read += size
        except OSError as err:
            raise InputError(f"cannot read {path}: {err.strerror or err}") from err
        return str(hasher.hexdigest())

    def digest_text(self, text: str) -> str:
        return str(self._blake3(text.encode()).hexdigest())


def _status_of(path: Path) -> os.stat_result:
    try:
        status = path.stat()
    except OSError as err:
        raise InputError(f"cannot read {path}: {err.strerror or err}") from err
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is no plain file")
    return status


def _inode_key(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"


def files_below(path: Path) -> Iterator[Path]:
    """Yield a file, or all files below a folder in a fixed order; links to files count as files, each folder once."""
    if path.is_file():
        yield path
        return
    visited: set[str] = set()
    waiting = [path]
    while waiting:
        folder = waiting.pop(0)
        real = os.path.realpath(folder)
        if real in visited:
            continue
        visited.add(real)
        entries = sorted(folder.iterdir())
        yield from (entry for entry in entries if entry.is_file())
        waiting += [entry for entry in entries if entry.is_dir() and entry.name not in (".git", "__pycache__")]


def read_flat_document(path: Path) -> dict[str, Any] | None:
    """Return a small JSON or YAML file as dotted names and values, or None where it is none."""
    if path.suffix not in DOCUMENT_SUFFIXES or path.stat().st_size > MAX_DOCUMENT_BYTES:
        return None
    from trtdx.formats.documents import UnreadableError, parse_json
    from trtdx.formats.yaml_documents import parse_yaml

    try:
        data = path.read_bytes()
        value = parse_json(data) if path.suffix == ".json" else parse_yaml(data, str(path)).data
    except (OSError, UnreadableError):
        return None
    flat = dict(_flatten(value, ""))
    return flat if len(flat) <= MAX_DOCUMENT_KEYS else None


def _flatten(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for number, item in enumerate(value):
            yield from _flatten(item, f"{path}[{number}]")
    else:
        yield path, value if isinstance(value, str | int | float | bool | type(None) | list) else str(value)
