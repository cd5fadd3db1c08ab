"""Several ranks on one clock: collectives end together, and whoever comes early waits for the last.

The k-th call on one rank is the k-th on the others. Of each call, the time until the last rank has come is waiting;
only the rest is transfer. Clocks of one machine agree, so they are moved only where the ends are far apart.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from trtdx.trace.analysis.intervals import intersect_windows, lay_under, select_segments
from trtdx.trace.nouns import Category, Context, Segments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.trace.nouns import CollectiveCall, RankTimeline

LEAST_SHIFT_US = 5000.0  # ends of one collective differ by some milliseconds between processes of one machine


class RankWaits(NamedTuple):
    """What the collectives of a job show."""

    matched: int  # calls that all ranks have
    wait_by_rank: dict[int, float]  # how long each waited for others
    lateness: dict[int, float]  # for how long others waited for each
    transfer: float  # of all calls, once everybody was there


NO_WAITS = RankWaits(0, {}, {}, 0.0)


def align_ranks(timelines: Sequence[RankTimeline]) -> tuple[list[RankTimeline], RankWaits]:
    """Return the timelines on one clock, with waiting told from transfer."""
    count = min((len(timeline.collectives) for timeline in timelines), default=0)
    if len(timelines) < 2 or not count:
        return list(timelines), NO_WAITS
    timelines = _on_one_clock(timelines, count)
    starts = np.array([[call.start for call in timeline.collectives[:count]] for timeline in timelines])
    ends = np.array([[call.end for call in timeline.collectives[:count]] for timeline in timelines])
    last_start = np.minimum(starts.max(axis=0), ends.min(axis=0))
    marked = [
        _mark_waits(timeline, starts[row], np.maximum(last_start, starts[row]))
        for row, timeline in enumerate(timelines)
    ]
    waits = np.maximum(last_start - starts, 0)
    late = _lateness(timelines, starts)
    by_rank = {timeline.rank: float(waits[row].sum()) for row, timeline in enumerate(timelines)}
    return marked, RankWaits(count, by_rank, late, float((ends.min(axis=0) - last_start).sum()))


def _lateness(timelines: Sequence[RankTimeline], starts: np.ndarray) -> dict[int, float]:
    """Return for how long the others waited for each rank; one very long wait counts as much as the usual one."""
    order = np.sort(starts, axis=0)
    margin, last = order[-1] - order[-2], starts.argmax(axis=0)
    margins = {timeline.rank: margin[last == row] for row, timeline in enumerate(timelines)}
    return {rank: float(np.minimum(times, 3 * np.median(times)).sum()) for rank, times in margins.items() if len(times)}


def _on_one_clock(timelines: Sequence[RankTimeline], count: int) -> list[RankTimeline]:
    ends = np.array([[call.end for call in timeline.collectives[:count]] for timeline in timelines])
    shifts = -np.median(ends - ends[0], axis=1)
    return [
        _shift_clock(timeline, shift) if abs(shift) > LEAST_SHIFT_US else timeline
        for timeline, shift in zip(timelines, shifts.tolist(), strict=True)
    ]


def _shift_clock(timeline: RankTimeline, shift: float) -> RankTimeline:
    segments = timeline.segments
    return msgspec.structs.replace(
        timeline,
        clock_shift=shift,
        segments=Segments(segments.start + shift, segments.end + shift, segments.context),
        steps=tuple(step._replace(start=step.start + shift, end=step.end + shift) for step in timeline.steps),
        collectives=tuple(_shift_call(call, shift) for call in timeline.collectives),
        graph_launches=tuple(start + shift for start in timeline.graph_launches),
        sync_ends=tuple(end + shift for end in timeline.sync_ends),
    )


def _shift_call(call: CollectiveCall, shift: float) -> CollectiveCall:
    return call._replace(start=call.start + shift, end=call.end + shift)


def _mark_waits(timeline: RankTimeline, starts: np.ndarray, ends: np.ndarray) -> RankTimeline:
    """Return a timeline in which the time that a rank waited in collectives is no communication."""
    category = np.array([context.category for context in timeline.contexts], dtype=np.int8)
    segments = timeline.segments
    communication = select_segments(segments, category[segments.context] == Category.COMMUNICATION)
    windows = np.flatnonzero(ends > starts)
    ends = np.minimum(ends[windows], np.concatenate((starts[windows][1:], [np.inf])))
    waits = intersect_windows(communication, starts[windows], ends)
    numbers = {number: len(timeline.contexts) + at for at, number in enumerate(np.unique(waits.context).tolist())}
    contexts = [timeline.contexts[number]._replace(category=Category.WAIT) for number in numbers]
    context = np.array([numbers[number] for number in waits.context.tolist()], dtype=np.int32)
    return msgspec.structs.replace(
        timeline,
        segments=lay_under(Segments(waits.start, waits.end, context), segments),
        contexts=(*timeline.contexts, *contexts),
    )


def excess_by_context(late: RankTimeline, others: Sequence[RankTimeline]) -> dict[Context, float]:
    """Return by how much one rank takes longer than the mean of the others, without collectives."""
    mean: dict[Context, float] = defaultdict(float)
    for timeline in others:
        for context, time in _time_by_context(timeline).items():
            mean[context] += time / len(others)
    own = _time_by_context(late)
    return {context: time - mean.get(context, 0.0) for context, time in own.items()}


def _time_by_context(timeline: RankTimeline) -> dict[Context, float]:
    sums = np.bincount(timeline.segments.context, weights=timeline.segments.duration, minlength=len(timeline.contexts))
    times: dict[Context, float] = defaultdict(float)
    for context, time in zip(timeline.contexts, sums.tolist(), strict=True):
        if context.category not in (Category.WAIT, Category.COMMUNICATION, Category.IDLE):
            times[context] += time
    return times
