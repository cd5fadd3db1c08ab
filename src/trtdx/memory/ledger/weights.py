"""The weights of a rank: every parameter by module, cut and stored as the backend does it."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from trtdx.memory.ledger.decoder_layers import (
    ATTENTION,
    DENSE,
    EXPERTS,
    STATE,
    DecoderLayer,
    LayerMatrix,
    ShardCounts,
    attention_matrices,
    decoder_layers_of,
    mlp_matrices,
    pipeline_stage,
    recurrent_matrices,
    shard_counts,
    stage_layer_range,
    unquantised_counts,
)
from trtdx.memory.ledger.weight_storage import (
    COUNT_DTYPE,
    FILE_LAYOUT,
    MXFP4,
    NVFP4,
    ExpertShard,
    WeightMatrix,
    ceil_div,
    dtype_bytes,
    expert_bytes,
    is_known_format,
    linear_bytes,
    pad_to_multiple,
)
from trtdx.memory.model.exclusions import exclusion_patterns, unquantised_modules
from trtdx.memory.model.families import ModelFamily, family_of, is_since_release, unmodelled_parts
from trtdx.memory.nouns import GIB, MIB, Component, Dims, Figure, Formats, ParallelLayout

if TYPE_CHECKING:
    from trtdx.memory.nouns import Setup

TORCH_FLOW, ENGINE_FLOW = "pytorch", "tensorrt"
_BLOCKS = {"FP8_BLOCK_SCALES": 128, "NVFP4": 16, "NVFP4_AWQ": 16}
_WITHOUT_ROPE = ("bloom", "mpt", "t5", "opt", "whisper", "bart")
ROPE_TABLE_SINCE = "0.10.0"  # engines hold the table of sines and cosines
ROPE_SHARED_SINCE = "0.12.0"  # before, every layer had its own; TensorRT may have merged them
AUTO_BACKEND_SINCE = "1.3.0rc0"  # before, an unset MoE backend was CUTLASS
KEYS_TRANSPOSED_SINCE = "0.19.0"  # in DeepSeek's engines
PLAIN_IN_ENGINES = (
    "self_attn.q_b_proj",
    "self_attn.kv_b_proj",
)  # parameters of the attention, never quantised
MOST_DEEPGEMM_TOKENS = 18688  # in one chunk (fused_moe_deepgemm.py)


class WeightModel(NamedTuple):
    """All that the size of a rank's weights depends on."""

    dims: Dims
    layout: ParallelLayout
    formats: Formats
    flow: str  # TORCH, ENGINE, or FILES: as a Hugging Face folder has them
    family: ModelFamily = ModelFamily()
    version: str = ""
    moe_backend: str = ""
    sm: int = 0
    mtp_layers: int = 0
    workspace_tokens: int = 0


class StageWeights(NamedTuple):
    """What one rank holds."""

    parts: dict[str, int]
    bytes: Figure
    why: str


def rank_weights(setup: Setup, rank: int) -> Component:
    """Return what the weights of the model take on a rank."""
    share = stage_weights(weight_model_of(setup), pipeline_stage(setup.layout, rank))
    return Component("weights", share.bytes, share.why, share.parts)


def encoder_weights(setup: Setup) -> Component | None:
    """Return what a multimodal encoder takes: whole on every rank of the first stage, in 16 bit."""
    if not setup.dims.encoder_params:
        return None
    size = setup.dims.encoder_params * dtype_bytes(setup.formats.dtype)
    return Component("encoder_weights", Figure.with_tolerance(size, 0.2), "whole on each rank")


def count_parameters(dims: Dims, model: str = "") -> int:
    """Return how many parameters a model has, the output head counted once where it is tied."""
    return sum(parameters_by_part(dims, model).values())


def parameters_by_part(dims: Dims, model: str = "") -> dict[str, int]:
    """Return how many parameters each part of a model has."""
    one_rank = WeightModel(
        dims, ParallelLayout(), Formats(dtype=COUNT_DTYPE), FILE_LAYOUT, family_of(dims.model_type, model)
    )
    return stage_weights(one_rank, 0).parts


def weight_model_of(setup: Setup) -> WeightModel:
    formats, running = setup.formats, setup.running
    family = family_of(setup.dims.model_type, setup.model)
    backend = resolve_moe_backend(setup)
    deepgemm = backend == "DEEPGEMM" and formats.weights == "FP8_BLOCK_SCALES"
    spread = setup.layout.tp if setup.layout.attention_dp else 1
    return WeightModel(
        dims=setup.dims,
        layout=setup.layout,
        formats=formats,
        flow=backend_flow(setup),
        family=family,
        version=running.version,
        moe_backend=backend,
        sm=setup.sm,
        mtp_layers=count_mtp_layers(setup),
        workspace_tokens=min(setup.limits.max_num_tokens * spread, MOST_DEEPGEMM_TOKENS) if deepgemm else 0,
    )


def backend_flow(setup: Setup) -> str:
    return ENGINE_FLOW if setup.running.backend == ENGINE_FLOW else TORCH_FLOW


def count_mtp_layers(setup: Setup) -> int:
    """Return how many layers of multi-token prediction are loaded: none unless drafts are asked for."""
    if setup.draft is not None or not setup.limits.max_draft_len:
        return 0
    return min(setup.dims.nextn_layers, setup.limits.max_draft_len)


def resolve_moe_backend(setup: Setup) -> str:
    """Return which kernels compute the experts, where nobody said."""
    dims, backend = setup.dims, setup.running.moe_backend.upper()
    if not dims.num_experts or backend_flow(setup) == ENGINE_FLOW:
        return ""
    if backend and backend != "AUTO":
        return backend
    if not is_since_release(setup.running.version, AUTO_BACKEND_SINCE):
        return "CUTLASS"
    sm = setup.sm
    if family_of(dims.model_type, setup.model).sinks:  # gpt-oss
        return "TRTLLM" if 100 <= sm < 120 else "TRITON" if 90 <= sm < 100 else "CUTLASS"
    return "TRTLLM" if setup.formats.weights == "FP8_BLOCK_SCALES" and 100 <= sm < 120 else "CUTLASS"


@lru_cache(maxsize=16384)
def stage_weights(model: WeightModel, stage: int) -> StageWeights:
    """Return what a rank of a pipeline stage holds."""
    cut = weight_shards(model)
    parts: Counter[str] = Counter()
    for (layer, unquantised), count in _count_layer_kinds(model, stage).items():
        for part, size in _layer_part_bytes(model, cut, layer, unquantised).items():
            parts[part] += count * size
    for part, size in (*_end_parts(model, cut, stage), *_extra_parts(model, cut, stage)):
        parts[part] += size
    nonzero = {part: size for part, size in parts.items() if size}
    return StageWeights(nonzero, _weights_figure(model, cut, stage, nonzero), _explain_weights(model, cut))


def weight_shards(model: WeightModel) -> ShardCounts:
    if model.flow == TORCH_FLOW:
        embedding = is_since_release(model.version, model.family.embedding_cut_since)
    else:
        embedding = model.layout.parallel_embedding is True
    block = _BLOCKS.get(model.formats.weights, 0)
    return shard_counts(model.dims, model.layout, block, torch=model.flow == TORCH_FLOW, embedding=embedding)


def _count_layer_kinds(model: WeightModel, stage: int) -> Counter[tuple[DecoderLayer, frozenset[str]]]:
    """Return the kinds of layers of a stage, and how many there are of each."""
    dims, layout = model.dims, model.layout
    layers = decoder_layers_of(dims)
    patterns = exclusion_patterns(model.formats.weights, model.formats.excluded, model.family)
    return Counter(
        (layers[at], unquantised_modules(patterns, at, mtp=False, experts=model.family.experts_name))
        for at in stage_layer_range(dims.num_layers, layout.pp, layout.pp_partition, stage)
    )


def _module_format(model: WeightModel, name: str, unquantised: frozenset[str]) -> str:
    """Return the format of a module of a layer; "" is none."""
    formats = model.formats
    if name in unquantised or (model.flow == ENGINE_FLOW and model.dims.mla and name in PLAIN_IN_ENGINES):
        return ""
    return dict(formats.by_module).get(name, "") if formats.by_module else formats.weights


def _layer_part_bytes(
    model: WeightModel, cut: ShardCounts, layer: DecoderLayer, unquantised: frozenset[str]
) -> dict[str, int]:
    dims, width = model.dims, dtype_bytes(model.formats.dtype)
    parts: Counter[str] = Counter()
    for weight in _layer_matrices(model, cut, layer):
        parts[weight.part] += _matrix_bytes(model, weight, unquantised)
    for part, count in unquantised_counts(dims, cut, layer, model.family).items():
        parts[part] += count * width
    if layer.mixer == ATTENTION and dims.mla and model.flow == TORCH_FLOW:
        # The halves of kv_b_proj are kept a second time, one transposed (modules/mla.py).
        heads = ceil_div(dims.num_heads, cut.attention)
        parts["attention"] += heads * (dims.qk_nope_head_dim + dims.v_head_dim) * dims.kv_lora_rank * width
    if layer.mixer == ATTENTION and dims.mla and model.flow == ENGINE_FLOW:
        parts["attention"] += ceil_div(dims.num_heads, cut.attention) * _absorbed_projection_size(model) * width
    if layer.inner == EXPERTS:
        wide = 4 if model.flow == ENGINE_FLOW else width
        parts["router"] += dims.num_experts * dims.hidden_size * wide
        parts["experts"] += ceil_div(dims.num_experts, cut.experts) * _expert_shard_bytes(model, cut, unquantised)
    return parts


def _absorbed_projection_size(model: WeightModel) -> int:
    """Return the numbers of the projection that an engine keeps a second time for each head.

    Until 0.18 that of queries with the one of keys multiplied in, since then that of keys transposed: DeepseekV2Attention
    in layers/attention.py@v0.17.0 and @v1.2.1.
    """
    dims = model.dims
    if is_since_release(model.version, KEYS_TRANSPOSED_SINCE):
        return dims.kv_lora_rank * dims.qk_nope_head_dim
    return (dims.kv_lora_rank + dims.qk_rope_head_dim) * (dims.q_lora_rank or dims.hidden_size)


def _layer_matrices(model: WeightModel, cut: ShardCounts, layer: DecoderLayer) -> list[LayerMatrix]:
    matrices = list(mlp_matrices(model.dims, cut, layer))
    if layer.mixer == ATTENTION:
        matrices += attention_matrices(model.dims, cut, layer, model.family)
    elif layer.mixer == STATE:
        matrices += recurrent_matrices(model.dims, cut)
    return matrices


def _matrix_bytes(model: WeightModel, weight: LayerMatrix, unquantised: frozenset[str]) -> int:
    formats = model.formats
    matrix = WeightMatrix(weight.rows, weight.columns, dtype_bytes(formats.dtype), formats.group_size)
    return linear_bytes(_module_format(model, weight.name, unquantised), matrix)


def _expert_shard_bytes(model: WeightModel, cut: ShardCounts, unquantised: frozenset[str]) -> int:
    dims, formats = model.dims, model.formats
    hidden = dims.moe_latent_size or dims.hidden_size
    inner = ceil_div(dims.moe_intermediate_size or dims.intermediate_size, cut.expert)
    one = ExpertShard(hidden, inner, dims.gated, dims.mlp_bias, dtype_bytes(formats.dtype), formats.group_size)
    algo = _module_format(model, "mlp.experts", unquantised)
    size = expert_bytes(algo, FILE_LAYOUT if model.flow == FILE_LAYOUT else model.moe_backend, one)
    if model.workspace_tokens and model.sm >= 100:
        # DeepGEMM spreads its scales out there: one byte for each 128 numbers.
        size += (3 if dims.gated else 2) * hidden * inner // 128
    return size


def _end_parts(model: WeightModel, cut: ShardCounts, stage: int) -> list[tuple[str, int]]:
    """Return what only the first and the last stage hold: embedding, final norm, output head."""
    dims, width, last = model.dims, dtype_bytes(model.formats.dtype), stage == model.layout.pp - 1
    parts: list[tuple[str, int]] = []
    norm = dims.hidden_size * (2 if dims.norm_bias else 1) * width
    table = ceil_div(dims.vocab_size, cut.embedding) * dims.hidden_size * width
    if not stage:
        parts += [("embedding", table), ("positions", dims.position_embeddings * dims.hidden_size * width)]
        parts += [("token_inputs", _count_token_inputs(dims) * width)]
        parts += [("norms", norm)] if model.family.embedding_norm else []
    if last:
        parts.append(("norms", norm * model.family.final_norm))
        if not _head_is_embedding(model, stage):
            rows = ceil_div(dims.vocab_size, cut.head)
            head = linear_bytes(
                dict(model.formats.by_module).get("lm_head", ""), WeightMatrix(rows, dims.hidden_size, width)
            )
            parts.append(("lm_head", head + rows * model.family.head_bias * width))
    if last and stage and model.mtp_layers:
        parts.append(("mtp", table))  # its layers embed the tokens they guess
    return parts


def _count_token_inputs(dims: Dims) -> int:
    """Return the table of each layer's own embeddings, the projection that is added to them, and its norm."""
    if not dims.token_inputs:
        return 0
    wide = dims.num_layers * dims.token_inputs
    return wide * ((dims.token_inputs_vocab or dims.vocab_size) + dims.hidden_size) + dims.token_inputs


def _head_is_embedding(model: WeightModel, stage: int) -> bool:
    """A tied head needs no table of its own on the rank that has the embedding; most engines keep one anyway."""
    if not model.dims.tied or stage:
        return False
    return model.flow != ENGINE_FLOW or model.family.engine_shares_head


def _extra_parts(model: WeightModel, cut: ShardCounts, stage: int) -> list[tuple[str, int]]:
    parts = _encoder_parts(model, cut, stage)
    if stage == model.layout.pp - 1:
        parts += [("mtp", _mtp_layer_bytes(model, cut, at)) for at in range(model.mtp_layers)]
    if model.flow == ENGINE_FLOW:
        parts.append(("rope_table", _rope_table_bytes(model)))
    if model.workspace_tokens:
        parts.append(("expert_workspace", _deepgemm_workspace_bytes(model, cut)))
    return parts


def _encoder_parts(model: WeightModel, cut: ShardCounts, stage: int) -> list[tuple[str, int]]:
    """Return an encoder's layers, and the attention of the decoder's layers to them."""
    dims, layout = model.dims, model.layout
    if not dims.encoder_layers:
        return []
    layer = DecoderLayer(ATTENTION, DENSE, dims.num_kv_heads)
    plain = model._replace(dims=replace(dims, extra_params=0))
    encoder = sum(_layer_part_bytes(plain, cut, layer, frozenset()).values())
    cross = sum(
        _matrix_bytes(model, weight, frozenset()) for weight in attention_matrices(dims, cut, layer, model.family)
    )
    cross += dims.hidden_size * dtype_bytes(model.formats.dtype)
    encoders = len(stage_layer_range(dims.encoder_layers, layout.pp, (), stage))
    decoders = len(stage_layer_range(dims.num_layers, layout.pp, layout.pp_partition, stage))
    return [("encoder", encoders * encoder), ("cross_attention", decoders * cross)]


def _mtp_layer_bytes(model: WeightModel, cut: ShardCounts, index: int) -> int:
    dims, width, formats = model.dims, dtype_bytes(model.formats.dtype), model.formats
    layer = DecoderLayer(ATTENTION, EXPERTS if dims.num_experts else DENSE, dims.num_kv_heads)
    patterns = exclusion_patterns(formats.weights, formats.excluded, model.family)
    unquantised = unquantised_modules(patterns, dims.num_layers + index, mtp=True)
    joined = dims.hidden_size * ceil_div(2 * dims.hidden_size, cut.inner) * width
    return sum(_layer_part_bytes(model, cut, layer, unquantised).values()) + joined + 3 * dims.hidden_size * width


def _rope_table_bytes(model: WeightModel) -> int:
    dims = model.dims
    alibi = dims.model_type == "baichuan" and dims.hidden_size == 5120
    if dims.position_embeddings or alibi or dims.model_type.startswith(_WITHOUT_ROPE):
        return 0
    if not is_since_release(model.version, ROPE_TABLE_SINCE):
        return 0
    turned = dims.qk_rope_head_dim if dims.mla else dims.head_dim
    return dims.max_positions * turned * 4 * model.family.rope_tables


def _deepgemm_workspace_bytes(model: WeightModel, cut: ShardCounts) -> int:
    """Return the buffers DeepGEMM keeps from the first step on: room for all tokens, for every expert."""
    dims = model.dims
    inner = ceil_div(dims.moe_intermediate_size, cut.expert)
    widest = max(dims.hidden_size, inner)
    row = widest + 2 * max(2 * inner, dims.hidden_size) + pad_to_multiple(ceil_div(widest, 128), 4)
    return ceil_div(dims.num_experts, cut.experts) * pad_to_multiple(model.workspace_tokens, 128) * row


def _weights_figure(model: WeightModel, cut: ShardCounts, stage: int, parts: dict[str, int]) -> Figure:
    value, formats = sum(parts.values()), model.formats
    if model.flow == FILE_LAYOUT:
        return Figure.exact(value)
    under, over = _weights_tolerance(formats, model)
    low, high = value * (1 - under), value * (1 + over)
    if model.flow == TORCH_FLOW:
        high += GIB // 10  # what torch rounds up, and small buffers
    else:
        high += 8 * MIB
        if not is_since_release(model.version, ROPE_SHARED_SINCE):
            high += parts.get("rope_table", 0) * (model.dims.num_layers - 1)
        if model.dims.tied:  # some converters share the table
            low -= parts.get("lm_head", 0)
        if model.layout.parallel_embedding is None and not stage:
            low -= parts.get("embedding", 0) * (1 - 1 / model.layout.tp)
    if model.dims.mlp_layers is not None or model.dims.state_layers:
        low, high = low - 0.03 * value, high + 0.03 * value
    return Figure(value, max(0, round(low)), round(high), "formula")


def _weights_tolerance(formats: Formats, model: WeightModel) -> tuple[float, float]:
    """Return by what share the weights may be smaller or larger."""
    if unmodelled_parts(model.dims.model_type):
        return 0.35, 0.35
    if formats.by_module:
        return 0.02, 0.05
    if formats.weights and (not is_known_format(formats.weights) or formats.weights == "MIXED_PRECISION"):
        return 0.35, 0.35
    if formats.weights in NVFP4 and not formats.excluded:
        return 0.02, 0.04 if model.dims.mla else 0.03
    if formats.weights in MXFP4:
        return 0.01, 0.03
    return (0.005, 0.01) if model.flow == ENGINE_FLOW else (0.005, 0.015)


def _explain_weights(model: WeightModel, cut: ShardCounts) -> str:
    formats, layout = model.formats, model.layout
    names = " and ".join(sorted({algo for _, algo in formats.by_module})) or formats.weights
    stored = f"{names}, the rest {formats.dtype}" if names else formats.dtype
    clauses = [stored]
    if layout.tp > 1 or layout.pp > 1:
        clauses.append(f"tp {layout.tp}, pp {layout.pp}")
        if cut.embedding == 1 and layout.tp > 1:
            clauses.append("embedding whole on each rank")
    if model.workspace_tokens:
        clauses.append("with DeepGEMM's buffers")
    return "; ".join(clauses)
