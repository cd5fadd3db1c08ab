"""Shared objects as they are: kind, needs, search paths, symbols. Hostile and broken files give a problem, never an error."""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.optional import is_installed

if TYPE_CHECKING:
    from collections.abc import Iterable

LFS_POINTER = b"version https://git-lfs.github.com/spec"
# e_machine, as platform.machine() spells it.
MACHINES = {
    3: "i686",
    20: "ppc",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
}
OTHER_FORMATS = {
    b"MZ": "a Windows file",
    b"\xcf\xfa\xed\xfe": "a macOS file",
    b"\xca\xfe\xba\xbe": "a macOS file",
    b"!<ar": "an archive of objects",
}
MOST_SYMBOLS = 200_000
WEAK = 2
ANYONE_READS = 0o444


class SharedObject(NamedTuple):
    """What a file says of itself; `problem` where it is no library."""

    path: str
    problem: str = ""
    machine: str = ""
    bits: int = 64
    is_little: bool = True
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()


def forget_objects() -> None:
    """Let files be read anew: between two checks of one process they may have been mended."""
    for reader in (read_shared_object, asked_versions, defined_versions, undefined_symbols):
        reader.cache_clear()


def can_read_elf() -> bool:
    """Whether the package that reads ELF files is installed."""
    return is_installed("elftools")


@lru_cache(maxsize=8192)
def read_shared_object(path: str) -> SharedObject:
    """Return what a file is and needs."""
    plain = glance_at_object(path)
    if plain.problem or not can_read_elf():
        return plain
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with Path(path).open("rb") as stream:
            elf = ELFFile(stream)
            end = max((load["p_offset"] + load["p_filesz"] for load in elf.iter_segments("PT_LOAD")), default=0)
            if end > Path(path).stat().st_size:
                return plain._replace(problem="cut off")
            return _with_dynamic(plain, elf)
    except (ELFError, OSError, ValueError, KeyError, AttributeError, struct.error, RecursionError, MemoryError):
        return plain._replace(problem="damaged")


def glance_at_object(path: str) -> SharedObject:
    """Return what the first bytes of a file tell; costs next to nothing."""
    problem, head = _first_bytes(path)
    if problem:
        return SharedObject(path, problem)
    machine, bits, is_little = _kind_of_elf(head)
    return SharedObject(path, machine=machine, bits=bits, is_little=is_little)


def _first_bytes(path: str) -> tuple[str, bytes]:
    """Return why a file is no library of this system, or its first bytes."""
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(64)
            if not os.fstat(stream.fileno()).st_mode & ANYONE_READS:
                return "closed", head  # root can read it, and the user of the service cannot
    except PermissionError:
        return "closed", b""
    except OSError:
        return ("dangling" if Path(path).is_symlink() else "absent"), b""
    if head.startswith(LFS_POINTER):
        return "pointer", head
    if not head.strip(b"\0"):
        return ("empty" if not head else "zeros"), head
    if not head.startswith(b"\x7fELF"):
        return next((what for magic, what in OTHER_FORMATS.items() if head.startswith(magic)), "not ELF"), head
    return ("cut off" if len(head) < 52 else ""), head


def _kind_of_elf(head: bytes) -> tuple[str, int, bool]:
    is_little = head[5] != 2
    number = int.from_bytes(head[18:20], "little" if is_little else "big")
    return MACHINES.get(number, f"machine {number}"), 64 if head[4] == 2 else 32, is_little


def _with_dynamic(plain: SharedObject, elf: Any) -> SharedObject:
    needed: list[str] = []
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    soname = ""
    for segment in elf.iter_segments("PT_DYNAMIC"):
        for tag in segment.iter_tags():
            if tag.entry.d_tag == "DT_NEEDED":
                needed.append(tag.needed)
            elif tag.entry.d_tag == "DT_RPATH":
                rpath = _split_paths(tag.rpath)
            elif tag.entry.d_tag == "DT_RUNPATH":
                runpath = _split_paths(tag.runpath)
            elif tag.entry.d_tag == "DT_SONAME":
                soname = tag.soname
    return plain._replace(needed=tuple(needed), rpath=rpath, runpath=runpath, soname=soname)


def _split_paths(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(":") if part)


@lru_cache(maxsize=4096)
def asked_versions(path: str) -> tuple[tuple[str, str], ...]:
    """Return the (library, version) pairs that a file needs: ("libc.so.6", "GLIBC_2.34")."""
    return tuple(_read_versions(path, ".gnu.version_r"))


@lru_cache(maxsize=4096)
def defined_versions(path: str) -> frozenset[str]:
    """Return the versions of symbols that a library has."""
    return frozenset(name for _, name in _read_versions(path, ".gnu.version_d"))


def _read_versions(path: str, section: str) -> list[tuple[str, str]]:
    from elftools.elf.elffile import ELFFile

    try:
        with Path(path).open("rb") as stream:
            table: Any = ELFFile(stream).get_section_by_name(section)
            if table is None:
                return []
            if section.endswith("_d"):
                return [("", next(iter(names)).name) for _, names in table.iter_versions()]
            return [
                (library.name, version.name)
                for library, versions in table.iter_versions()
                for version in versions
                if not version["vna_flags"] & WEAK
            ]
    except Exception:  # whatever a damaged table makes the reader raise
        return []


@lru_cache(maxsize=4096)
def undefined_symbols(path: str) -> tuple[str, ...]:
    """Return the symbols a file needs from others; weak ones may stay without."""
    try:
        with Path(path).open("rb") as stream:
            dynamic, _, first = _symbol_table(stream)
            if dynamic is None:
                return ()
            symbols = (dynamic.get_symbol(number) for number in range(1, min(first, MOST_SYMBOLS)))
            return tuple(
                symbol.name
                for symbol in symbols
                if symbol.entry.st_shndx == "SHN_UNDEF" and symbol.entry.st_info.bind == "STB_GLOBAL" and symbol.name
            )
    except Exception:  # whatever a damaged table makes the reader raise
        return ()


def defined_among(path: str, symbols: Iterable[str]) -> set[str]:
    """Return those of some symbols that a file defines."""
    try:
        with Path(path).open("rb") as stream:
            dynamic, table, _ = _symbol_table(stream)
            if dynamic is None or table is None:
                return set()
            return {symbol for symbol in symbols if _is_defined(table.get_symbol(symbol))}
    except Exception:  # whatever a damaged table makes the reader raise
        return set()


def _is_defined(symbol: Any) -> bool:
    return symbol is not None and symbol.entry.st_shndx != "SHN_UNDEF"


def _symbol_table(stream: Any) -> tuple[Any, Any, int]:
    """Return the dynamic segment, its hash table, and the number of the first symbol that is defined in the file."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.hash import ELFHashTable, GNUHashTable

    elf = ELFFile(stream)
    dynamic: Any = next(iter(elf.iter_segments("PT_DYNAMIC")), None)
    if dynamic is None:
        return None, None, 0
    _, offset = dynamic.get_table_offset("DT_GNU_HASH")
    if offset is not None:
        table = GNUHashTable(elf, offset, dynamic)
        return dynamic, table, int(table.params["symoffset"])
    _, offset = dynamic.get_table_offset("DT_HASH")
    if offset is None:
        return dynamic, None, dynamic.num_symbols()
    return dynamic, ELFHashTable(elf, offset, None, dynamic), dynamic.num_symbols()
