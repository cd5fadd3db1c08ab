"""Lower bounds of a step's time: what must be read, computed and exchanged, by the GPU's best figures.

Nothing real is faster: kernels read each weight at least once, the cache of every request once, and multiply every
weight with every token. What overlaps is assumed to overlap wholly, so a bound is the largest of the three.
Assumptions: even routing to experts, attention at the speed of the weights' format, no drafts.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.memory.ledger.decoder_layers import rank_layer_range
from trtdx.memory.ledger.kv_cache import kv_bytes_per_token
from trtdx.memory.ledger.weights import count_parameters, rank_weights

if TYPE_CHECKING:
    from trtdx.memory.nouns import Dims, Setup

ACTIVATION_BYTES = 2
PRACTICAL = 0.8  # of the bandwidth, that good kernels reach (aiconfigurator's own assumption)
_NOT_READ = frozenset({"embedding", "positions", "token_inputs", "mtp"})  # a row for each token at most


class GpuSpeeds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU can do at most."""

    name: str
    memory: float  # GB/s
    bf16: float  # TFLOPS, dense
    fp8: float = 0
    fp4: float = 0
    link: float = 0  # GB/s, one way
    source: str = ""


class _SpeedTable(msgspec.Struct, frozen=True):
    gpu: tuple[GpuSpeeds, ...]


class StepBound(NamedTuple):
    """The least time of one step, in seconds, and what it is made of."""

    memory_s: float
    compute_s: float
    link_s: float
    read_bytes: float
    flops: float

    @property
    def seconds(self) -> float:
        return max(self.memory_s, self.compute_s, self.link_s)

    @property
    def binding(self) -> str:
        """What no kernel can get around."""
        times = {"memory bandwidth": self.memory_s, "compute": self.compute_s, "links between GPUs": self.link_s}
        return max(times, key=times.__getitem__)


@cache
def _all_speeds() -> dict[str, GpuSpeeds]:
    data = resources.files("trtdx").joinpath("data/gpu_speeds.toml").read_bytes()
    return {gpu.name: gpu for gpu in msgspec.toml.decode(data, type=_SpeedTable).gpu}


def speeds_of(setup: Setup) -> GpuSpeeds | None:
    """Return what the set-up's GPU can do; None where that is not known."""
    return _all_speeds().get(setup.device.name) if setup.device else None


def bound_decode_step(setup: Setup, speeds: GpuSpeeds, batch: int, context: int) -> StepBound:
    """Return the bound of a step in which each of some requests, with so many tokens behind it, gets one more."""
    own = _own_share(setup, batch)
    cache = kv_bytes_per_token(setup, 0).value * own * context * _attended_share(setup.dims, context)
    read = _weights_read(setup, own) + cache
    flops = _flops(setup, own, heads=own) + _attention_flops(setup, own * context)
    return _bound(setup, speeds, read, flops, own)


def bound_prefill_step(setup: Setup, speeds: GpuSpeeds, tokens: int, requests: int = 1) -> StepBound:
    """Return the bound of a step that works on prompts of so many tokens together; only their ends get logits."""
    own = _own_share(setup, tokens)
    length = tokens / max(requests, 1)
    flops = _flops(setup, own, heads=requests) + _attention_flops(setup, own * length / 2)
    return _bound(setup, speeds, _weights_read(setup, own), flops, own)


def bound_throughput(setup: Setup, speeds: GpuSpeeds, batch: int, lengths: tuple[int, int]) -> float:
    """Return the most output tokens in a second of all GPUs, with so many requests of (input, output) tokens at once."""
    prompt, output = lengths
    decode = bound_decode_step(setup, speeds, batch, prompt + output // 2).seconds
    prefill = bound_prefill_step(setup, speeds, batch * prompt, batch).seconds
    return batch * output / (output * decode + prefill) * setup.layout.pp


def _own_share(setup: Setup, count: float) -> float:
    """Return the tokens or requests of one rank: with attention data parallelism each has its own."""
    return count / setup.layout.tp if setup.layout.attention_dp else count


def _bound(setup: Setup, speeds: GpuSpeeds, read: float, flops: float, tokens: float) -> StepBound:
    return StepBound(
        memory_s=read / (speeds.memory * 1e9),
        compute_s=flops / (_peak(setup, speeds) * 1e12),
        link_s=_link_seconds(setup, speeds, tokens),
        read_bytes=read,
        flops=flops,
    )


def _weights_read(setup: Setup, tokens: float) -> float:
    """Return the bytes of weights that a step reads on the first rank: all, but only the experts that have tokens."""
    parts = rank_weights(setup, 0).parts
    read = float(sum(size for part, size in parts.items() if part not in _NOT_READ and part != "experts"))
    if "lm_head" not in parts and setup.layout.pp == 1:
        read += parts.get("embedding", 0)  # the table is the head
    return read - _kept_twice(setup) + parts.get("experts", 0) * _touched_share(setup.dims, tokens)


def _attended_share(dims: Dims, context: int) -> float:
    """Return the share of earlier tokens that layers look at: of those with a window only its width."""
    if not dims.windows or not context:
        return 1.0
    return sum(min(window or context, context) for window in dims.windows) / (len(dims.windows) * context)


def _kept_twice(setup: Setup) -> float:
    """Return what latent attention keeps a second time and a step does not read."""
    dims = setup.dims
    if not dims.mla:
        return 0.0
    layers = len(rank_layer_range(dims, setup.layout, 0))
    heads = dims.num_heads / (1 if setup.layout.attention_dp else setup.layout.tp)
    return layers * heads * (dims.qk_nope_head_dim + dims.v_head_dim) * dims.kv_lora_rank * ACTIVATION_BYTES


def _touched_share(dims: Dims, tokens: float) -> float:
    """Return the share of experts that at least one token goes to, where routing is even."""
    if not dims.num_experts:
        return 1.0
    untouched: float = (1.0 - dims.experts_per_token / dims.num_experts) ** max(tokens, 1.0)
    return 1.0 - untouched


@cache
def _active_parameters(dims: Dims, model: str) -> tuple[float, float]:
    """Return the parameters that each token is multiplied with, and those of the output head among them."""
    table = dims.vocab_size * dims.hidden_size
    total = count_parameters(dims, model) - (0 if dims.tied else table)
    if dims.num_experts:
        inner = dims.moe_intermediate_size or dims.intermediate_size
        one = (3 if dims.gated else 2) * (dims.moe_latent_size or dims.hidden_size) * inner
        layers = (dims.num_layers - dims.dense_layers) // dims.moe_every
        total -= layers * one * (dims.num_experts - dims.experts_per_token)
    return float(total), float(table)


def _flops(setup: Setup, tokens: float, heads: float) -> float:
    """Return the work of matrix products on one rank; `heads` tokens go through the output head."""
    total, head = _active_parameters(setup.dims, setup.model)
    world = setup.layout.pp * (1 if setup.layout.attention_dp else setup.layout.tp)
    return 2.0 * ((total - head) * tokens + head * heads) / world


def _attention_flops(setup: Setup, pairs: float) -> float:
    """Return the work of attention on one rank for so many pairs of a token and one before it."""
    dims = setup.dims
    layers = len(rank_layer_range(dims, setup.layout, 0))
    if dims.attention_layers is not None:
        layers = min(layers, dims.attention_layers)
    width = dims.qk_nope_head_dim + dims.qk_rope_head_dim + dims.v_head_dim if dims.mla else 2 * dims.head_dim
    heads = dims.num_heads / (1 if setup.layout.attention_dp else setup.layout.tp)
    return 2.0 * layers * heads * width * pairs


def _peak(setup: Setup, speeds: GpuSpeeds) -> float:
    """Return the TFLOPS of the format that products are made in; weights alone in fewer bits change nothing."""
    formats = setup.formats.weights
    if "NVFP4" in formats or "MXFP4" in formats:
        return max(speeds.fp4, speeds.fp8, speeds.bf16)
    return max(speeds.fp8, speeds.bf16) if "FP8" in formats or "A8" in formats else speeds.bf16


def _link_seconds(setup: Setup, speeds: GpuSpeeds, tokens: float) -> float:
    """Return the least time of two all-reduces in each layer; none with attention data parallelism."""
    ranks = setup.layout.tp
    if ranks < 2 or setup.layout.attention_dp or not speeds.link:
        return 0.0
    layers = len(rank_layer_range(setup.dims, setup.layout, 0))
    message = tokens * setup.dims.hidden_size * ACTIVATION_BYTES
    return 2 * layers * 2 * (ranks - 1) / ranks * message / (speeds.link * 1e9)
