"""The bytes of a file, unpacked, in blocks of bounded size, and its lines without terminal escapes."""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from trtdx.errors import InputError, TrtdxError
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trtdx.host import Host

BLOCK_BYTES = 1 << 20
_COMPRESSION_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bz2"),
)
# Bytes that no log starts with: reading an engine or a checkpoint as text would only waste time.
_BINARY_MAGIC = (
    b"ftrt", b"PK\x03\x04", b"\x7fELF", b"\x89PNG", b"%PDF", b"GGUF", b"SQLite format 3\x00", b"\x80\x02",
    b"\x80\x04",
)  # fmt: skip
_MAX_EXPANDED_BYTES = 64 << 30  # a hostile archive ends somewhere
_MAX_EXPANSION = 2000  # the most repetitive real logs stay below 1000
_FREE_EXPANSION_BYTES = 64 << 20
_SLICE_BYTES = 1024
_HEAD_BYTES = 64
TERMINAL_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-9;:?<=>]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[@-Z\\^_])"
)


def read_blocks(host: Host, path: str) -> Iterator[bytes]:
    """Yield a file's bytes, decompressed. A damaged end yields what could be read and then raises InputError."""
    stream = host.open(path)
    try:
        head = _read_head(stream)
        if any(head.startswith(magic) for magic in _BINARY_MAGIC):
            raise InputError(f"{path} is not text (it starts with {head[:4]!r})", fix="give the log, not the artifact")
        packing = next((name for magic, name in _COMPRESSION_MAGIC if head.startswith(magic)), "")
        raw = _raw_blocks(stream, head)
        yield from _unpack_bounded(raw, packing, path) if packing else raw
    finally:
        if path != "-":
            stream.close()


def _read_head(stream: BinaryIO) -> bytes:
    """Return the first bytes, enough to tell packings and encodings; a pipe may give them in drops."""
    head = b""
    while len(head) < _HEAD_BYTES and (more := stream.read(_HEAD_BYTES - len(head))):
        head += more
    return head


def _raw_blocks(stream: BinaryIO, head: bytes) -> Iterator[bytes]:
    if head:
        yield head
    # a pipe gives what is there instead of waiting for a full block
    read = getattr(stream, "read1", stream.read)
    while block := read(BLOCK_BYTES):
        yield block


def _unpack_bounded(raw: Iterator[bytes], packing: str, path: str) -> Iterator[bytes]:
    total, counted = 0, _CountedBlocks(raw)
    try:
        for block in _decompress_members(counted, packing):
            total += len(block)
            if total > _MAX_EXPANDED_BYTES:
                raise InputError(f"{path} expands to more than {_MAX_EXPANDED_BYTES >> 30} GiB; the rest was not read")
            if total > _FREE_EXPANSION_BYTES and total > _MAX_EXPANSION * counted.total:
                raise InputError(
                    f"{path} expands to more than {_MAX_EXPANSION} times its size, as no log does; the rest was not read"
                )
            yield block
    except TrtdxError:
        raise
    except Exception as err:  # each library has its own error for damaged data, zstandard's is not importable here
        raise InputError(f"{path} is damaged or cut off after {total} bytes: {err}") from err


class _CountedBlocks:
    """Blocks, and how many bytes of them were taken."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self.total = blocks, 0

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            for at in range(0, len(block), _SLICE_BYTES):  # little at a time: zlib and zstd expand it at once
                self.total += len(block[at : at + _SLICE_BYTES])
                yield block[at : at + _SLICE_BYTES]


def _decompress_members(raw: Iterable[bytes], packing: str) -> Iterator[bytes]:
    """Yield what the members of a compressed stream hold; a stream without an end raises EOFError."""
    new = _decompressor_factory(packing)
    unpacker, ended, gathered = new(), False, b""
    for data in raw:
        left = data
        while left:
            if ended:  # another member follows
                unpacker = new()
            for part in _expand_bounded(unpacker, left):
                gathered += part
                if len(gathered) >= BLOCK_BYTES:
                    yield gathered
                    gathered = b""
            ended = unpacker.eof
            left = unpacker.unused_data if ended else b""
    yield gathered
    if not ended:
        raise EOFError("the compressed stream has no end")


def _expand_bounded(unpacker: Any, data: bytes) -> Iterator[bytes]:
    """Yield what data expands to, a block at a time where the library can (a kibibyte of bz2 holds gigabytes)."""
    if not hasattr(unpacker, "needs_input"):
        yield unpacker.decompress(data)
        return
    yield unpacker.decompress(data, BLOCK_BYTES)
    while not unpacker.eof and not unpacker.needs_input:
        yield unpacker.decompress(b"", BLOCK_BYTES)


def _decompressor_factory(packing: str) -> Callable[[], Any]:
    if packing == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    if packing == "xz":
        return lzma.LZMADecompressor
    if packing == "bz2":
        return bz2.BZ2Decompressor
    zstandard = import_optional("zstandard", extra="zstd", purpose="read .zst files")
    return lambda: zstandard.ZstdDecompressor().decompressobj()


class LineBlock(NamedTuple):
    """A stretch of whole lines and the number of the first of them."""

    first_number: int
    lines: list[bytes]


def read_line_blocks(host: Host, path: str, max_line_bytes: int, problems: list[str]) -> Iterator[LineBlock]:
    """Yield a file's lines by the block, without terminal escapes; a line is cut after `longest` bytes.

    A file that ends badly yields what could be read; why it ended is added to `problems`.
    """
    number, rest, skipping = 1, b"", False
    for block in _blocks_noting_problems(host, path, problems):
        *lines, rest_now = (rest + block).split(b"\n")
        if skipping and lines:  # the rest of a line that was given out cut
            lines, skipping = lines[1:], False
            number += 1
        if lines:
            yield LineBlock(number, _clean_lines(lines, max_line_bytes, block))
            number += len(lines)
        rest = rest_now
        if len(rest) > max_line_bytes:
            if not skipping:
                yield LineBlock(number, [_clean_line(rest[:max_line_bytes])])
            rest, skipping = b"", True
    if rest and not skipping:
        yield LineBlock(number, [_clean_line(rest)])


def _clean_lines(lines: list[bytes], max_line_bytes: int, block: bytes) -> list[bytes]:
    """Return whole lines cleaned; one that lies within a block is not worth cutting."""
    if b"\x1b" in block or b"\r" in block or len(lines[0]) > max_line_bytes:
        return [_clean_line(line[:max_line_bytes]) for line in lines]
    return [_clean_line(lines[0]), *lines[1:]]


def _clean_line(line: bytes) -> bytes:
    line = line.removesuffix(b"\r")
    return TERMINAL_ESCAPE.sub(b"", line) if b"\x1b" in line else line


def _blocks_noting_problems(host: Host, path: str, problems: list[str]) -> Iterator[bytes]:
    if path != "-":
        host.open(path).close()  # a file that cannot be opened at all is an error, not a part that is missing
    try:
        for number, block in enumerate(read_blocks(host, path)):
            yield block if number else block.removeprefix(b"\xef\xbb\xbf")
    except InputError as err:
        problems.append(err.message)
    except OSError as err:
        problems.append(f"{path}: cannot be read to its end: {err}")
