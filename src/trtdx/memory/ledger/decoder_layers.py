"""The layers of a model: what each is made of, which pipeline stage has it, and how ranks cut it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trtdx.memory.ledger.weight_storage import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.model.families import ModelFamily
    from trtdx.memory.nouns import Dims, ParallelLayout

OVERLAPPING_RATIO = 4  # the ratio of DeepSeek V4's sparse layers, whose windows overlap and have an indexer
ATTENTION, STATE, DENSE, EXPERTS, NO_PART = "attention", "state", "dense", "experts", ""


PART_OF_MODULE = {"mlp.shared_experts": "shared_experts", "mlp.latent": "experts", "mixer": "recurrent"}


class DecoderLayer(NamedTuple):
    """One layer: what mixes tokens, and what comes after it."""

    mixer: str  # ATTENTION, STATE or NOTHING
    inner: str  # DENSE, EXPERTS or NOTHING
    kv_heads: int
    head_dim: int = 0  # 0: as all have it
    inner_size: int = 0
    shares_kv: bool = False  # keys and values are an earlier layer's
    keys_are_values: bool = False
    compress_ratio: int = 0


class ShardCounts(NamedTuple):
    """Into how many pieces each kind of weight is cut; this rank has one of each."""

    attention: int = 1
    output: int = 1  # the attention's output projection: context parallelism cuts it too
    inner: int = 1
    shared: int = 1
    expert: int = 1  # one expert's matrices
    experts: int = 1  # their number
    embedding: int = 1
    head: int = 1
    state: int = 1


class LayerMatrix(NamedTuple):
    """A matrix of a layer, as one rank has it."""

    name: str  # what patterns of excluded modules know it by
    rows: int
    columns: int

    @property
    def part(self) -> str:
        """Return the part of the ledger's weights that it counts for."""
        return PART_OF_MODULE.get(self.name) or ("attention" if self.name.startswith("self_attn.") else "mlp")


@lru_cache(maxsize=2048)
def decoder_layers_of(dims: Dims) -> tuple[DecoderLayer, ...]:
    """Return every layer of the decoder, in order."""
    mixers = _layer_mixers(dims)
    inners = _layer_inners(dims, mixers)
    return tuple(
        DecoderLayer(
            mixer,
            inners[at],
            _layer_value(dims.kv_heads_per_layer, at) or dims.num_kv_heads if mixer == ATTENTION else 0,
            _layer_value(dims.head_dim_per_layer, at) if mixer == ATTENTION else 0,
            _layer_value(dims.inner_per_layer, at) if inners[at] == DENSE else 0,
            mixer == ATTENTION and at >= dims.num_layers - dims.kv_shared_layers,
            mixer == ATTENTION and bool(_layer_value(dims.keys_are_values, at)),
            _layer_value(dims.compress_ratios, at),
        )
        for at, mixer in enumerate(mixers)
    )


def _layer_value(values: tuple[int, ...] | tuple[bool, ...], layer: int) -> int:
    """Return a layer's own value; lists that are too short begin again."""
    return values[layer % len(values)] if values else 0


def _layer_mixers(dims: Dims) -> list[str]:
    """Return what mixes tokens in each layer; where hybrids have attention is not known, so it is spread evenly."""
    count, states = dims.num_layers, min(dims.state_layers, dims.num_layers)
    attention = count - states
    if dims.attention_layers is not None:
        attention = min(dims.attention_layers, attention)
    if dims.kv_heads_per_layer and not states:
        return [ATTENTION if _layer_value(dims.kv_heads_per_layer, at) else NO_PART for at in range(count)]
    mixers = [NO_PART] * count
    for layer_count, name in ((attention, ATTENTION), (states, STATE)):
        free = [at for at, mixer in enumerate(mixers) if mixer == NO_PART]
        for step in range(layer_count):
            mixers[free[(2 * step + 1) * len(free) // (2 * layer_count)]] = name
    return mixers


def _layer_inners(dims: Dims, mixers: list[str]) -> list[str]:
    """Return what comes after the mixer in each layer."""
    if dims.mlp_layers is None:
        return [
            EXPERTS
            if dims.num_experts and at >= dims.dense_layers and (at + 1) % max(dims.moe_every, 1) == 0
            else NO_PART
            if dims.inner_per_layer and not _layer_value(dims.inner_per_layer, at)
            else DENSE
            for at in range(len(mixers))
        ]
    inners = [NO_PART] * len(mixers)  # each layer is one thing only
    free = [at for at, mixer in enumerate(mixers) if mixer == NO_PART]
    for step, at in enumerate(free):
        inners[at] = EXPERTS if dims.num_experts and step >= dims.mlp_layers else DENSE
    return inners


@lru_cache(maxsize=2048)
def stage_layer_range(count: int, pp: int, partition: tuple[int, ...], stage: int) -> range:
    """Return the layers of a pipeline stage; without a partition the first stages have one more."""
    if len(partition) == pp and sum(partition) == count:
        begin = sum(partition[:stage])
        return range(begin, begin + partition[stage])
    per_stage, over = divmod(count, pp)
    begin = stage * per_stage + min(stage, over)
    return range(begin, begin + per_stage + (stage < over))


def pipeline_stage(layout: ParallelLayout, rank: int) -> int:
    return min(rank // (layout.tp * layout.cp), layout.pp - 1)


def is_last_stage(layout: ParallelLayout, rank: int) -> bool:
    return pipeline_stage(layout, rank) == layout.pp - 1


def rank_layer_range(dims: Dims, layout: ParallelLayout, rank: int) -> range:
    """Return the layers of a rank's pipeline stage."""
    return stage_layer_range(dims.num_layers, layout.pp, layout.pp_partition, pipeline_stage(layout, rank))


@lru_cache(maxsize=4096)
def shard_counts(dims: Dims, layout: ParallelLayout, block: int, *, torch: bool, embedding: bool) -> ShardCounts:
    """Return how weights are cut. `block`: the quantisation's, which shared experts must not cut apart."""
    tp, is_data_parallel = layout.tp, layout.attention_dp and torch
    # In the PyTorch flow the ranks of context parallelism share the MLP like those of tensor parallelism.
    wide = tp * layout.cp if torch else tp
    experts = max(layout.ep, 1)
    expert = layout.moe_tp or max(wide // experts, 1)
    shared = dims.shared_intermediate_size or dims.shared_experts * dims.moe_intermediate_size
    whole_blocks = shared // block if block and shared % block == 0 else wide
    return ShardCounts(
        attention=1 if is_data_parallel else tp,
        output=layout.cp if is_data_parallel else tp * layout.cp,
        inner=1 if is_data_parallel else wide,
        shared=1 if is_data_parallel else math.gcd(whole_blocks, wide) if torch else wide,
        expert=expert,
        experts=experts,
        embedding=1 if is_data_parallel or not embedding else tp,
        head=1 if is_data_parallel else tp,
        state=1 if is_data_parallel else tp,
    )


def attention_matrices(dims: Dims, cut: ShardCounts, layer: DecoderLayer, family: ModelFamily) -> Iterator[LayerMatrix]:
    """Yield the projections of one attention."""
    if dims.mla:
        yield from _latent_attention_matrices(dims, cut)
        return
    if dims.output_rank:
        yield from _compressed_attention_matrices(dims, cut, layer)
        return
    head_dim = layer.head_dim or dims.head_dim
    value_dim = dims.v_head_dim or head_dim
    heads = ceil_div(dims.num_heads, cut.attention) * head_dim
    # With fewer heads than ranks each rank keeps one whole.
    pairs = ceil_div(layer.kv_heads, cut.attention)
    gates = 2 if family.query_gate else 1
    yield LayerMatrix("self_attn.q_proj", heads * gates, dims.hidden_size)
    if not layer.shares_kv:
        yield LayerMatrix("self_attn.k_proj", pairs * head_dim, dims.hidden_size)
        if not layer.keys_are_values:
            yield LayerMatrix("self_attn.v_proj", pairs * value_dim, dims.hidden_size)
    if family.head_gate:
        yield LayerMatrix("self_attn.q_proj", ceil_div(dims.num_heads, cut.attention), dims.hidden_size)
    yield LayerMatrix("self_attn.o_proj", dims.hidden_size, ceil_div(dims.num_heads, cut.output) * value_dim)


def _compressed_attention_matrices(dims: Dims, cut: ShardCounts, layer: DecoderLayer) -> Iterator[LayerMatrix]:
    """Yield the projections of DeepSeek V4's attention: one latent for all heads, an output in groups of low rank."""
    heads = ceil_div(dims.num_heads, cut.attention)
    grouped = ceil_div(dims.output_groups, cut.attention) * dims.output_rank
    yield LayerMatrix("self_attn.q_a_proj", dims.q_lora_rank, dims.hidden_size)
    yield LayerMatrix("self_attn.q_b_proj", heads * dims.head_dim, dims.q_lora_rank)
    yield LayerMatrix("self_attn.kv_a_proj_with_mqa", dims.head_dim, dims.hidden_size)
    yield LayerMatrix("self_attn.o_proj", grouped, dims.num_heads // dims.output_groups * dims.head_dim)
    yield LayerMatrix("self_attn.o_proj", dims.hidden_size, grouped)
    twice = 2 if layer.compress_ratio == OVERLAPPING_RATIO else 1  # windows that overlap have two halves
    widths = [twice * dims.head_dim] if layer.compress_ratio else []
    if layer.compress_ratio == OVERLAPPING_RATIO:
        widths.append(twice * dims.index_head_dim)
        yield LayerMatrix("self_attn.indexer", dims.index_heads * dims.index_head_dim, dims.q_lora_rank)
        yield LayerMatrix("self_attn.indexer", dims.index_heads, dims.hidden_size)
    for width in widths:  # keys with values, their gate, and a bias for each position of a window
        yield LayerMatrix("self_attn.compressor", 2 * width, dims.hidden_size)
        yield LayerMatrix("self_attn.compressor", layer.compress_ratio, width)


def _latent_attention_matrices(dims: Dims, cut: ShardCounts) -> Iterator[LayerMatrix]:
    """Yield the projections of latent attention: those into the latent space are whole on every rank."""
    heads = ceil_div(dims.num_heads, cut.attention)
    query = heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim)
    if dims.q_lora_rank:
        yield LayerMatrix("self_attn.q_a_proj", dims.q_lora_rank, dims.hidden_size)
        yield LayerMatrix("self_attn.q_b_proj", query, dims.q_lora_rank)
    else:
        yield LayerMatrix("self_attn.q_proj", query, dims.hidden_size)
    latent = dims.kv_lora_rank + dims.qk_rope_head_dim
    yield LayerMatrix("self_attn.kv_a_proj_with_mqa", latent, dims.hidden_size)
    yield LayerMatrix("self_attn.kv_b_proj", heads * (dims.qk_nope_head_dim + dims.v_head_dim), dims.kv_lora_rank)
    yield LayerMatrix("self_attn.o_proj", dims.hidden_size, ceil_div(dims.num_heads, cut.output) * dims.v_head_dim)
    if dims.index_heads:  # whole on every rank
        yield LayerMatrix("self_attn.indexer", dims.index_heads * dims.index_head_dim, dims.q_lora_rank)
        yield LayerMatrix("self_attn.indexer", dims.index_head_dim + dims.index_heads, dims.hidden_size)


def mlp_matrices(dims: Dims, cut: ShardCounts, layer: DecoderLayer) -> Iterator[LayerMatrix]:
    """Yield the matrices of an MLP or of the shared experts."""
    if layer.inner == DENSE:
        inner = ceil_div(layer.inner_size or dims.intermediate_size, cut.inner)
        if dims.gated:
            yield LayerMatrix("mlp.gate_proj", inner, dims.hidden_size)
        yield LayerMatrix("mlp.up_proj", inner, dims.hidden_size)
        yield LayerMatrix("mlp.down_proj", dims.hidden_size, inner)
    shared = dims.shared_intermediate_size or dims.shared_experts * dims.moe_intermediate_size
    if layer.inner == EXPERTS and shared:
        inner = ceil_div(shared, cut.shared)
        yield LayerMatrix("mlp.shared_experts", (2 if dims.gated else 1) * inner, dims.hidden_size)
        yield LayerMatrix("mlp.shared_experts", dims.hidden_size, inner)
    if layer.inner == EXPERTS and dims.moe_latent_size:
        # Into the experts' width and out of it; whole on each rank.
        yield LayerMatrix("mlp.latent", dims.moe_latent_size, dims.hidden_size)
        yield LayerMatrix("mlp.latent", dims.hidden_size, dims.moe_latent_size)


def recurrent_matrices(dims: Dims, cut: ShardCounts) -> Iterator[LayerMatrix]:
    """Yield the projections of a recurrent layer, as one matrix; see `plain_numbers` for what is left over."""
    rows = dims.state_params_per_layer // max(dims.hidden_size, 1)
    yield LayerMatrix("mixer", ceil_div(rows, cut.state), dims.hidden_size)


def unquantised_counts(dims: Dims, cut: ShardCounts, layer: DecoderLayer, family: ModelFamily) -> dict[str, int]:
    """Return how many numbers of a layer are never quantised: norms and biases."""
    norms = family.norms if layer.mixer != NO_PART and layer.inner != NO_PART else 1
    if family.norms == 1 and dims.num_kv_heads > 1 and dims.model_type == "falcon":
        norms = 2  # the larger Falcons norm the two branches apart
    counts = {"norms": norms * dims.hidden_size * (2 if dims.norm_bias else 1)}
    if layer.mixer == STATE:
        counts["recurrent"] = ceil_div(dims.state_params_per_layer % max(dims.hidden_size, 1), cut.state)
    if dims.token_inputs:  # a gate, a projection and a norm
        counts["token_inputs"] = (2 * dims.token_inputs + 1) * dims.hidden_size
    if dims.extra_params:
        counts["other"] = dims.extra_params // dims.num_layers
    if layer.mixer == ATTENTION:
        counts["norms"] += _attention_norms(dims, layer, family)
        counts["attention"] = _attention_biases(dims, cut, layer, family)
    if dims.mlp_bias and layer.inner == DENSE:
        inner = ceil_div(layer.inner_size or dims.intermediate_size, cut.inner)
        counts["mlp"] = (2 if dims.gated else 1) * inner + dims.hidden_size
    if layer.inner == EXPERTS:
        counts["router"] = dims.num_experts if family.router_bias else 0
        counts["shared_experts"] = dims.hidden_size if family.shared_gate else 0
    return counts


def _attention_norms(dims: Dims, layer: DecoderLayer, family: ModelFamily) -> int:
    indexer = 2 * dims.index_head_dim if dims.index_heads else 0
    if dims.mla:
        return dims.q_lora_rank + dims.kv_lora_rank + indexer
    if dims.output_rank:  # of queries and of the latent; of what is compressed
        compressed = dims.head_dim if layer.compress_ratio else 0
        indexed = indexer // 2 if layer.compress_ratio == OVERLAPPING_RATIO else 0
        return dims.q_lora_rank + dims.head_dim + compressed + indexed
    kind = family.query_key_norm or ("head" if dims.qk_norm else "")
    pairs = 0 if layer.shares_kv else layer.kv_heads
    heads = {"": 0, "head": 2 if pairs else 1, "all": dims.num_heads + pairs}[kind if dims.qk_norm is not False else ""]
    return heads * (layer.head_dim or dims.head_dim)


def _attention_biases(dims: Dims, cut: ShardCounts, layer: DecoderLayer, family: ModelFamily) -> int:
    count = ceil_div(dims.num_heads, cut.attention) if family.sinks else 0
    if dims.attention_bias and not dims.mla:
        heads = ceil_div(dims.num_heads, cut.attention) + 2 * ceil_div(layer.kv_heads, cut.attention)
        count += heads * (layer.head_dim or dims.head_dim)
    return count + (dims.hidden_size if dims.output_bias else 0)
