"""Causes that only the course of steps shows: growth, a cold start, stray slow steps, chunks of the wrong size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from trtdx.model import Evidence
from trtdx.trace.causes.cause import LEAST_SHARE, TimeCause, place_of, render_us
from trtdx.trace.nouns import Category

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.trace.causes.cause import TraceAnalysis
    from trtdx.trace.nouns import Context, LoopStep, RankTimeline

LEAST_STEPS = 6
GROWTH, ORDERLINESS = 1.5, 0.85
COLD, SLOW = 3.0, 2.0
MOST_FITTED = 200
MOST_SLOW_STEPS = 0.34
LONG_PREFILL = 10.0
LEAST_SAME = 3
SAME_WORK = 0.5  # of what a slow step takes longer, that one piece of work must explain


def course_of_steps(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield what the lengths of steps show, rank by rank until one shows something."""
    for timeline in map(_without_collectives, analysis.timelines):
        causes = [*_growth(timeline), *_cold_start(timeline), *_stray_steps(timeline), *_prefill(timeline)]
        if causes:
            yield from causes
            return


def _without_collectives(timeline: RankTimeline) -> RankTimeline:
    """Return a timeline whose steps last as long as the rank itself worked: waiting is the doing of others."""
    category = np.array([context.category for context in timeline.contexts], dtype=np.int8)
    segments = timeline.segments
    collective = np.isin(category[segments.context], (Category.WAIT, Category.COMMUNICATION))
    if not timeline.steps or not collective.any():
        return timeline
    starts = np.array([step.start for step in timeline.steps])
    step = np.clip(np.searchsorted(starts, segments.start[collective], side="right") - 1, 0, None)
    waited = np.bincount(step, weights=segments.duration[collective], minlength=len(starts)).tolist()
    steps = tuple(
        step._replace(end=max(step.end - wait, step.start)) for step, wait in zip(timeline.steps, waited, strict=True)
    )
    return msgspec.structs.replace(timeline, steps=steps)


def _durations(steps: Sequence[LoopStep]) -> np.ndarray:
    return np.array([step.duration for step in steps])


def _growth(timeline: RankTimeline) -> Iterator[TimeCause]:
    """Yield steps that take longer and longer: what was computed before is computed again."""
    steps = [step for step in timeline.steps if step.phase in ("decode", "")]
    if len(steps) < LEAST_STEPS:
        return
    durations = _durations(steps)
    third = len(steps) // 3
    early, late = float(np.median(durations[:third])), float(np.median(durations[-third:]))
    ranks = np.argsort(np.argsort(durations))
    orderliness = float(np.corrcoef(ranks, np.arange(len(steps)))[0, 1])
    if late < GROWTH * early or orderliness < ORDERLINESS:
        return
    share = _growing_time(durations) / timeline.wall
    values = {"first": render_us(durations[0]), "last": render_us(durations[-1]), "count": len(steps)}
    yield TimeCause("DX1527", share, _step_evidence(timeline, [steps[0], steps[-1]]), values)


def _growing_time(durations: np.ndarray) -> float:
    """Return the time that steps take beyond the first, by the typical growth: a disturbed step does not move it."""
    places = np.linspace(0, len(durations) - 1, min(len(durations), MOST_FITTED)).astype(int)
    chosen = durations[places]
    one, other = np.triu_indices(len(places), 1)
    slope = float(np.median((chosen[other] - chosen[one]) / (places[other] - places[one])))
    return slope * len(durations) * (len(durations) - 1) / 2


def _cold_start(timeline: RankTimeline) -> Iterator[TimeCause]:
    if len(timeline.steps) < LEAST_STEPS:
        return
    first, *others = timeline.steps
    typical = float(np.median(_durations([step for step in others if step.phase == first.phase] or others)))
    share = (first.duration - typical) / timeline.wall
    if first.duration > COLD * typical and share >= LEAST_SHARE:
        values = {"first": render_us(first.duration), "typical": render_us(typical)}
        yield TimeCause("DX1528", share, _step_evidence(timeline, [first]), values)


def _stray_steps(timeline: RankTimeline) -> Iterator[TimeCause]:
    """Yield steps that are slow now and then because of work which the others do not have."""
    steps = [step for step in timeline.steps[1:] if step.phase in ("decode", "")]
    if len(steps) < LEAST_STEPS:
        return
    durations = _durations(steps)
    typical = float(np.median(durations))
    slow = [step for step in steps if step.duration > SLOW * typical]
    share = sum(step.duration - typical for step in slow) / timeline.wall
    if len(slow) < 2 or len(slow) > MOST_SLOW_STEPS * len(steps) or share < LEAST_SHARE:
        return
    if _is_growing(durations):
        return
    work = _work_of_slow_steps(timeline, slow, typical)
    if work:
        values = {"count": len(slow), "steps": len(steps), "work": work, "typical": render_us(typical)}
        yield TimeCause("DX1529", share, _step_evidence(timeline, slow[:3]), values, confidence=0.75)


def _is_growing(durations: np.ndarray) -> bool:
    return float(np.corrcoef(np.argsort(np.argsort(durations)), np.arange(len(durations)))[0, 1]) >= ORDERLINESS


def _work_of_slow_steps(timeline: RankTimeline, slow: Sequence[LoopStep], typical: float) -> str:
    """Return the operator or code that most slow steps spend their excess on; empty where each has another.

    A machine that is busy with other things makes steps slow too, in another place each time.
    """
    largest = [_largest_work(timeline, step, typical) for step in slow]
    counts = {context: largest.count(context) for context in largest if context is not None}
    best = max(counts, key=counts.__getitem__, default=None)
    if best is None or counts[best] * 2 <= len(slow):
        return ""
    # Work that the other steps have too may have been stopped by the machine: twice at the same place is chance.
    if counts[best] < LEAST_SAME and _occurrences(timeline, best) * 2 > len(timeline.steps):
        return ""
    return f"{best.operator or best.name} {best.module or best.phase}".strip()


def _occurrences(timeline: RankTimeline, context: Context) -> int:
    """Return in how many steps there is some of a context."""
    segments = timeline.segments
    at = segments.start[segments.context == timeline.contexts.index(context)]
    starts = np.array([step.start for step in timeline.steps])
    return len(np.unique(np.searchsorted(starts, at, side="right")))


def _largest_work(timeline: RankTimeline, step: LoopStep, typical: float) -> Context | None:
    segments = timeline.segments
    inside = (segments.start >= step.start) & (segments.start < step.end)
    sums = np.bincount(segments.context[inside], weights=segments.duration[inside], minlength=1)
    largest = int(np.argmax(sums))
    context = timeline.contexts[largest]
    return None if sums[largest] < SAME_WORK * (step.duration - typical) or context.cause else context


def _prefill(timeline: RankTimeline) -> Iterator[TimeCause]:
    prefill = [step for step in timeline.steps if step.phase in ("prefill", "mixed")]
    decode = [step for step in timeline.steps if step.phase == "decode"]
    yield from _small_chunks(timeline, prefill)
    if not prefill or len(decode) < LEAST_STEPS:
        return
    typical = float(np.median(_durations(decode)))
    long = [step for step in prefill if step.duration > LONG_PREFILL * typical]
    between = [step for step in long if decode[0].start < step.start < decode[-1].start]
    share = sum(step.duration - typical for step in between) / timeline.wall
    if between and share >= 2 * LEAST_SHARE:
        worst = max(between, key=lambda step: step.duration)
        values = {"took": render_us(worst.duration), "typical": render_us(typical), "tokens": worst.context_tokens}
        yield TimeCause("DX1531", share, _step_evidence(timeline, [worst]), values)


def _small_chunks(timeline: RankTimeline, prefill: Sequence[LoopStep]) -> Iterator[TimeCause]:
    """Yield prompts in chunks so small that what each step costs anyway dominates."""
    steps = [step for step in prefill if step.context_tokens > 0]
    tokens = np.array([step.context_tokens for step in steps], dtype=float)
    if len(steps) < LEAST_STEPS or tokens.max() < 4 * np.median(tokens):
        return
    durations = _durations(steps)
    largest = tokens >= tokens.max() * 0.9
    per_token = float(np.median(durations[largest] / tokens[largest]))
    saved = durations - tokens * per_token
    small = (tokens < tokens.max() / 2) & (saved > 0)
    share = float(saved[small].sum()) / timeline.wall
    if share >= 2 * LEAST_SHARE:
        values = {"count": int(small.sum()), "tokens": int(np.median(tokens[small])), "largest": int(tokens.max())}
        worst = [step for step, is_small in zip(steps, small.tolist(), strict=True) if is_small][:3]
        yield TimeCause("DX1530", share, _step_evidence(timeline, worst), values)


def _step_evidence(timeline: RankTimeline, steps: Sequence[LoopStep]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(place_of(timeline, step.start), f"step {step.number} takes {render_us(step.duration)}")
        for step in steps
    )
