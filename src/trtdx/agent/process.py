"""This process as the supervisor will know it: its folder in the case, its rank, what it was seen doing."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from typing import Any

from .collectives import CollectiveLog
from .exceptions import ExceptionWatch
from .imports import ImportWatch
from .journal import Journal
from .output import KeptOutput, is_kept_already, keep_output
from .rank import RANK_VARIABLES, SIZE_VARIABLES, first_number, rank_variables
from .ring import ENDED, LEAVING, RAISED, RingWriter
from .stacks import StackFiles


class SupervisedProcess:
    """One Python process of the job; made anew in a child that is forked."""

    def __init__(self, live: str) -> None:
        self.pid = os.getpid()
        self._live = live
        self._noted = 0
        self._output: KeptOutput | None = None
        self._open_files()
        self.imports = ImportWatch(self)
        self.exceptions = ExceptionWatch(self)

    def _open_files(self) -> None:
        stand_ins = _hold_closed_streams()
        try:
            self._open_own_files()
        finally:
            for fd in stand_ins:
                os.close(fd)

    def _open_own_files(self) -> None:
        self.folder = os.path.join(self._live, f"{socket.gethostname()}-{self.pid}-{time.time_ns() // 1000}")
        os.mkdir(self.folder, 0o700)
        self.journal = Journal(os.path.join(self.folder, "events.jsonl"))
        self.ring = RingWriter(
            os.path.join(self.folder, "ring"), first_number(RANK_VARIABLES), first_number(SIZE_VARIABLES)
        )
        self.collectives = CollectiveLog(self)
        self.stacks = StackFiles(self.folder)
        self.journal.add_event(
            "start", ppid=os.getppid(), host=socket.gethostname(), argv=_command_line(), executable=sys.executable,
            python=sys.version.split()[0], variables=rank_variables(), stack_fd=self.stacks.request_fd,
        )  # fmt: skip
        self._register()

    def _register(self) -> None:
        """Tell the supervisor at once, so that it sees how even a short life ends."""
        path = os.environ.get("TRTDX_SOCKET")
        if not path:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
            door.setblocking(False)
            try:
                door.sendto(b"%d" % self.pid, path)
            except OSError:
                pass  # no supervisor on this machine, or no longer

    def keep_rank_output(self) -> None:
        if is_kept_already():
            return
        self._output = keep_output(self.folder)
        self.journal.add_event("output", kept=self._output is not None)

    def become_fork(self) -> None:
        """Start over in a child made by fork: nothing of the parent's files is written to from here."""
        try:
            self.pid = os.getpid()
            self._output = None
            self._open_files()
            self.journal.add_event("forked")
        except BaseException as err:
            self.note_failure("fork", err)

    def set_world(self, library: str, rank: int, size: int) -> None:
        """Write down the rank and size that a library has given this process."""
        self.journal.add_event("world", library=library, rank=rank, size=size, variables=rank_variables())
        if first_number(RANK_VARIABLES) < 0 or library == "torch":
            self.ring.set_identity(rank, size)

    def set_rank(self, variable: str, rank: int) -> None:
        """Write down a rank that the program has given itself."""
        self.journal.add_event("rank", variables={**rank_variables(), variable: str(rank)})
        self.ring.set_identity(rank, self.ring.world)

    def note_exception(self, thrown_in: str, **data: Any) -> None:
        if thrown_in == "main":
            self.ring.set_state(RAISED)
        self.journal.add_event("exception", thrown_in=thrown_in, variables=rank_variables(), **data)

    def note_failure(self, part: str, err: BaseException) -> None:
        """Write down that a part of the agent has failed; the program goes on without it."""
        self._noted += 1
        if self._noted < 20:
            words = "".join(traceback.format_exception(type(err), err, err.__traceback__))[-2000:]
            self.journal.add_event("agent-failed", part=part, text=words)

    def leave(self) -> None:
        """Run last of all exit handlers."""
        if os.getpid() != self.pid:
            return
        last = getattr(sys, "last_value", None)
        if isinstance(last, BaseException):  # a program that has put its own hook in place of ours
            self.exceptions.record("main", last)
        self.ring.set_state(LEAVING)
        self.journal.add_event("leaving", variables=rank_variables())
        self.flush_output()

    def note_exit(self, status: Any) -> None:
        """Write down a call of sys.exit that says something went wrong."""
        if os.getpid() == self.pid and status not in (None, 0, False):
            code = status if isinstance(status, int) else 1
            words = "" if isinstance(status, int) else str(status)[:300]
            self.journal.add_event("exit-asked", status=code, words=words, where=_caller_of_exit())

    def end_at_once(self, status: int) -> None:
        """Write down a call of os._exit."""
        if os.getpid() != self.pid:
            return
        self.ring.set_state(ENDED)
        self.journal.add_event("exit-called", status=status, where=_caller_of_exit())
        if self._output:
            self._output.wait_until_passed_on()

    def note_abort(self, code: object) -> None:
        """Write down that this process ends the whole MPI job, and the exception it does so for."""
        # A program's own excepthook runs after the exception: only `last_value` still has it there.
        self.exceptions.record("main", sys.exc_info()[1] or getattr(sys, "last_value", None))
        self.journal.add_event("abort", status=code, where=_caller_of_exit())
        self.flush_output()

    def flush_output(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass  # the interpreter will say so itself in a moment
        if self._output:
            self._output.wait_until_passed_on()


def _hold_closed_streams() -> list[int]:
    """Return descriptors that stand in for standard streams the program has closed, so that no file of ours becomes one."""
    stand_ins: list[int] = []
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return stand_ins
        stand_ins.append(fd)


def _command_line() -> list[str]:
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]][:60]
    except OSError:
        return list(getattr(sys, "argv", []))


def _caller_of_exit() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and "_trtdx_agent" in frame.f_globals.get("__name__", ""):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
