"""Passes what a process prints on to where it was going, and keeps a copy: a program of its own, beside the job.

    python tee.py FOLDER CONTROL_FD NAME:IN_FD:OUT_FD [NAME:IN_FD:OUT_FD]

It outlives the supervisor and ends when the last writer is gone. Whatever happens to the copy (a full disk, a limit),
the passing on goes on. Over the control socket it answers `s` (everything written so far has been passed on) and tells
which signals reached it, which is how the supervisor knows that a signal was meant for the whole process group.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
import sys
import termios
import threading
import time

BLOCK_BYTES = 1 << 16
TAIL_BYTES = 4 << 20
LEAST_FREE_BYTES = 256 << 20
FREE_CHECK_BYTES = 8 << 20
TIME = struct.Struct("<dQ")


class OutputCopy:
    """The copy of one stream: whole while the disk has room, then its last megabytes."""

    def __init__(self, folder: str, name: str) -> None:
        self._base = os.path.join(folder, name)
        self._log = os.open(self._base + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._times = os.open(self._base + ".times", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = 0
        self._checked = 0
        self._tail: list[bytes] | None = None  # set when the disk is full
        self._tail_bytes = 0

    def add_block(self, block: bytes) -> None:
        if self._tail is not None:
            self._add_to_tail(block)
            return
        try:
            self._check_room()
            os.write(self._times, TIME.pack(time.time(), self._size))
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(self._log, rest) :]
            self._size += len(block)
        except OSError:
            self._tail = []
            self._add_to_tail(block)

    def _check_room(self) -> None:
        if self._size and self._size - self._checked < FREE_CHECK_BYTES:
            return
        self._checked = self._size
        room = os.fstatvfs(self._log)
        if room.f_bavail * room.f_frsize < LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, "little room is left")

    def _add_to_tail(self, block: bytes) -> None:
        assert self._tail is not None
        self._tail.append(block)
        self._tail_bytes += len(block)
        while self._tail_bytes - len(self._tail[0]) > TAIL_BYTES:
            self._tail_bytes -= len(self._tail.pop(0))

    def note_loss(self, err: OSError) -> None:
        """Leave word that the stream could not be passed on: its writer, which knows only our pipe, was not told why."""
        try:
            fd = os.open(self._base + ".lost", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(fd, (err.strerror or str(err)).encode())
            os.close(fd)
        except OSError:
            pass

    def save_tail(self) -> None:
        """Write the last megabytes beside the copy, where it had to stop."""
        if self._tail is None:
            return
        try:
            fd = os.open(self._base + ".tail.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(fd, b"".join(self._tail))
            os.close(fd)
        except OSError:
            pass


class OutputStream(threading.Thread):
    """Passes one stream on until its last writer is gone or its reader is."""

    def __init__(self, source: int, target: int, copy: OutputCopy) -> None:
        super().__init__(daemon=True)
        self.source, self.target, self.copy = source, target, copy
        self.lock = threading.Lock()
        self.read_bytes = self.passed_bytes = 0
        self.is_over = False

    def run(self) -> None:
        try:
            while True:
                block = self._read_block()
                if not block:
                    return
                self._pass_on(block)
                self.copy.add_block(block)
                self.passed_bytes += len(block)
        except OSError as err:  # closing our end tells the writers, as the reader's end would have without us
            if err.errno != errno.EPIPE:
                self.copy.note_loss(err)
        finally:
            self.is_over = True
            os.close(self.source)
            os.close(self.target)
            self.copy.save_tail()

    def _read_block(self) -> bytes:
        waiting = select.poll()
        waiting.register(self.source, select.POLLIN)
        waiting.poll()
        with self.lock:
            try:
                block = os.read(self.source, BLOCK_BYTES)
            except OSError as err:
                if err.errno == errno.EIO:  # a terminal's last writer is gone
                    return b""
                raise
            if block and not block.endswith(b"\n") and waiting.poll(2):
                # A line that came in pieces goes on in one, or another rank's text would stand in its middle.
                block += self._read_more()
            self.read_bytes += len(block)
        return block

    def _read_more(self) -> bytes:
        try:
            return os.read(self.source, BLOCK_BYTES)
        except OSError:
            return b""

    def _pass_on(self, block: bytes) -> None:
        rest = memoryview(block)
        while rest:
            try:
                rest = rest[os.write(self.target, rest) :]
            except BlockingIOError:  # somebody made the shared target non-blocking
                waiting = select.poll()
                waiting.register(self.target, select.POLLOUT)
                waiting.poll(1000)

    def bytes_due(self) -> int:
        """Return how many bytes will have been passed on when all that is written by now has been."""
        with self.lock:
            if self.is_over:
                return 0
            try:
                waiting = struct.unpack("i", fcntl.ioctl(self.source, termios.FIONREAD, b"\0\0\0\0"))[0]
            except OSError:
                waiting = 0
            return self.read_bytes + int(waiting)


def _answer_control(control: int, streams: list[OutputStream]) -> None:
    """Answer requests to say when all is passed on, until nobody asks any more."""
    while True:
        try:
            request = os.read(control, 1)
        except OSError:
            return
        if not request:
            return
        due = [stream.bytes_due() for stream in streams]
        while any(stream.passed_bytes < due[place] and not stream.is_over for place, stream in enumerate(streams)):
            time.sleep(0.0005)
        try:
            os.write(control, b"s")
        except OSError:
            return


def _tell_signals(control: int) -> None:
    def tell(number: int, frame: object) -> None:
        try:
            os.write(control, bytes([0x80 | number]))
        except OSError:
            pass

    for number in (
        signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
        signal.SIGCONT, signal.SIGWINCH, signal.SIGTSTP, signal.SIGTTOU, signal.SIGTTIN, signal.SIGURG,
    ):  # fmt: skip
        signal.signal(number, tell)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _close_others(kept: set[int]) -> None:
    """Close what was inherited: a launcher waits for the end of its own pipes and sockets."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        if fd not in kept:
            os.dup2(nothing, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor of the listing itself


def main() -> None:
    folder, control = sys.argv[1], int(sys.argv[2])
    specs = [(name, int(source), int(target)) for name, source, target in (spec.split(":") for spec in sys.argv[3:])]
    _close_others({control, *(fd for _, source, target in specs for fd in (source, target))})
    _tell_signals(control)
    copies = [OutputCopy(folder, name) for name, _, _ in specs]
    if os.fork():
        os._exit(0)  # the one who started us need not wait for the rest
    streams = [OutputStream(specs[place][1], specs[place][2], copy) for place, copy in enumerate(copies)]
    for stream in streams:
        stream.start()
    threading.Thread(target=_answer_control, args=(control, streams), daemon=True).start()
    for stream in streams:
        while stream.is_alive():
            stream.join(3600)
    os._exit(0)


if __name__ == "__main__":
    main()
