"""Which file the dynamic loader takes for a library: RPATH, LD_LIBRARY_PATH, RUNPATH, cache, default folders."""

from __future__ import annotations

import os
import re
import struct
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trtdx.check.facts.elf_reader import SharedObject, read_shared_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CACHE_MAGIC = b"glibc-ld.so.cache1.1"
MOST_LINKS = 40
TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "ppc64le": "powerpc64le-linux-gnu"}


class ResolvedLibrary(NamedTuple):
    """A library by name, the file taken for it (or none), and why that one."""

    name: str
    path: str = ""
    via: str = ""


class RootedFiles:
    """Paths inside a root file system, whose absolute links point into it and not out of it."""

    def __init__(self, root: str = "") -> None:
        self.root = root.rstrip("/")

    def real(self, path: str) -> str:
        """Return where a path of the root file system lies on this machine, links followed within the root."""
        if not self.root:
            return _without_detours(path)
        parts, place, budget = path.strip("/").split("/"), self.root, MOST_LINKS
        while parts:
            part = parts.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                place = os.path.dirname(place) if place != self.root else place
                continue
            target = os.path.join(place, part)
            if os.path.islink(target) and budget:
                budget -= 1
                link = os.readlink(target)
                place = self.root if link.startswith("/") else place
                parts = [*link.strip("/").split("/"), *parts]
                continue
            place = target
        return place

    def inner(self, path: str) -> str:
        """Return a path of this machine as it is called inside the root."""
        return path[len(self.root) :] or "/" if self.root and path.startswith(self.root) else path


def _without_detours(path: str) -> str:
    """Return a path without `..`, so that one file has one name: `$ORIGIN/../../nvidia/nccl/lib` is how wheels search."""
    if "/../" not in path:
        return path
    plain = os.path.normpath(path)
    try:
        return plain if os.path.samefile(plain, path) else os.path.realpath(path)
    except OSError:
        return path


class LibraryLoader:
    """The loader as one process sees it."""

    def __init__(self, machine: str, library_path: str = "", root: str = "", executable: str = "") -> None:
        self.machine = machine
        self.files = RootedFiles(root)
        self.library_path = tuple(part or "." for part in library_path.split(":")) if library_path else ()
        self._program = read_shared_object(self.files.real(executable)) if executable else SharedObject("")
        self._answers: dict[tuple[str, str], ResolvedLibrary] = {}

    def resolve(self, user: SharedObject, name: str) -> ResolvedLibrary:
        """Return the file taken for a library that an object needs."""
        key = (name, os.path.dirname(user.path))
        known = self._answers.get(key)
        if known is None:
            known = self._answers[key] = self._search(user, name)
        return known

    def _search(self, user: SharedObject, name: str) -> ResolvedLibrary:
        if "/" in name:
            path = self.files.real(name)
            return ResolvedLibrary(name, path if Path(path).is_file() else "", "path")
        for folder, via in self._folders(user):
            path = self.files.real(f"{folder}/{name}")
            if self._fits(path):
                return ResolvedLibrary(name, path, via)
        path = self.files.real(self.cache[name]) if name in self.cache else ""
        if path and self._fits(path):
            return ResolvedLibrary(name, path, "ld.so.cache")
        for folder in self.default_folders:
            path = self.files.real(f"{folder}/{name}")
            if self._fits(path):
                return ResolvedLibrary(name, path, "default folders")
        return ResolvedLibrary(name)

    def _folders(self, user: SharedObject) -> Iterator[tuple[str, str]]:
        if not user.runpath:
            yield from self._expand(user, user.rpath, "RPATH")
            if not self._program.runpath:
                yield from self._expand(self._program, self._program.rpath, "RPATH of the interpreter")
        yield from ((folder, "LD_LIBRARY_PATH") for folder in self.library_path)
        yield from self._expand(user, user.runpath, "RUNPATH")

    def _expand(self, user: SharedObject, folders: Sequence[str], via: str) -> Iterator[tuple[str, str]]:
        origin = self.files.inner(os.path.dirname(os.path.realpath(user.path) if not self.files.root else user.path))
        for folder in folders:
            place = re.sub(r"\$(?:ORIGIN\b|\{ORIGIN\})", lambda _: origin, folder)
            yield re.sub(r"\$(?:LIB\b|\{LIB\})", "lib64" if self.machine == "x86_64" else "lib", place), via

    def _fits(self, path: str) -> bool:
        if not path or not Path(path).is_file():
            return False
        thing = read_shared_object(path)
        return thing.problem not in ("", "closed") or thing.machine == self.machine or not self.machine

    @cached_property
    def default_folders(self) -> tuple[str, ...]:
        triplet = TRIPLETS.get(self.machine)
        system = [f"/lib/{triplet}", f"/usr/lib/{triplet}"] if triplet else []
        return (*system, "/lib64", "/usr/lib64", "/lib", "/usr/lib", *self._configured_folders())

    def _configured_folders(self) -> Iterator[str]:
        """Yield the folders of ld.so.conf, for a root file system whose cache was never made."""
        if not self.files.root or self.cache:
            return
        for folder in ("/etc/ld.so.conf.d", "/etc"):
            place = Path(self.files.real(folder))
            for path in sorted(place.glob("*.conf")) if place.is_dir() else ():
                lines = path.read_text("utf-8", "replace").splitlines()[:500]
                yield from (line.strip() for line in lines if line.startswith("/"))

    @cached_property
    def cache(self) -> dict[str, str]:
        try:
            data = Path(self.files.real("/etc/ld.so.cache")).read_bytes()
        except OSError:
            return {}
        return parse_loader_cache(data)


def parse_loader_cache(data: bytes) -> dict[str, str]:
    """Return the libraries in the loader's cache, by name; the first of a name wins, as the best for the processor."""
    start = data.find(CACHE_MAGIC)
    if start < 0:
        return {}
    libraries: dict[str, str] = {}
    try:
        (count,) = struct.unpack_from("<I", data, start + 20)
        for number in range(min(count, 100_000)):
            flags, key, value = struct.unpack_from("<iII", data, start + 48 + 24 * number)
            if flags & 0xFF != 3 and flags & 0xFF != 1:  # not for the C library of this system
                continue
            name, path = _text_at(data, start + key), _text_at(data, start + value)
            if name and path:
                libraries.setdefault(name, path)
    except (struct.error, ValueError):
        return libraries
    return libraries


def _text_at(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset, offset + 4096)
    return data[offset:end].decode("utf-8", "replace") if 0 <= offset < len(data) and end > 0 else ""
