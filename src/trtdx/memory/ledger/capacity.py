"""What follows from a plan: how many requests fit, and which component is the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from trtdx.knowledge.versions import kernels_of
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtdx.memory.nouns import Device, MemoryLedger, RankLedger, Setup

    Planner = Callable[[Setup], MemoryLedger]

STEP_LIMIT = "max_num_tokens"
TYPICAL_LENGTH = 4096
# What of a model grows with nothing but the model itself.
FIXED_COMPONENTS = (
    "weights",
    "draft_weights",
    "encoder_weights",
    "cuda_context",
    "other_process",
    "host_memory",
)


def with_limits(setup: Setup, **limits: int) -> Setup:
    """Return the set-up with other limits, which then count as said."""
    sources = setup.said | dict.fromkeys(limits, "asked for")
    return replace(setup, limits=replace(setup.limits, **limits), said=sources)


def place_on_device(setup: Setup, device: Device) -> Setup:
    return replace(setup, device=device)


def cache_tokens_needed(setup: Setup, batch: int, length: int) -> int:
    """Return the cache tokens of so many requests at their full length, each in whole blocks."""
    block = setup.limits.tokens_per_block
    padded_length = -(-length // block) * block
    return batch * padded_length * setup.limits.max_beam_width


def holds_load(ledger: MemoryLedger, batch: int, length: int) -> bool:
    """Whether a plan fits and its cache has room for so many requests at their full length."""
    return bool(ledger.fits) and count_requests(ledger, length) >= batch


def count_requests(ledger: MemoryLedger, length: int) -> int:
    """Return how many requests of a length the caches hold at once."""
    requests_per_cache = ledger.kv_tokens.value // max(cache_tokens_needed(ledger.setup, 1, length), 1)
    heard = ledger.setup.dims.encoder_positions
    if heard:  # the cross-attention's cache has as many tokens, and each request fills so many of them
        requests_per_cache = min(
            requests_per_cache, ledger.kv_tokens.value // cache_tokens_needed(ledger.setup, 1, heard)
        )
    return requests_per_cache * count_caches(ledger.setup)


def count_caches(setup: Setup) -> int:
    """Return how many caches there are for different requests: with attention data parallelism each rank has its own."""
    return setup.layout.tp if setup.layout.attention_dp else 1


def typical_request_length(setup: Setup) -> int:
    """Return the length that requests are told for: as said, or a usual one."""
    if not setup.is_assumed("max_seq_len"):
        return setup.limits.max_seq_len
    return min(TYPICAL_LENGTH, setup.limits.max_seq_len)


def bytes_beside_cache(rank: RankLedger) -> int:
    """Return what a rank holds beside its cache."""
    return rank.total_bytes.value - rank.component_bytes("kv_pool")


def limiting_component(rank: RankLedger) -> str:
    """Return the component because of which a rank has no room, as a table calls it."""
    fixed = sum(rank.component_bytes(name) for name in FIXED_COMPONENTS)
    if rank.capacity and fixed >= rank.capacity:
        return COMPONENTS["weights"]
    growing = [component for component in rank.components if component.name not in (*FIXED_COMPONENTS, "kv_pool")]
    if rank.capacity and bytes_beside_cache(rank) >= rank.capacity and growing:
        return COMPONENTS[max(growing, key=lambda component: component.bytes.value).name]
    return COMPONENTS["kv_pool"]


def least_sequences_held(setup: Setup) -> int:
    """Return how many sequences the cache must hold to be made at all: a paged one may make others wait."""
    return 1 if setup.running.paged_kv else setup.limits.max_batch_size


def sequence_bytes(setup: Setup, rank: RankLedger) -> int:
    """Return what one sequence of the full length takes of the cache."""
    return setup.limits.max_seq_len * setup.limits.max_beam_width * rank.kv_bytes_per_token.value


def largest_beside_weights(rank: RankLedger) -> str:
    """Return what takes most beside the weights, where these are what stands in the way."""
    name = limiting_component(rank)
    if name != COMPONENTS["weights"]:
        return name
    beside = [component for component in rank.components if component.name not in ("weights", "kv_pool")]
    return COMPONENTS[max(beside, key=lambda component: component.bytes.value).name] if beside else name


def smallest_placement(
    setup: Setup, devices: tuple[Device, ...], sizes: Sequence[int], planner: Planner = plan_memory
) -> Setup | None:
    """Return the set-up on the GPUs with the least memory together on which it runs well.

    Args:
        setup: as asked, without a device.
        devices: the GPUs there are.
        sizes: of tensor parallelism, to be tried where it was not said.
        planner: makes plans.
    """
    homes = sorted(
        ((size, device) for size in sizes for device in devices if has_kernels(setup, device)),
        key=lambda home: (home[0] * home[1].total_bytes, home[0]),
    )
    for size, device in homes:
        placed = place_on_device(setup, device)
        if size != setup.layout.tp:
            placed = replace(placed, layout=replace(setup.layout, tp=size), weights_by_rank=())
        ledger = planner(placed)
        if (
            ledger.fits
            and not fits_narrowly(ledger.tightest_rank)
            and count_requests(ledger, typical_request_length(setup)) >= 1
        ):
            return placed
    return None


def fits_narrowly(rank: RankLedger) -> bool:
    """Whether a plan that fits would not if its figures were at the upper end of their bands."""
    beside = sum(component.bytes.high for component in rank.components if component.name != "kv_pool")
    return bool(rank.fits and (beside >= rank.capacity or rank.kv_tokens.low <= 0))


def has_kernels(setup: Setup, device: Device) -> bool:
    """Whether the release has kernels for a GPU, and the GPU some for the formats that are asked for."""
    from trtdx.memory.model.format_names import KV_LEAST_SM, WEIGHT_FORMATS

    release = kernels_of(setup.release)
    if release is not None and not release.serve(device.sm):
        return False
    form = WEIGHT_FORMATS.get(setup.formats.weights)
    least = max(form.least_sm if form else 0, KV_LEAST_SM.get(setup.formats.kv, 0))
    if setup.formats.dtype == "bfloat16":
        least = max(least, 80)
    return device.sm >= least
