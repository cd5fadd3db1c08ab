"""Events of a Chrome trace of any size, a block at a time, whole or cut off.

Blocks are cut between two events. Where that is cannot be told from the bytes alone (a text may hold braces), so a
cut is right when what lies before it decodes; else an earlier one is tried.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BLOCK_BYTES = 4 << 20
MOST_CUTS = 12
_BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*\{")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_HEAD_BYTES = 1 << 20  # the events begin within these


class ChromeEvent(msgspec.Struct, gc=False):
    """One event; what it says beyond its times is decoded only where it is needed."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


BROKEN = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError)
_DECODER = msgspec.json.Decoder(list[ChromeEvent])
_ONE_EVENT = msgspec.json.Decoder(ChromeEvent)


class EventStream:
    """The events of a trace; `head` and `tail` are the bytes around them, `problems` what went wrong."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self.head, self.tail = b"", b""
        self.bytes_read, self.skipped = 0, 0
        self.is_cut_off = False

    def __iter__(self) -> Iterator[list[ChromeEvent]]:
        """Yield lists of events."""
        buffer = self._read_head()
        for block in self._blocks:
            self.bytes_read += len(block)
            buffer += block
            if len(buffer) >= BLOCK_BYTES:
                events, used = self._take_whole_events(buffer)
                yield events
                buffer = buffer[used:]
        yield self._take_last_events(buffer)

    def _read_head(self) -> bytes:
        """Return the bytes behind the bracket that opens the events."""
        buffer = b""
        for block in self._blocks:
            self.bytes_read += len(block)
            buffer += block
            if buffer.lstrip()[:1] == b"[":
                return buffer.lstrip()[1:]
            if match := _EVENTS_KEY.search(buffer):
                self.head = buffer[: match.start()]
                return buffer[match.end() :]
            if len(buffer) > _HEAD_BYTES:
                break
        self.is_cut_off = True
        return b""

    def _take_whole_events(self, buffer: bytes) -> tuple[list[ChromeEvent], int]:
        """Return the events of a buffer up to a cut, and how many bytes they and the comma take."""
        for cut in _last_cuts(buffer):
            events = _decode_events(buffer[: cut + 1])
            if events is not None:
                return events, buffer.index(b",", cut + 1) + 1
        return self._take_events_singly(buffer)

    def _take_last_events(self, buffer: bytes) -> list[ChromeEvent]:
        """Return the events before the closing bracket, or those that are whole where there is none."""
        for end in _last_positions(buffer, b"]"):
            whole = _decode_events(buffer[:end])
            if whole is not None:
                self.tail = buffer[end + 1 :]
                return whole
        events, used = self._take_whole_events(buffer) if buffer.strip() else ([], 0)
        last, self.tail = _take_last_event(buffer[used:])
        self.is_cut_off = self.is_cut_off or b"]" not in self.tail
        return [*events, *last]

    def _take_events_singly(self, buffer: bytes) -> tuple[list[ChromeEvent], int]:
        """Return the events that can be read one by one, where a block holds one that cannot."""
        events, start = [], 0
        for match in _BETWEEN_EVENTS.finditer(buffer):
            event = _decode_event(buffer[start : match.start() + 1])
            if event is None:
                # Either the braces stand inside an event, or the event is broken: a new one begins with its phase.
                if not _begins_event(buffer, match.end() - 1):
                    continue
                self.skipped += 1
            else:
                events.append(event)
            start = match.end() - 1
        return events, start


def _decode_events(data: bytes) -> list[ChromeEvent] | None:
    """Return events that commas stand between, or None where it is not only that."""
    try:
        return _DECODER.decode(b"[" + data + b"]")
    except BROKEN:
        return None


def _take_last_event(buffer: bytes) -> tuple[list[ChromeEvent], bytes]:
    """Return the event that a buffer begins with, if it is whole, and the bytes behind it."""
    for end in _last_positions(buffer, b"}"):
        event = _decode_event(buffer[: end + 1].lstrip())
        if event is not None:
            return [event], buffer[end + 1 :]
    return [], b""


def _decode_event(data: bytes) -> ChromeEvent | None:
    try:
        return _ONE_EVENT.decode(data)
    except BROKEN:
        pass
    try:  # TensorRT 8.6 and some kernels' names have bytes that are not UTF-8
        return _ONE_EVENT.decode(data.decode("utf-8", "replace").encode())
    except BROKEN:
        return None


def _begins_event(buffer: bytes, at: int) -> bool:
    return b'"ph"' in buffer[at : at + 400] or b'"cat"' in buffer[at : at + 400]


def _last_cuts(buffer: bytes) -> Iterator[int]:
    """Yield where events may end, the last one first."""
    end = len(buffer)
    for _ in range(MOST_CUTS):
        for cut in _last_positions(buffer, b"}", end, 64):
            if _BETWEEN_EVENTS.match(buffer, cut):
                yield cut
                end = cut
                break
        else:
            return


def _last_positions(buffer: bytes, mark: bytes, end: int | None = None, most: int = MOST_CUTS) -> Iterator[int]:
    at = len(buffer) if end is None else end
    for _ in range(most):
        at = buffer.rfind(mark, 0, at)
        if at < 0:
            return
        yield at
