"""Protobuf's wire format, walked over a stream: large fields are skipped by seeking and never held."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Rewrite = Callable[["WireStream", int, int], bytes]

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32, NO_WIRE_TYPE = 0, 1, 2, 5, 7
MAX_VARINT_BYTES = 10
LENGTHS = {FIXED64: 8, LENGTH_DELIMITED: 0, FIXED32: 4}
HEADER_BYTES = 2 * MAX_VARINT_BYTES  # a tag and a number (or a length)
FIRST_READ, MAX_READ = 4 << 10, 256 << 10  # read ahead little after a seek, more while reading on
MAX_FIELDS = 1_500_000  # 100,000 nodes, which is ten times the largest graphs in use
MAX_BYTES = 256 << 20  # read in all; weights are not read
MAX_TEXT_BYTES = 64 << 10

WireField = tuple[int, int, int, int]
"""(number, wire type, value, 0) of a number; (number, wire type, start, end) of anything else."""


class WireError(ValueError):
    """Why the bytes from an offset on are not what they should be; `is_truncated` when the file just ends."""

    def __init__(self, problem: str, offset: int, *, is_truncated: bool = False) -> None:
        super().__init__(problem)
        self.problem, self.offset, self.is_truncated = problem, offset, is_truncated


class WireLimitError(Exception):
    """The message has more fields than any real one: reading ends here with what is known."""


class WireStream:
    """A seekable stream of known length with a small read-ahead buffer and an allowance of work."""

    def __init__(
        self, stream: BinaryIO, size: int, *, most_fields: int = MAX_FIELDS, most_bytes: int = MAX_BYTES
    ) -> None:
        self._stream, self.size = stream, size
        self.buffer, self.base = b"", 0
        self.fields_left, self._bytes_left = most_fields, most_bytes
        self._read_ahead_bytes = FIRST_READ

    def fill(self, offset: int) -> None:
        """Make `buffer` hold the next header from `at` on, less at the end of the file."""
        end = self.base + len(self.buffer)
        if self.base <= offset and min(offset + HEADER_BYTES, self.size) <= end:
            return
        reads_on = self.base <= offset <= end + FIRST_READ
        self._read_ahead_bytes = min(2 * self._read_ahead_bytes, MAX_READ) if reads_on else FIRST_READ
        self.buffer, self.base = self._from_stream(offset, self._read_ahead_bytes), offset

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of a span; the caller has seen that it is small."""
        first = start - self.base
        if first >= 0 and end <= self.base + len(self.buffer):
            return self.buffer[first : first + end - start]
        data = self._from_stream(start, end - start)
        if len(data) < end - start:
            raise WireError("the file ends inside a field", start + len(data), is_truncated=True)
        return data

    def read_text(self, start: int, end: int) -> str:
        """Return a span as text, its first 64 KiB where it is longer."""
        return self.read(start, min(end, start + MAX_TEXT_BYTES)).decode("utf-8", "replace")

    def _from_stream(self, offset: int, length: int) -> bytes:
        self._bytes_left -= length
        if self._bytes_left < 0:
            raise WireLimitError
        self._stream.seek(offset)
        parts: list[bytes] = []
        while length > 0:
            part = self._stream.read(length)
            if not part:
                break
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


def iter_fields(source: WireStream, start: int, end: int, *, clip: bool = False) -> Iterator[WireField]:
    """Yield the fields of the message in a span; only their headers are read.

    With `clip`, a field that the file cuts off is yielded as far as it goes before the error comes.
    """
    at = start
    while at < end:
        source.fields_left -= 1
        if source.fields_left < 0:
            raise WireLimitError
        source.fill(at)
        field, after = _read_field(source, at)
        if after > end:
            if clip and after > source.size:
                yield (*field[:3], end)
            raise _overrun_error(source, at, after)
        at = after
        yield field


def _read_field(source: WireStream, offset: int) -> tuple[WireField, int]:
    """Return the field at an offset, and the offset after it."""
    buffer, base, here = source.buffer, source.base, offset - source.base
    try:
        tag, here = _read_varint(buffer, here)
        kind, number = tag & 7, tag >> 3
        if kind == VARINT and number:
            value, here = _read_varint(buffer, here)
            return (number, kind, value, 0), base + here
        length = LENGTHS[kind if number else NO_WIRE_TYPE]
        if kind == LENGTH_DELIMITED:
            length, here = _read_varint(buffer, here)
    except IndexError:
        raise WireError("the file ends inside a field", offset, is_truncated=True) from None
    except (OverflowError, KeyError):
        raise WireError("no field starts here", offset) from None
    return (number, kind, base + here, base + here + length), base + here + length


def _overrun_error(source: WireStream, offset: int, after: int) -> WireError:
    if after <= source.size:
        return WireError("a field is longer than what it is part of", offset)
    missing = f"a field needs {after - source.size:,} bytes more than the file has"
    return WireError(missing, offset, is_truncated=True)


def _read_varint(buffer: bytes, offset: int) -> tuple[int, int]:
    """Return a number and the offset after it."""
    value = buffer[offset]
    if value < 0x80:
        return value, offset + 1
    value &= 0x7F
    for count in range(1, MAX_VARINT_BYTES):
        byte = buffer[offset + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, offset + count + 1
    raise OverflowError


def unpack_varints(data: bytes, max_values: int) -> list[int]:
    """Return the numbers of a packed field, the first `most` of them."""
    values: list[int] = []
    at = 0
    try:
        while at < len(data) and len(values) < max_values:
            value, at = _read_varint(data, at)
            values.append(value)
    except (IndexError, OverflowError):
        raise WireError("a list of numbers has no end", at) from None
    return values


def int64_from_varint(value: int) -> int:
    """Return what a varint says as an int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


def encode_bytes_field(number: int, payload: bytes) -> bytes:
    """Return a field that holds bytes, as it stands in a file."""
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(len(payload)) + payload


def encode_varint_field(number: int, value: int) -> bytes:
    """Return a field that holds a number."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value)


def encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def copy_span(source: WireStream, start: int, end: int) -> bytes:
    return source.read(start, end)


def rewrite_message(
    source: WireStream,
    start: int,
    end: int,
    rewrites: Mapping[int, Rewrite | None],
    others: Rewrite | None = copy_span,
) -> bytes:
    """Return the message in a span with its fields rewritten, by their numbers; None leaves a field out."""
    parts: list[bytes] = []
    for number, kind, first, after in iter_fields(source, start, end):
        rewrite = rewrites.get(number, others)
        if rewrite is None:
            continue
        if kind == VARINT:
            parts.append(encode_varint_field(number, first))
        elif kind == LENGTH_DELIMITED:
            parts.append(encode_bytes_field(number, rewrite(source, first, after)))
        else:
            parts.append(encode_varint(number << 3 | kind) + source.read(first, after))
    return b"".join(parts)
