"""How far a build is, on standard error: lines for a log, a moving bar where a person watches."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from trtdx.build.plan.schedule import StepProgress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class LineProgress(StepProgress):
    """One line when a step begins, one when it ends."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}

    def begin(self, key: str, expected_s: float | None, reasons: Sequence[str]) -> None:
        self._began[key] = time.monotonic()
        expected = f", about {expected_s:.0f} s as last time" if expected_s and expected_s >= 1 else ""
        why = f": {reasons[0]}" if reasons else ""
        sys.stderr.write(f"{key} ...{expected}{why}\n")

    def end(self, key: str, what: str) -> None:
        taken = time.monotonic() - self._began.get(key, time.monotonic())
        sys.stderr.write(f"{key} {what} after {taken:.1f} s\n")


class BarProgress(LineProgress):
    """A bar for each running step: TensorRT's own progress, else the time of the last run."""

    def __init__(self, bar: Any) -> None:
        super().__init__()
        self._bar = bar
        self._tasks: dict[str, Any] = {}

    def begin(self, key: str, expected_s: float | None, reasons: Sequence[str]) -> None:
        self._began[key] = time.monotonic()
        text = f"{key} (about {expected_s:.0f} s as last time)" if expected_s else key
        self._tasks[key] = self._bar.add_task(text, total=None)

    def advance(self, key: str, phase: str, fraction: float) -> None:
        self._bar.update(self._tasks[key], total=1.0, completed=fraction, description=f"{key}: {phase[-40:]}")

    def end(self, key: str, what: str) -> None:
        if key in self._tasks:
            self._bar.remove_task(self._tasks.pop(key))
        super().end(key, what)


@contextlib.contextmanager
def show_steps() -> Iterator[StepProgress]:
    """Give what is told of the steps."""
    if not sys.stderr.isatty():
        yield LineProgress()
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield BarProgress(bar)
