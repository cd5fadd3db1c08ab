"""The plan: each rank's ledger, composed in the order in which TensorRT-LLM allocates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from trtdx.memory.ledger.buffers import late_logits, rank_buffers
from trtdx.memory.ledger.draft_weights import draft_weights
from trtdx.memory.ledger.engine_activation import engine_activation
from trtdx.memory.ledger.kv_cache import kv_bytes_per_token, kv_pool_component
from trtdx.memory.ledger.torch_activation import torch_activation
from trtdx.memory.ledger.weights import encoder_weights, rank_weights
from trtdx.memory.model.families import unmodelled_parts
from trtdx.memory.nouns import (
    COMPONENT_ORDER,
    COMPONENTS,
    Component,
    Figure,
    MemoryLedger,
    RankLedger,
    sum_figures,
)
from trtdx.words import format_bytes, group_digits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.ledger.calibration import CalibrationConstants
    from trtdx.memory.nouns import Setup


def plan_memory(setup: Setup, constants: CalibrationConstants | None = None) -> MemoryLedger:
    """Return what every rank of a set-up holds, and whether it fits."""
    stages = [_plan_stage(setup, stage * _ranks_per_stage(setup), constants) for stage in range(setup.layout.pp)]
    tightest = min((stage.kv_tokens for stage in stages), key=lambda figure: figure.value)
    stages = [_share_tokens(setup, stage, tightest) for stage in stages]
    ranks = tuple(
        replace(stage, rank=stage.rank + offset) for stage in stages for offset in range(_ranks_per_stage(setup))
    )
    return MemoryLedger(setup=setup, ranks=ranks, notes=tuple(_unmodelled_notes(setup)))


def _unmodelled_notes(setup: Setup) -> Iterator[str]:
    """Yield that the figures of an architecture are no more than a rough guess."""
    missing = unmodelled_parts(setup.dims.model_type)
    if missing:
        yield (
            f"a rough guess: trtdx does not model {setup.dims.model_type}, and does not count {missing}. Weights and "
            "cache may be off by a third; the log of a start tells more: trtdx memory log FILE"
        )


def _ranks_per_stage(setup: Setup) -> int:
    """The ranks of one pipeline stage hold the same amounts."""
    return setup.layout.tp * setup.layout.cp


def _plan_stage(setup: Setup, rank: int, constants: CalibrationConstants | None) -> RankLedger:
    used = [_weights_component(setup, rank), _activation_component(setup, rank), *rank_buffers(setup, rank)]
    used += filter(None, (draft_weights(setup, rank), encoder_weights(setup), *_host_memory(setup)))
    if constants is not None:
        used = [constants.apply_factor(setup, component) for component in used]
    pool, tokens = kv_pool_component(setup, rank, sum_figures(component.bytes for component in used))
    components = (
        *sorted(used, key=lambda component: COMPONENT_ORDER[component.name]),
        pool,
        *_late_components(setup, rank),
    )
    return RankLedger(
        rank=rank,
        components=tuple(component for component in components if component.bytes.high),
        kv_bytes_per_token=kv_bytes_per_token(setup, rank),
        kv_tokens=tokens,
        total_bytes=sum_figures(component.bytes for component in components),
        capacity=setup.device.total_bytes if setup.device else 0,
    )


# On an integrated GPU cudaMemGetInfo tells MemFree of the whole machine: of 121.7 GiB a DGX Spark had 102 to 117 free
# before anything was loaded, and the page cache of the files that are read counts as used until it is dropped. A host
# cache is no second tier there (TensorRT-LLM issue 15793).
HOST_SHARE, LEAST_HOST_SHARE, MOST_HOST_SHARE = 0.07, 0.03, 0.16


def _host_memory(setup: Setup) -> list[Component]:
    device = setup.device
    if device is None or not device.unified:
        return []
    total, cache = device.total_bytes, setup.running.host_cache_bytes
    usual, least, most = (round(total * share) + cache for share in (HOST_SHARE, LEAST_HOST_SHARE, MOST_HOST_SHARE))
    extra = f", {format_bytes(cache)} of host cache" if cache else ""
    why = f"one memory for both: system, process{extra}; file cache counts until dropped"
    return [Component("host_memory", Figure(usual, least, most, "formula"), why)]


def _late_components(setup: Setup, rank: int) -> tuple[Component, ...]:
    """Return what is allocated from what the cache leaves; a batch that nobody asked for may never be full."""
    if setup.running.backend != "tensorrt" and setup.is_assumed("max_batch_size"):
        return ()
    return (late_logits(setup, rank),)


def _weights_component(setup: Setup, rank: int) -> Component:
    if setup.weights_by_rank:
        return Component("weights", setup.weights_by_rank[min(rank, len(setup.weights_by_rank) - 1)])
    return rank_weights(setup, rank)


def _activation_component(setup: Setup, rank: int) -> Component:
    if setup.activation is not None:
        return Component("activation", setup.activation)
    return formula_activation(setup, rank)


def formula_activation(setup: Setup, rank: int) -> Component:
    """Return what the largest step of a backend needs on a rank beside weights and cache."""
    return engine_activation(setup, rank) if setup.is_engine else torch_activation(setup, rank)


def _share_tokens(setup: Setup, ledger: RankLedger, tokens: Figure) -> RankLedger:
    """Return the ledger of a rank that keeps only as many tokens as the tightest one, and its verdict."""
    pool = ledger.find_component("kv_pool")
    rank_tokens = ledger.kv_tokens.value
    if pool is not None and tokens.value < rank_tokens:
        share = tokens.value / rank_tokens
        figure = replace(
            pool.bytes,
            value=round(pool.bytes.value * share),
            low=round(pool.bytes.low * share),
            high=max(round(pool.bytes.high * share), round(pool.bytes.value * share)),
        )
        components = tuple(
            replace(component, bytes=figure) if component is pool else component for component in ledger.components
        )
        ledger = replace(
            ledger,
            components=components,
            kv_tokens=tokens,
            total_bytes=sum_figures(component.bytes for component in components),
        )
    return _judge_fit(setup, ledger)


def _judge_fit(setup: Setup, ledger: RankLedger) -> RankLedger:
    if not ledger.capacity:
        return ledger
    used = sum(component.bytes.value for component in ledger.components if component.name not in ("kv_pool", "logits"))
    needed = _least_cache_tokens(setup)
    # A pool that holds nothing was asked for from what was not there.
    lacking = max(needed - ledger.kv_tokens.value, 0) * ledger.kv_bytes_per_token.value
    short = max(ledger.total_bytes.value - ledger.capacity, 0)
    if lacking:
        short = max(short, lacking + max(used - ledger.capacity, 0))
    why = _explain_shortage(setup, ledger, needed) if short else ""
    return replace(ledger, fits=not short, short_bytes=short, why_not=why)


def _least_cache_tokens(setup: Setup) -> int:
    """At least one sequence must fit; where nobody said how long, TensorRT-LLM shortens it to what there is."""
    limits = setup.limits
    beams = limits.max_beam_width
    if setup.is_assumed("max_seq_len"):
        return limits.tokens_per_block * beams
    return limits.max_seq_len * beams


def _explain_shortage(setup: Setup, ledger: RankLedger, needed: int) -> str:
    total = 0
    for component in ledger.components:
        total += component.bytes.value
        if total > ledger.capacity:
            name = COMPONENTS[component.name]
            return f"{name}: {format_bytes(total)} of {format_bytes(ledger.capacity)} with what comes before"
    return (
        f"{COMPONENTS['kv_pool']}: {group_digits(ledger.kv_tokens.value)} tokens, "
        f"and {group_digits(needed)} are needed (max_seq_len {setup.limits.max_seq_len})"
    )
