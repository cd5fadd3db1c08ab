"""The sizes of a model as its config.json states them, family by family: each with the key it was taken from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trtdx.memory.model.hybrid_dims import hybrid_sizes
from trtdx.memory.model.layer_dims import per_layer_sizes
from trtdx.memory.model.vision_dims import multimodal_encoder_params

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.readers.hf.model_config import ModelConfig

Sizes = dict[str, tuple[Any, str]]  # by the name of a field of Dims: the value, and where it stands

# The names facts have, and those of Dims.
DIMS_OF_FACTS = {
    "num_layers": "num_layers", "hidden_size": "hidden_size", "num_heads": "num_heads", "num_kv_heads": "num_kv_heads",
    "head_size": "head_dim", "intermediate_size": "intermediate_size", "vocab_size": "vocab_size",
    "num_experts": "num_experts", "experts_per_token": "experts_per_token",
    "moe_intermediate_size": "moe_intermediate_size", "q_lora_rank": "q_lora_rank", "kv_lora_rank": "kv_lora_rank",
    "qk_rope_head_dim": "qk_rope_head_dim", "qk_nope_head_dim": "qk_nope_head_dim", "v_head_dim": "v_head_dim",
    "tie_embeddings": "tied", "attention_bias": "attention_bias",
}  # fmt: skip
PLAIN_MLP = {
    "gpt2", "gptj", "gpt_neox", "gpt_bigcode", "gpt_neo", "falcon", "RefinedWebModel", "RefinedWeb", "bloom", "opt",
    "phi", "codegen", "starcoder2", "nemotron", "nemotron_h", "mpt", "whisper", "bart", "mbart", "bert", "roberta",
    "apertus", "arcee", "jais2", "persimmon",
}  # fmt: skip
ALL_BIASES = {
    "gpt2", "gpt_neox", "gpt_bigcode", "bloom", "opt", "phi", "starcoder2", "whisper", "bart", "bert", "roberta",
}  # fmt: skip
NORM_BIASES = ALL_BIASES | {"gptj", "falcon", "nemotron", "codegen", "phimoe", "stablelm", "jais2"}
QKV_BIAS = ("qwen2", "qwen", "chatglm", "gpt_oss")
NO_QKV_BIAS = ("qwen3",)
HEADS_ARE_KV_HEADS = {"baichuan", "qwen", "internlm", "mpt", "gpt_neo", "deepseek_v2", "deepseek_v3", "kimi_k2", "bert", "roberta", "bart", "mbart", "mt5"}  # fmt: skip
# Scalings after which max_position_embeddings is already the stretched length.
STRETCHED_SCALINGS = ("su", "longrope", "llama3", "yarn", "mrope", "dynamic")


def sizes_from_facts(artifact: Artifact) -> Sizes:
    """Return the sizes that any kind of artifact states."""
    sizes: Sizes = {}
    for fact, name in DIMS_OF_FACTS.items():
        if fact in artifact.facts:
            sizes[name] = (artifact.facts[fact].value, artifact.facts[fact].where)
    if artifact.has("max_positions"):
        fact_ = artifact.facts["max_positions"]
        sizes["max_positions"] = (
            _rope_scaled_positions(fact_.value, artifact.table("rope_scaling")),
            fact_.where,
        )
    if artifact.text("position_embedding") == "learned_absolute" and "max_positions" in sizes:
        sizes["position_embeddings"] = sizes["max_positions"]
    if artifact.has("model_type"):
        sizes["model_type"] = (artifact.text("model_type"), artifact.facts["model_type"].where)
    return sizes


def _rope_scaled_positions(positions: int, scaling: dict[str, Any]) -> int:
    factor = scaling.get("factor", 1)
    if scaling.get("type", "") in STRETCHED_SCALINGS or not isinstance(factor, (int, float)) or not 1 < factor < 1e4:
        return positions
    return math.ceil(positions * factor)


def sizes_from_config(config: ModelConfig, artifact: Artifact) -> Sizes:
    """Return the sizes of a Hugging Face model: the shared facts, and what only its family states."""
    sizes = sizes_from_facts(artifact)
    sizes["model_type"] = (config.model_type, config.document.place_of("model_type"))
    parts = (
        _head_sizes,
        _mlp_sizes,
        _layer_sizes,
        _bias_flags,
        _expert_sizes,
        _window_sizes,
        _sparse_attention_sizes,
        _token_input_sizes,
        _encoder_sizes,
    )
    for part in parts:
        for name, value, key in part(config, sizes):
            if value is not None:
                stated = config.find(key) if key else None
                sizes[name] = (value, stated.where if stated else config.document.place_of("model_type"))
    for name, value in hybrid_sizes(config).items():
        sizes[name] = (value, config.document.place_of("model_type"))
    return sizes


# Each of the parts below yields a field of Dims, its value, and the key it follows from.


def _size_value(sizes: Sizes, name: str) -> Any:
    return sizes[name][0] if name in sizes else None


def _head_sizes(config: ModelConfig, sizes: Sizes) -> Iterator[tuple[str, Any, str]]:
    model_type, heads = config.model_type, _size_value(sizes, "num_heads")
    is_implied = "num_kv_heads" not in sizes and model_type in HEADS_ARE_KV_HEADS
    if is_implied or config.get("multi_query_attention") is False:
        yield "num_kv_heads", heads, "num_attention_heads"
    per_layer = config.get("num_key_value_heads")
    if isinstance(per_layer, list) and all(isinstance(count, int) for count in per_layer):
        yield "kv_heads_per_layer", tuple(per_layer), "num_key_value_heads"
        yield "num_kv_heads", max(per_layer, default=0), "num_key_value_heads"
    if model_type == "gpt_bigcode" and config.get("multi_query") is not False:
        yield "num_kv_heads", 1, "multi_query"


def _mlp_sizes(config: ModelConfig, sizes: Sizes) -> Iterator[tuple[str, Any, str]]:
    model_type = config.model_type
    gated = model_type not in PLAIN_MLP
    if model_type in ("t5", "mt5", "umt5"):
        gated = "gated" in str(config.get("feed_forward_proj") or "")
    yield "gated", gated, ""
    inner = _size_value(sizes, "intermediate_size")
    if model_type == "qwen" and isinstance(inner, int):  # the first Qwen states both halves together
        yield "intermediate_size", inner // 2, "intermediate_size"
    if model_type == "llama4_text" or config.get("intermediate_size_mlp") is not None:
        yield "intermediate_size", config.get("intermediate_size_mlp"), "intermediate_size_mlp"
    ratio = config.get("expansion_ratio")  # MPT
    if inner is None and isinstance(ratio, (int, float)) and "hidden_size" in sizes:
        yield "intermediate_size", int(ratio * sizes["hidden_size"][0]), "expansion_ratio"
    lists = config.get("intermediate_size")
    if isinstance(lists, list) and lists and all(isinstance(size, int) for size in lists):  # Gemma 3n
        yield "intermediate_size", max(lists), "intermediate_size"


def _layer_sizes(config: ModelConfig, sizes: Sizes) -> Iterator[tuple[str, Any, str]]:
    return per_layer_sizes(config, _size_value(sizes, "num_heads"), _size_value(sizes, "hidden_size"))


def _bias_flags(config: ModelConfig, sizes: Sizes) -> Iterator[tuple[str, Any, str]]:
    model_type = config.model_type
    everywhere = model_type in ALL_BIASES or (model_type == "falcon" and config.get("bias") is True)
    if everywhere:
        for name in ("attention_bias", "output_bias", "mlp_bias"):
            yield name, True, ""
    elif "attention_bias" not in sizes and model_type.startswith(QKV_BIAS):
        yield "attention_bias", not model_type.startswith(NO_QKV_BIAS), ""
    if model_type == "gpt_oss":
        yield "output_bias", True, "attention_bias"
        yield "mlp_bias", True, ""
    if model_type == "llama" and config.get("attention_bias") is True:
        yield "output_bias", True, "attention_bias"
    if config.get("mlp_bias") is True or model_type in ("gptj", "codegen"):
        yield "mlp_bias", True, "mlp_bias"
    biased = model_type in NORM_BIASES or (model_type == "mpt" and config.get("no_bias") is False)
    yield "norm_bias", biased, ""
    if isinstance(config.get("use_qk_norm"), bool) and model_type.startswith("glm4_moe"):
        yield "qk_norm", config.get("use_qk_norm"), "use_qk_norm"


def _expert_sizes(config: ModelConfig, sizes: Sizes) -> Iterator[tuple[str, Any, str]]:
    experts = _size_value(sizes, "num_experts")
    if not experts:
        return
    if "moe_intermediate_size" not in sizes:  # Mixtral, gpt-oss, Llama 4: the inner size is an expert's
        key = "intermediate_size"
        yield "moe_intermediate_size", config.get(key), key
    if isinstance(config.get("experts_per_token"), int):  # gpt-oss has both names
        yield "experts_per_token", config.get("experts_per_token"), "experts_per_token"
    for name, keys in PER_LAYER_KEYS.items():  # HunYuan
        numbers = config.get(*keys)
        if isinstance(numbers, list) and numbers and all(isinstance(number, int) for number in numbers):
            yield name, max(numbers), keys[0]
    for key in ("moe_latent_size", "routed_expert_hidden_size"):  # Nemotron 3, Kimi K3
        yield "moe_latent_size", int_or_none(config.get(key)), key
    yield "intermediate_size", int_or_none(config.get("dense_intermediate_size")), "dense_intermediate_size"
    yield from _shared_expert_sizes(config)
    yield from _expert_layer_sizes(config)


# What a list may state for each layer where all layers have the same.
PER_LAYER_KEYS = {"experts_per_token": ("moe_topk",), "moe_intermediate_size": ("moe_intermediate_size",)}
# What the inner size of all shared experts together is called.
SHARED_SIZES = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
                "share_expert_dim")  # fmt: skip


def _shared_expert_sizes(config: ModelConfig) -> Iterator[tuple[str, Any, str]]:
    shared = config.get("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    if config.model_type.startswith("hunyuan"):
        shared = max(shared, default=0) if isinstance(shared, list) else shared or 1
    size = next((key for key in SHARED_SIZES if int_or_none(config.get(key))), "")
    if size:
        shared = shared or 1
        yield "shared_intermediate_size", config.get(size), size
    elif config.get("enable_moe_block") is True:  # Gemma 4: an MLP beside the experts, in every layer
        yield "shared_intermediate_size", int_or_none(config.get("intermediate_size")), "intermediate_size"
    if config.model_type in ("llama4_text", "llama4"):
        shared = 1
    yield "shared_experts", shared if isinstance(shared, int) else None, "n_shared_experts"


def _expert_layer_sizes(config: ModelConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield which layers have experts: all but the first few, or every n-th."""
    dense = int_or_none(config.get("first_k_dense_replace", "num_dense_layers"))
    yield "dense_layers", dense, "first_k_dense_replace"
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list) and "dense" in kinds:
        yield "dense_layers", kinds.count("dense"), "mlp_layer_types"
    if int_or_none(config.get("moe_layer_start_index")):  # ERNIE 4.5
        yield "dense_layers", config.get("moe_layer_start_index"), "moe_layer_start_index"
    every = config.get("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "expert_layer_period")
    if isinstance(every, int) and every > 1:
        yield "moe_every", every, "decoder_sparse_step"
    if isinstance(every, list) and 1 in every:  # one for each layer: 0 is dense
        yield "dense_layers", every.index(1), "moe_layer_freq"


def int_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _window_sizes(config: ModelConfig, sizes: Sizes) -> Iterator[tuple[str, Any, str]]:
    layers, window = _size_value(sizes, "num_layers"), int_or_none(config.get("sliding_window"))
    if not isinstance(layers, int) or not window or window < 0 or not 0 < layers < 10_000:
        return
    kinds = config.get("layer_types")
    pattern = max(int_or_none(config.get("sliding_window_pattern", "_sliding_window_pattern")) or 0, 0)
    if isinstance(kinds, list) and len(kinds) == layers:
        if any("sliding" in str(kind) for kind in kinds):
            yield "windows", tuple(window if "sliding" in str(kind) else 0 for kind in kinds), "layer_types"
    elif pattern or config.model_type in ("gemma3", "gemma3_text", "cohere2"):
        every = pattern or (4 if config.model_type == "cohere2" else 6)
        windows = tuple(0 if (at + 1) % every == 0 else window for at in range(layers))
        yield "windows", windows, "sliding_window"
    elif config.model_type in ("gemma2", "gpt_oss"):
        yield "windows", tuple(0 if at % 2 else window for at in range(layers)), "sliding_window"
    elif config.model_type in ("mistral", "mixtral", "starcoder2", "phi3"):
        yield "windows", (window,) * layers, "sliding_window"


# The share of tokens that a kind of layer of DeepSeek V4 keeps.
COMPRESS_RATIOS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}


def _sparse_attention_sizes(config: ModelConfig, sizes: Sizes) -> Iterator[tuple[str, Any, str]]:
    """Yield what sparse and compressed attention have beside the usual projections."""
    # DeepSeek V4, whatever its model_type is called
    compressed = int_or_none(config.get("o_lora_rank")) is not None
    if int_or_none(config.get("kv_lora_rank")) or compressed:
        yield "index_heads", int_or_none(config.get("index_n_heads")), "index_n_heads"
        yield "index_head_dim", int_or_none(config.get("index_head_dim")), "index_head_dim"
    if not compressed:
        return
    ratios, kinds = config.get("compress_ratios"), config.get("layer_types")
    if not isinstance(ratios, list) and isinstance(kinds, list):
        ratios = [COMPRESS_RATIOS.get(str(kind), 0) for kind in kinds]
    if isinstance(ratios, list) and all(isinstance(ratio, int) and 0 <= ratio <= 10**6 for ratio in ratios):
        layers = _size_value(sizes, "num_layers")
        used = tuple(ratios[:layers] if isinstance(layers, int) else ratios)
        yield "compress_ratios", used, "compress_ratios"
    yield "output_groups", int_or_none(config.get("o_groups")), "o_groups"
    yield "output_rank", int_or_none(config.get("o_lora_rank")), "o_lora_rank"
    yield "extra_params", _residual_stream_params(config, sizes), "hc_mult"


def _residual_stream_params(config: ModelConfig, sizes: Sizes) -> int | None:
    """Return the parameters that mix DeepSeek V4's residual streams, before attention and experts of each layer."""
    layers, hidden = _size_value(sizes, "num_layers"), _size_value(sizes, "hidden_size")
    streams = int_or_none(config.get("hc_mult"))
    if not isinstance(layers, int) or not isinstance(hidden, int) or not streams:
        return None
    rows = streams * (streams + 2)
    return layers * 2 * (rows * streams * hidden + rows + 3)


def _token_input_sizes(config: ModelConfig, sizes: Sizes) -> Iterator[tuple[str, Any, str]]:
    """Yield the embeddings that each layer of Gemma 3n and 4 has of its own, and the layers that share keys."""
    yield (
        "token_inputs",
        int_or_none(config.get("hidden_size_per_layer_input")),
        "hidden_size_per_layer_input",
    )
    yield (
        "token_inputs_vocab",
        int_or_none(config.get("vocab_size_per_layer_input")),
        "vocab_size_per_layer_input",
    )
    shared = int_or_none(config.get("num_kv_shared_layers"))
    yield "kv_shared_layers", shared, "num_kv_shared_layers"
    inner, layers = _size_value(sizes, "intermediate_size"), _size_value(sizes, "num_layers")
    is_double_wide = config.get("use_double_wide_mlp") is True
    if shared and is_double_wide and isinstance(inner, int) and isinstance(layers, int):
        wide = tuple(inner * (2 if at >= layers - shared else 1) for at in range(min(layers, 10_000)))
        yield "inner_per_layer", wide, "use_double_wide_mlp"


def _encoder_sizes(config: ModelConfig, sizes: Sizes) -> Iterator[tuple[str, Any, str]]:
    """Yield what stands beside the decoder: an encoder, layers that predict further tokens, an image encoder."""
    if "max_positions" not in sizes:
        yield "max_positions", int_or_none(config.get("model_max_length")), "model_max_length"  # Baichuan
    yield "nextn_layers", int_or_none(config.get("num_nextn_predict_layers")), "num_nextn_predict_layers"
    yield "draft_vocab", _draft_vocab_size(config, sizes), "draft_vocab_size"
    document = config.document
    if document.value_at("is_encoder_decoder") is True:
        yield "encoder_layers", int_or_none(config.get("encoder_layers", "num_layers")), "encoder_layers"
        yield "encoder_positions", int_or_none(config.get("max_source_positions")), "max_source_positions"
        yield "extra_params", _speech_encoder_params(config, sizes) or None, "max_source_positions"
        if config.model_type in ("t5", "mt5", "umt5"):
            decoder = int_or_none(config.get("num_decoder_layers")) or int_or_none(config.get("num_layers"))
            yield "num_layers", decoder, "num_decoder_layers"
            yield "num_kv_heads", _size_value(sizes, "num_heads"), "num_heads"
    params = multimodal_encoder_params(document)
    if params:
        yield "encoder_params", params, "vision_config"


def _draft_vocab_size(config: ModelConfig, sizes: Sizes) -> int | None:
    """Return the vocabulary of an EAGLE3 head; None for any other model."""
    classes = config.get("architectures")
    named = isinstance(classes, list) and any("eagle3" in str(name).lower() for name in classes)
    stated = int_or_none(config.get("draft_vocab_size"))
    return stated or (_size_value(sizes, "vocab_size") if named else None)


def _speech_encoder_params(config: ModelConfig, sizes: Sizes) -> int:
    """Return what Whisper's encoder has before its layers: two convolutions and a table of positions."""
    hidden = _size_value(sizes, "hidden_size")
    bins, positions = int_or_none(config.get("num_mel_bins")), int_or_none(config.get("max_source_positions"))
    if config.model_type != "whisper" or not isinstance(hidden, int) or not bins or not positions:
        return 0
    return hidden * (3 * (bins + hidden) + 2 + positions)
