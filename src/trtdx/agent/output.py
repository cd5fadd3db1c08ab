"""Has what a rank prints kept apart from what the others print, although the launcher mixes them."""

from __future__ import annotations

import os
import socket
import sys

TEE_VARIABLE = "TRTDX_TEE"


class KeptOutput:
    """A rank's standard output and error on their way through `tee.py`."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def wait_until_passed_on(self, timeout_s: float = 5.0) -> None:
        """Wait until all that was printed has reached where it was going, so that nothing overtakes it."""
        try:
            self._control.settimeout(timeout_s)
            self._control.send(b"?")
            while self._control.recv(1)[:1] not in (b"s", b""):
                pass
        except OSError:
            pass


def inode_of(fd: int) -> str:
    try:
        stat = os.fstat(fd)
    except OSError:
        return "closed"
    return f"{stat.st_dev}.{stat.st_ino}.{stat.st_rdev}"


def is_kept_already() -> bool:
    """Whether a parent of the same rank has put its `tee.py` behind our standard output."""
    return os.environ.get(TEE_VARIABLE) == f"{inode_of(1)}/{inode_of(2)}"


def keep_output(folder: str) -> KeptOutput | None:
    """Put `tee.py` between this process's output and where it goes; None where that cannot be."""
    if not sys.executable or "closed" in (inode_of(1), inode_of(2)):
        return None
    # Two streams that go to one place keep their order only in one pipe.
    groups = [("output", (1, 2))] if inode_of(1) == inode_of(2) else [("stdout", (1,)), ("stderr", (2,))]
    mine, helpers = socket.socketpair()
    opened = [helpers.fileno()]
    replacements: list[tuple[int, int]] = []
    specs = []
    try:
        for name, fds in groups:
            source, target = make_channel(fds[0])
            original = os.dup(fds[0])
            opened += [source, original, target]
            specs.append((name, source, original))
            replacements += [(target, fd) for fd in fds]
        if not start_tee(folder, helpers.fileno(), specs):
            return None
        _flush_streams()
        for target, fd in replacements:
            os.dup2(target, fd)
        os.environ[TEE_VARIABLE] = f"{inode_of(1)}/{inode_of(2)}"
        kept = KeptOutput(mine)
        mine = None  # type: ignore[assignment]
        return kept
    finally:
        helpers.detach()
        for fd in opened:
            os.close(fd)
        if mine is not None:
            mine.close()


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass


def make_channel(fd: int) -> tuple[int, int]:
    """Return both ends of what a stream is to go through: a terminal where it goes to one, else a pipe."""
    if not os.isatty(fd):
        return os.pipe()
    import fcntl
    import termios
    import tty

    source, target = os.openpty()
    tty.setraw(target)
    fcntl.ioctl(target, termios.TIOCSWINSZ, fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8))
    return source, target


def start_tee(folder: str, control: int, specs: list[tuple[str, int, int]], own_session: bool = True) -> bool:
    """Start `tee.py` and return whether it runs; in a session of its own what ends its rank does not end it."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tee.py")
    argv = [sys.executable, "-S", "-E", "-s", program, folder, str(control)]
    argv += [f"{name}:{source}:{original}" for name, source, original in specs]
    fds = [control] + [fd for _, source, original in specs for fd in (source, original)]
    for fd in fds:
        os.set_inheritable(fd, True)
    hidden = ("TRTDX_RUN_ID", "PYTHONPATH", "TRTDX_LIVE", TEE_VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        pid = os.posix_spawn(sys.executable, argv, environment, setsid=own_session, setsigmask=[])
    except NotImplementedError:
        pid = os.posix_spawn(sys.executable, argv, environment, setsigmask=[])
    finally:
        for fd in fds:
            os.set_inheritable(fd, False)
    return os.waitpid(pid, 0)[1] == 0
