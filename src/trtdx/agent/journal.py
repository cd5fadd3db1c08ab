"""What happens seldom in a process, one JSON object a line: its start, exceptions, worlds, its end."""

from __future__ import annotations

import json
import os
import time


class Journal:
    """Appends events; one write each, so that a reader never sees two of them mixed."""

    def __init__(self, path: str) -> None:
        self._path = path

    def add_event(self, kind: str, **data: object) -> None:
        line = json.dumps({"kind": kind, "time": time.time(), "pid": os.getpid(), **data}, default=str)
        try:
            # Opened each time: a daemon closes all descriptors, and the number may be the user's file afterwards.
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            return  # a full disk, or no descriptor left: the program must not notice
        try:
            os.write(fd, line.encode("utf-8", "replace") + b"\n")
        except OSError:
            pass
        finally:
            os.close(fd)
