"""The key/value cache of a rank: bytes of a token, and the pool that is left for it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trtdx.memory.ledger.decoder_layers import (
    ATTENTION,
    OVERLAPPING_RATIO,
    STATE,
    decoder_layers_of,
    pipeline_stage,
    rank_layer_range,
    stage_layer_range,
)
from trtdx.memory.ledger.weight_storage import ceil_div, pad_to_multiple
from trtdx.memory.ledger.weights import ENGINE_FLOW, count_mtp_layers
from trtdx.memory.model.families import is_since_release
from trtdx.memory.nouns import Component, Figure
from trtdx.words import format_bytes, format_large_count, group_digits

if TYPE_CHECKING:
    from trtdx.memory.nouns import Dims, ParallelLayout, Setup

# The layers of multi-token prediction were first allocated but not reckoned with, then reckoned as the whole model
# once more, and since as what they are (_get_kv_size_per_token in pyexecutor/_util.py).
BILLS_MTP_SINCE, BILLS_MTP_RIGHTLY_SINCE = "1.3.0rc5", "1.3.0rc9"
CROSS_SHARE = 0.5  # of an encoder-decoder's cache, where cross_kv_cache_fraction is not set
DEEPSEEK_V4_WINDOW = 128
_KV_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "fp8": 8, "int8": 8}


ROUNDS_DOWN_SINCE = "1.2.0rc5"  # the PyTorch flow; the C++ runtime of engines always rounds up


class BlockPool(NamedTuple):
    """Blocks of one window size."""

    tokens: int
    bytes: int


class TokenCost(NamedTuple):
    """Bytes of one token on a rank."""

    billed: int  # what TensorRT-LLM divides its budget by, and prints
    allocated: int  # what it then allocates
    by_window: tuple[tuple[int, int], ...]  # window, bytes of a token; 0: no window


class _CachePlan(NamedTuple):
    tokens: int
    bytes: int
    parts: dict[str, int]


def kv_bytes_per_token(setup: Setup, rank: int) -> Figure:
    """Return what one token takes on a rank, as TensorRT-LLM reckons it."""
    return Figure.exact(_token_cost(setup, rank).billed)


def kv_pool_component(setup: Setup, rank: int, used: Figure) -> tuple[Component, Figure]:
    """Return the cache of a rank on which the rest takes `used`, and how many tokens it holds."""
    cost = _token_cost(setup, rank)
    if not cost.billed:
        return Component("kv_pool", Figure.exact(0), "the model has no attention"), Figure.exact(0)
    if not setup.running.paged_kv and setup.running.backend == ENGINE_FLOW:
        return _contiguous_pool(setup, cost)
    if setup.device is None:
        return _pool_without_device(setup, cost)
    total = setup.device.total_bytes
    middle, least, most = (
        _plan_cache(setup, cost, total - used_bytes) for used_bytes in (used.value, used.high, used.low)
    )
    source = used.source if used.source.startswith("measured") else "formula"
    if _is_limited_by_max_tokens(setup, middle):
        source = "given"
    size = Figure(middle.bytes, min(least.bytes, middle.bytes), max(most.bytes, middle.bytes), source)
    tokens = Figure(middle.tokens, min(least.tokens, middle.tokens), max(most.tokens, middle.tokens), source)
    return Component("kv_pool", size, _explain_pool(setup, cost, middle, total - used.value), middle.parts), tokens


def _is_limited_by_max_tokens(setup: Setup, plan: _CachePlan) -> bool:
    max_tokens = setup.running.max_tokens
    return bool(max_tokens) and plan.tokens >= max_tokens - setup.limits.tokens_per_block


def _plan_cache(setup: Setup, cost: TokenCost, available: int) -> _CachePlan:
    running, limits = setup.running, setup.limits
    budget = max(available, 0) * running.free_fraction
    if running.max_kv_bytes:
        budget = min(budget, running.max_kv_bytes)
    up = setup.is_engine or not is_since_release(running.version, ROUNDS_DOWN_SINCE)
    if len(cost.by_window) > 1:
        return _plan_windowed_cache(setup, cost, budget, up=up)
    self_budget = budget * (1 - CROSS_SHARE) if setup.dims.encoder_layers else budget
    pool = block_pool(self_budget, cost.billed, cost.allocated, limits.tokens_per_block, most=running.max_tokens, up=up)
    if setup.dims.encoder_layers:
        return _CachePlan(pool.tokens, 2 * pool.bytes, {"self": pool.bytes, "cross": pool.bytes})
    return _CachePlan(pool.tokens, pool.bytes, {})


def _plan_windowed_cache(setup: Setup, cost: TokenCost, budget: float, *, up: bool) -> _CachePlan:
    """Return one pool for each window; max_tokens says nothing then, and the widest window bounds a sequence."""
    shares = window_shares(len(cost.by_window), setup.running.env.get("TRTLLM_WINDOW_SIZE_SHARES", ""))
    pools: list[BlockPool] = [
        block_pool(budget * share, size, size, setup.limits.tokens_per_block, up=up)
        for (_, size), share in zip(cost.by_window, shares, strict=True)
    ]
    parts = {f"window {window}": pool.bytes for (window, _), pool in zip(cost.by_window, pools, strict=True)}
    return _CachePlan(pools[-1].tokens, sum(pool.bytes for pool in pools), parts)


def block_pool(
    budget: float, billed: int, allocated: int, tokens_per_block: int, *, most: int = 0, up: bool = False
) -> BlockPool:
    """Return the pool a budget gives. `billed`: what it is divided by; `allocated`: what a token then takes."""
    if budget <= 0 or billed <= 0:
        return BlockPool(0, 0)
    tokens = int(budget / billed)
    if most:
        tokens = min(tokens, most)
    blocks = ceil_div(tokens, tokens_per_block) if up else tokens // tokens_per_block
    return BlockPool(blocks * tokens_per_block, blocks * tokens_per_block * allocated)


def window_shares(windows: int, stated: str) -> tuple[float, ...]:
    """Return each window's share of the memory: equal ones, or those of TRTLLM_WINDOW_SIZE_SHARES."""
    try:
        shares = [float(share) for share in stated.split(",")] if stated else []
    except ValueError:
        shares = []
    if len(shares) == windows and all(share > 0 for share in shares):
        return tuple(share / sum(shares) for share in shares)
    return (1 / windows,) * windows


def _contiguous_pool(setup: Setup, cost: TokenCost) -> tuple[Component, Figure]:
    limits = setup.limits
    tokens = limits.max_batch_size * limits.max_beam_width * limits.max_seq_len
    why = (
        f"not paged: {limits.max_batch_size} sequences x {limits.max_beam_width} beams x {limits.max_seq_len} tokens "
        f"x {group_digits(cost.allocated)} bytes"
    )
    return Component("kv_pool", Figure.exact(tokens * cost.allocated), why), Figure.exact(tokens)


def _pool_without_device(setup: Setup, cost: TokenCost) -> tuple[Component, Figure]:
    """Without a GPU to fill, the pool is what was asked for, or the least that works: one sequence."""
    limits, running = setup.limits, setup.running
    tokens = running.max_tokens or limits.max_seq_len * limits.max_beam_width
    pool = block_pool(tokens * cost.billed, cost.billed, cost.allocated, limits.tokens_per_block, up=True)
    why = "max_tokens" if running.max_tokens else "one sequence of max_seq_len; name a GPU to see how much is left"
    return Component("kv_pool", Figure.exact(pool.bytes), why), Figure.exact(pool.tokens)


def _explain_pool(setup: Setup, cost: TokenCost, plan: _CachePlan, available: int) -> str:
    running = setup.running
    reasons = [f"{running.free_fraction:g} of the {format_bytes(max(available, 0))} left"]
    if _is_limited_by_max_tokens(setup, plan):
        reasons = [f"max_tokens {running.max_tokens}"]
    reasons.append(f"{group_digits(cost.billed)} bytes a token")
    if cost.allocated != cost.billed:
        reasons.append(f"{group_digits(cost.allocated)} with the layers that guess tokens ahead")
    if len(cost.by_window) > 1:
        reasons.append("in one pool for each window size")
    if running.host_cache_bytes:
        blocks = running.host_cache_bytes // cost.allocated // setup.limits.tokens_per_block
        reasons.append(f"{group_digits(blocks * setup.limits.tokens_per_block)} more tokens in host memory")
    return "; ".join(reasons)


def _token_cost(setup: Setup, rank: int) -> TokenCost:
    stage = pipeline_stage(setup.layout, rank)
    kind = setup.formats.kv or setup.formats.dtype
    limits = setup.limits
    windows = limits.max_attention_window
    cost = stage_token_cost(setup.dims, setup.layout, kind, stage, windows, limits.max_seq_len if windows else 0)
    guessing = count_mtp_layers(setup)
    if guessing:
        bytes_per_layer = kv_layer_bytes(setup.dims, setup.layout, kind, setup.dims.num_kv_heads)
        ahead = guessing * bytes_per_layer if stage == setup.layout.pp - 1 else 0
        cost = TokenCost(
            cost.billed + _billed_mtp_bytes(setup, ahead, cost.billed), cost.allocated + ahead, cost.by_window
        )
    if setup.draft is not None:
        cost = _add_draft_cost(setup.draft, setup.layout, kind, stage, cost)
    return cost


def _billed_mtp_bytes(setup: Setup, ahead: int, model: int) -> int:
    """Return what a release adds to a token for the layers that guess ahead, which take `ahead`."""
    running = setup.running
    apart = running.backend != ENGINE_FLOW and not setup.layout.attention_dp and not running.disaggregated_tokens
    if not apart or not is_since_release(running.version, BILLS_MTP_SINCE):
        return 0
    return ahead if is_since_release(running.version, BILLS_MTP_RIGHTLY_SINCE) else model


def _add_draft_cost(draft: Dims, layout: ParallelLayout, kind: str, stage: int, cost: TokenCost) -> TokenCost:
    """Return the cost with a draft model's layers: a head's are on the last stage, a model's on all."""
    if draft.num_layers < max(layout.pp, 5):
        layers = draft.num_layers if stage == layout.pp - 1 else 0
        extra = layers * kv_layer_bytes(draft, layout, kind, draft.num_kv_heads)
    else:
        extra = stage_token_cost(draft, layout, kind, stage, (), 0).allocated
    return TokenCost(cost.billed + extra, cost.allocated + extra, cost.by_window)


@lru_cache(maxsize=16384)
def stage_token_cost(
    dims: Dims, layout: ParallelLayout, kind: str, stage: int, windows: tuple[int, ...], longest: int
) -> TokenCost:
    """Return what a token takes in the layers of a pipeline stage."""
    by_window: dict[int, int] = {}
    layers = decoder_layers_of(dims)
    for at in stage_layer_range(dims.num_layers, layout.pp, layout.pp_partition, stage):
        layer = layers[at]
        if layer.mixer != ATTENTION or layer.shares_kv:
            continue
        window = windows[at % len(windows)] if windows else 0
        window = min(window, longest) if window else longest
        size = (
            compressed_layer_bytes(dims, kind, layer.compress_ratio)
            if dims.compress_ratios
            else kv_layer_bytes(dims, layout, kind, layer.kv_heads, layer.head_dim)
        )
        by_window[window] = by_window.get(window, 0) + size
    total = sum(by_window.values())
    return TokenCost(total, total, tuple(sorted(by_window.items())))


def kv_layer_bytes(dims: Dims, layout: ParallelLayout, kind: str, kv_heads: int, head_dim: int = 0) -> int:
    """Return what one layer keeps of a token: keys and values of this rank's heads, or the shared latent."""
    if dims.mla:
        return kv_element_bytes(dims.kv_lora_rank + dims.qk_rope_head_dim, kind) + indexer_key_bytes(dims)
    heads = kv_heads if layout.attention_dp else ceil_div(kv_heads, layout.tp)
    width = head_dim or dims.head_dim
    return kv_element_bytes(heads * (width + (dims.v_head_dim or width)), kind)


def compressed_layer_bytes(dims: Dims, kind: str, ratio: int) -> int:
    """Return a token's part of what a layer of DeepSeek V4 keeps of all tokens (deepseek_v4/cache_manager.py@v1.3.0rc22)."""
    if ratio <= 1:
        return 0
    indexed = indexer_key_bytes(dims) // ratio if ratio == OVERLAPPING_RATIO else 0
    return kv_element_bytes(dims.head_dim, kind) // ratio + indexed


def compressor_state_bytes(dims: Dims, kind: str, ratio: int, block: int) -> int:
    """Return what a layer of DeepSeek V4 keeps of a sequence however long it is: a window, and half-compressed tokens.

    Keys and scores of the latter are in 32 bit; all are in whole blocks.
    """
    window_bytes = pad_to_multiple(max(dims.windows, default=DEEPSEEK_V4_WINDOW), block) * kv_element_bytes(
        dims.head_dim, kind
    )
    if ratio <= 1:
        return window_bytes
    twice = 2 if ratio == OVERLAPPING_RATIO else 1
    width = dims.head_dim + (dims.index_head_dim if ratio == OVERLAPPING_RATIO else 0)
    return window_bytes + pad_to_multiple(twice * ratio, block) * 2 * twice * width * 4


def indexer_key_bytes(dims: Dims) -> int:
    """Return a token's key in the indexer of sparse attention: in FP8, with a scale for each 128 numbers."""
    return dims.index_head_dim + 4 * ceil_div(dims.index_head_dim, 128) if dims.index_heads else 0


def kv_element_bytes(numbers: int, kind: str) -> int:
    if kind == "nvfp4":
        return ceil_div(numbers, 2) + ceil_div(numbers, 16)  # and a scale for each 16
    return numbers * _KV_BITS.get(kind, 16) // 8


def recurrent_state(setup: Setup, rank: int) -> Component | None:
    """Return the state of recurrent layers: a slot for each sequence that may run at once."""
    dims, layout = setup.dims, setup.layout
    if dims.compress_ratios:
        return _compressor_state(setup, rank)
    if not dims.state_layers or not dims.state_bytes_per_sequence:
        return None
    layers = decoder_layers_of(dims)
    here = rank_layer_range(dims, layout, rank)
    count = sum(layers[at].mixer == STATE for at in here)
    slots = setup.limits.max_batch_size * layout.pp
    bytes_per_slot = dims.state_bytes_per_sequence * count // dims.state_layers
    bytes_per_slot = bytes_per_slot if layout.attention_dp else ceil_div(bytes_per_slot, layout.tp)
    why = f"{format_large_count(slots, 'sequence')} x {group_digits(bytes_per_slot)} bytes"
    return Component("recurrent_state", Figure.with_tolerance(slots * bytes_per_slot, 0.1), why)


def _compressor_state(setup: Setup, rank: int) -> Component:
    dims, layout, limits = setup.dims, setup.layout, setup.limits
    kind = setup.formats.kv or setup.formats.dtype
    layers = decoder_layers_of(dims)
    here = rank_layer_range(dims, layout, rank)
    bytes_per_sequence = sum(
        compressor_state_bytes(dims, kind, layers[at].compress_ratio, limits.tokens_per_block) for at in here
    )
    why = f"{format_large_count(limits.max_batch_size, 'sequence')} x {group_digits(bytes_per_sequence)} bytes of windows and half-compressed tokens"
    return Component("recurrent_state", Figure.with_tolerance(limits.max_batch_size * bytes_per_sequence, 0.1), why)
