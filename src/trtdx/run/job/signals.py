"""Signals that reach the supervisor: which of them the job has had already, and which must be passed on."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from typing import NamedTuple

SI_KERNEL = 0x80  # the terminal's driver: the whole process group has it
PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGCONT, signal.SIGWINCH, signal.SIGTSTP,
)  # fmt: skip


class ReceivedSignal(NamedTuple):
    """A signal, and whether the terminal sent it."""

    number: int
    is_from_terminal: bool


class SignalDesk:
    """Takes signals out of the way of everything else; `descriptor` becomes readable when one has come.

    Closing it gives them back: whoever supervises two jobs in one process, or starts another command after one, must
    not find its signals blocked, nor hand a blocked SIGTERM down to what it starts.
    """

    def __init__(self) -> None:
        self.descriptor, self._bell = os.pipe()
        os.set_blocking(self.descriptor, False)
        self.waiting: deque[ReceivedSignal] = deque()
        self.before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        # What is ignored (nohup, a background job of a plain shell) stays ignored, for us and for the job.
        self._awaited = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        self._is_closed = False
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._collector.start()

    def _collect(self) -> None:
        while True:
            info = signal.sigwaitinfo(self._awaited)
            if self._is_closed:
                return
            self.waiting.append(ReceivedSignal(info.si_signo, info.si_code == SI_KERNEL))
            os.write(self._bell, b"!")

    def close(self) -> None:
        """Stop taking signals, and unblock those that were not blocked before."""
        self._is_closed = True
        # The collector waits for signals alone: one sent to its own thread wakes it and nobody else.
        signal.pthread_kill(self._collector.ident or 0, self._awaited[-1])
        self._collector.join()
        os.close(self.descriptor)
        os.close(self._bell)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)

    def take(self) -> list[ReceivedSignal]:
        """Return the signals that have come since."""
        try:
            os.read(self.descriptor, 4096)
        except BlockingIOError:
            return []
        return [self.waiting.popleft() for _ in range(len(self.waiting))]
