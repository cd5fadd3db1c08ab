"""Diagnose while the logs are still being written: each new cause is told once, as soon as its line is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.diagnose import report_from
from trtdx.diagnose.cause import findings_from
from trtdx.diagnose.lines import CONTEXT_BYTES, Segment
from trtdx.diagnose.match import NEIGHBOURS, Matcher
from trtdx.diagnose.scan import count_newlines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.host import Host
    from trtdx.model import Finding, Report
    from trtdx.rule import RuleBook

POLL_S = 0.25


class Growing:
    """A log that grows, as segments of whole lines.

    Each segment begins some lines before what is new, because a cause told over several lines may have begun
    there; the matcher notes a line once however often it sees it.
    """

    def __init__(self) -> None:
        self._data = b""
        self._line = 0  # lines before self._data
        self._done = 0  # offset in self._data up to which lines were given out

    def grow(self, block: bytes, *, ended: bool = False) -> Segment | None:
        """Return a segment with the new lines, or None while there is no whole one."""
        self._data += block
        end = len(self._data) if ended else self._data.rfind(b"\n") + 1
        if end <= self._done and not ended:
            return None
        start = self._some_lines_before(self._done)
        segment = Segment(
            self._data, start, end, self._line + count_newlines(self._data, 0, start), first=True, last=True
        )
        self._done = end
        return segment

    def trim(self) -> None:
        """Forget what no later segment needs."""
        spare = self._data.rfind(b"\n", 0, max(0, self._done - CONTEXT_BYTES)) + 1
        self._line += count_newlines(self._data, 0, spare)
        self._data = self._data[spare:]
        self._done -= spare

    def _some_lines_before(self, offset: int) -> int:
        at = offset
        for _ in range(NEIGHBOURS + 1):
            at = self._data.rfind(b"\n", 0, max(0, at))
            if at < 0:
                return 0
        return at + 1


def follow(
    host: Host,
    paths: Sequence[str],
    book: RuleBook,
    redact: Callable[[str], str],
    tell: Callable[[Finding], None],
) -> Iterator[Report]:
    """Yield the report after everything new; `tell` hears of each cause once. Ends when all inputs have ended.

    Standard input ends; a file does not, so the caller stops following it.
    """
    matcher = Matcher(book, redact)
    readings = [matcher.start("stdin" if path == "-" else path) for path in paths]
    growing = [Growing() for _ in paths]
    streams = [host.open(path) for path in paths]
    told: set[str] = set()
    open_inputs = set(range(len(paths)))
    while open_inputs:
        fresh = False
        for number in sorted(open_inputs):
            block = _next_block(streams[number])
            ended = not block and paths[number] == "-"
            segment = growing[number].grow(block, ended=ended)
            if ended:
                open_inputs.discard(number)
            if segment is not None:
                readings[number].take(segment)
                growing[number].trim()
                fresh = True
        facts = [reading.facts for reading in readings]
        if fresh:
            for finding in findings_from(facts, book)[0]:
                if finding.code not in told:
                    told.add(finding.code)
                    tell(finding)
            yield report_from(facts, book)
        elif open_inputs:
            host.sleep(POLL_S)


def _next_block(stream: object) -> bytes:
    read = getattr(stream, "read1", None) or stream.read  # type: ignore[attr-defined]
    return read(1 << 20) or b""
