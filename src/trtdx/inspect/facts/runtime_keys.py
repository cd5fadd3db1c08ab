"""What the C++ runtime demands of an engine's config.json, by release (`gptJsonConfig.cpp` at each tag).

A key it reads with `json.at` and does not find ends the start: "[json.exception.out_of_range.403] key 'x' not found".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.knowledge import versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.documents import Document


class RuntimeKey(NamedTuple):
    """One key, and the releases that demand it."""

    dotted: str
    since: str = "0.8.0"
    until: str = ""  # the last release that does; empty: all later ones do


MODEL_KEYS = tuple(
    RuntimeKey(f"pretrained_config.{name}")
    for name in (
        "architecture", "dtype", "num_hidden_layers", "num_attention_heads", "vocab_size", "hidden_size",
        "mapping.tp_size", "quantization",
    )
)  # fmt: skip
LEGACY_MODEL_KEYS = tuple(
    RuntimeKey(f"builder_config.{name}", "0.5.0")
    for name in (
        "name", "precision", "tensor_parallel", "num_layers", "num_heads", "vocab_size", "hidden_size",
    )
)  # fmt: skip
PLUGIN_KEYS = (
    RuntimeKey("gpt_attention_plugin", "0.5.0"),
    RuntimeKey("remove_input_padding", "0.5.0"),
    RuntimeKey("paged_kv_cache", "0.5.0"),
    RuntimeKey("tokens_per_block", "0.5.0"),
    RuntimeKey("use_paged_context_fmha", "0.7.0"),
    RuntimeKey("use_context_fmha_for_generation", "0.7.0", "0.10.0"),
    RuntimeKey("use_custom_all_reduce", "0.5.0", "0.11.0"),
    RuntimeKey("lora_plugin", "0.8.0"),
    RuntimeKey("context_fmha", "0.11.0"),
)
LORA_KEY = RuntimeKey("build_config.lora_config", "0.9.0")
GLM_KEY = RuntimeKey("pretrained_config.chatglm_version")
EAGLE_KEY = RuntimeKey("pretrained_config.eagle_net_config", "0.16.0")
EAGLE_MODE = 32  # speculative_decoding_mode


def missing_runtime_keys(config: Document, is_legacy: bool) -> list[str]:
    """Return the keys that are not there although the engine's own release, or a later one, demands them."""
    made_by = config.value_at("version")
    version = made_by if isinstance(made_by, str) else "0.7.1" if is_legacy else "0.8.0"
    return [
        key.dotted
        for key in _demanded_keys(config, is_legacy)
        if not _has_key(config, key.dotted) and (not key.until or not _is_later(version, key.until))
    ]


def release_demands(version: str, dotted: str) -> bool:
    """Return whether a release's runtime demands a key."""
    last = dotted.rpartition(".")[2]
    keys = (*MODEL_KEYS, *LEGACY_MODEL_KEYS, LORA_KEY, GLM_KEY, EAGLE_KEY)
    model_key = next((key for key in keys if key.dotted == dotted), None)
    key = model_key or next((key for key in PLUGIN_KEYS if key.dotted == last), None)
    return (
        key is not None
        and versions.at_least(version, key.since)
        and not (bool(key.until) and _is_later(version, key.until))
    )


def _demanded_keys(config: Document, is_legacy: bool) -> Iterator[RuntimeKey]:
    if config.has_value("builder_config.model_name") or config.has_value("pretrained_config.model_name"):
        return  # the vision half of a multimodal model states little, and nothing more is asked
    yield from LEGACY_MODEL_KEYS if is_legacy else MODEL_KEYS
    prefix = "plugin_config" if is_legacy else "build_config.plugin_config"
    yield from (key._replace(dotted=f"{prefix}.{key.dotted}") for key in PLUGIN_KEYS)
    if is_legacy:
        return
    yield LORA_KEY
    if "GLM" in str(config.value_at("pretrained_config.architecture")):
        yield GLM_KEY
    if config.value_at("build_config.speculative_decoding_mode") == EAGLE_MODE:
        yield EAGLE_KEY


def _has_key(config: Document, dotted: str) -> bool:
    """Return whether a key is there, be its value null."""
    parent, _, last = dotted.rpartition(".")
    table = config.value_at(parent)
    return isinstance(table, dict) and last in table


def _is_later(version: str, bound: str) -> bool:
    one, last = versions.parse_release(version), versions.parse_release(bound)
    return one is not None and last is not None and one.release > last.release
