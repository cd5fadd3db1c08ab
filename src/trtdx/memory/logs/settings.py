"""The settings a log prints: the runtime's own lines, dumps of LLM arguments, command lines."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# What a log calls a setting, and what the command line of TensorRT-LLM calls it.
SETTING_NAMES = {
    "max_batch_size": "max_batch_size", "maxBatchSize": "max_batch_size", "max_num_requests": "max_batch_size",
    "max_num_tokens": "max_num_tokens", "maxNumTokens": "max_num_tokens",
    "max_seq_len": "max_seq_len", "maxSequenceLen": "max_seq_len",
    "max_input_len": "max_input_len", "maxInputLen": "max_input_len",
    "max_beam_width": "max_beam_width", "maxBeamWidth": "max_beam_width",
    "max_draft_len": "max_draft_len", "maxDraftLen": "max_draft_len",
    "tokens_per_block": "tokens_per_block",
    "free_gpu_memory_fraction": "kv_cache_free_gpu_memory_fraction",
    "kv_cache_free_gpu_memory_fraction": "kv_cache_free_gpu_memory_fraction",
    "kv_cache_free_gpu_mem_fraction": "kv_cache_free_gpu_memory_fraction",
    "max_tokens_in_paged_kv_cache": "max_tokens",
    "tp_size": "tp_size", "tensor_parallel_size": "tp_size", "tp": "tp_size",
    "pp_size": "pp_size", "pipeline_parallel_size": "pp_size", "pp": "pp_size",
    "ep_size": "ep_size", "moe_expert_parallel_size": "ep_size",
    "enable_attention_dp": "enable_attention_dp",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "backend": "backend", "kv_cache_dtype": "kv_cache_dtype",
    "gemm_plugin": "gemm_plugin", "context_fmha": "context_fmha", "remove_input_padding": "remove_input_padding",
}  # fmt: skip
NUMBER_SETTINGS = frozenset(
    ("max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len", "max_beam_width", "max_draft_len")
) | {"tokens_per_block", "tp_size", "pp_size", "ep_size", "max_tokens", "cuda_graph_max_batch_size"}
_FROM_RUNTIME, _FROM_DUMP, _FROM_FLAG = 3, 2, 1

_VALUE = r"[\"']?(?P<value>[A-Za-z_]\w{0,30}|\d+(?:\.\d+)?)"
_PATTERNS = (
    (_FROM_RUNTIME, r"TRTGptModel m?(?P<name>max\w+): \(?" + _VALUE),
    (_FROM_RUNTIME, r"max_seq_len=(?P<seq>\d+), max_num_requests=(?P<batch>\d+), max_num_tokens=(?P<tokens>\d+)(?:, max_batch_size=(?P<step>\d+))?"),
    (_FROM_RUNTIME, r"Set (?P<name>gemm_plugin|context_fmha|remove_input_padding) to " + _VALUE),
    (_FROM_RUNTIME, r"TensorRT[- ]LLM [Vv]ersion:? (?P<version>\d+\.\d+[\w.+]*)"),
    (_FROM_DUMP, r"Engine version (?P<version>\d+\.\d+[\w.+]*) found in the config file"),
    (_FROM_DUMP, r"KV Memory Percentage:\s+(?P<percent>[\d.]+)%"),
    (_FROM_RUNTIME, r"MPI size: (?P<world>\d+), rank"),
    (_FROM_DUMP, r"\b(?P<name>\w{2,40})[\"']?=" + _VALUE),
    (_FROM_DUMP, r"[\"'](?P<name>\w{2,40})[\"']: ?" + _VALUE),
    (_FROM_FLAG, r"^(?P<name>\w{2,40}): " + _VALUE + r"\s*$"),
    (_FROM_FLAG, r"--(?P<name>\w[\w-]{1,40})[ =]" + _VALUE),
)  # fmt: skip
_NESTED = re.compile(r"(\w*Config)\(([^()]*)\)")


class LogSetting(msgspec.Struct, frozen=True):
    """A setting as a log gives it, under TensorRT-LLM's name for it on the command line."""

    name: str
    value: str
    trust: int  # the runtime's own word before a dump, a dump before a command line
    where: str = ""


def parse_log_settings(message: str, where: str) -> Iterator[LogSetting]:
    """Yield the settings one line states."""
    message, nested = _split_nested_configs(message, where)
    yield from nested
    for trust, pattern in _compiled_patterns():
        for match in pattern.finditer(message):
            yield from _settings_from_match(match, trust, where)


def _split_nested_configs(message: str, where: str) -> tuple[str, list[LogSetting]]:
    """Return the line without parts that use the same names for other things, and what those parts say."""
    settings: list[LogSetting] = []

    def take_section(match: re.Match[str]) -> str:
        kind, body = match[1], match[2]
        if kind == "CudaGraphConfig":
            size = re.search(r"max_batch_size=(\d+)", body)
            settings.extend([LogSetting("cuda_graph_max_batch_size", size[1], _FROM_DUMP, where)] if size else [])
        elif kind == "KvCacheConfig":
            settings.extend(_kv_config_settings(body, where))
        else:
            return match[0]
        return kind

    return _NESTED.sub(take_section, message), settings


def _kv_config_settings(body: str, where: str) -> Iterator[LogSetting]:
    for key, name in (
        ("free_gpu_memory_fraction", "kv_cache_free_gpu_memory_fraction"),
        ("tokens_per_block", "tokens_per_block"),
        ("dtype", "kv_cache_dtype"),
        ("max_tokens", "kv_pool_tokens"),  # after profiling: what was computed, not what was asked for
        ("max_gpu_total_bytes", "kv_pool_bytes"),
    ):
        match = re.search(rf"\b{key}='?([\w.]+)", body)
        if match and match[1] not in ("None", "0") and _is_valid_value(name, match[1]):
            yield LogSetting(name, match[1], _FROM_DUMP, where)


def _settings_from_match(match: re.Match[str], trust: int, where: str) -> Iterator[LogSetting]:
    groups = {name: text for name, text in match.groupdict().items() if text is not None}
    for group, name in (
        ("seq", "max_seq_len"),
        ("step" if "step" in groups else "batch", "max_batch_size"),
        ("tokens", "max_num_tokens"),
        ("version", "version"),
        ("world", "world_size"),
    ):
        if group in groups:
            yield LogSetting(name, groups[group], trust, where)
    if "percent" in groups:
        share = f"{float(groups['percent']) / 100:g}"
        yield LogSetting("kv_cache_free_gpu_memory_fraction", share, trust, where)
    setting_name = SETTING_NAMES.get(groups.get("name", "").replace("-", "_"))
    if setting_name and _is_valid_value(setting_name, groups["value"]):
        yield LogSetting(setting_name, groups["value"], trust, where)


def _is_valid_value(name: str, value: str) -> bool:
    if name in NUMBER_SETTINGS:
        return value.isdigit() and 0 < int(value) < 10**9
    if name.startswith("kv_pool"):
        return value.isdigit() and int(value) < 2**50
    if name.endswith("fraction"):
        return bool(re.fullmatch(r"[01](?:\.\d+)?", value))
    return value != "None"


def most_trusted_settings(settings: Iterable[LogSetting]) -> dict[str, LogSetting]:
    """Return one value for each setting: the most trustworthy, and of those the last."""
    best: dict[str, LogSetting] = {}
    for setting in settings:
        if setting.name not in best or setting.trust >= best[setting.name].trust:
            best[setting.name] = setting
    return best


@cache
def _compiled_patterns() -> tuple[tuple[int, re.Pattern[str]], ...]:
    return tuple((trust, re.compile(pattern)) for trust, pattern in _PATTERNS)
