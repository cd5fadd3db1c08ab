"""Where the wall time of all ranks went, by what it was spent on: the parts add up to the whole."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.trace.nouns import Category, Context, RankTimeline

LOOP_PHASE = "between phases"


class TimeLedger(NamedTuple):
    """Microseconds by context, summed over ranks."""

    by_context: dict[Context, float]
    wall: float

    def share(self, holds: Callable[[Context], bool]) -> float:
        """Return the share of the wall time for which a condition holds."""
        return self.time(holds) / self.wall if self.wall else 0.0

    def time(self, holds: Callable[[Context], bool]) -> float:
        return sum(time for context, time in self.by_context.items() if holds(context))

    def by_category(self) -> dict[Category, float]:
        times: dict[Category, float] = defaultdict(float)
        for context, time in self.by_context.items():
            times[context.category] += time
        return dict(times)


class PhaseRow(NamedTuple):
    """One row of the table that adds up to the wall time."""

    phase: str
    category: Category
    time: float
    share: float
    largest: str  # what most of it is


def add_up_time(timelines: Sequence[RankTimeline]) -> TimeLedger:
    """Return the ledger of some ranks."""
    times: dict[Context, float] = defaultdict(float)
    for timeline in timelines:
        sums = np.bincount(timeline.segments.context, weights=timeline.segments.duration)
        for number in np.flatnonzero(sums).tolist():
            times[timeline.contexts[number]] += float(sums[number])
    return TimeLedger(dict(times), sum(timeline.wall for timeline in timelines))


def phase_rows(ledger: TimeLedger) -> list[PhaseRow]:
    """Return the wall time by phase and by what it was spent on, the largest phase first."""
    times: dict[tuple[str, Category], float] = defaultdict(float)
    parts: dict[tuple[str, Category], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    by_phase: dict[str, float] = defaultdict(float)
    for context, time in ledger.by_context.items():
        key = (context.phase or LOOP_PHASE, context.category)
        times[key] += time
        parts[key][context.operator or context.name] += time
        by_phase[key[0]] += time
    order = sorted(times, key=lambda key: (-by_phase[key[0]], -times[key]))
    return [
        PhaseRow(*key, times[key], times[key] / ledger.wall, max(parts[key], key=parts[key].__getitem__))
        for key in order
        if times[key] > 0
    ]
