"""What `trtllm-build` sets by itself in each release, so that a setting somebody chose can be told from the rest.

The numbers are those of the inventory; what the sources do not state is in `data/build_notes.toml`.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.inspect.facts.artifact import shorten_value
from trtdx.inspect.facts.config_keys import CONFIG_KEYS
from trtdx.knowledge import inventory, versions
from trtdx.model import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Fact
    from trtdx.model import Cell


class UnknownDefault:
    """The default of a setting that a release does not have, or of a release nobody wrote down."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN_DEFAULT = UnknownDefault()
SETTING_FAMILIES = ("build", "plugin")
FACT_BY_SETTING = {f"build.{key}": name for key, name in CONFIG_KEYS.build_config.items()} | {
    "build.kv_cache_type": "kv_cache_type",
    "build.speculative_decoding_mode": "speculative_mode",
}
SETTING_BY_FACT = {fact: setting for setting, fact in FACT_BY_SETTING.items()}
UNCHOSEN_SETTINGS = (
    "plugin.dtype",
    "build.missing_keys",
    "build.model_name",
)  # follow from the model or the reader


class BuildNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults that the command works out by itself, in some releases."""

    why: str
    since: str
    until: str = ""
    default: dict[str, Any] = {}
    unset: tuple[str, ...] = ()

    def holds_in(self, version: str) -> bool:
        """Whether a release is one of these."""
        return versions.at_least(version, self.since) and not (
            self.until and versions.at_least(version, self.until) and version != self.until
        )


class BuildNotes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known by hand: `data/build_notes.toml`."""

    first_release: str
    last_release: str
    not_settings: tuple[str, ...]
    note: tuple[BuildNote, ...]
    about: dict[str, str]


@cache
def build_notes() -> BuildNotes:
    data = resources.files("trtdx").joinpath("data/build_notes.toml").read_bytes()
    return msgspec.toml.decode(data, type=BuildNotes)


@cache
def defaults_of_release(version: str) -> dict[str, Any]:
    """Return every setting of a release with its default; None means that the builder deduces it."""
    notes = build_notes()
    if not versions.at_least(version, notes.first_release):
        return {}
    release = notes.last_release if versions.at_least(version, notes.last_release) else version
    defaults = _stated_defaults(release)
    for note in notes.note:
        if note.holds_in(release):
            defaults |= note.default | dict.fromkeys(note.unset)
    return {name: value for name, value in defaults.items() if name not in notes.not_settings}


def _stated_defaults(release: str) -> dict[str, Any]:
    """Return what the sources of a release state: fields of the two classes, and the command's own defaults."""
    defaults: dict[str, Any] = {}
    for field in inventory.list_fields("PluginConfig"):
        era = inventory.era_of_release(field, release)
        if era is not None:  # None is a plugin that is off
            defaults[f"plugin.{field.field}"] = False if era.default is None else era.default
    for field in inventory.list_fields("BuildConfig"):
        era = inventory.era_of_release(field, release)
        if era is not None and era.type != "table":
            defaults[f"build.{field.field}"] = era.default
    for flag in inventory.list_tool_flags("trtllm-build"):
        name = f"build.{flag.flag.removeprefix('--')}"
        era = inventory.era_of_release(flag, release) if name in defaults else None
        if era is not None:
            defaults[name] = bool(era.default) if era.type == "flag" else era.default
    return defaults


def default_of_setting(version: str, setting: str) -> Any:
    """Return the default of a setting ("plugin.gemm_plugin", or "max_batch_size"), or UNKNOWN."""
    defaults = defaults_of_release(version)
    names = (setting, *(f"{family}.{setting}" for family in SETTING_FAMILIES))
    return next((defaults[name] for name in names if name in defaults), UNKNOWN_DEFAULT)


def engine_settings(artifact: Artifact) -> dict[str, Any]:
    """Return an engine's settings by TensorRT-LLM's own names, with the family before each."""
    facts = {SETTING_BY_FACT[name]: fact for name, fact in artifact.facts.items() if name in SETTING_BY_FACT}
    for family in SETTING_FAMILIES:
        facts |= {f"{family}.{name}": fact for name, fact in artifact.family_facts(family).items()}
    return {
        name: fact.value
        for name, fact in facts.items()
        if name not in UNCHOSEN_SETTINGS
        and not isinstance(fact.value, (dict, list))
        and not _is_derived_fact(name, fact)
    }


def _is_derived_fact(setting: str, fact: Fact) -> bool:
    """Return whether a reader put the fact together from other keys of the file."""
    key = setting.partition(".")[2]
    return setting in FACT_BY_SETTING and ": " in fact.where and not fact.where.endswith(f".{key}")


def differs_from_default(artifact: Artifact, setting: str, value: Any) -> bool | None:
    """Return whether somebody chose this value; None where the default is not known."""
    default = default_of_setting(artifact.text("version"), setting)
    if default is UNKNOWN_DEFAULT:
        return None
    return value != default and value not in list(_deduced_values(artifact, setting, default))


def settings_section(artifact: Artifact) -> Section:
    """Return an engine's settings, those that differ from their release's default first."""
    version = artifact.text("version")
    rows = [_setting_row(artifact, name, value) for name, value in engine_settings(artifact).items()]
    rows.sort(key=lambda row: (row[3] != "yes", str(row[0])))
    return Section(
        "settings",
        f"build settings: {artifact.path}",
        ("setting", "value", "default", "differs", "what it does"),
        tuple(rows),
        note=_defaults_note(artifact, version),
    )


def _defaults_note(artifact: Artifact, version: str) -> str:
    if defaults_of_release(version):
        return f"defaults are those of trtllm-build {version}; 'deduced' means that the builder works it out"
    if artifact.has("version"):
        return f"the defaults of TensorRT-LLM {version} are not known"
    return "before 0.8 every model had its own build script with its own defaults"


def _setting_row(artifact: Artifact, setting: str, value: Any) -> tuple[Cell, ...]:
    default = default_of_setting(artifact.text("version"), setting)
    marked = differs_from_default(artifact, setting, value)
    return (
        setting.partition(".")[2],
        _setting_words(value),
        "" if default is UNKNOWN_DEFAULT else "deduced" if default is None else _setting_words(default),
        "yes" if marked else "" if marked is None else "no",
        build_notes().about.get(setting, ""),
    )


def _setting_words(value: Any) -> str:
    return {"true": "on", "false": "off"}.get(shorten_value(value), shorten_value(value))


# What the builder itself makes of a default, given the model: such a value was not chosen either.


def _deduced_values(artifact: Artifact, setting: str, default: Any) -> Iterator[Any]:
    if setting.startswith("plugin."):
        yield from _deduced_plugin_values(artifact, setting.partition(".")[2], default)
        return
    rule = DEDUCE_LIMIT.get(setting.partition(".")[2])
    if rule is not None:
        yield from rule(artifact)
    if setting == "build.strongly_typed" and "FP8" in (
        artifact.get("quant.algo"),
        artifact.get("quant.kv_algo"),
    ):
        yield True
    if setting == "build.opt_batch_size":  # 0.10 to 0.14 leave it out on one of two paths
        yield 8
    if setting == "build.use_fused_mlp" and artifact.has("quant.algo"):
        yield False


def _deduced_plugin_values(artifact: Artifact, plugin: str, default: Any) -> Iterator[Any]:
    if default == "auto" or (plugin in ("moe_plugin", "mamba_conv1d_plugin") and default):
        yield artifact.get("dtype")
    if plugin == "nccl_plugin":
        yield artifact.get("dtype") if (artifact.integer("world_size") or 1) > 1 else False
    if plugin in _plugins_of_algo(artifact.text("quant.algo")):
        yield from (artifact.get("dtype"), "auto", True, "nvfp4")
    if plugin in ("use_fp8_context_fmha", "use_paged_context_fmha"):
        yield from _deduced_attention_values(artifact, plugin)
    if plugin in ("paged_state", "paged_kv_cache") and artifact.text("architecture") in RECURRENT_ARCHITECTURES:
        yield from (True, False)


RECURRENT_ARCHITECTURES = ("MambaForCausalLM", "RecurrentGemmaForCausalLM")
FP8_ATTENTION_ALGOS = ("FP8", "W4A8_AWQ", "NVFP4")


def _deduced_attention_values(artifact: Artifact, plugin: str) -> Iterator[Any]:
    """Yield what the builder turns these two to: FP8 attention needs FP8 weights and an FP8 cache."""
    fp8_cache = artifact.get("quant.kv_algo") == "FP8"
    fp8_weights = artifact.get("quant.algo") in FP8_ATTENTION_ALGOS
    if artifact.get("plugin.context_fmha") is False or artifact.get("plugin.streamingllm") is True:
        yield False
    if plugin == "use_fp8_context_fmha" and not (fp8_weights and fp8_cache):
        yield False
    if plugin == "use_paged_context_fmha" and (
        artifact.get("quant.kv_algo") == "INT8" or (fp8_cache and not fp8_weights)
    ):
        yield False


def _plugins_of_algo(algo: str) -> tuple[str, ...]:
    """Return the plugins the builder turns on for a quantisation."""
    norms = ("rmsnorm_quantization_plugin", "layernorm_quantization_plugin")
    quantize = ("quantize_per_token_plugin", "quantize_tensor_plugin")
    if algo.startswith("W8A8_SQ"):
        return ("smooth_quant_gemm_plugin", *norms, *quantize)
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        return ("fp8_rowwise_gemm_plugin", *norms, *quantize)
    if "QSERVE" in algo:
        return ("qserve_gemm_plugin", *norms, *quantize)
    if algo.startswith("NVFP4"):
        return ("gemm_plugin",)
    if "AWQ" in algo or "GPTQ" in algo:
        return ("weight_only_groupwise_quant_matmul_plugin",)
    return ("weight_only_quant_matmul_plugin",) if algo in ("W8A16", "W4A16") else ()


def _deduced_seq_len(artifact: Artifact) -> Iterator[int]:
    """Yield the sequence length the builder deduces: the model's positions, stretched by rotary scaling."""
    positions = artifact.integer("max_positions") or 2048
    scaling = artifact.table("rope_scaling")
    factor = scaling.get("factor", 1)
    stretched = scaling.get("type") not in ("su", "longrope", "llama3") and isinstance(factor, (int, float))
    length = math.ceil(positions * factor) if stretched and 0 < factor < 1e6 else positions
    yield from (length, length + (artifact.integer("max_draft_len") or 0))
    if artifact.text("architecture") == "EncoderModel":
        yield artifact.integer("max_input_len") or length


def _deduced_input_len(artifact: Artifact) -> Iterator[int]:
    """Yield the prompt length the builder clips to."""
    yield min(1024, artifact.integer("max_seq_len") or 1024)


def _deduced_num_tokens(artifact: Artifact) -> Iterator[int]:
    batch, length = artifact.integer("max_batch_size") or 1, artifact.integer("max_seq_len") or 1
    yield min(8192, batch * length)
    if artifact.has("max_output_len"):  # 0.9 and 0.10
        yield batch * (artifact.integer("max_input_len") or 1)
    yield max(8192, batch * ((artifact.integer("max_draft_len") or 0) + 1))


def _deduced_opt_tokens(artifact: Artifact) -> Iterator[int]:
    batch, beams = artifact.integer("max_batch_size") or 1, artifact.integer("max_beam_width") or 1
    yield min(batch * beams, artifact.integer("max_num_tokens") or batch * beams)


DEDUCE_LIMIT = {
    "max_seq_len": _deduced_seq_len,
    "max_input_len": _deduced_input_len,
    "max_num_tokens": _deduced_num_tokens,
    "opt_num_tokens": _deduced_opt_tokens,
}
