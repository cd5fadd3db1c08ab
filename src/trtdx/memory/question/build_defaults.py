"""Default build settings of an engine: of trtllm-build since 0.8, before that of each model's own build.py.

Those scripts are examples/MODEL/build.py of v0.5.0 to v0.7.1. All plugins were off unless named below, input was padded,
and the cache was one piece.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trtdx.inspect.facts.build_defaults import default_of_setting
from trtdx.knowledge.versions import at_least

FIRST_TRTLLM_BUILD = "0.8.0"
LARGER_BLOCKS_SINCE = "0.7.0"  # 128 tokens, 64 before
BUILD_PLUGINS = ("gemm_plugin", "gpt_attention_plugin")


class BuildScript(NamedTuple):
    """The defaults of one examples/MODEL/build.py."""

    max_batch_size: int
    max_input_len: int
    max_output_len: int
    plugins: tuple[str, ...] = ()  # that are on


_GPT = BuildScript(256, 200, 200)
_LLAMA = BuildScript(8, 2048, 512)
# By model_type; the longest name that a model_type begins with is taken. Models without a script were built as Llama.
BUILD_SCRIPTS = {
    "baichuan": BuildScript(1, 1024, 1024), "bert": BuildScript(256, 512, 0), "bloom": BuildScript(8, 1024, 1024),
    "chatglm": BuildScript(8, 1024, 1024, BUILD_PLUGINS), "falcon": BuildScript(8, 1024, 1024), "gpt": _GPT, "gptj": _GPT,
    "gpt_neox": BuildScript(64, 1024, 1024), "llama": _LLAMA, "mpt": _GPT, "opt": _GPT,
    "qwen": BuildScript(2, 2048, 2048, BUILD_PLUGINS), "t5": BuildScript(8, 200, 200), "bart": BuildScript(8, 200, 200),
    "whisper": BuildScript(8, 14, 100),
}  # fmt: skip


def build_default(release: str, model_type: str, setting: str) -> Any:
    """Return the default of a build setting in a release ("max_batch_size", "plugin.gemm_plugin"), or UNKNOWN."""
    if at_least(release, FIRST_TRTLLM_BUILD):
        return default_of_setting(release, setting)
    script = build_script_of(model_type)
    plain = setting.removeprefix("plugin.")
    if plain in BUILD_PLUGINS:
        return plain in script.plugins
    if plain in BuildScript._fields:
        return getattr(script, plain)
    block = 128 if at_least(release, LARGER_BLOCKS_SINCE) else 64
    off = dict.fromkeys(("context_fmha", "remove_input_padding", "paged_kv_cache"), False)
    return {**off, "tokens_per_block": block}.get(plain, default_of_setting(FIRST_TRTLLM_BUILD, setting))


def build_script_of(model_type: str) -> BuildScript:
    names = [name for name in BUILD_SCRIPTS if model_type.startswith(name)]
    return BUILD_SCRIPTS[max(names, key=len)] if names else _LLAMA
