"""Stacks of all threads: when the process crashes, and when the supervisor asks for them with a signal."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
from typing import BinaryIO

# Nobody uses this one by habit; it is sent only to processes that are seen to catch it.
STACK_SIGNAL_OFFSET = 7


def stack_signal() -> int:
    return int(signal.SIGRTMAX) - STACK_SIGNAL_OFFSET


def _open_file(path: str) -> BinaryIO:
    """Return a file to append to that is none of the standard streams, although a program may have closed these."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if fd < 3:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(fd)
        fd = high
    return os.fdopen(fd, "ab", buffering=0)


class StackFiles:
    """The files that stacks are written to; they stay open, because a crashing process can open nothing."""

    def __init__(self, folder: str) -> None:
        self.requested = _open_file(os.path.join(folder, "stacks.txt"))
        self.crash = _open_file(os.path.join(folder, "crash.txt"))
        is_main = not faulthandler.is_enabled() or "PYTHONFAULTHANDLER" not in os.environ
        if is_main and not sys.flags.dev_mode:
            faulthandler.enable(file=self.crash, all_threads=True)
        faulthandler.register(stack_signal(), file=self.requested, all_threads=True, chain=False)

    @property
    def request_fd(self) -> int:
        return self.requested.fileno()
