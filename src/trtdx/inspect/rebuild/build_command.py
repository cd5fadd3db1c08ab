"""The command that builds an engine again, with every setting that somebody chose for it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from trtdx.inspect.facts.build_defaults import (
    UNKNOWN_DEFAULT,
    default_of_setting,
    differs_from_default,
    engine_settings,
)
from trtdx.knowledge import versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.inspect.facts.artifact import Artifact

CHECKPOINT_PLACEHOLDER, MODEL_PLACEHOLDER = (
    "CHECKPOINT_DIR",
    "MODEL_DIR",
)  # capitals: a shell takes <angle brackets> for redirections
LIMIT_FLAGS = (
    "max_batch_size", "max_input_len", "max_output_len", "max_seq_len", "max_beam_width", "max_num_tokens",
    "opt_num_tokens", "max_prompt_embedding_table_size", "max_encoder_input_len", "max_draft_len",
)  # fmt: skip
WORD_FLAGS = (
    "speculative_decoding_mode",
    "profiling_verbosity",
    "kv_cache_type",
)  # flags with a word as value
SWITCH_FLAGS = (
    "gather_context_logits",
    "gather_generation_logits",
    "weight_streaming",
)  # flags without a value
# Plugin settings that trtllm-build takes as flags (cli_plugin_args of plugin.py at 0.8.0 to 1.2.1).
PLUGIN_FLAGS = (
    "bert_attention_plugin", "gpt_attention_plugin", "gemm_plugin", "gemm_swiglu_plugin",
    "fp8_rowwise_gemm_plugin", "lora_plugin", "dora_plugin", "moe_plugin", "mamba_conv1d_plugin",
    "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin", "context_fmha", "gemm_allreduce_plugin",
    "context_fmha_fp32_acc", "bert_context_fmha_fp32_acc", "remove_input_padding", "tokens_per_block",
    "use_paged_context_fmha", "use_fp8_context_fmha", "fuse_fp4_quant", "multiple_profiles", "paged_state",
    "streamingllm", "norm_quant_fusion", "reduce_fusion", "user_buffer", "pp_reduce_scatter",
    "use_custom_all_reduce", "multi_block_mode", "enable_xqa", "attention_qk_half_accumulation",
    "use_context_fmha_for_generation",
)  # fmt: skip


def build_command(
    engine: Artifact,
    release: str = "",
    raised: Mapping[str, int] | None = None,
    changed: Mapping[str, str] | None = None,
) -> str:
    """Return the command for a release (that of the engine where none is named).

    `raised` are limits to have at least; what the engine has already stays. `changed` are other flags to set.
    """
    release = release or engine.text("version")
    output = shlex.quote((engine.path.rstrip("/") or "engine") + ".new")
    if _is_built_by_script(engine, release):
        return _script_command(engine, output, raised or {})
    new = dict(_raised_limits(engine, raised or {})) | dict(changed or {})
    flags = {name: value for name, value in _chosen_flags(engine, release) if name not in new} | new
    words = [f"--{name} {value}".rstrip() for name, value in flags.items()]
    return " ".join([f"trtllm-build --checkpoint_dir {CHECKPOINT_PLACEHOLDER} --output_dir {output}", *words])


def _is_built_by_script(engine: Artifact, release: str) -> bool:
    """Return whether the engine is built by a model's own build.py, as before 0.8."""
    if release:
        return not versions.at_least(release, "0.8.0")
    return engine.text("era") == "before 0.8"


def raised_flags(engine: Artifact, raised: Mapping[str, int]) -> str:
    """Return only the flags that give room, for a sentence."""
    return " ".join(f"--{name} {value}" for name, value in _raised_limits(engine, raised))


def _raised_limits(engine: Artifact, raised: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield limits as large as asked for, and never smaller than the engine has them."""
    for name, value in raised.items():
        yield name, str(max(value, _stated_limit(engine, name)))


def _stated_limit(engine: Artifact, name: str) -> int:
    fact = "max_prompt_table" if name == "max_prompt_embedding_table_size" else name
    stated = engine.integer(fact) or 0
    return stated - _drafts_added(engine) if name == "max_seq_len" else stated


def _drafts_added(engine: Artifact) -> int:
    """Return what the builder itself adds to max_seq_len for drafts."""
    mode = engine.text("speculative_mode")
    return (engine.integer("max_draft_len") or 0) if mode not in ("", "NONE") else 0


def _chosen_flags(engine: Artifact, release: str) -> Iterator[tuple[str, str]]:
    """Yield the flags that repeat what was chosen, as far as the release has them."""
    for setting, value in engine_settings(engine).items():
        family, _, name = setting.partition(".")
        default = default_of_setting(release, setting)
        if default is UNKNOWN_DEFAULT or not _must_be_named(engine, setting, value, default):
            continue
        if name in LIMIT_FLAGS and isinstance(value, int):
            yield name, str(_stated_limit(engine, name))
        elif name in WORD_FLAGS and isinstance(value, str):
            yield name, value.lower()
        elif name in SWITCH_FLAGS and value is True:
            yield name, ""
        elif family == "plugin" and name in PLUGIN_FLAGS:
            yield name, {True: "enable", False: "disable"}[value] if isinstance(value, bool) else str(value)
    yield from _lora_flags(engine)


def _must_be_named(engine: Artifact, setting: str, value: Any, default: Any) -> bool:
    """Return whether a value must be named; a limit also where the other release's default is another."""
    if differs_from_default(engine, setting, value):
        return True
    return setting.partition(".")[2] in LIMIT_FLAGS and default is not None and value != default


def _lora_flags(engine: Artifact) -> Iterator[tuple[str, str]]:
    if engine.get("lora.enabled") and engine.items("lora.target_modules"):
        yield "lora_target_modules", " ".join(map(shlex.quote, map(str, engine.items("lora.target_modules"))))
        if engine.integer("lora.max_rank"):
            yield "max_lora_rank", str(engine.integer("lora.max_rank"))


# Before 0.8 each model had a build.py of its own, all with these flags.
EXAMPLE_FOLDERS = {
    "chatglm_6b": "chatglm6b", "chatglm2_6b": "chatglm", "chatglm3_6b": "chatglm", "glm_10b": "chatglm",
}  # fmt: skip


def _script_command(engine: Artifact, output: str, raised: Mapping[str, int]) -> str:
    name = str(engine.get("build.name") or "MODEL")
    folder = EXAMPLE_FOLDERS.get(name, name if name.isidentifier() else "MODEL")
    limits = {limit: _stated_limit(engine, limit) for limit in LIMIT_FLAGS if _stated_limit(engine, limit)}
    limits.pop("max_seq_len", None)
    limits |= {limit: max(value, _stated_limit(engine, limit)) for limit, value in raised.items()}
    words = [f"--{limit} {value}" for limit, value in limits.items()]
    return " ".join(
        [
            f"python3 examples/{folder}/build.py --model_dir {MODEL_PLACEHOLDER} --output_dir {output}",
            *_script_words(engine),
            *words,
        ]
    )


def _script_words(engine: Artifact) -> Iterator[str]:
    if engine.has("dtype"):
        yield f"--dtype {engine.text('dtype')}"
    yield from _script_mapping(engine)
    for name in ("gpt_attention_plugin", "gemm_plugin"):
        value = engine.get(f"plugin.{name}")
        if isinstance(value, str) and value:
            yield f"--use_{name} {value}"
    for name in ("remove_input_padding", "paged_kv_cache"):
        if engine.get(f"plugin.{name}") is True:
            yield f"--{name}"
    if engine.get("plugin.context_fmha_type") == 1:
        yield "--enable_context_fmha"


def _script_mapping(engine: Artifact) -> Iterator[str]:
    ranks = engine.integer("world_size") or 1
    if ranks == 1:
        return
    yield f"--world_size {ranks}"
    if (engine.integer("pp_size") or 1) > 1 or engine.get("build.name") in MODELS_WITH_TP_FLAG:
        yield f"--tp_size {engine.integer('tp_size') or 1} --pp_size {engine.integer('pp_size') or 1}"


MODELS_WITH_TP_FLAG = (
    "llama",
    "falcon",
    "qwen",
    "internlm",
)  # their build.py has --tp_size beside --world_size
