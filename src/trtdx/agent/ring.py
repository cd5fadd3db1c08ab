"""What a process is doing, in a file that is mapped into memory, so that it survives any kind of death.

Layout, little endian: a head of 4096 bytes, then slots of 256. The head holds the magic, the process id, the number of
slots, how many records were ever written, the rank, the size of the world, the number of steps, the state and the time
of the last step. A slot holds the record's number, its time, kind, phase, the number of the record it ends, the length
of its text, and the text: fields separated by the unit separator.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time

MAGIC = b"TRTDXR1\0"
HEAD_BYTES = 4096
SLOT_BYTES = 256
SLOTS = 2048
HEAD = struct.Struct("<8sIIQiiQBxxxxxxxd")
SLOT = struct.Struct("<QdBBHQ")
TEXT_BYTES = SLOT_BYTES - SLOT.size
SEPARATOR = "\x1f"

COLLECTIVE, MESSAGE, STEP = 1, 2, 3
BEGIN, END, ISSUED, FAILED = 0, 1, 2, 3
RUNNING, RAISED, LEAVING, ENDED = 1, 2, 3, 4


class RingWriter:
    """Writes records; each costs about two microseconds."""

    def __init__(self, path: str, rank: int, world: int) -> None:
        size = HEAD_BYTES + SLOTS * SLOT_BYTES
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            # A page that the disk has no room for would end the process with SIGBUS when it is first touched.
            _reserve(fd, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._lock = threading.Lock()
        self._count = 0
        self._steps = 0
        self._step_time = 0.0
        self.rank, self.world, self.state = rank, world, RUNNING
        self._write_head()

    def _write_head(self) -> None:
        HEAD.pack_into(
            self._map, 0, MAGIC, os.getpid(), SLOTS, self._count, self.rank, self.world, self._steps, self.state,
            self._step_time,
        )  # fmt: skip

    def set_identity(self, rank: int, world: int) -> None:
        with self._lock:
            self.rank, self.world = rank, world
            self._write_head()

    def set_state(self, state: int) -> None:
        self.state = state
        self._write_head()

    def add_step(self) -> None:
        with self._lock:
            self._steps += 1
            self._step_time = time.time()
            self._write_head()

    def add_record(self, kind: int, phase: int, text: str, begun: int = 0) -> int:
        """Write a record and return its number, counted from 1."""
        data = text.encode("utf-8", "replace")[:TEXT_BYTES]
        with self._lock:
            number = self._count + 1
            place = HEAD_BYTES + (number - 1) % SLOTS * SLOT_BYTES
            # The number is written last: a slot that was being written when the process died keeps none.
            self._map[place : place + 8] = b"\0\0\0\0\0\0\0\0"
            SLOT.pack_into(self._map, place, 0, time.time(), kind, phase, len(data), begun)
            self._map[place + SLOT.size : place + SLOT.size + len(data)] = data
            self._map[place : place + 8] = number.to_bytes(8, "little")
            self._count = number
            self._map[16:24] = number.to_bytes(8, "little")
        return number

    def renew_lock(self) -> None:
        """Forget a lock that another thread held when this process was forked."""
        self._lock = threading.Lock()


def _reserve(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except (AttributeError, OSError):  # some network file systems cannot; writing zeros is the same, slower
        os.lseek(fd, 0, os.SEEK_SET)
        rest = size
        while rest > 0:
            rest -= os.write(fd, bytes(min(rest, 1 << 16)))
