"""CMakeCache.txt and what CMake writes beside it: the entries, the compilers it met, the machine it ran on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_CACHE_BYTES = 64 << 20
MAX_SCRIPT_BYTES = 4 << 20
_ENTRY = re.compile(r'(?:"(?P<quoted>[^"]+)"|(?P<name>[^":=\s][^:=]*)):(?P<type>[A-Z_]+)=(?P<value>.*)')
_SET = re.compile(r'^set\((\w+) "([^"\n]*)"', re.MULTILINE)
# What CMake writes last and first of all; a cache without them was not written to its end.
_NEEDED = ("CMAKE_CACHEFILE_DIR", "CMAKE_GENERATOR", "CMAKE_HOME_DIRECTORY")
ON_COMMAND_LINE = "No help, variable specified on the command line."


class CacheEntry(msgspec.Struct, frozen=True):
    """One line of the cache, with the comment above it."""

    name: str
    type: str
    value: str
    line: int
    help: str = ""


class CMakeCache:
    """The entries of a cache file, and what keeps CMake from reading it."""

    def __init__(self, path: Path, entries: Mapping[str, CacheEntry], damage: str = "") -> None:
        self.path, self.entries, self.damage = path, entries, damage

    def value(self, name: str) -> str:
        """Return an entry's value; "" where it is absent or was not found."""
        entry = self.entries.get(name)
        return "" if entry is None or entry.value.endswith("NOTFOUND") else entry.value

    def is_advanced(self, name: str) -> bool:
        return f"{name}-ADVANCED" in self.entries

    def place_of(self, name: str) -> str:
        entry = self.entries.get(name)
        return f"{self.path}:{entry.line}" if entry else str(self.path)

    @property
    def version(self) -> str:
        parts = (self.value(f"CMAKE_CACHE_{part}_VERSION") for part in ("MAJOR", "MINOR", "PATCH"))
        return ".".join(part for part in parts if part)


def read_cmake_cache(path: Path) -> CMakeCache:
    """Return a cache as far as it can be read; damage is told, not raised."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CACHE_BYTES)
    except OSError as err:
        return CMakeCache(path, {}, f"cannot be read: {err.strerror or err}")
    if not data.strip():
        return CMakeCache(path, {}, "is empty")
    if b"\0" in data:
        damage = "holds NUL bytes, as after a crash or a full disk"
        return CMakeCache(
            path, {entry.name: entry for entry in _parse_entries(data.decode("utf-8", "replace"))}, damage
        )
    text = data.decode("utf-8", "replace")
    entries = {entry.name: entry for entry in _parse_entries(text)}
    return CMakeCache(path, entries, _cache_damage(text, entries))


def _parse_entries(text: str) -> Iterator[CacheEntry]:
    comments: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("//"):
            comments.append(line[2:])
        elif match := _ENTRY.fullmatch(line):
            name = match["quoted"] or match["name"]
            yield CacheEntry(name, match["type"], _unquote(match["value"]), number, "".join(comments))
            comments = []
        else:
            comments = []


def _unquote(value: str) -> str:
    """Return a value without the quotes that CMake puts around one with blanks at an end."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == "'" else value


def _cache_damage(text: str, entries: Mapping[str, CacheEntry]) -> str:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith(("#", "//")) and not _ENTRY.fullmatch(line):
            return f"has a line that is no entry (line {number}: {line[:60]!r})"
    missing = [name for name in _NEEDED if name not in entries]
    return f"breaks off: it has no {missing[0]}" if missing else ""


class CompilerRecord(msgspec.Struct, frozen=True):
    """The compiler of one language as CMake met it when it configured."""

    language: str
    path: str
    id: str
    version: str
    file: Path


def read_compilers(files: Path) -> dict[str, CompilerRecord]:
    """Return the compilers that CMakeFiles/<version>/CMake<language>Compiler.cmake of the newest version record."""
    records: dict[str, CompilerRecord] = {}
    for script in sorted(files.glob("[0-9]*/CMake*Compiler.cmake"), key=lambda file: file.stat().st_mtime):
        language = script.stem[len("CMake") : -len("Compiler")]
        values = _read_settings(script)
        records[language] = CompilerRecord(
            language,
            values.get(f"CMAKE_{language}_COMPILER", ""),
            values.get(f"CMAKE_{language}_COMPILER_ID", ""),
            values.get(f"CMAKE_{language}_COMPILER_VERSION", ""),
            script,
        )
    return records


def read_system(files: Path) -> dict[str, str]:
    """Return what CMake wrote down of the machine it configured on."""
    scripts = sorted(files.glob("[0-9]*/CMakeSystem.cmake"), key=lambda file: file.stat().st_mtime)
    if not scripts:
        return {}
    values = _read_settings(scripts[-1])
    crossing = re.search(r"set\(CMAKE_CROSSCOMPILING \"?(\w+)", _read_text(scripts[-1]))
    return values | ({"CMAKE_CROSSCOMPILING": crossing[1]} if crossing else {})


def _read_settings(script: Path) -> dict[str, str]:
    return dict(_SET.findall(_read_text(script)))


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_SCRIPT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
