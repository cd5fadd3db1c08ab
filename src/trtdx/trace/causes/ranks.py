"""Causes between ranks: one that the others wait for, and collectives that cost more than they should."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from trtdx.trace.analysis.ranks import excess_by_context
from trtdx.trace.causes.cause import LEAST_SHARE, TimeCause, describe_context, longest_spans, render_us
from trtdx.trace.nouns import Category

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.trace.causes.cause import TraceAnalysis
    from trtdx.trace.nouns import Context

BLAME = 0.6  # of all lateness, that one rank must have
LEAST_WAIT_SHARE = 0.08
LEAST_TRANSFER_SHARE = 0.2
MANY_CALLS, SHORT_CALL_US = 16, 1500.0
_EXPERTS = re.compile(r"(?:^|\.)(?:experts?|moe)(?:\.|$)")


def late_ranks(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield the rank that the others wait for, and what it does meanwhile."""
    lateness, waits = analysis.waits.lateness, analysis.waits.wait_by_rank
    if not lateness:
        return
    blamed = max(lateness, key=lateness.__getitem__)
    late = next(timeline for timeline in analysis.timelines if timeline.rank == blamed)
    others = [timeline for timeline in analysis.timelines if timeline.rank != blamed]
    share = lateness[blamed] / late.wall
    waiting = float(np.mean([waits[timeline.rank] / timeline.wall for timeline in others]))
    if lateness[blamed] < BLAME * sum(lateness.values()) or min(share, waiting) < LEAST_WAIT_SHARE:
        return
    excess = excess_by_context(late, others)
    code, context = _reason(excess)
    values = {"rank": blamed, "work": describe_context(context), "wait": render_us(lateness[blamed])}
    evidence = (
        *longest_spans(late, lambda other: other == context)[:2],
        *longest_spans(others[0], lambda other: other.category is Category.WAIT)[:1],
    )
    yield TimeCause(code, share, evidence, values, ranks=(blamed,))


def _reason(excess: dict[Context, float]) -> tuple[str, Context]:
    """Return the code for what the late rank does longer than the others, and the largest piece of it."""
    largest = max(excess, key=excess.__getitem__)
    host = sum(time for context, time in excess.items() if context.category is Category.HOST and time > 0)
    rest = sum(time for context, time in excess.items() if context.category is not Category.HOST and time > 0)
    experts = sum(time for context, time in excess.items() if _EXPERTS.search(context.module) and time > 0)
    if experts > (host + rest) / 2:
        return "DX1542", largest
    return ("DX1541" if host > rest else "DX1540"), largest


def costly_collectives(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield transfers that nothing is computed beside: too many small ones, or simply too much."""
    share = analysis.ledger.share(lambda context: context.category is Category.COMMUNICATION)
    calls = sum(len(timeline.collectives) for timeline in analysis.timelines)
    steps = sum(len(timeline.steps) for timeline in analysis.timelines)
    if share < LEAST_TRANSFER_SHARE or not calls or (analysis.rank_count > 1 and not analysis.waits.matched):
        return
    per_step = calls / max(steps, 1)
    mean = analysis.ledger.wall * share / calls
    is_small = per_step >= MANY_CALLS and mean < SHORT_CALL_US
    values = {"count": f"{per_step:.0f}", "mean": render_us(mean)}
    evidence = longest_spans(analysis.timelines[0], lambda context: context.category is Category.COMMUNICATION)
    yield TimeCause("DX1544" if is_small else "DX1543", share, evidence, values)


def idle_time(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield time in which nothing was recorded at all."""
    share = analysis.ledger.share(lambda context: context.category is Category.IDLE)
    if share >= 4 * LEAST_SHARE and not any(timeline.is_synthetic_clock for timeline in analysis.timelines):
        evidence = longest_spans(analysis.timelines[0], lambda context: context.category is Category.IDLE)
        yield TimeCause("DX1545", share, evidence)
