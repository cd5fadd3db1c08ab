"""What the C++ runtime demands of an engine's config.json, by release (`gptJsonConfig.cpp` at each tag).

A key it reads with `json.at` and does not find ends the start: "[json.exception.out_of_range.403] key 'x' not found".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.knowledge import versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.documents import Document


class Key(NamedTuple):
    """One key, and the releases that demand it."""

    dotted: str
    since: str = "0.8.0"
    until: str = ""  # the last release that does; empty: all later ones do


MODEL_KEYS = tuple(
    Key(f"pretrained_config.{name}")
    for name in (
        "architecture", "dtype", "num_hidden_layers", "num_attention_heads", "vocab_size", "hidden_size",
        "mapping.tp_size", "quantization",
    )
)  # fmt: skip
OLD_MODEL_KEYS = tuple(
    Key(f"builder_config.{name}", "0.5.0")
    for name in (
        "name", "precision", "tensor_parallel", "num_layers", "num_heads", "vocab_size", "hidden_size",
    )
)  # fmt: skip
PLUGIN_KEYS = (
    Key("gpt_attention_plugin", "0.5.0"),
    Key("remove_input_padding", "0.5.0"),
    Key("paged_kv_cache", "0.5.0"),
    Key("tokens_per_block", "0.5.0"),
    Key("use_paged_context_fmha", "0.7.0"),
    Key("use_context_fmha_for_generation", "0.7.0", "0.10.0"),
    Key("use_custom_all_reduce", "0.5.0", "0.11.0"),
    Key("lora_plugin", "0.8.0"),
    Key("context_fmha", "0.11.0"),
)
LORA_KEY = Key("build_config.lora_config", "0.9.0")
GLM_KEY = Key("pretrained_config.chatglm_version")
EAGLE_KEY = Key("pretrained_config.eagle_net_config", "0.16.0")
EAGLE = 32  # speculative_decoding_mode


def missing_keys(config: Document, old: bool) -> list[str]:
    """Return the keys that are not there although the engine's own release, or a later one, demands them."""
    made_by = config.at("version")
    version = made_by if isinstance(made_by, str) else "0.7.1" if old else "0.8.0"
    return [
        key.dotted
        for key in _demanded(config, old)
        if not _is_there(config, key.dotted) and (not key.until or not _later(version, key.until))
    ]


def demands(version: str, dotted: str) -> bool:
    """Return whether a release's runtime demands a key."""
    last = dotted.rpartition(".")[2]
    keys = (*MODEL_KEYS, *OLD_MODEL_KEYS, LORA_KEY, GLM_KEY, EAGLE_KEY)
    model_key = next((key for key in keys if key.dotted == dotted), None)
    key = model_key or next((key for key in PLUGIN_KEYS if key.dotted == last), None)
    return (
        key is not None
        and versions.at_least(version, key.since)
        and not (bool(key.until) and _later(version, key.until))
    )


def _demanded(config: Document, old: bool) -> Iterator[Key]:
    if config.has("builder_config.model_name") or config.has("pretrained_config.model_name"):
        return  # the vision half of a multimodal model states little, and nothing more is asked
    yield from OLD_MODEL_KEYS if old else MODEL_KEYS
    prefix = "plugin_config" if old else "build_config.plugin_config"
    yield from (key._replace(dotted=f"{prefix}.{key.dotted}") for key in PLUGIN_KEYS)
    if old:
        return
    yield LORA_KEY
    if "GLM" in str(config.at("pretrained_config.architecture")):
        yield GLM_KEY
    if config.at("build_config.speculative_decoding_mode") == EAGLE:
        yield EAGLE_KEY


def _is_there(config: Document, dotted: str) -> bool:
    """Return whether a key is there, be its value null."""
    parent, _, last = dotted.rpartition(".")
    table = config.at(parent)
    return isinstance(table, dict) and last in table


def _later(version: str, bound: str) -> bool:
    one, last = versions.parsed(version), versions.parsed(bound)
    return one is not None and last is not None and one.release > last.release
