"""Bytes to segments of clean text: encoding, NULs, colours and block borders are dealt with here, once.

A segment is a stretch of the input with some of what came before and after it, so that whatever looks at a
line can see its neighbours. Memory is bounded by the block size whatever the input's or a line's length.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.diagnose.scan import count_newlines
from trtdx.formats.streams import TERMINAL_ESCAPE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONTEXT_BYTES = 24 << 10
MAX_LINE_BYTES = 1536  # on either side of what was met in it: what a pattern sees is bounded, and so is its cost
HEAD_BYTES = 240  # of a long line, which tell its rank, time and level
WORD_BYTES = 256
_BORDER = re.compile(rb"[\s,;&]")

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


class LogSegment(NamedTuple):
    """`data[start:end]` is new; what lies before and after it is context. `line` counts lines before `start`."""

    data: bytes
    start: int
    end: int
    lines_before: int
    is_first: bool
    is_last: bool

    def line_at(self, offset: int) -> tuple[int, int]:
        """Return where the line around an offset begins and ends, at most LONGEST_LINE around it."""
        low, high = max(0, offset - MAX_LINE_BYTES), min(len(self.data), offset + MAX_LINE_BYTES)
        begin = self.data.rfind(b"\n", low, offset) + 1 or self._word_after(low, offset)
        redrawn = self.data.rfind(b"\r", begin, offset)  # a progress bar draws over itself
        end = self.data.find(b"\n", offset, high)
        end = self._word_before(high, offset) if end < 0 else end
        again = self.data.find(b"\r", offset, end)
        return max(begin, redrawn + 1), (end if again < 0 else again)

    def _word_after(self, low: int, offset: int) -> int:
        """Return where to cut so that half a word is left out: half a secret would not be known as one."""
        border = _BORDER.search(self.data, low, min(low + WORD_BYTES, offset)) if low else None
        return border.end() if border else low

    def _word_before(self, high: int, offset: int) -> int:
        if high == len(self.data):
            return high
        low = max(offset, high - WORD_BYTES)
        borders = [border.start() for border in _BORDER.finditer(self.data, low, high)]
        return borders[-1] if borders else high

    def head_of_cut(self, begin: int) -> bytes:
        """Return how the line begins that `line_at` cut at an offset; nothing where it was not cut or began too far back."""
        low = max(0, begin - CONTEXT_BYTES)
        at = max(self.data.rfind(b"\n", low, begin), self.data.rfind(b"\r", low, begin)) + 1
        return self.data[at : at + HEAD_BYTES] if (at or not low) and at < begin else b""

    def number_at(self, offset: int) -> int:
        """Return the 1-based number of the line around an offset."""
        if offset >= self.start:
            return self.lines_before + 1 + count_newlines(self.data, self.start, offset)
        return self.lines_before + 1 - count_newlines(self.data, offset, self.start)


def split_segments(blocks: Iterable[bytes]) -> Iterator[LogSegment]:
    """Yield the input as segments that end at line borders where lines are not enormous."""
    buffer, start, line, first = b"", 0, 0, True  # kept[:start] was given out before, kept[start:] was not
    for block in clean_blocks(blocks):
        buffer += block
        if len(buffer) - start < CONTEXT_BYTES * 2:
            continue
        limit = len(buffer) - CONTEXT_BYTES
        # or: inside an enormous line
        end = buffer.rfind(b"\n", max(start, limit - CONTEXT_BYTES), limit) + 1 or limit
        yield LogSegment(buffer, start, end, line, first, is_last=False)
        line += count_newlines(buffer, start, end)
        spare = max(0, end - CONTEXT_BYTES)
        buffer, start, first = buffer[spare:], end - spare, False
    yield LogSegment(buffer, start, len(buffer), line, first, is_last=True)


def decode_text(data: bytes) -> str:
    """Return bytes as text whatever they are."""
    return data.decode("utf-8", "replace")


def clean_blocks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks as UTF-8 without NULs and terminal escapes; doing it twice changes nothing."""
    return _strip_escapes(_decode_blocks(blocks))


def clean_block(block: bytes) -> bytes:
    """Return one block without NULs and terminal escapes, for a log that grows and is not held back."""
    return TERMINAL_ESCAPE.sub(b"", block.replace(b"\0", b""))


def _decode_blocks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield UTF-8 (or what pretends to be) from UTF-16 too, with and without a byte order mark."""
    decoder: codecs.IncrementalDecoder | None = None
    first = True
    for block in blocks:
        if first and block:
            first = False
            encoding, block = _detect_encoding(block)
            decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
        yield decoder.decode(block).encode("utf-8", "replace") if decoder else block
    if decoder:
        yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _detect_encoding(block: bytes) -> tuple[str, bytes]:
    for bom, encoding in _BOMS:
        if block.startswith(bom):
            return ("" if encoding == "utf-8" else encoding), block[len(bom) :]
    head = block[:4096]
    if len(head) >= 32 and head[1::2].count(0) > len(head) * 0.4 and head[::2].count(0) < len(head) * 0.05:
        return "utf-16-le", block
    if len(head) >= 32 and head[::2].count(0) > len(head) * 0.4 and head[1::2].count(0) < len(head) * 0.05:
        return "utf-16-be", block
    return "", block


def _strip_escapes(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks without NULs and terminal escapes; an escape cut by a block border is held back."""
    pending = b""
    for block in blocks:
        data = pending + block
        pending = b""
        if b"\0" in data:
            data = data.replace(b"\0", b"")
        if b"\x1b" in data:
            at = data.rfind(b"\x1b")
            if len(data) - at < 512 and not TERMINAL_ESCAPE.match(data, at):
                data, pending = data[:at], data[at:]
            data = TERMINAL_ESCAPE.sub(b"", data)
        yield data
    if pending:
        yield TERMINAL_ESCAPE.sub(b"", pending).replace(b"\x1b", b"")
