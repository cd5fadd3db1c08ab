"""Diagnose while the logs are still being written: each new cause is told once, as soon as its line is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.diagnose.line_matches import NEIGHBOUR_LINES
from trtdx.diagnose.logs.lines import CONTEXT_BYTES, LogSegment, clean_block
from trtdx.diagnose.matcher import Matcher
from trtdx.diagnose.run import report_from_facts
from trtdx.diagnose.scan import count_newlines
from trtdx.diagnose.unknown import UNKNOWN_CODE as NOT_ENOUGH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.diagnose.run import Refine
    from trtdx.host import Host
    from trtdx.model import Finding, Report
    from trtdx.rule import RuleBook

POLL_S = 0.25
LONGEST_UNENDED = 1 << 20


class GrowingLog:
    """A log that grows, as segments of whole lines.

    Each segment begins some lines before what is new, because a cause told over several lines may have begun
    there; the matcher notes a line once however often it sees it.
    """

    def __init__(self) -> None:
        self._data = b""
        self._line = 0  # lines before self._data
        self._consumed = 0  # offset in self._data up to which lines were given out

    def grow(self, block: bytes, *, ended: bool = False) -> LogSegment | None:
        """Return a segment with the new lines, or None while there is no whole one."""
        self._data += block
        end = len(self._data) if ended else self._data.rfind(b"\n", self._consumed) + 1
        if not end and len(self._data) - self._consumed > LONGEST_UNENDED:
            end = len(self._data)  # a line this long is not waited for
        if end <= self._consumed and not ended:
            return None
        start = self._context_start(self._consumed)
        segment = LogSegment(
            self._data,
            start,
            end,
            self._line + count_newlines(self._data, 0, start),
            is_first=True,
            is_last=True,
        )
        self._consumed = end
        return segment

    def trim(self) -> None:
        """Forget what no later segment needs."""
        spare = self._data.rfind(b"\n", 0, max(0, self._consumed - CONTEXT_BYTES)) + 1
        self._line += count_newlines(self._data, 0, spare)
        self._data = self._data[spare:]
        self._consumed -= spare

    def _context_start(self, offset: int) -> int:
        at = offset
        for _ in range(NEIGHBOUR_LINES + 1):
            at = self._data.rfind(b"\n", 0, max(0, at))
            if at < 0:
                return 0
        return at + 1


class Follower:
    """Reads growing logs as far as they have grown, again and again.

    Standard input ends; a file does not, so whoever follows it stops by himself.
    """

    def __init__(
        self,
        host: Host,
        paths: Sequence[str],
        book: RuleBook,
        redact: Callable[[str], str],
        refine: Refine | None = None,
    ) -> None:
        matcher = Matcher(book, redact)
        self._host, self._book, self._refine = host, book, refine
        self._inputs = [_FollowedLog(host, path, matcher) for path in paths]
        self._reported_codes: set[str] = set()

    def poll(self) -> list[Finding]:
        """Read what is new, waiting a little where nothing is, and return the causes not told before."""
        grown = [log.read() for log in self._inputs if not log.ended]
        if not any(grown):
            self._host.sleep(0 if self.ended else POLL_S)
            return []
        fresh = [
            finding for finding in self.report().findings if finding.code not in (*self._reported_codes, NOT_ENOUGH)
        ]
        self._reported_codes.update(finding.code for finding in fresh)
        return fresh

    @property
    def ended(self) -> bool:
        return all(log.ended for log in self._inputs)

    def report(self) -> Report:
        """Return the report on all that was read."""
        facts = [followed.reading.facts for followed in self._inputs]
        return report_from_facts(facts, self._book, refine=self._refine)


class _FollowedLog:
    """One followed log."""

    def __init__(self, host: Host, path: str, matcher: Matcher) -> None:
        self._host, self._path, self._stream, self._growing = host, path, host.open(path), GrowingLog()
        self._size = 0
        self.reading = matcher.start_source("stdin" if path == "-" else path)
        self.ended = False

    def read(self) -> bool:
        """Take in what is there and say whether it held new lines."""
        read: Callable[[int], bytes | None] = getattr(self._stream, "read1", self._stream.read)
        block = read(1 << 20) or b""
        self._size += len(block)
        self.ended = not block and self._path == "-"
        # begun anew by its writer
        if not block and not self.ended and self._host.size(self._path) < self._size:
            self._stream.close()
            self._stream, self._size = self._host.open(self._path), 0
            return False
        segment = self._growing.grow(clean_block(block), ended=self.ended)
        if segment is None:
            return False
        self.reading.read_segment(segment)
        self._growing.trim()
        return True
