"""TensorRT-LLM's `PretrainedConfig`: a checkpoint's config.json, and `pretrained_config` in an engine's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.inspect.facts.config_keys import CONFIG_KEYS

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.inspect.facts.artifact import FactCollector

EXPERT_KEYS = (
    ("num_experts", ("moe.num_experts", "moe_num_experts")),  # a table since 0.11, flat before
    ("experts_per_token", ("moe.top_k", "moe_top_k")),
)
GROUPED_ALGOS = (
    "AWQ",
    "GPTQ",
    "PER_GROUP",
    "FP4",
    "MXFP",
)  # algorithms for which a group size means something
NO_ALGO = (None, "", "NO_QUANT", "None")
ENCODER_DECODER_ARCHITECTURES = ("EncoderModel", "DecoderModel", "WhisperEncoder")


def put_pretrained_config(facts: FactCollector, config: Document, prefix: str = "") -> None:
    """Put every fact of the model; `prefix` is "pretrained_config." in an engine's config.json."""
    for key, name in CONFIG_KEYS.pretrained_config.items():
        if not facts.has(name):
            facts.put(name, config.value_at(prefix + key), config.place_of(prefix + key))
    _put_expert_counts(facts, config, prefix)
    _put_rope_scaling(facts, config, prefix)
    _put_derived_facts(facts, config, prefix)
    put_mapping_sizes(facts, config, f"{prefix}mapping")
    put_quantization_table(facts, config, f"{prefix}quantization")


def _put_expert_counts(facts: FactCollector, config: Document, prefix: str) -> None:
    for name, keys in EXPERT_KEYS:
        for key in keys:
            if config.value_at(prefix + key):  # 0 experts: no mixture of experts
                facts.put(name, config.value_at(prefix + key), config.place_of(prefix + key))


def _put_rope_scaling(facts: FactCollector, config: Document, prefix: str) -> None:
    raw = config.value_at(f"{prefix}rotary_scaling")
    scaling = normalise_rope_scaling(raw) if isinstance(raw, dict) else raw
    if scaling:
        facts.put("rope_scaling", scaling, config.place_of(f"{prefix}rotary_scaling"))


def normalise_rope_scaling(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the scaling with its kind under `type`; empty if it changes nothing."""
    kind = raw.get("type") or raw.get("rope_type")
    if kind is None or (kind in ("default", "none") and "factor" not in raw):
        return {}
    return {"type": kind} | {key: value for key, value in raw.items() if key not in ("type", "rope_type")}


def _put_derived_facts(facts: FactCollector, config: Document, prefix: str) -> None:
    """Put what follows from other keys: sharing asked for, and an architecture that is half a model."""
    if config.value_at(f"{prefix}share_embedding_table") is True:  # 0.8 to 0.13; false does not say untied
        facts.put("tie_embeddings", True, config.place_of(f"{prefix}share_embedding_table"))
    if (
        config.value_at(f"{prefix}architecture") in ENCODER_DECODER_ARCHITECTURES
        or config.value_at(f"{prefix}cross_attention") is True
    ):
        facts.put("encoder_decoder", True, config.place_of(f"{prefix}architecture"))


def put_mapping_sizes(facts: FactCollector, config: Document, section: str) -> None:
    """Put the mapping; the format defines that sizes which are not stated are 1."""
    for key, name in CONFIG_KEYS.mapping.items():
        value = config.value_at(f"{section}.{key}")
        if value != -1:  # moe sizes: "as tensor parallelism"
            facts.put(name, value, config.place_of(f"{section}.{key}"))
    for name in ("tp_size", "pp_size"):
        if not facts.has(name) and config.value_at(f"{section}.{name}") is None:
            facts.put(name, 1, f"{config.place_of(section)} (does not state it, which means 1)")
    if not facts.has("world_size") and config.value_at(f"{section}.world_size") is None:
        sizes = [facts.get(name) or 1 for name in ("tp_size", "pp_size", "cp_size")]
        facts.put(
            "world_size",
            sizes[0] * sizes[1] * sizes[2],
            f"{config.place_of(section)} (the product of its sizes)",
        )


def put_quantization_table(facts: FactCollector, config: Document, section: str) -> None:
    """Put the quantisation; a model that is not quantised has no such facts."""
    table = config.value_at(section)
    if not isinstance(table, dict):
        return
    if table.get("quant_algo") in NO_ALGO and table.get("kv_cache_quant_algo") in NO_ALGO:
        return
    for key, name in CONFIG_KEYS.quantization.items():
        if table.get(key) not in NO_ALGO:
            facts.put(name, table[key], config.place_of(f"{section}.{key}"))
    if any(part in str(table.get("quant_algo")) for part in GROUPED_ALGOS):
        facts.put("quant.group_size", table.get("group_size"), config.place_of(f"{section}.group_size"))
    put_layer_algos(facts, config, f"{section}.quantized_layers")
    facts.put("quant.source", config.path, config.place_of(section))


def put_layer_algos(facts: FactCollector, config: Document, section: str) -> None:
    """Put the quantisation of each layer of a model of mixed precision."""
    layers = config.value_at(section)
    if not isinstance(layers, dict) or not layers:
        return
    algos = {name: layer.get("quant_algo") if isinstance(layer, dict) else layer for name, layer in layers.items()}
    facts.put("quant.per_layer", algos, config.place_of(section))


def put_quant_cfg(facts: FactCollector, config: Document) -> None:
    """Put what quant_cfg.json says: the layers, and a cache that config.json says otherwise."""
    put_layer_algos(facts, config, "quantized_layers")
    kv_algo = config.value_at("kv_cache_quant_algo")
    if kv_algo not in NO_ALGO and facts.has("quant.kv_algo") and kv_algo != facts.get("quant.kv_algo"):
        facts.put("quant.inline_kv_algo", kv_algo, config.place_of("kv_cache_quant_algo"))
    elif kv_algo not in NO_ALGO and not facts.has("quant.kv_algo"):
        facts.put("quant.kv_algo", kv_algo, config.place_of("kv_cache_quant_algo"))
