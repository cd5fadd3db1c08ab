"""A limit on the processor time that a piece of work may take, which a regular expression respects too.

Python's regular expressions look for signals while they work, so a timer can end one that would take hours. Signals
reach the main thread only: in other threads, and where a program has a use of its own for the timer, nothing is limited.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re
    from types import FrameType, TracebackType

    from typing_extensions import Self

LEAST_SECONDS = 0.001
SEARCH_SECONDS = 0.02
MOST_LATE = 5


class OutOfTimeError(Exception):
    """Work took longer than it was allowed to."""


class CpuLimit:
    """Raises `OutOfTimeError` in its block once that has used so much processor time; blocks do not nest."""

    _running: CpuLimit | None = None

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    def __enter__(self) -> Self:
        if CpuLimit._running is None and threading.current_thread() is threading.main_thread() and _is_timer_ours():
            self._until = time.thread_time() + self._seconds
            CpuLimit._running = self
            signal.setitimer(signal.ITIMER_VIRTUAL, max(self._seconds, LEAST_SECONDS))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if CpuLimit._running is self:
            CpuLimit._running = None  # first: a signal that is on its way finds nothing to end
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def end_if_late(self) -> None:
        """End the block if its own thread has used the time; the timer counts that of all threads."""
        left = self._until - time.thread_time()
        if left <= 0:
            CpuLimit._running = None
            raise OutOfTimeError
        signal.setitimer(signal.ITIMER_VIRTUAL, max(left, LEAST_SECONDS))


class TimedSearches:
    """Searches of one text with many patterns: one that works too long finds nothing, and after some such none is tried."""

    def __init__(self) -> None:
        self.late = 0

    def search(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        if self.late >= MOST_LATE:
            return None
        try:
            with CpuLimit(SEARCH_SECONDS):
                return pattern.search(text)
        except OutOfTimeError:
            self.late += 1
        return None


def _end_late_work(number: int, frame: FrameType | None) -> None:
    if CpuLimit._running is not None:
        CpuLimit._running.end_if_late()


def _is_timer_ours() -> bool:
    handler = signal.getsignal(signal.SIGVTALRM)
    if handler is signal.SIG_DFL:
        signal.signal(signal.SIGVTALRM, _end_late_work)
        return True
    return handler is _end_late_work
