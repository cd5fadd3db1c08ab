"""The plan: each rank's ledger, composed in the order in which TensorRT-LLM allocates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.memory.ledger.activation import activation_of
from trtdx.memory.ledger.buffers import buffers_of, late_logits
from trtdx.memory.ledger.draft_weights import draft_weights_of
from trtdx.memory.ledger.kv_cache import kv_bytes_per_token, kv_pool
from trtdx.memory.ledger.weights import encoder_weights_of, weights_of
from trtdx.memory.model.families import unmodelled
from trtdx.memory.nouns import COMPONENTS, Component, Figure, Ledger, RankLedger, summed
from trtdx.words import size_in_words, thousands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.ledger.calibration import Constants
    from trtdx.memory.nouns import Setup

_ORDER = {name: at for at, name in enumerate(COMPONENTS)}
ASSUMED = "default"  # what `Setup.said` begins with where nobody said a thing


def plan(setup: Setup, constants: Constants | None = None) -> Ledger:
    """Return what every rank of a set-up holds, and whether it fits."""
    stages = [_stage(setup, stage * _ranks_per_stage(setup), constants) for stage in range(setup.layout.pp)]
    tightest = min((each.kv_tokens for each in stages), key=lambda figure: figure.value)
    stages = [_shared(setup, each, tightest) for each in stages]
    ranks = tuple(
        msgspec.structs.replace(stage, rank=stage.rank + offset)
        for stage in stages
        for offset in range(_ranks_per_stage(setup))
    )
    return Ledger(setup=setup, ranks=ranks, notes=tuple(_not_modelled(setup)))


def _not_modelled(setup: Setup) -> Iterator[str]:
    """Yield that the figures of an architecture are no more than a rough guess."""
    missing = unmodelled(setup.dims.model_type)
    if missing:
        yield (
            f"a rough guess: trtdx does not model {setup.dims.model_type}, and does not count {missing}. Weights and "
            "cache may be off by a third; the log of a start tells more: trtdx memory log FILE"
        )


def _ranks_per_stage(setup: Setup) -> int:
    """The ranks of one pipeline stage hold the same amounts."""
    return setup.layout.tp * setup.layout.cp


def _stage(setup: Setup, rank: int, constants: Constants | None) -> RankLedger:
    used = [_weights(setup, rank), _activation(setup, rank), *buffers_of(setup, rank)]
    used += [each for each in (draft_weights_of(setup, rank), encoder_weights_of(setup)) if each is not None]
    used += _host_share(setup)
    if constants is not None:
        used = [constants.applied(setup, each) for each in used]
    pool, tokens = kv_pool(setup, rank, summed(each.bytes for each in used))
    components = (*sorted(used, key=lambda each: _ORDER[each.name]), pool, *_late(setup, rank))
    return RankLedger(
        rank=rank,
        components=tuple(each for each in components if each.bytes.high),
        kv_bytes_per_token=kv_bytes_per_token(setup, rank),
        kv_tokens=tokens,
        total_bytes=summed(each.bytes for each in components),
        capacity=setup.device.total_bytes if setup.device else 0,
    )


# On an integrated GPU cudaMemGetInfo tells MemFree of the whole machine: of 121.7 GiB a DGX Spark had 102 to 117 free
# before anything was loaded, and the page cache of the files that are read counts as used until it is dropped. A host
# cache is no second tier there (TensorRT-LLM issue 15793).
HOST_SHARE, LEAST_HOST_SHARE, MOST_HOST_SHARE = 0.07, 0.03, 0.16


def _host_share(setup: Setup) -> list[Component]:
    device = setup.device
    if device is None or not device.unified:
        return []
    total, cache = device.total_bytes, setup.running.host_cache_bytes
    usual, least, most = (
        round(total * share) + cache for share in (HOST_SHARE, LEAST_HOST_SHARE, MOST_HOST_SHARE)
    )
    extra = f", {size_in_words(cache)} of host cache" if cache else ""
    why = f"one memory for both: system, process{extra}; file cache counts until dropped"
    return [Component("host_memory", Figure(usual, least, most, "formula"), why)]


def _late(setup: Setup, rank: int) -> tuple[Component, ...]:
    """Return what is allocated from what the cache leaves; a batch that nobody asked for may never be full."""
    if setup.running.backend != "tensorrt" and is_assumed(setup, "max_batch_size"):
        return ()
    return (late_logits(setup, rank),)


def is_assumed(setup: Setup, name: str) -> bool:
    """Return whether nobody said a thing, so that a default stands for it."""
    return setup.said.get(name, ASSUMED).startswith(ASSUMED)


def _weights(setup: Setup, rank: int) -> Component:
    if setup.weights_by_rank:
        return Component("weights", setup.weights_by_rank[min(rank, len(setup.weights_by_rank) - 1)])
    return weights_of(setup, rank)


def _activation(setup: Setup, rank: int) -> Component:
    if setup.activation is not None:
        return Component("activation", setup.activation)
    return activation_of(setup, rank)


def _shared(setup: Setup, ledger: RankLedger, tokens: Figure) -> RankLedger:
    """Return the ledger of a rank that keeps only as many tokens as the tightest one, and its verdict."""
    pool = ledger.component("kv_pool")
    own = ledger.kv_tokens.value
    if pool is not None and tokens.value < own:
        share = tokens.value / own
        figure = msgspec.structs.replace(
            pool.bytes,
            value=round(pool.bytes.value * share),
            low=round(pool.bytes.low * share),
            high=max(round(pool.bytes.high * share), round(pool.bytes.value * share)),
        )
        components = tuple(
            msgspec.structs.replace(each, bytes=figure) if each is pool else each
            for each in ledger.components
        )
        ledger = msgspec.structs.replace(
            ledger,
            components=components,
            kv_tokens=tokens,
            total_bytes=summed(each.bytes for each in components),
        )
    return _judged(setup, ledger)


def _judged(setup: Setup, ledger: RankLedger) -> RankLedger:
    if not ledger.capacity:
        return ledger
    used = sum(each.bytes.value for each in ledger.components if each.name not in ("kv_pool", "logits"))
    needed = _tokens_needed(setup)
    # A pool that holds nothing was asked for from what was not there.
    lacking = max(needed - ledger.kv_tokens.value, 0) * ledger.kv_bytes_per_token.value
    short = max(ledger.total_bytes.value - ledger.capacity, 0)
    if lacking:
        short = max(short, lacking + max(used - ledger.capacity, 0))
    why = _why_not(setup, ledger, needed) if short else ""
    return msgspec.structs.replace(ledger, fits=not short, short_bytes=short, why_not=why)


def _tokens_needed(setup: Setup) -> int:
    """At least one sequence must fit; where nobody said how long, TensorRT-LLM shortens it to what there is."""
    limits = setup.limits
    beams = limits.max_beam_width
    if is_assumed(setup, "max_seq_len"):
        return limits.tokens_per_block * beams
    return limits.max_seq_len * beams


def _why_not(setup: Setup, ledger: RankLedger, needed: int) -> str:
    total = 0
    for component in ledger.components:
        total += component.bytes.value
        if total > ledger.capacity:
            name = COMPONENTS[component.name]
            return (
                f"{name}: {size_in_words(total)} of {size_in_words(ledger.capacity)} with what comes before"
            )
    return (
        f"{COMPONENTS['kv_pool']}: {thousands(ledger.kv_tokens.value)} tokens, "
        f"and {thousands(needed)} are needed (max_seq_len {setup.limits.max_seq_len})"
    )
