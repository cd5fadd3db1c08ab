"""How much of the time other work on the machine took from the loop, as far as the spans tell.

A computation of one size takes about as long each time. One of ten that takes milliseconds more was stopped, as a busy
machine stops any process. Where it happens often, or in code of the host, it may be the program's own doing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtdx.trace.nouns import Category

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.trace.nouns import RankTimeline

LEAST_LIKES, MOST_STOPPED = 8, 0.3
STOPPED_FACTOR, STOPPED_US = 3.0, 1000.0


def undisturbed_share(timelines: Sequence[RankTimeline]) -> float:
    """Return the share of the wall time in which nothing stopped the loop."""
    wall = sum(timeline.wall for timeline in timelines)
    return 1 - sum(map(_stopped_time, timelines)) / wall if wall else 1.0


def _stopped_time(timeline: RankTimeline) -> float:
    """Return the time by which a few computations are far longer than the others of their kind."""
    if timeline.has_device or timeline.is_synthetic_clock:
        return 0.0
    segments = timeline.segments
    is_busy = np.array([context.category in (Category.COMPUTE, Category.COPY) for context in timeline.contexts])
    busy = np.flatnonzero(is_busy[segments.context])
    busy = busy[np.argsort(segments.context[busy], kind="stable")]
    lengths, borders = segments.duration[busy], np.flatnonzero(np.diff(segments.context[busy])) + 1
    return sum(map(_excess_of_few, np.split(lengths, borders)))


def _excess_of_few(lengths: np.ndarray) -> float:
    if len(lengths) < LEAST_LIKES:
        return 0.0
    typical = float(np.median(lengths))
    long = lengths[lengths > typical * STOPPED_FACTOR + STOPPED_US]
    return float((long - typical).sum()) if len(long) <= MOST_STOPPED * len(lengths) else 0.0
