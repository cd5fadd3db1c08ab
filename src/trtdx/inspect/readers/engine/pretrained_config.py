"""TensorRT-LLM's `PretrainedConfig`: a checkpoint's config.json, and `pretrained_config` in an engine's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.inspect.facts.config_keys import CONFIG_KEYS

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.inspect.facts.artifact import Facts

EXPERTS = (
    ("num_experts", ("moe.num_experts", "moe_num_experts")),  # a table since 0.11, flat before
    ("experts_per_token", ("moe.top_k", "moe_top_k")),
)
GROUPED = ("AWQ", "GPTQ", "PER_GROUP", "FP4", "MXFP")  # algorithms for which a group size means something
NO_ALGO = (None, "", "NO_QUANT", "None")
ENCODER_DECODER = ("EncoderModel", "DecoderModel", "WhisperEncoder")


def put_pretrained(facts: Facts, config: Document, prefix: str = "") -> None:
    """Put every fact of the model; `prefix` is "pretrained_config." in an engine's config.json."""
    for key, name in CONFIG_KEYS.pretrained_config.items():
        if not facts.has(name):
            facts.put(name, config.at(prefix + key), config.where(prefix + key))
    _put_experts(facts, config, prefix)
    _put_rope_scaling(facts, config, prefix)
    _put_shared(facts, config, prefix)
    put_mapping(facts, config, f"{prefix}mapping")
    put_quantisation(facts, config, f"{prefix}quantization")


def _put_experts(facts: Facts, config: Document, prefix: str) -> None:
    for name, keys in EXPERTS:
        for key in keys:
            if config.at(prefix + key):  # 0 experts: no mixture of experts
                facts.put(name, config.at(prefix + key), config.where(prefix + key))


def _put_rope_scaling(facts: Facts, config: Document, prefix: str) -> None:
    raw = config.at(f"{prefix}rotary_scaling")
    scaling = rope_scaling(raw) if isinstance(raw, dict) else raw
    if scaling:
        facts.put("rope_scaling", scaling, config.where(f"{prefix}rotary_scaling"))


def rope_scaling(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the scaling with its kind under `type`; nothing where it changes nothing."""
    kind = raw.get("type") or raw.get("rope_type")
    if kind is None or (kind in ("default", "none") and "factor" not in raw):
        return {}
    return {"type": kind} | {key: value for key, value in raw.items() if key not in ("type", "rope_type")}


def _put_shared(facts: Facts, config: Document, prefix: str) -> None:
    """Put what follows from other keys: sharing asked for, and an architecture that is half a model."""
    if config.at(f"{prefix}share_embedding_table") is True:  # 0.8 to 0.13; false does not say untied
        facts.put("tie_embeddings", True, config.where(f"{prefix}share_embedding_table"))
    if config.at(f"{prefix}architecture") in ENCODER_DECODER or config.at(f"{prefix}cross_attention") is True:
        facts.put("encoder_decoder", True, config.where(f"{prefix}architecture"))


def put_mapping(facts: Facts, config: Document, at: str) -> None:
    """Put the mapping; the format defines that sizes which are not stated are 1."""
    for key, name in CONFIG_KEYS.mapping.items():
        value = config.at(f"{at}.{key}")
        if value != -1:  # moe sizes: "as tensor parallelism"
            facts.put(name, value, config.where(f"{at}.{key}"))
    for name in ("tp_size", "pp_size"):
        if not facts.has(name) and config.at(f"{at}.{name}") is None:
            facts.put(name, 1, f"{config.where(at)} (does not state it, which means 1)")
    if not facts.has("world_size") and config.at(f"{at}.world_size") is None:
        sizes = [facts.get(name) or 1 for name in ("tp_size", "pp_size", "cp_size")]
        facts.put(
            "world_size", sizes[0] * sizes[1] * sizes[2], f"{config.where(at)} (the product of its sizes)"
        )


def put_quantisation(facts: Facts, config: Document, at: str) -> None:
    """Put the quantisation; a model that is not quantised has no such facts."""
    table = config.at(at)
    if not isinstance(table, dict):
        return
    if table.get("quant_algo") in NO_ALGO and table.get("kv_cache_quant_algo") in NO_ALGO:
        return
    for key, name in CONFIG_KEYS.quantization.items():
        if table.get(key) not in NO_ALGO:
            facts.put(name, table[key], config.where(f"{at}.{key}"))
    if any(part in str(table.get("quant_algo")) for part in GROUPED):
        facts.put("quant.group_size", table.get("group_size"), config.where(f"{at}.group_size"))
    put_layers(facts, config, f"{at}.quantized_layers")
    facts.put("quant.source", config.path, config.where(at))


def put_layers(facts: Facts, config: Document, at: str) -> None:
    """Put the quantisation of each layer of a model of mixed precision."""
    layers = config.at(at)
    if not isinstance(layers, dict) or not layers:
        return
    algos = {
        name: layer.get("quant_algo") if isinstance(layer, dict) else layer for name, layer in layers.items()
    }
    facts.put("quant.per_layer", algos, config.where(at))


def put_layer_file(facts: Facts, config: Document) -> None:
    """Put what quant_cfg.json says: the layers, and a cache that config.json says otherwise."""
    put_layers(facts, config, "quantized_layers")
    kv_algo = config.at("kv_cache_quant_algo")
    if kv_algo not in NO_ALGO and facts.has("quant.kv_algo") and kv_algo != facts.get("quant.kv_algo"):
        facts.put("quant.inline_kv_algo", kv_algo, config.where("kv_cache_quant_algo"))
    elif kv_algo not in NO_ALGO and not facts.has("quant.kv_algo"):
        facts.put("quant.kv_algo", kv_algo, config.where("kv_cache_quant_algo"))
