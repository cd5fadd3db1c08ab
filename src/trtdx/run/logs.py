"""A run's output read back: each rank's own, or all of it in the order in which it was printed."""

from __future__ import annotations

import heapq
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.redact import redact_secrets
from trtdx.run.case_files import output_files

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIME = struct.Struct("<dQ")
LONGEST_LINE = 64 << 10


class LogLine(NamedTuple):
    """One line of one stream and when it was printed."""

    time: float
    name: str
    text: str

    def __str__(self) -> str:
        seconds, rest = divmod(self.time, 1)
        return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{int(rest * 1000):03d} {self.name:16} {self.text}"


def read_logs(case: str, *, merge: bool) -> Iterator[str]:
    """Yield the lines of a run, redacted: stream by stream, or all streams merged by time.

    Raises:
        InputError: there is no output of a supervised run.
    """
    live = Path(case, "live")
    streams = {name: path for name, path in output_files(live).items() if path.stat().st_size}
    if not live.is_dir() or not streams:
        raise InputError(
            f"{case} holds no output of a supervised run", fix="name the folder that trtdx run has printed"
        )
    has_ranks = any(not name.startswith("launcher.") for name in streams)
    if not merge:
        for name, path in streams.items():
            yield f"== {name}"
            yield from (redact_secrets(line.text) for line in read_lines(name, path))
        return
    # What the ranks print passes through the launcher too: it is shown once, under its rank.
    texts = {
        line.text
        for name, path in streams.items()
        if has_ranks and "launcher." not in name
        for line in read_lines(name, path)
    }
    for line in heapq.merge(*(read_lines(name, path) for name, path in streams.items())):
        if not (line.name.startswith("launcher.") and line.text in texts):
            yield redact_secrets(str(line))


def read_lines(name: str, path: Path) -> Iterator[LogLine]:
    """Yield the lines of one stream with the time at which their first byte was read."""
    times = _read_times(path.with_suffix(".times"))
    place, offset = 0, 0
    with path.open("rb") as file:
        while data := file.readline(LONGEST_LINE):
            while place + 1 < len(times) and times[place + 1][1] <= offset:
                place += 1
            when = times[place][0] if times else 0.0
            yield LogLine(when, name, data.decode("utf-8", "replace").rstrip("\r\n"))
            offset += len(data)


def _read_times(path: Path) -> list[tuple[float, int]]:
    try:
        data = path.read_bytes()
    except OSError:
        return []
    whole = len(data) // _TIME.size * _TIME.size
    return [(when, offset) for when, offset in _TIME.iter_unpack(data[:whole])]
