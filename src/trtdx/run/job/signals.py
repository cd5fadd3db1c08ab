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
    """Takes signals out of the way of everything else; `descriptor` becomes readable when one has come."""

    def __init__(self) -> None:
        self.descriptor, self._bell = os.pipe()
        os.set_blocking(self.descriptor, False)
        self.waiting: deque[ReceivedSignal] = deque()
        self.before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        # What is ignored (nohup, a background job of a plain shell) stays ignored, for us and for the job.
        self._awaited = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        while True:
            info = signal.sigwaitinfo(self._awaited)
            self.waiting.append(ReceivedSignal(info.si_signo, info.si_code == SI_KERNEL))
            os.write(self._bell, b"!")

    def take(self) -> list[ReceivedSignal]:
        """Return the signals that have come since."""
        try:
            os.read(self.descriptor, 4096)
        except BlockingIOError:
            return []
        return [self.waiting.popleft() for _ in range(len(self.waiting))]
