"""Compiled files as they lie there: whether they are whole, for which processor, and which compiler made them."""

from __future__ import annotations

import fcntl
import struct
import zipfile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

MACHINES = {62: "x86_64", 183: "aarch64", 3: "i386", 21: "ppc64le", 243: "riscv64"}
GET_FLAGS, IMMUTABLE = 0x80086601, 0x10  # FS_IOC_GETFLAGS and FS_IMMUTABLE_FL of linux/fs.h
ARCHIVE_MAGIC, THIN_MAGIC = b"!<arch>\n", b"!<thin>\n"
LINKER_SCRIPT_WORDS = (b"/*", b"INPUT", b"GROUP", b"OUTPUT_FORMAT")
LFS_START = b"version https://git-lfs"
MAX_SECTIONS = 100_000
MAX_COMMENT_BYTES = 64 << 10


class ElfHeader(NamedTuple):
    """The parts of an ELF header that are looked at."""

    machine: str
    section_offset: int
    section_size: int
    section_count: int
    names_index: int


def file_damage(path: Path) -> str:
    """Return how a compiled file or an archive is incomplete; "" where it is whole or of a kind not judged."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(64)
            if not size:
                return "is empty"
            if start.startswith(LFS_START):
                return ""  # another trouble, told by the check of sources
            if not start.strip(b"\0"):
                return "begins with zeros, as after a crash or a full disk"
            return _content_damage(path, file, start, size)
    except OSError:
        return ""


def _content_damage(path: Path, file: BinaryIO, start: bytes, size: int) -> str:
    name = path.name
    if name.endswith((".whl", ".zip")):
        return "" if zipfile.is_zipfile(path) else "breaks off: it has no directory of its members at its end"
    if start.startswith(ARCHIVE_MAGIC):
        return _archive_damage(file, size)
    if start.startswith(b"\x7fELF"):
        return _elf_damage(start, size)
    is_library = name.endswith((".o", ".a")) or ".so" in name
    return (
        ""
        if not is_library or start.startswith((b"BC\xc0\xde", THIN_MAGIC, *LINKER_SCRIPT_WORDS))
        else ("is neither an object nor a library")
    )


def parse_elf_header(start: bytes) -> ElfHeader | None:
    """Return the header of a 64-bit little-endian ELF file, or None for anything else."""
    if len(start) < 64 or start[:6] != b"\x7fELF\x02\x01":
        return None
    machine = struct.unpack_from("<H", start, 18)[0]
    offset = struct.unpack_from("<Q", start, 40)[0]
    entry_size, count, names = struct.unpack_from("<HHH", start, 58)
    return ElfHeader(MACHINES.get(machine, f"machine {machine}"), offset, entry_size, count, names)


def _elf_damage(start: bytes, size: int) -> str:
    if len(start) < 64:
        return f"breaks off within its header: it has {size} bytes"
    header = parse_elf_header(start)
    if header is None:
        return ""
    end = header.section_offset + header.section_size * header.section_count
    return f"breaks off: it has {size:,} bytes of {end:,}" if end > size else ""


def _archive_damage(file: BinaryIO, size: int) -> str:
    at = len(ARCHIVE_MAGIC)
    while at < size:
        file.seek(at)
        head = file.read(60)
        if len(head) < 60 or head[58:60] != b"`\n" or not head[48:58].strip().isdigit():
            return "breaks off within the head of a member" if at + 60 > size else "has a damaged member"
        length = int(head[48:58])
        if at + 60 + length > size:
            return "breaks off within a member"
        at += 60 + length + length % 2
    return ""


def elf_machine(path: Path) -> str:
    """Return the processor a compiled file is for; "" where it does not say."""
    try:
        with path.open("rb") as file:
            header = parse_elf_header(file.read(64))
    except OSError:
        return ""
    return header.machine if header else ""


def is_immutable(path: Path) -> bool:
    """Whether the file system forbids everybody, root too, to replace a file (chattr +i)."""
    try:
        with path.open("rb") as file:
            flags = fcntl.ioctl(file, GET_FLAGS, b"\0" * 8)
    except OSError:
        return False  # a file system without such flags
    return bool(int.from_bytes(flags[:4], "little") & IMMUTABLE)


def compiler_comments(path: Path) -> tuple[str, ...]:
    """Return what the compilers of an object wrote into its section .comment, such as "GCC: (Debian 12.2.0) 12.2.0"."""
    try:
        with path.open("rb") as file:
            data = _read_comment_section(file)
    except (OSError, struct.error):
        return ()
    return tuple(sorted({text.decode("utf-8", "replace") for text in data.split(b"\0") if text}))


def _read_comment_section(file: BinaryIO) -> bytes:
    header = parse_elf_header(file.read(64))
    if header is None or not 0 < header.section_count <= MAX_SECTIONS or header.section_size != 64:
        return b""
    file.seek(header.section_offset)
    table = file.read(header.section_size * header.section_count)
    sections = [struct.unpack_from("<IIQQQQ", table, at) for at in range(0, len(table) - 63, 64)]
    if header.names_index >= len(sections):
        return b""
    file.seek(sections[header.names_index][4])
    names = file.read(min(sections[header.names_index][5], 1 << 22))
    for section in sections:
        if names[section[0] : section[0] + 9] == b".comment\0":
            file.seek(section[4])
            return file.read(min(section[5], MAX_COMMENT_BYTES))
    return b""
