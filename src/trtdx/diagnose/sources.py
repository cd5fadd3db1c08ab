"""What the user named, as streams of blocks: files, directories, compressed files, standard input, cases."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from trtdx.case import is_case, open_case
from trtdx.diagnose.lines import BLOCK_BYTES
from trtdx.errors import InputError, TrtdxError
from trtdx.optional import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.host import Host

_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bz2"))
# Bytes that no log starts with: reading an engine or a checkpoint as text would only waste time.
_NOT_TEXT = (
    b"ftrt",
    b"PK\x03\x04",
    b"\x7fELF",
    b"\x89PNG",
    b"%PDF",
    b"GGUF",
    b"SQLite format 3\x00",
    b"\x80\x02",
    b"\x80\x04",
)
_NOT_LOGS = (
    ".safetensors",
    ".engine",
    ".plan",
    ".onnx",
    ".bin",
    ".pt",
    ".pth",
    ".so",
    ".npy",
    ".npz",
    ".pyc",
    ".whl",
    ".png",
    ".cache",
)
_BOUND_EXPANSION = 64 << 30  # a hostile archive ends somewhere
_PACKED_BYTES = 1024
_HEAD_BYTES = 64


class Source(NamedTuple):
    """One stream of log text and the name evidence gives it."""

    name: str
    blocks: Callable[[], Iterator[bytes]]


class Skipped(NamedTuple):
    """Something named that was not read, and why."""

    name: str
    reason: str


def sources(host: Host, paths: Sequence[str]) -> tuple[list[Source], list[Skipped]]:
    """Return the streams behind the paths in a fixed order, and what was passed over."""
    found: dict[str, Source] = {}
    skipped: list[Skipped] = []
    for path in paths:
        kind = "file" if path == "-" else host.kind(path)
        if kind == "absent":
            raise InputError(
                f"there is no file or directory {path}",
                fix="give a log file, a directory of logs, a case, or - for standard input",
            )
        if is_case(host, path):
            case = open_case(host, path)
            for name in case.texts():
                found[name] = Source(name, lambda case=case, name=name: read_blocks(case.host, name))  # type: ignore[misc]
            continue
        if kind != "directory":
            found[path] = Source("stdin" if path == "-" else path, lambda path=path: read_blocks(host, path))  # type: ignore[misc]
            continue
        skipped += [Skipped(name, "this folder cannot be listed") for name in host.closed_folders(path)]
        for name in host.files(path):
            if name.lower().endswith(_NOT_LOGS):
                skipped.append(Skipped(name, "not a log by its name"))
            else:
                found[name] = Source(name, lambda name=name: read_blocks(host, name))  # type: ignore[misc]
    return [found[name] for name in sorted(found)], skipped


def read_blocks(host: Host, path: str) -> Iterator[bytes]:
    """Yield a file's bytes, decompressed. A damaged end yields what could be read and then raises InputError."""
    stream = host.open(path)
    try:
        head = _head(stream)
        if any(head.startswith(magic) for magic in _NOT_TEXT):
            raise InputError(
                f"{path} is not text (it starts with {head[:4]!r})", fix="give the log, not the artifact"
            )
        packing = next((name for magic, name in _MAGIC if head.startswith(magic)), "")
        raw = _raw_blocks(stream, head)
        yield from _unpacked(raw, packing, path) if packing else raw
    finally:
        if path != "-":
            stream.close()


def _head(stream: BinaryIO) -> bytes:
    """Return the first bytes, enough to tell packings and encodings; a pipe may give them in drops."""
    head = b""
    while len(head) < _HEAD_BYTES and (more := stream.read(_HEAD_BYTES - len(head))):
        head += more
    return head


def _raw_blocks(stream: BinaryIO, head: bytes) -> Iterator[bytes]:
    if head:
        yield head
    read = getattr(
        stream, "read1", stream.read
    )  # a pipe gives what is there instead of waiting for a full block
    while block := read(BLOCK_BYTES):
        yield block


def _unpacked(raw: Iterator[bytes], packing: str, path: str) -> Iterator[bytes]:
    total = 0
    try:
        for block in _decompressed(raw, packing):
            total += len(block)
            if total > _BOUND_EXPANSION:
                raise InputError(
                    f"{path} expands to more than {_BOUND_EXPANSION >> 30} GiB; the rest was not read"
                )
            yield block
    except TrtdxError:
        raise
    except (
        Exception
    ) as err:  # each library has its own error for damaged data, zstandard's is not importable here
        raise InputError(f"{path} is damaged or cut off after {total} bytes: {err}") from err


def _decompressed(raw: Iterator[bytes], packing: str) -> Iterator[bytes]:
    """Yield what the members of a compressed stream hold; a stream without an end raises EOFError."""
    new = _unpackers(packing)
    unpacker, ended, gathered = new(), False, b""
    for data in _slices(raw):
        left = data
        while left:
            if ended:  # another member follows
                unpacker = new()
            gathered += unpacker.decompress(left)
            ended = unpacker.eof
            left = unpacker.unused_data if ended else b""
        if len(gathered) >= BLOCK_BYTES:
            yield gathered
            gathered = b""
    yield gathered
    if not ended:
        raise EOFError("the compressed stream has no end")


def _unpackers(packing: str) -> Callable[[], Any]:
    if packing == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    if packing == "xz":
        return lzma.LZMADecompressor
    if packing == "bz2":
        return bz2.BZ2Decompressor
    zstandard = need("zstandard", extra="zstd", to="read .zst files")
    return lambda: zstandard.ZstdDecompressor().decompressobj()


def _slices(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield little at a time, so that hostile data expands to tens of mebibytes at once and not to more."""
    for block in blocks:
        yield from (block[at : at + _PACKED_BYTES] for at in range(0, len(block), _PACKED_BYTES))
