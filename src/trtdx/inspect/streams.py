"""Text files of any length read line by line, also compressed ones, in bounded memory."""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.host import Host

BLOCK_BYTES = 1 << 20
MOST_EXPANDED = 64 << 30  # a hostile archive ends somewhere
_PACKED_BYTES = 1024
_UNPACKERS: tuple[tuple[bytes, Callable[[], Any]], ...] = (
    (b"\x1f\x8b", lambda: zlib.decompressobj(wbits=31)),
    (b"\xfd7zXZ\x00", lzma.LZMADecompressor),
    (b"BZh", bz2.BZ2Decompressor),
)
_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-9;:?<=>]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[@-Z\\^_])"
)


class Lines(NamedTuple):
    """A stretch of whole lines and the number of the first of them."""

    number: int
    lines: list[bytes]


def line_blocks(host: Host, path: str, longest: int, problems: list[str]) -> Iterator[Lines]:
    """Yield a file's lines by the block, without terminal escapes; a line is cut after `longest` bytes.

    A file that ends badly yields what could be read; why it ended is added to `problems`.
    """
    number, rest, skipping = 1, b"", False
    for block in _blocks(host, path, problems):
        *whole, rest_now = (rest + block).split(b"\n")
        if skipping and whole:  # the rest of a line that was given out cut
            whole, skipping = whole[1:], False
            number += 1
        if whole:
            yield Lines(number, _cleaned(whole, longest, block))
            number += len(whole)
        rest = rest_now
        if len(rest) > longest:
            if not skipping:
                yield Lines(number, [_clean(rest[:longest])])
            rest, skipping = b"", True
    if rest and not skipping:
        yield Lines(number, [_clean(rest)])


def _cleaned(lines: list[bytes], longest: int, block: bytes) -> list[bytes]:
    """Return whole lines cleaned; one that lies within a block is not worth cutting."""
    if b"\x1b" in block or b"\r" in block or len(lines[0]) > longest:
        return [_clean(line[:longest]) for line in lines]
    return [_clean(lines[0]), *lines[1:]]


def _clean(line: bytes) -> bytes:
    line = line.removesuffix(b"\r")
    return _ESCAPE.sub(b"", line) if b"\x1b" in line else line


def _blocks(host: Host, path: str, problems: list[str]) -> Iterator[bytes]:
    stream = host.open(path)
    try:
        head = stream.read(BLOCK_BYTES) or b""
        new = next((make for magic, make in _UNPACKERS if head.startswith(magic)), None)
        raw = _raw(stream, head)
        yield from _unpacked(raw, new) if new else raw
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError, InputError) as err:
        problems.append(f"{path}: cannot be read to its end: {err}")
    finally:
        if path != "-":
            stream.close()


def _raw(stream: Any, head: bytes) -> Iterator[bytes]:
    yield head.removeprefix(b"\xef\xbb\xbf")
    while block := stream.read(BLOCK_BYTES):
        yield block


def _unpacked(raw: Iterator[bytes], new: Callable[[], Any]) -> Iterator[bytes]:
    """Yield what a compressed stream holds; one that is cut raises EOFError at its end."""
    unpacker, total, gathered = new(), 0, b""
    for data in _slices(raw):
        left = data
        while left:
            if unpacker.eof:  # another member follows
                unpacker = new()
            part = unpacker.decompress(left)
            gathered, total = gathered + part, total + len(part)
            left = unpacker.unused_data if unpacker.eof else b""
        if len(gathered) >= BLOCK_BYTES // 4:
            yield gathered
            gathered = b""
        if total > MOST_EXPANDED:
            raise EOFError(f"it expands to more than {MOST_EXPANDED >> 30} GiB")
    yield gathered
    if not unpacker.eof:
        raise EOFError("the compressed data is cut off")


def _slices(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield little at a time, so that hostile data expands to a few mebibytes at once."""
    for block in blocks:
        yield from (block[at : at + _PACKED_BYTES] for at in range(0, len(block), _PACKED_BYTES))
