"""Appends batches to a rank's two files from a thread of its own, with a bound on what waits to be written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from trtdx.capture.store.format import CaptureError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtdx.capture.store.format import Buffer

_SPARE_BUFFERS = 2  # buffers kept for reuse
_DISK_FULL_REASONS = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up",
         errno.EFBIG: "a file may not grow further"}  # fmt: skip


class Batch(NamedTuple):
    """Values, and the frames of the index that tell of them."""

    frames: bytes
    values: bytearray  # the first `filled` bytes of it
    filled: int
    large: Sequence[Buffer] = ()  # values that follow, written from where they lie

    @property
    def bytes(self) -> int:
        return len(self.frames) + self.filled + sum(map(len, self.large))


class Appender:
    """Two append-only files and the thread that writes them."""

    def __init__(self, index: Path, values: Path, *, queue_bytes: int, fresh: bool) -> None:
        """Open the files.

        Args:
            index: path of the index.
            values: path of the tensor log.
            queue_bytes: how much may wait to be written before `put` waits too.
            fresh: create them; existing ones are an error. Otherwise go on at their ends.
        """
        self._index, self._values = _open_locked(index, fresh=fresh), _open_locked(values, fresh=fresh)
        self._folder = str(index.parent)
        self.values_end = os.lseek(self._values, 0, os.SEEK_END)
        self.index_end = os.lseek(self._index, 0, os.SEEK_END)
        self._queue_bytes, self._waiting_bytes, self._busy = queue_bytes, 0, False
        self._queue: deque[Batch | None] = deque()
        self._spare: list[bytearray] = []
        self._changed = threading.Condition()
        self._error: CaptureError | None = None
        self._thread = threading.Thread(target=self._write_batches, name="trtdx-capture-writer", daemon=True)
        self._thread.start()

    def cut(self, index_bytes: int) -> None:
        """Take back the end of the index; before anything is handed over."""
        os.ftruncate(self._index, index_bytes)
        self.index_end = os.lseek(self._index, 0, os.SEEK_END)

    def put(self, batch: Batch) -> None:
        """Hand a batch over; waits while too much is waiting already."""
        with self._changed:
            while self._waiting_bytes and self._waiting_bytes + batch.bytes > self._queue_bytes:
                self._changed.wait()
            self._raise_error()
            self._queue.append(batch)
            self._waiting_bytes += batch.bytes
            self._changed.notify_all()

    def buffer(self) -> bytearray:
        """Return a buffer for values, one that was written before if there is: new memory costs more than a copy."""
        with self._changed:
            return self._spare.pop() if self._spare else bytearray()

    def drain(self) -> None:
        """Wait until all that was handed over is written."""
        with self._changed:
            while self._queue or self._busy:
                self._changed.wait()
            self._raise_error()

    def close(self, last: bytes = b"") -> None:
        """Write what waits and the index's last frame, then close the files; raises what went wrong."""
        with self._changed:
            self._queue.append(None)
            self._changed.notify_all()
        self._thread.join()
        try:
            self._write_last(last)
        finally:
            os.close(self._values)
            os.close(self._index)
        self._raise_error()

    def _write_last(self, last: bytes) -> None:
        try:
            self._append(Batch(last, bytearray(), 0))
        except OSError as err:
            self._note_failure(err)

    @property
    def problem(self) -> str:
        return self._error.message if self._error else ""

    def _raise_error(self) -> None:
        if self._error:
            raise CaptureError(self._error.message, fix=self._error.fix)

    def _write_batches(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                batch = self._queue.popleft()
                if batch is None:
                    return
                self._busy = True
            if not self._error:
                try:
                    self._append(batch)
                except OSError as err:
                    self._note_failure(err)
            with self._changed:
                self._busy = False
                self._waiting_bytes -= batch.bytes
                if len(self._spare) < _SPARE_BUFFERS:
                    self._spare.append(batch.values)
                self._changed.notify_all()

    def _append(self, batch: Batch) -> None:
        """Values first: a row never points at what is not there."""
        _write_all(self._values, [memoryview(batch.values)[: batch.filled], *batch.large])
        if batch.frames:
            _write_all(self._index, [batch.frames])
            self.index_end += len(batch.frames)
        self.values_end = os.lseek(self._values, 0, os.SEEK_CUR)

    def _note_failure(self, err: OSError) -> None:
        """Note why nothing more is written, and take half-written batches back."""
        what = _DISK_FULL_REASONS.get(err.errno or 0, f"a write failed ({err.strerror or err})")
        self._error = CaptureError(
            f"the capture in {self._folder} stopped: {what}",
            fix="free some space, capture fewer values (a budget, a narrower selector) or name another folder; "
            "what was captured so far can be read",
        )
        for file, end in ((self._index, self.index_end), (self._values, self.values_end)):
            with contextlib.suppress(OSError):
                os.ftruncate(file, end)
                os.lseek(file, end, os.SEEK_SET)


def _open_locked(path: Path, *, fresh: bool) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if fresh else 0)
    try:
        file = os.open(path, flags, 0o666)
    except FileExistsError as err:
        raise CaptureError(f"{path} already exists", fix="name a new folder, or resume that capture") from err
    except OSError as err:
        raise CaptureError(f"cannot write {path}: {err.strerror or err}") from err
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        os.close(file)
        raise CaptureError(f"{path} is being written by another process") from err
    except OSError:
        pass  # a file system without locks, as Lustre is often mounted
    return file


def _write_all(file: int, buffers: Sequence[Buffer]) -> None:
    some = [memoryview(buffer).cast("B") for buffer in buffers]
    while some:
        done = os.writev(file, some)
        while some and done >= len(some[0]):
            done -= len(some.pop(0))
        if done:
            some[0] = some[0][done:]
