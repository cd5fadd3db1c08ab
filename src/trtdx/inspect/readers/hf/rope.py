"""Rotary embeddings as Hugging Face configs state them, before and since transformers 5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import FactCollector
    from trtdx.inspect.readers.hf.model_config import ModelConfig, StatedValue

ROTARY_BASE_KEYS = ("rope_theta", "rotary_emb_base", "rotary_base", "rope_parameters.rope_theta")
ROTARY_SHARE_KEYS = (
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_percent",
    "rope_parameters.partial_rotary_factor",
)
NOT_SCALING = {"type", "rope_type", "rope_theta", "partial_rotary_factor", "attn_factor_default"}
FULL_ATTENTION = "rope_parameters.full_attention"  # Gemma 3 has one table for each type of layer
LEARNED_POSITION_MODELS = {"gpt2", "opt", "gpt_bigcode", "whisper", "bart"}
ALIBI_MODELS = {"bloom"}
PLAIN_ROTARY_MODELS = {
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "phi3",
    "gpt_neox", "nemotron",
}  # fmt: skip
GPT_NEOX_SCALINGS = {"", "llama3", "linear", "dynamic"}  # scalings TensorRT-LLM keeps under rope_gpt_neox


def put_rope_facts(facts: FactCollector, config: ModelConfig) -> None:
    """Put the base, the rotated part of a head and the scaling in its canonical form."""
    base = config.find(f"{FULL_ATTENTION}.rope_theta", *ROTARY_BASE_KEYS)
    if base is not None and not isinstance(base.value, list):  # a list has one for each layer
        facts.put("rotary_base", base.value, base.where)
    _put_rotary_dim(facts, config)
    stated = config.find(FULL_ATTENTION, "rope_parameters", "rope_scaling")
    if stated is not None:
        facts.put("rope_scaling", _canonical_scaling(stated, config), stated.where)
    _put_position_embedding(facts, config)


def _canonical_scaling(stated: StatedValue, config: ModelConfig) -> Any:
    """Return the scaling as {"type": ..., "factor": ..., ...}, or None where the table scales nothing."""
    table = stated.value
    if not isinstance(table, dict):
        return table
    kind = table.get("rope_type") or table.get("type") or "default"
    scaling = {key: value for key, value in table.items() if key not in NOT_SCALING and value is not None}
    if kind == "su":  # the name longrope had in transformers 4.39 to 4.42
        kind = "longrope"
    if kind == "default":
        kind = "mrope" if "mrope_section" in scaling else ""
    if not kind or (kind == "linear" and scaling.get("factor") in (1, 1.0)):
        return None
    original = config.get("original_max_position_embeddings")
    if kind == "longrope" and original is not None:
        scaling.setdefault("original_max_position_embeddings", original)
    return {"type": kind, **scaling}


def _put_rotary_dim(facts: FactCollector, config: ModelConfig) -> None:
    stated = config.find("rotary_dim")
    if stated is not None:
        facts.put("rotary_dim", stated.value, stated.where)
        return
    share = config.find(f"{FULL_ATTENTION}.partial_rotary_factor", *ROTARY_SHARE_KEYS)
    size = facts.get("head_size")
    if share is None or size is None or not isinstance(share.value, (int, float)) or not 0 < share.value <= 1:
        return
    facts.put("rotary_dim", int(size * share.value), share.where)


def _put_position_embedding(facts: FactCollector, config: ModelConfig) -> None:
    """Put the kind of position embedding in TensorRT-LLM's words, for families where it is certain."""
    model_type = config.model_type
    where = config.document.place_of("model_type")
    scaling = facts.get("rope_scaling") or {}
    if model_type in LEARNED_POSITION_MODELS:
        facts.put("position_embedding", "learned_absolute", where)
    elif model_type == "falcon" and config.get("alibi") is True:
        facts.put("position_embedding", "alibi_with_scale", config.document.place_of("alibi"))
    elif model_type in ALIBI_MODELS:
        facts.put("position_embedding", "alibi", where)
    elif model_type in PLAIN_ROTARY_MODELS and str(scaling.get("type", "")) in GPT_NEOX_SCALINGS:
        facts.put("position_embedding", "rope_gpt_neox", where)
