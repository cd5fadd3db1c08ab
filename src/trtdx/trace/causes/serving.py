"""Causes that the executor's own records show: queues, a full cache, padding, uneven ranks, rejected drafts."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean, median
from typing import TYPE_CHECKING

from trtdx.model import Evidence
from trtdx.trace.causes.cause import LEAST_SHARE, TimeCause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.trace.causes.cause import TraceAnalysis
    from trtdx.trace.nouns import Iteration, RequestTimes

LEAST_ITERATIONS = 8
LEAST_HOST_SHARE, LEAST_QUEUED, LEAST_PADDING, LEAST_SKEW = 0.2, 0.3, 0.15, 0.2
FULL = 0.97
LOW_ACCEPTANCE = 0.3
LONG_PREFILL = 10.0


def executor_causes(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield what iterations and requests show."""
    iterations = analysis.recordings.iterations
    if len(iterations) >= LEAST_ITERATIONS:
        yield from _host_bound(iterations)
        yield from _queue_causes(iterations)
        yield from _padding(iterations)
        yield from _uneven_ranks(iterations)
        yield from _rejected_drafts(iterations)
        yield from _long_context_steps(iterations)
    if len(analysis.recordings.requests) >= LEAST_ITERATIONS:
        yield from _request_causes(analysis.recordings.requests)


def _cause(
    code: str, share: float, shown: Sequence[Iteration], text: Callable[[Iteration], str], **values: object
) -> TimeCause:
    evidence = tuple(Evidence(iteration.where, text(iteration)) for iteration in shown[:3])
    return TimeCause(code, share, evidence, values)


def _host_bound(iterations: Sequence[Iteration]) -> Iterator[TimeCause]:
    timed = [iteration for iteration in iterations if iteration.host_ms > 0 and iteration.device_ms >= 0]
    if len(timed) < LEAST_ITERATIONS:
        return
    lost = sum(max(iteration.host_ms - iteration.device_ms, 0) for iteration in timed)
    share = lost / sum(iteration.host_ms for iteration in timed)
    if share >= LEAST_HOST_SHARE:
        worst = sorted(timed, key=lambda iteration: iteration.device_ms - iteration.host_ms)
        yield _cause(
            "DX1563",
            share,
            worst,
            lambda one: f"the host takes {one.host_ms:.2f} ms, the device {one.device_ms:.2f} ms",
            host=f"{median(one.host_ms for one in timed):.2f} ms",
            device=f"{median(one.device_ms for one in timed):.2f} ms",
        )


def _queue_causes(iterations: Sequence[Iteration]) -> Iterator[TimeCause]:
    """Yield why requests wait: the cache is full, the token budget is, or the batch is."""
    waiting = [iteration for iteration in iterations if iteration.queued > 0 or iteration.paused > 0]
    if len(waiting) < LEAST_QUEUED * len(iterations):
        return
    reasons = {
        "DX1561": [one for one in waiting if one.kv_max > 0 and one.kv_used >= FULL * one.kv_max],
        "DX1567": [one for one in waiting if one.max_tokens > 0 and one.context_tokens >= FULL * one.max_tokens],
        "DX1560": [one for one in waiting if 0 < one.max_active <= max(one.scheduled, one.active)],
    }
    code = max(reasons, key=lambda code: len(reasons[code]))
    shown = reasons[code]
    share = len(shown) / len(iterations)
    if share >= LEAST_QUEUED:
        yield _cause(
            code,
            share,
            shown,
            lambda one: (
                f"{max(one.queued, 0)} requests wait, {one.paused} are paused, {one.scheduled} run, "
                f"{one.kv_used} of {one.kv_max} blocks are used"
            ),
            waiting=max(max(one.queued, one.paused) for one in shown),
            limit=shown[0].max_active if code == "DX1560" else shown[0].max_tokens,
        )


def _padding(iterations: Sequence[Iteration]) -> Iterator[TimeCause]:
    decode = [
        one for one in iterations if one.context_requests == 0 and one.scheduled > 0 and one.generation_tokens > 0
    ]
    if len(decode) < LEAST_ITERATIONS or any(one.drafted for one in iterations):
        return
    tokens = sum(one.generation_tokens for one in decode)
    share = sum(max(one.generation_tokens - one.scheduled, 0) for one in decode) / tokens
    if share >= LEAST_PADDING and share < 0.75:  # with drafts there are several tokens for each request
        worst = sorted(decode, key=lambda one: one.scheduled - one.generation_tokens)
        yield _cause(
            "DX1562",
            share,
            worst,
            lambda one: f"{one.scheduled} requests run as {one.generation_tokens}",
            sizes=", ".join(map(str, sorted({one.scheduled for one in worst[:20]})[:6])),
        )


def _uneven_ranks(iterations: Sequence[Iteration]) -> Iterator[TimeCause]:
    by_index: dict[int, list[Iteration]] = defaultdict(list)
    for one in iterations:
        by_index[one.index].append(one)
    together = [ranks for ranks in by_index.values() if len({one.rank for one in ranks}) > 1]
    loads = [[_load(one) for one in ranks] for ranks in together]
    loads = [load for load in loads if max(load) > 0]
    if len(loads) < LEAST_ITERATIONS:
        return
    share = mean(1 - mean(load) / max(load) for load in loads)
    if share >= LEAST_SKEW:
        worst = max(together, key=lambda ranks: max(map(_load, ranks)) - min(map(_load, ranks)))
        yield _cause(
            "DX1564", share, worst, lambda one: f"rank {one.rank} has {_load(one)} tokens or requests in this iteration"
        )


def _load(iteration: Iteration) -> int:
    return max(iteration.context_tokens, 0) + max(iteration.generation_tokens, iteration.scheduled, iteration.active, 0)


def _rejected_drafts(iterations: Sequence[Iteration]) -> Iterator[TimeCause]:
    drafted, accepted = sum(one.drafted for one in iterations), sum(one.accepted for one in iterations)
    if drafted and accepted < LOW_ACCEPTANCE * drafted:
        shown = [one for one in iterations if one.drafted]
        yield _cause(
            "DX1565",
            1 - accepted / drafted,
            shown,
            lambda one: f"{one.accepted} of {one.drafted} draft tokens are accepted",
            accepted=f"{accepted / drafted * 100:.0f} %",
        )


def _long_context_steps(iterations: Sequence[Iteration]) -> Iterator[TimeCause]:
    decode = [one.wall_ms for one in iterations if one.context_tokens == 0 and one.wall_ms > 0]
    if len(decode) < LEAST_ITERATIONS:
        return
    typical = median(decode)
    long = [one for one in iterations if one.context_tokens > 0 and one.wall_ms > LONG_PREFILL * typical]
    share = sum(one.wall_ms - typical for one in long) / sum(max(one.wall_ms, 0) for one in iterations)
    if long and share >= 2 * LEAST_SHARE:
        worst = sorted(long, key=lambda one: -one.wall_ms)
        yield _cause(
            "DX1531",
            share,
            worst,
            lambda one: f"{one.context_tokens} prompt tokens in one step of {one.wall_ms:.1f} ms",
            took=f"{worst[0].wall_ms:.1f} ms",
            typical=f"{typical:.1f} ms",
            tokens=worst[0].context_tokens,
        )


def _request_causes(requests: Sequence[RequestTimes]) -> Iterator[TimeCause]:
    total = sum(one.last_token - one.arrival for one in requests)
    if total <= 0:
        return
    parts: tuple[tuple[str, float, Callable[[RequestTimes], float]], ...] = (
        ("DX1568", 0.25, lambda one: one.scheduled - one.arrival),
        ("DX1569", 0.1, lambda one: one.transfer),
        ("DX1578", 0.1, _server_time),
    )
    for code, least, length in parts:
        share = sum(max(length(one), 0) for one in requests) / total
        if share >= least:
            worst = sorted(requests, key=length, reverse=True)[:3]
            evidence = tuple(Evidence(one.where, f"request {one.name}: {length(one) * 1e3:.1f} ms") for one in worst)
            yield TimeCause(code, share, evidence, {"typical": f"{median(map(length, requests)) * 1e3:.1f} ms"})


def _server_time(request: RequestTimes) -> float:
    """Return what the server adds around the executor, where it says so."""
    before = request.arrival - request.server_arrival if request.server_arrival >= 0 else 0.0
    after = request.server_first_token - request.first_token if request.server_first_token >= 0 else 0.0
    return max(before, 0.0) + max(after, 0.0)
