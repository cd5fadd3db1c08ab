"""Causes in code of the host: what its ranges and Python functions are named after, and gaps without a name."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from trtdx.trace.causes.cause import (
    LEAST_SHARE,
    TimeCause,
    describe_context,
    longest_spans,
    segments_where,
)
from trtdx.trace.names import CAUSE_PATTERNS
from trtdx.trace.nouns import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.model import Evidence
    from trtdx.trace.causes.cause import TraceAnalysis
    from trtdx.trace.nouns import Context, RankTimeline

LEAST_GAP_SHARE = 0.08
LARGE_GAP = 0.04  # of a step: smaller gaps are the ordinary cost of Python between two operators
TINY_US, TINY_GAP_US = 25.0, 60.0
LEAST_TINY_SHARE, LEAST_TINY_COUNT = 0.35, 300
BURST_US, LEAST_BURST = 400.0, 16
_SCALARS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")


def named_host_causes(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield what ranges and functions are named after, where it takes time that nothing else uses."""
    for code in dict.fromkeys(pattern.code for pattern in CAUSE_PATTERNS):

        def holds(context: Context, code: str = code) -> bool:
            return context.cause == code and context.category not in (Category.WAIT, Category.COMMUNICATION)

        share = analysis.ledger.share(holds)
        if analysis.is_large(share, LEAST_SHARE) and _recurs(analysis, holds, share):
            yield TimeCause(code, share, _evidence(analysis, holds), confidence=0.9)


def _recurs(analysis: TraceAnalysis, holds: Callable[[Context], bool], share: float) -> bool:
    """Whether the time is more than one stretch: a single one may be the machine's doing, not the code's."""
    longest = max(float(segments_where(timeline, holds).duration.max(initial=0)) for timeline in analysis.timelines)
    return share - longest / analysis.ledger.wall >= LEAST_SHARE / 2 * analysis.undisturbed


def _evidence(analysis: TraceAnalysis, holds: Callable[[Context], bool]) -> tuple[Evidence, ...]:
    worst = max(analysis.timelines, key=lambda timeline: float(segments_where(timeline, holds).duration.sum()))
    return longest_spans(worst, holds)


def unnamed_gaps(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield the gap that the host leaves at the same place of most steps, where nothing names what it does."""
    times: dict[Context, float] = defaultdict(float)
    for timeline in analysis.timelines:
        for context, time in _repeated_gaps(timeline).items():
            times[context] += time
    share = sum(times.values()) / analysis.ledger.wall if analysis.ledger.wall else 0.0
    if not analysis.is_large(share, LEAST_GAP_SHARE):
        return
    largest = max(times, key=times.__getitem__)

    def holds(context: Context) -> bool:
        return context in times

    where = describe_context(largest)
    yield TimeCause("DX1500", share, _evidence(analysis, holds), {"place": where}, confidence=0.7)


def _repeated_gaps(timeline: RankTimeline) -> dict[Context, float]:
    """Return the time of large gaps by place, of those places that have one in at least half of the steps."""
    if not timeline.steps:
        return {}
    typical = float(np.median([step.duration for step in timeline.steps]))
    gaps = segments_where(timeline, lambda context: context.category is Category.HOST and not context.cause)
    is_large = gaps.duration >= LARGE_GAP * typical
    if timeline.has_device:
        is_large = gaps.duration > 0
    starts = np.array([step.start for step in timeline.steps])
    step_of = np.searchsorted(starts, gaps.start[is_large], side="right")
    numbers, durations = gaps.context[is_large], gaps.duration[is_large]
    times: dict[Context, float] = {}
    for number in np.unique(numbers).tolist():
        here = numbers == number
        if len(np.unique(step_of[here])) * 2 >= len(timeline.steps):
            times[timeline.contexts[number]] = float(durations[here].sum())
    return times


def tiny_operators(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield the cost of a multitude of operators that each do next to nothing."""
    if analysis.has_device:
        return
    time, count = 0.0, 0
    for timeline in analysis.timelines:
        tiny_time, tiny_count = _tiny_runs(timeline)
        time, count = time + tiny_time, count + tiny_count
    share = time / analysis.ledger.wall if analysis.ledger.wall else 0.0
    per_step = count // max(sum(len(timeline.steps) for timeline in analysis.timelines), 1)
    if analysis.is_large(share, LEAST_TINY_SHARE) and per_step >= LEAST_TINY_COUNT:

        def holds(context: Context) -> bool:
            return context.category is Category.COMPUTE

        yield TimeCause("DX1526", share, _evidence(analysis, holds), {"count": per_step}, confidence=0.75)


def _tiny_runs(timeline: RankTimeline) -> tuple[float, int]:
    """Return the time of operators that end within microseconds, with the gap to the next one, and their number."""
    categories = np.array([context.category for context in timeline.contexts], dtype=np.int8)
    segments = timeline.segments
    busy = np.isin(categories[segments.context], (Category.COMPUTE, Category.COPY))
    border = np.flatnonzero(np.diff(busy.astype(np.int8))) + 1
    begin = np.concatenate(([0], border))
    end = np.concatenate((border, [len(busy)]))
    length = segments.end[end - 1] - segments.start[begin]
    # One that was stopped by the machine is as tiny as the others that begin the same way.
    tiny = busy[begin] & (_typical_length(segments.context[begin], length) < TINY_US)
    gap = np.concatenate((length[1:], [0.0]))
    return float((length + np.where(gap < TINY_GAP_US, gap, 0.0))[tiny].sum()), int(tiny.sum())


def _typical_length(kind: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return for each length the median of those of its kind."""
    order = np.lexsort((length, kind))
    _, first, inverse, count = np.unique(kind[order], return_index=True, return_inverse=True, return_counts=True)
    typical = np.empty(len(length))
    typical[order] = length[order][first + count // 2][inverse]
    return typical


def scalar_reads(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield values that are read back one by one: each read waits for the device, or costs a call."""
    reads = [_read_bursts(timeline) for timeline in analysis.timelines]
    share = sum(time for time, _ in reads) / analysis.ledger.wall if analysis.ledger.wall else 0.0
    if analysis.is_large(share, LEAST_SHARE):
        count = sum(count for _, count in reads)
        yield TimeCause("DX1522", share, _evidence(analysis, _is_read), {"count": count // max(1, _steps(analysis))})


def _is_read(context: Context) -> bool:
    return context.operator in _SCALARS and not context.cause


def _read_bursts(timeline: RankTimeline) -> tuple[float, int]:
    """Return the time from each read to the next one that soon follows, and the number of reads."""
    chosen = np.array([_is_read(context) for context in timeline.contexts], dtype=bool)
    is_read = chosen[timeline.segments.context]
    places = np.flatnonzero(is_read & ~np.concatenate(([False], is_read[:-1])))
    if len(places) < LEAST_BURST:
        return 0.0, 0
    periods, between = np.diff(timeline.segments.start[places]), np.diff(places)
    # A long period with no more in it than usual is one in which the machine stopped the loop.
    soon = (periods < BURST_US) | ((between <= np.median(between)) & (np.median(periods) < BURST_US))
    return float(periods[soon].sum()), len(places)


def _steps(analysis: TraceAnalysis) -> int:
    return sum(len(timeline.steps) for timeline in analysis.timelines)
