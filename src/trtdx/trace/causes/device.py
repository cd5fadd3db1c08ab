"""Causes that a device's timeline shows: it waits for launches, for synchronisation, for allocations, for copies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from trtdx.model import Evidence
from trtdx.trace.causes.cause import LEAST_SHARE, TimeCause, longest_spans, place_of, render_us, segments_where
from trtdx.trace.nouns import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.trace.causes.cause import TraceAnalysis
    from trtdx.trace.nouns import Context, LoopStep, RankTimeline, Segments

LEAST_GAP_SHARE = 0.12
LEAST_LAUNCHES = 50  # in a step, from which on a graph pays
_ALLOCATION = re.compile(
    r"cuda(?:Malloc|Free|HostAlloc|MallocHost|FreeHost|MallocAsync)|cuMem(?:Alloc|Create|Map|Free)"
)
_ENGINE = "trtexec times"


def device_waits(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield why the device of a rank waits for the host; the first rank that shows something."""
    for timeline in analysis.timelines:
        if not timeline.has_device or timeline.is_synthetic_clock:
            continue
        causes = [*_engine_times(timeline)] if timeline.source == _ENGINE else [*_launch_causes(timeline)]
        if causes:
            yield from causes
            return


def _launch_causes(timeline: RankTimeline) -> Iterator[TimeCause]:
    yield from _exposed_calls(timeline)
    yield from _graph_misses(timeline)
    yield from _synchronisation(timeline)
    yield from _exposed_copies(timeline)
    gaps = _share(timeline, lambda context: context.category is Category.HOST and not context.cause)
    per_step = timeline.launches / max(len(timeline.steps), 1)
    if not timeline.graph_launches and per_step >= LEAST_LAUNCHES and gaps >= LEAST_GAP_SHARE:
        evidence = longest_spans(timeline, lambda context: context.category is Category.HOST and not context.cause)
        yield TimeCause("DX1570", gaps, evidence, {"count": f"{per_step:.0f}"}, confidence=0.85)


def _share(timeline: RankTimeline, holds: Callable[[Context], bool]) -> float:
    return float(segments_where(timeline, holds).duration.sum()) / timeline.wall


def _exposed_calls(timeline: RankTimeline) -> Iterator[TimeCause]:
    def holds(context: Context) -> bool:
        return context.category is Category.HOST and bool(_ALLOCATION.match(context.name))

    share = _share(timeline, holds)
    if share >= LEAST_SHARE:
        yield TimeCause("DX1573", share, longest_spans(timeline, holds))


def _graph_misses(timeline: RankTimeline) -> Iterator[TimeCause]:
    """Yield decode steps that run without a graph although others have one."""
    decode = [step for step in timeline.steps if step.phase == "decode"]
    starts = np.array(timeline.graph_launches)
    if not len(starts) or not decode:
        return
    with_graph = [step for step in decode if _has_one(starts, step)]
    without = [step for step in decode if not _has_one(starts, step)]
    if len(with_graph) < 2 or not without:
        return
    typical = float(np.median([step.duration for step in with_graph]))
    share = sum(max(step.duration - typical, 0) for step in without) / timeline.wall
    if share < LEAST_SHARE:
        return
    sizes = sorted({step.generation_requests for step in without if step.generation_requests > 0})
    values = {
        "count": len(without),
        "steps": len(decode),
        "sizes": ", ".join(map(str, sizes[:6])) or "unknown",
        "typical": render_us(typical),
    }
    evidence = tuple(
        Evidence(place_of(timeline, step.start), f"step {step.number} takes {render_us(step.duration)} without a graph")
        for step in without[:3]
    )
    yield TimeCause("DX1571", share, evidence, values, confidence=0.85)


def _has_one(starts: np.ndarray, step: LoopStep) -> bool:
    at = int(np.searchsorted(starts, step.start))
    return at < len(starts) and bool(starts[at] < step.end)


def _synchronisation(timeline: RankTimeline) -> Iterator[TimeCause]:
    """Yield gaps of the device that begin before the host comes back from waiting for it."""
    gaps = _idle_gaps(timeline)
    ends = np.sort(np.array(timeline.sync_ends))
    if not len(ends) or not len(gaps.start):
        return
    at = np.searchsorted(ends, gaps.start)
    inside = (at < len(ends)) & (ends[np.minimum(at, len(ends) - 1)] < gaps.end)
    share = float(gaps.duration[inside].sum()) / timeline.wall
    if share >= LEAST_GAP_SHARE and inside.sum() * 2 >= len(timeline.steps):
        longest = np.argsort(-np.where(inside, gaps.duration, 0))[:3].tolist()
        evidence = tuple(
            Evidence(
                place_of(timeline, float(gaps.start[gap])), f"the device waits {render_us(float(gaps.duration[gap]))}"
            )
            for gap in longest
        )
        values = {"count": f"{len(ends) / max(len(timeline.steps), 1):.1f}"}
        yield TimeCause("DX1572", share, evidence, values, confidence=0.75)


def _idle_gaps(timeline: RankTimeline) -> Segments:
    """Return the stretches in which the device has nothing to do, each as one."""
    idle = segments_where(timeline, lambda context: context.category in (Category.HOST, Category.IDLE))
    if not len(idle.start):
        return idle
    begins = np.concatenate(([True], idle.start[1:] > idle.end[:-1]))
    first = np.flatnonzero(begins)
    last = np.concatenate((first[1:] - 1, [len(idle.start) - 1]))
    return type(idle)(idle.start[first], idle.end[last], idle.context[first])


def _exposed_copies(timeline: RankTimeline) -> Iterator[TimeCause]:
    def holds(context: Context) -> bool:
        return context.category is Category.COPY

    share = _share(timeline, holds)
    if share >= 2 * LEAST_SHARE:
        yield TimeCause("DX1575", share, longest_spans(timeline, holds))


def _engine_times(timeline: RankTimeline) -> Iterator[TimeCause]:
    """Yield what trtexec's times show: copies, or an engine that is enqueued more slowly than it computes."""
    copies = _share(timeline, lambda context: context.category is Category.COPY)
    if copies >= 4 * LEAST_SHARE:
        evidence = longest_spans(timeline, lambda context: context.category is Category.COPY)
        yield TimeCause("DX1582", copies, evidence)
    enqueue = _share(timeline, lambda context: context.category is Category.HOST)
    if enqueue >= LEAST_GAP_SHARE:
        evidence = longest_spans(timeline, lambda context: context.category is Category.HOST)
        yield TimeCause("DX1581", enqueue, evidence)
