"""Rotary embeddings as Hugging Face configs state them, before and since transformers 5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import Facts
    from trtdx.inspect.readers.hf.config import ModelConfig, Stated

BASES = ("rope_theta", "rotary_emb_base", "rotary_base", "rope_parameters.rope_theta")
SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_percent", "rope_parameters.partial_rotary_factor")
NOT_SCALING = {"type", "rope_type", "rope_theta", "partial_rotary_factor", "attn_factor_default"}
FULL_ATTENTION = "rope_parameters.full_attention"  # Gemma 3 has one table for each type of layer
LEARNED = {"gpt2", "opt", "gpt_bigcode", "whisper", "bart"}
ALIBI = {"bloom"}
PLAIN_ROTARY = {
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "phi3",
    "gpt_neox", "nemotron",
}  # fmt: skip
SAME_POSITIONS = {"", "llama3", "linear", "dynamic"}  # scalings TensorRT-LLM keeps under rope_gpt_neox


def put_rope(facts: Facts, config: ModelConfig) -> None:
    """Put the base, the rotated part of a head and the scaling in its canonical form."""
    base = config.find(f"{FULL_ATTENTION}.rope_theta", *BASES)
    if base is not None and not isinstance(base.value, list):  # a list has one for each layer
        facts.put("rotary_base", base.value, base.where)
    _put_rotary_dim(facts, config)
    stated = config.find(FULL_ATTENTION, "rope_parameters", "rope_scaling")
    if stated is not None:
        facts.put("rope_scaling", _scaling(stated, config), stated.where)
    _put_kind(facts, config)


def _scaling(stated: Stated, config: ModelConfig) -> Any:
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


def _put_rotary_dim(facts: Facts, config: ModelConfig) -> None:
    stated = config.find("rotary_dim")
    if stated is not None:
        facts.put("rotary_dim", stated.value, stated.where)
        return
    share = config.find(f"{FULL_ATTENTION}.partial_rotary_factor", *SHARES)
    size = facts.get("head_size")
    if share is None or size is None or not isinstance(share.value, (int, float)) or not 0 < share.value <= 1:
        return
    facts.put("rotary_dim", int(size * share.value), share.where)


def _put_kind(facts: Facts, config: ModelConfig) -> None:
    """Put the kind of position embedding in TensorRT-LLM's words, for families where it is certain."""
    model_type = config.model_type
    where = config.document.where("model_type")
    scaling = facts.get("rope_scaling") or {}
    if model_type in LEARNED:
        facts.put("position_embedding", "learned_absolute", where)
    elif model_type == "falcon" and config.get("alibi") is True:
        facts.put("position_embedding", "alibi_with_scale", config.document.where("alibi"))
    elif model_type in ALIBI:
        facts.put("position_embedding", "alibi", where)
    elif model_type in PLAIN_ROTARY and str(scaling.get("type", "")) in SAME_POSITIONS:
        facts.put("position_embedding", "rope_gpt_neox", where)
