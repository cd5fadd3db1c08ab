"""The ledger of time of what the executor itself recorded: iterations, or the lives of requests."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from trtdx.trace.analysis.ledger import TimeLedger
from trtdx.trace.nouns import Category, Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.trace.nouns import Iteration, RequestTimes

US_PER_MS, US_PER_S = 1e3, 1e6


def ledger_from_iterations(iterations: Sequence[Iteration]) -> TimeLedger:
    """Return the time of iterations by phase: what the device computes, and what of the host's time is beyond it."""
    times: dict[Context, float] = defaultdict(float)
    for one in iterations:
        if one.wall_ms <= 0:
            continue
        phase = _phase_of(one)
        device = max(one.device_ms, 0.0)
        times[Context(Category.COMPUTE, "forward pass", phase=phase)] += device * US_PER_MS
        name = "the loop" if one.device_ms >= 0 else "the iteration, host and device not told apart"
        times[Context(Category.HOST, name, phase=phase)] += (one.wall_ms - device) * US_PER_MS
    return TimeLedger(dict(times), sum(times.values()))


def _phase_of(iteration: Iteration) -> str:
    generation = max(iteration.generation_tokens, iteration.generation_requests)
    if iteration.context_requests > 0 or iteration.context_tokens > 0:
        return "mixed" if generation > 0 else "prefill"
    return "decode" if iteration.context_tokens == 0 else ""


def ledger_from_requests(requests: Sequence[RequestTimes]) -> TimeLedger:
    """Return the time of requests, from arrival to the last token, by what happened to them."""
    times: dict[Context, float] = defaultdict(float)
    for one in requests:
        prefill = max(one.first_token - one.scheduled - one.transfer, 0.0)
        parts = (
            (Context(Category.QUEUE, "before the first iteration", phase="queue"), one.scheduled - one.arrival),
            (Context(Category.COPY, "KV cache from the context server", phase="transfer"), one.transfer),
            (Context(Category.COMPUTE, "up to the first token", phase="prefill"), prefill),
            (Context(Category.COMPUTE, "after the first token", phase="decode"), one.last_token - one.first_token),
        )
        for context, seconds in parts:
            times[context] += max(seconds, 0.0) * US_PER_S
    return TimeLedger(dict(times), sum(times.values()))
