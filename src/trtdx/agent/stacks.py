"""Stacks of all threads: when the process crashes, and when the supervisor asks for them with a signal."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

# Nobody uses this one by habit; it is sent only to processes that are seen to catch it.
STACK_SIGNAL_OFFSET = 7


def stack_signal() -> int:
    return int(signal.SIGRTMAX) - STACK_SIGNAL_OFFSET


class StackFiles:
    """The files that stacks are written to; they stay open, because a crashing process can open nothing."""

    def __init__(self, folder: str) -> None:
        self.requested = open(os.path.join(folder, "stacks.txt"), "ab", buffering=0)  # noqa: SIM115
        self.crash = open(os.path.join(folder, "crash.txt"), "ab", buffering=0)  # noqa: SIM115
        is_main = not faulthandler.is_enabled() or "PYTHONFAULTHANDLER" not in os.environ
        if is_main and not sys.flags.dev_mode:
            faulthandler.enable(file=self.crash, all_threads=True)
        faulthandler.register(stack_signal(), file=self.requested, all_threads=True, chain=False)

    @property
    def request_fd(self) -> int:
        return self.requested.fileno()
