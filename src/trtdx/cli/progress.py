"""A progress bar on standard error, only where a person watches and only for input worth waiting for."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from trtdx.host import RealHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.host import Host

WORTH_SHOWING = 64 << 20


@contextlib.contextmanager
def show_reading(host: Host, names: Sequence[str]) -> Iterator[Callable[[str, int], None]]:
    """Give a function that is told how far reading has come."""
    files = {name: host.size(name) for name in names if host.kind(name) == "file"}
    total = sum(files.values())
    if not sys.stderr.isatty() or total < WORTH_SHOWING:
        yield lambda name, size: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks = {name: bar.add_task(name[-40:], total=size) for name, size in files.items()}
        yield lambda name, size: bar.update(tasks[name], completed=size) if name in tasks else None


class WatchedHost(RealHost):
    """This machine, telling how far each file has been read."""

    def __init__(self, progress: Callable[[str, int], None]) -> None:
        self._progress = progress

    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", _WatchedStream(super().open(path), lambda at: self._progress(path, at)))


class _WatchedStream:
    def __init__(self, stream: BinaryIO, progress: Callable[[int], None]) -> None:
        self._stream, self._progress, self._at = stream, progress, 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._at += len(data)
        self._progress(self._at)
        return data

    def __enter__(self) -> _WatchedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
