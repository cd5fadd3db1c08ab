"""What ninja reads and keeps: build.ninja, .ninja_log and .ninja_deps, as far as they can be read."""

from __future__ import annotations

import contextlib
import re
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

MAX_MANIFEST_BYTES = 512 << 20
MAX_LOG_BYTES = 256 << 20
DEPS_SIGNATURE = b"# ninjadeps\n"
_EDGE = re.compile(r"^build ((?:[^:$\n]|\$.)+): ?(\S+) ?((?:[^|\n$]|\$.)*)(?:\|([^|\n]*))?", re.MULTILINE)
_INCLUDE = re.compile(r"^(?:include|subninja) (\S+)", re.MULTILINE)
_LOG_LINE = re.compile(r"(\d+)\t(\d+)\t(\d+)\t([^\t]+)\t([0-9a-f]+)")
LINE_FOR_SED = r"^[0-9]+\t[0-9]+\t[0-9]+\t[^\t]+\t[0-9a-f]+$"


class NinjaEdge(NamedTuple):
    """One `build` statement."""

    outputs: tuple[str, ...]
    rule: str
    inputs: tuple[str, ...]


class NinjaManifest(NamedTuple):
    """A build.ninja: its edges, and what keeps ninja from loading it."""

    path: Path
    edges: tuple[NinjaEdge, ...]
    damage: str
    text: str

    def outputs(self) -> set[str]:
        return {name for edge in self.edges for name in edge.outputs}


class LogEntry(NamedTuple):
    """What ninja remembers of one output."""

    seconds: float
    mtime_ns: int


class NinjaLog(NamedTuple):
    """A .ninja_log: its version, the entries that can be read, and the lines that cannot."""

    path: Path
    version: int | None
    entries: dict[str, LogEntry]
    bad_lines: tuple[int, ...]


def read_manifest(path: Path) -> NinjaManifest | None:
    """Return the manifest, or None where there is none."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_MANIFEST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    joined = _with_included(path.parent, text).replace("$\n", " ").replace("${cmake_ninja_workdir}", "")
    edges = tuple(
        NinjaEdge(_split_paths(match[1]), match[2], _split_paths(match[3])) for match in _EDGE.finditer(joined)
    )
    return NinjaManifest(path, edges, _manifest_damage(path, text), joined)


def _with_included(folder: Path, text: str) -> str:
    """Return a manifest with the files of its own tree that it includes, as Ninja Multi-Config has them."""
    parts = [text]
    for name in _INCLUDE.findall(text):
        if not name.startswith("/") and ".." not in name:
            with contextlib.suppress(OSError):
                parts.append((folder / name).read_bytes()[:MAX_MANIFEST_BYTES].decode("utf-8", "replace"))
    return "\n".join(parts)


def _split_paths(text: str) -> tuple[str, ...]:
    words = re.findall(r"(?:[^\s$]|\$.)+", text)
    return tuple(unescape_path(word) for word in words if word != "|")


def unescape_path(text: str) -> str:
    """Return a path as it is on the disk; ninja writes a dollar before blanks, colons and dollars."""
    return re.sub(r"\$(.)", r"\1", text)


def _manifest_damage(path: Path, text: str) -> str:
    if not text.strip("\0 \n"):
        return "is empty"
    if "\0" in text:
        return "holds NUL bytes, as after a crash or a full disk"
    if "# CMAKE generated file" in text[:400] and not re.search(r"^default ", text, re.MULTILINE):
        return "breaks off before its last statement, `default all`"
    for name in _INCLUDE.findall(text):
        if not (path.parent / name).exists():
            return f"includes {name}, which is not there"
    return ""


def read_ninja_log(path: Path) -> NinjaLog | None:
    """Return what ninja remembers, or None where it has built nothing."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    lines = text.split("\n")
    header = re.fullmatch(r"# ninja log v(\d+)", lines[0].strip())
    entries: dict[str, LogEntry] = {}
    bad = []
    for number, line in enumerate(lines[1:], 2):
        match = _LOG_LINE.fullmatch(line)
        if match:
            seconds = (int(match[2]) - int(match[1])) / 1000
            entries[match[4]] = LogEntry(seconds, int(match[3]))
        elif line:
            bad.append(number)
    return NinjaLog(path, int(header[1]) if header else None, entries, tuple(bad))


def deps_damage(path: Path) -> str:
    """Return what is wrong with a .ninja_deps; "" where it is sound or absent."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(16)
            if len(start) < 16 or not start.startswith(DEPS_SIGNATURE):
                return "" if not size else "does not begin as a .ninja_deps does"
            version = struct.unpack_from("<i", start, 12)[0]
            if version not in (3, 4):
                return f"is of version {version}, which no ninja writes"
            return _records_damage(file.read(MAX_LOG_BYTES))
    except OSError:
        return ""


def _records_damage(data: bytes) -> str:
    """Return where the records break off; each is a length, whose highest bit says what it is, and so many bytes."""
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            return "breaks off in the middle of a record"
        length = struct.unpack_from("<I", data, at)[0] & 0x7FFFFFFF
        if length % 4 or length > 1 << 19:
            return f"has a record of {length} bytes, which none has"
        at += 4 + length
    return "breaks off in the middle of a record" if at > len(data) else ""
