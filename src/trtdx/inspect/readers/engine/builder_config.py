"""Engine configurations before 0.8: `builder_config` and `plugin_config`, written by each example's build.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.facts.config_keys import CONFIG_KEYS

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.inspect.facts.artifact import FactCollector

GATHER_ALL_LOGITS = "gather_all_token_logits"
# QuantMode of 0.5 to 0.7
INT4, INT8, ACTIVATIONS, PER_CHANNEL, PER_TOKEN, PER_GROUP, INT8_CACHE, FP8_CACHE, FP8 = (1 << n for n in range(9))


def put_builder_config(facts: FactCollector, config: Document) -> None:
    """Put every fact of `builder_config`; the model's name stands where later eras have an architecture."""
    builder = config.value_at("builder_config")
    if not isinstance(builder, dict):
        return
    for key, value in builder.items():
        if key != "quant_mode":
            facts.put(
                CONFIG_KEYS.builder_config.get(key, f"build.{key}"),
                value,
                config.place_of(f"builder_config.{key}"),
            )
    if isinstance(builder.get(GATHER_ALL_LOGITS), bool):
        for name in ("gather_context_logits", "gather_generation_logits"):
            facts.put(name, builder[GATHER_ALL_LOGITS], config.place_of(f"builder_config.{GATHER_ALL_LOGITS}"))
    _put_world_size(facts, config)
    _put_quant_mode(facts, config)
    _put_plugin_switches(facts, config)


def _put_world_size(facts: FactCollector, config: Document) -> None:
    sizes = [facts.get(name) for name in ("tp_size", "pp_size", "cp_size")]
    if sizes[0] is None:
        return
    facts.put("pp_size", sizes[1] or 1, config.place_of("builder_config.pipeline_parallel"))
    product = sizes[0] * (sizes[1] or 1) * (sizes[2] or 1)
    facts.put("world_size", product, config.place_of("builder_config.tensor_parallel"))


def _put_quant_mode(facts: FactCollector, config: Document) -> None:
    mode = config.value_at("builder_config.quant_mode")
    if type(mode) is not int or mode <= 0:
        return
    where = config.place_of("builder_config.quant_mode")
    facts.put("quant.algo", algo_from_quant_mode(mode), where)
    facts.put("quant.kv_algo", "FP8" if mode & FP8_CACHE else "INT8" if mode & INT8_CACHE else None, where)
    facts.put("quant.bits", 4 if mode & INT4 else 8 if mode & (INT8 | FP8) else None, where)


def algo_from_quant_mode(mode: int) -> str | None:
    """Return today's name of a quantisation; AWQ and GPTQ cannot be told apart in its bits."""
    if mode & FP8:
        return "FP8"
    if mode & INT8 and mode & ACTIVATIONS:
        channel = "PER_CHANNEL" if mode & PER_CHANNEL else "PER_TENSOR"
        token = "PER_TOKEN" if mode & PER_TOKEN else "PER_TENSOR"
        plain = "W8A8_SQ_PER_TENSOR_PLUGIN"
        return plain if channel == token else f"W8A8_SQ_{channel}_{token}_PLUGIN"
    if mode & PER_GROUP:
        return None
    return "W8A16" if mode & INT8 else "W4A16" if mode & INT4 else None


def _put_plugin_switches(facts: FactCollector, config: Document) -> None:
    paged, lora = (
        config.value_at("plugin_config.paged_kv_cache"),
        config.value_at("plugin_config.lora_plugin"),
    )
    if isinstance(paged, bool):
        where = config.place_of("plugin_config.paged_kv_cache")
        facts.put("kv_cache_type", "paged" if paged else "continuous", where)
    if lora is not None:
        facts.put("lora.enabled", bool(lora), config.place_of("plugin_config.lora_plugin"))
