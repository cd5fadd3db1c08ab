"""The command's own output on its way to where ours goes, through a process that outlives us."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import termios
from typing import TYPE_CHECKING

from trtdx.agent.output import inode_of, make_channel, start_tee

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


class TopOutput:
    """Channels for the command's standard output and error, with `tee.py` behind them."""

    def __init__(self, folder: Path, closed: Collection[int] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.channels: dict[int, int] = {}  # the command's descriptor -> ours
        self._terminals: list[str] = []
        self._control, helpers = socket.socketpair()
        self._opened: list[int] = []
        self._heard: list[int] = []
        groups: dict[str, tuple[int, ...]] = {"stdout": (1,), "stderr": (2,)}
        if not closed and inode_of(1) == inode_of(2):
            groups = {"output": (1, 2)}
        specs = [self._open_channel(name, fds) for name, fds in groups.items() if fds[0] not in closed]
        self.is_kept = bool(specs) and start_tee(str(folder), helpers.fileno(), specs, own_session=False)
        helpers.close()
        for _, source, _ in specs:
            os.close(source)
        if not self.is_kept:
            self.release_channels()
        os.set_blocking(self._control.fileno(), False)

    def _open_channel(self, name: str, fds: tuple[int, ...]) -> tuple[str, int, int]:
        source, target = make_channel(fds[0])
        if os.isatty(target):
            self._terminals.append(os.ttyname(target))
        self._opened.append(target)
        self.channels |= dict.fromkeys(fds, target)
        return name, source, fds[0]

    def release_channels(self) -> None:
        """Close our ends once the command has its own, so that its end is the end."""
        for fd in self._opened:
            os.close(fd)
        self._opened, self.channels = [], {}

    def group_signals(self, timeout_s: float) -> list[int]:
        """Return the signals that have reached the process beside us, waiting a little for the first."""
        if select.select([self._control], [], [], timeout_s)[0]:
            try:
                data = self._control.recv(256)
            except OSError:
                data = b""
            self._heard += [byte & 0x7F for byte in data if byte & 0x80]
        signals, self._heard = self._heard, []
        return signals

    def wait_until_passed_on(self, timeout_s: float) -> bool:
        """Wait until all that the command wrote has reached where it was going; False when that takes too long."""
        if not self.is_kept:
            return True
        try:
            self._control.setblocking(True)
            self._control.settimeout(timeout_s)
            self._control.send(b"?")
            while True:
                data = self._control.recv(1)
                if data in (b"s", b""):
                    return True
        except TimeoutError:
            return False
        except OSError:
            return True

    def lost_words(self) -> str:
        """Return why what the command printed could not be written where it was to go; empty where all of it was."""
        reasons = [f"{path.stem}: {path.read_text()}" for path in sorted(self._folder.glob("*.lost"))]
        return "; ".join(reasons)

    def resize(self) -> None:
        """Give the channels the size of the terminal they stand for."""
        for name in self._terminals:
            try:
                fd = os.open(name, os.O_RDWR | os.O_NOCTTY)
            except OSError:
                continue
            try:
                fcntl.ioctl(fd, termios.TIOCSWINSZ, fcntl.ioctl(2, termios.TIOCGWINSZ, b"\0" * 8))
            except OSError:
                pass
            finally:
                os.close(fd)

    def close(self) -> None:
        self._control.close()
