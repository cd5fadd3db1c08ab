"""Tokens and blocks of a key/value cache: how many fit into bytes, and how releases round."""

from __future__ import annotations

from typing import NamedTuple

from trtdx.memory.ledger.weight_storage import ceil_div
from trtdx.memory.model.families import since

ROUNDS_DOWN_SINCE = "1.2.0rc5"  # the PyTorch flow; the C++ runtime of engines always rounds up


class Pool(NamedTuple):
    """Blocks of one window size."""

    blocks: int
    tokens: int
    bytes: int


def rounds_up(*, engine: bool, version: str) -> bool:
    return engine or not since(version, ROUNDS_DOWN_SINCE)


def pool_of(
    budget: float, billed: int, held: int, tokens_per_block: int, *, most: int = 0, up: bool = False
) -> Pool:
    """Return the pool a budget gives. `billed`: what the budget is divided by; `held`: what a token then takes."""
    if budget <= 0 or billed <= 0:
        return Pool(0, 0, 0)
    tokens = int(budget / billed)
    if most:
        tokens = min(tokens, most)
    blocks = ceil_div(tokens, tokens_per_block) if up else tokens // tokens_per_block
    return Pool(blocks, blocks * tokens_per_block, blocks * tokens_per_block * held)


def shares_of(windows: int, asked: str) -> tuple[float, ...]:
    """Return each window's share of the memory: equal ones, or those of TRTLLM_WINDOW_SIZE_SHARES."""
    try:
        shares = [float(share) for share in asked.split(",")] if asked else []
    except ValueError:
        shares = []
    if len(shares) == windows and all(share > 0 for share in shares):
        return tuple(share / sum(shares) for share in shares)
    return (1 / windows,) * windows
