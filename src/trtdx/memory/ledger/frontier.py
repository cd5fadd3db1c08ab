"""The frontier: how large batch, sequence and step may be together, and what stands in the way beyond.

A point fits when the cache holds `max_batch_size` requests of `max_seq_len` tokens at the same time. With more
requests TensorRT-LLM still runs; some of them wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.memory.ledger.capacity import (
    STEP_LIMIT,
    cache_tokens_needed,
    count_requests,
    holds_load,
    limiting_component,
    with_limits,
)
from trtdx.memory.ledger.load_speed import LoadSpeed, RequestLoad, bound_load, split_length
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.nouns import MemoryLedger, Setup

FRONTIER_STEPS = (1024, 2048, 4096, 8192, 16384, 32768)
SHORTEST, MOST_LENGTHS = 512, 9
LARGEST_BATCH = 1 << 14


class FrontierPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch for one length and one step."""

    max_seq_len: int
    max_num_tokens: int
    max_batch_size: int  # 0: not even one request
    binding: str  # what stands in the way of one more
    kv_tokens: int
    kv_bytes: int
    speed: LoadSpeed | None = None  # at best, with that batch; None: no batch fits, or the GPU's figures are not known


def compute_frontier(
    setup: Setup, lengths: Sequence[int] = (), steps: Sequence[int] = (), planner: Planner = plan_memory
) -> tuple[FrontierPoint, ...]:
    """Return the largest batch for each length and step, found by bisection: a larger one never needs less."""
    steps = sorted(steps or {*FRONTIER_STEPS, setup.limits.max_num_tokens})
    return tuple(
        _frontier_point(setup, length, step, planner) for length in lengths or frontier_lengths(setup) for step in steps
    )


def frontier_lengths(setup: Setup) -> list[int]:
    """Return powers of two up to what the model was made for, and the length that is asked for."""
    longest = setup.dims.max_positions or 8 * setup.limits.max_seq_len
    longest = max(min(longest, 1 << 20), setup.limits.max_seq_len)
    powers = [1 << bit for bit in range(9, 21) if 1 << bit <= longest]
    return sorted({*powers[:MOST_LENGTHS], setup.limits.max_seq_len})


def _frontier_point(setup: Setup, length: int, step: int, planner: Planner) -> FrontierPoint:
    def ledger(batch: int) -> MemoryLedger:
        return planner(with_limits(setup, max_batch_size=batch, max_seq_len=length, max_num_tokens=step))

    most = min(LARGEST_BATCH, step // (1 + setup.limits.max_draft_len))
    first = ledger(1)
    batch = _largest_batch(ledger, first, length, most)
    best = ledger(batch) if batch > 1 else first
    if not batch:
        binding = limiting_component(first.tightest_rank)
    elif batch == most:
        binding = STEP_LIMIT
    else:
        binding = _binding_component(first, best, ledger(batch + 1), length)
    return FrontierPoint(
        max_seq_len=length,
        max_num_tokens=step,
        max_batch_size=batch,
        binding=binding,
        kv_tokens=best.kv_tokens.value if batch else 0,
        kv_bytes=best.tightest_rank.component_bytes("kv_pool") if batch else 0,
        speed=bound_load(best.setup, RequestLoad(batch, *split_length(length), step)) if batch else None,
    )


def _largest_batch(ledger: Callable[[int], MemoryLedger], first: MemoryLedger, length: int, most: int) -> int:
    """Return the largest batch that holds, 0 where not even one request does.

    The cache only shrinks with the batch. So what a plan's cache holds is an upper bound for every larger batch, and
    what the plan at an upper bound holds is a batch that is sure to fit: the two come together in a few steps.
    """
    if not holds_load(first, 1, length):
        return 0
    fits, fails = 1, min(count_requests(first, length), most) + 1
    while fails - fits > 1:
        at = fails - 1
        tried = ledger(at)
        if holds_load(tried, at, length):
            return at
        sure = count_requests(tried, length) if tried.fits else fits
        middle = sure if fits < sure < at else (fits + at) // 2
        middle_ledger = ledger(middle)
        if holds_load(middle_ledger, middle, length):
            fits, fails = middle, min(at, count_requests(middle_ledger, length) + 1)
        else:
            fails = middle
    return fits


def _binding_component(first: MemoryLedger, best: MemoryLedger, beyond: MemoryLedger, length: int) -> str:
    """Return what the memory of more requests went into: usually their cache, else what grew the most."""
    batch = best.setup.limits.max_batch_size
    rank, before, after = best.tightest_rank.rank, first.tightest_rank, beyond.tightest_rank
    cache = cache_tokens_needed(best.setup, batch, length) * best.tightest_rank.kv_bytes_per_token.value
    grown = {
        component.name: after.component_bytes(component.name) - before.component_bytes(component.name)
        for component in beyond.ranks[rank].components
        if component.name != "kv_pool"
    }
    name = max(grown, key=grown.__getitem__, default="kv_pool")
    return COMPONENTS[name if grown.get(name, 0) > cache else "kv_pool"]
