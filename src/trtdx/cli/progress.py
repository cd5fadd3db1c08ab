"""A progress bar on standard error, only where a person watches and only for input worth waiting for."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.diagnose.sources import Source
    from trtdx.host import Host

WORTH_SHOWING = 64 << 20


@contextlib.contextmanager
def reading(host: Host, sources: Sequence[Source]) -> Iterator[Callable[[str, int], None]]:
    """Give a function that is told how far reading has come."""
    total = sum(host.size(source.name) for source in sources if host.kind(source.name) == "file")
    if not sys.stderr.isatty() or total < WORTH_SHOWING:
        yield lambda name, size: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks = {
            source.name: bar.add_task(source.name[-40:], total=host.size(source.name))
            for source in sources
            if host.kind(source.name) == "file"
        }
        yield lambda name, size: bar.update(tasks[name], completed=size) if name in tasks else None
