"""Build and serve flags as TensorRT-LLM spells them, with `-` or `_`, as facts of an artifact."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import InputError
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.facts.option_table import option_table
from trtdx.inspect.facts.vocabulary import require_term
from trtdx.inspect.readers.server.llm_options import FACT_BY_OPTION, coerce_value
from trtdx.words import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SWITCH_ON_WORDS = ("enable", "enabled", "on", "true", "yes", "1", "auto")
SWITCH_OFF_WORDS = ("disable", "disabled", "off", "false", "no", "0", "none", "null")


class FlagMeaning(NamedTuple):
    """The fact a flag states, and what its value looks like."""

    fact: str
    kind: str = "int"  # int, float, str, list, size, switch (with or without a value), plugin (a type, or disable)


# Flags by the kind of their value and the fact they state; what build scripts before 0.8 spelled otherwise is among them.
FLAGS_OF_FACTS: dict[str, dict[str, str]] = {
    "int": {
        "tp_size": "tp tp_size tensor_parallel_size", "pp_size": "pp pp_size pipeline_parallel_size",
        "cp_size": "cp cp_size context_parallel_size",
        "moe_ep_size": "ep ep_size moe_ep_size moe_expert_parallel_size",
        "moe_tp_size": "moe_tp_size moe_tensor_parallel_size", "world_size": "world_size",
        "gpus_per_node": "gpus_per_node", "quant.group_size": "group_size", "max_batch_size": "max_batch_size",
        "max_num_tokens": "max_num_tokens", "max_seq_len": "max_seq_len max_decoder_seq_len",
        "max_input_len": "max_input_len", "max_output_len": "max_output_len",
        "max_beam_width": "max_beam_width beam_width", "max_draft_len": "max_draft_len",
        "tokens_per_block": "tokens_per_block", "runtime.max_tokens_in_cache": "max_tokens_in_paged_kv_cache",
        "option.cuda_graph_config.max_batch_size": "cuda_graph_max_batch_size", "lora.max_rank": "max_lora_rank",
        "option.lora_config.max_loras": "max_loras",
    },
    "switch": {
        "attention_dp": "enable_attention_dp", "use_parallel_embedding": "use_parallel_embedding",
        "option.int8_kv_cache": "int8_kv_cache", "option.fp8_kv_cache": "fp8_kv_cache",
        "option.use_inflight_batching": "use_inflight_batching",
        "plugin.context_fmha": "enable_context_fmha context_fmha",
        "plugin.remove_input_padding": "remove_input_padding", "plugin.paged_kv_cache": "paged_kv_cache",
        "plugin.use_paged_context_fmha": "use_paged_context_fmha", "multiple_profiles": "multiple_profiles",
        "gather_context_logits": "gather_context_logits", "gather_generation_logits": "gather_generation_logits",
        "option.gather_all_token_logits": "gather_all_token_logits",
        "runtime.chunked_context": "enable_chunked_prefill enable_chunked_context",
        "option.disable_kv_cache_reuse": "disable_kv_cache_reuse",
        "option.use_cuda_graph": "cuda_graph use_cuda_graph", "option.torch_compile": "torch_compile",
        "option.torch_compile_config.enable_piecewise_cuda_graph": "piecewise_cuda_graph",
        "lora.enabled": "enable_lora",
    },
    "str": {
        "dtype": "dtype", "logits_dtype": "logits_dtype",
        "quant.algo": "quantization quant_algo qformat weight_only_precision",
        "runtime.kv_cache_dtype": "kv_cache_dtype kv_cache_quant_algo", "runtime.backend": "backend",
        "kv_cache_type": "kv_cache_type", "option.moe_config.backend": "moe_backend",
        "runtime.draft_model": "draft_model speculative_model",
    },
    "float": {

        "runtime.free_gpu_memory_fraction": "kv_cache_free_gpu_memory_fraction kv_cache_free_gpu_mem_fraction free_gpu_memory_fraction",
    },
    "size": {
        "option.kv_cache_config.host_cache_size": "kv_cache_host_memory_bytes host_cache_size",
        "option.other_processes": "other_processes",
    },
    "plugin": {
        "plugin.gemm_plugin": "gemm_plugin use_gemm_plugin",
        "plugin.gpt_attention_plugin": "gpt_attention_plugin use_gpt_attention_plugin",
        "option.lora_plugin": "lora_plugin",
    },
}  # fmt: skip
MEMORY_FLAGS: dict[str, FlagMeaning] = {
    name: FlagMeaning(fact, kind)
    for kind, facts in FLAGS_OF_FACTS.items()
    for fact, names in facts.items()
    for name in names.split()
}
# Flags of trtllm-build that mean nothing to the PyTorch backend.
ENGINE_FACTS = (
    "plugin.gemm_plugin", "plugin.gpt_attention_plugin", "plugin.context_fmha", "plugin.remove_input_padding",
    "plugin.paged_kv_cache", "plugin.use_paged_context_fmha", "kv_cache_type", "multiple_profiles",
    "use_parallel_embedding", "option.gather_all_token_logits",
)  # fmt: skip
LLM_PROGRAMS = ("trtllm-serve", "trtllm-build", "trtllm-bench", "trtllm-eval")


def artifact_from_flags(named_flags: Mapping[str, Any], words: Sequence[str] = ()) -> Artifact:
    """Return what flags say: those given by name, and the other words of a command line."""
    alone, pairs = split_flags(words)
    if alone:
        raise InputError(f"{alone[0]!r} is not a flag", fix="flags begin with --")
    facts = FactCollector()
    for name, value in (*named_flags.items(), *pairs):
        put_flag_fact(facts, name, value)
    return Artifact("command", "the command line", facts.to_dict())


def split_flags(words: Sequence[str]) -> tuple[list[str], list[tuple[str, Any]]]:
    """Return the words that are nobody's value, and each flag with its value; a switch may stand alone."""
    alone: list[str] = []
    pairs: list[tuple[str, Any]] = []
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if not word.startswith("-") or word in ("-", "--"):
            alone.append(word)
            continue
        name, equals, value = word.partition("=")
        if not equals:
            flag_value = _take_flag_value(name, words[at : at + 1])
            at += flag_value is not True
            pairs.append((name, flag_value))
        else:
            pairs.append((name, value))
    return alone, pairs


def _take_flag_value(name: str, following: Sequence[str]) -> str | bool:
    meaning = flag_meaning(name)
    lacks = not following or following[0].startswith("--")
    if meaning.kind == "switch" and (lacks or following[0].lower() not in (*SWITCH_ON_WORDS, *SWITCH_OFF_WORDS)):
        return True
    if lacks and meaning.kind == "plugin":  # in the type of the model
        return True
    if lacks:
        raise InputError(f"{name} needs a value", fix=_usage_hint(name, meaning))
    return following[0]


def flag_meaning(name: str) -> FlagMeaning:
    """Return what a flag states; one that nobody knows gets the nearest."""
    plain = name.lstrip("-").replace("-", "_")
    if plain in MEMORY_FLAGS:
        return MEMORY_FLAGS[plain]
    option = option_table().option.get(plain)
    if option is not None:
        fact = FACT_BY_OPTION.get(plain, f"option.{plain}")
        return FlagMeaning(fact, "switch" if option.type == "bool" else option.type)
    for program in LLM_PROGRAMS:  # of no weight for memory, but right on a pasted command line
        flag = option_table().flag.get(program, {}).get(f"--{plain}") or option_table().flag.get(program, {}).get(name)
        if flag is not None:
            return FlagMeaning(f"option.{plain}", "switch" if flag.type == "flag" else "str")
    near = difflib.get_close_matches(plain, MEMORY_FLAGS, n=1, cutoff=0.7)
    fix = f"did you mean --{near[0]}?" if near else "trtdx memory --help lists the flags"
    raise InputError(f"no flag of trtdx or TensorRT-LLM is called {name}", fix=fix)


def put_flag_fact(facts: FactCollector, name: str, value: Any) -> None:
    """Put what one flag states."""
    spelled = name if name.startswith("-") else f"--{name}"
    meaning = flag_meaning(spelled)
    facts.put(meaning.fact, _parse_flag_value(spelled, meaning, value), spelled)


def _parse_flag_value(name: str, meaning: FlagMeaning, value: Any) -> Any:
    if meaning.kind == "switch":
        return value if isinstance(value, bool) else _parse_switch(name, str(value))
    if meaning.kind == "plugin":
        return False if value is False or str(value).lower() in SWITCH_OFF_WORDS else str(value)
    if meaning.kind == "size":
        return parse_size(str(value))
    if meaning.kind in ("int", "float"):
        return _parse_flag_number(name, meaning, value)
    if meaning.kind == "list":
        return _parse_list(name, str(value))
    return coerce_value(require_term(meaning.fact).type, value)


def _parse_list(name: str, text: str) -> list[Any]:
    """Return a list as YAML or JSON has it in one line, or without its brackets."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    if any(sign in inner for sign in "[]{}"):
        raise InputError(f"{name} {text!r} is not a plain list", fix="write such an option into a file for --config")
    return [coerce_value("int", item.strip(" '\"")) for item in inner.split(",") if item.strip()]


def parse_token_count(name: str, text: str) -> int:
    """Return a number of tokens from 1 on, such as 4096 or 4k."""
    value = int(_parse_flag_number(name, FlagMeaning("max_seq_len"), text))
    if not 1 <= value <= 10**8:
        raise InputError(f"{name} {text} cannot be", fix=f"write {name} 4096")
    return value


def _parse_switch(name: str, value: str) -> bool:
    if value.lower() not in (*SWITCH_ON_WORDS, *SWITCH_OFF_WORDS):
        raise InputError(f"{name} {value!r} is neither on nor off", fix=f"write {name} enable or disable")
    return value.lower() in SWITCH_ON_WORDS


def _parse_flag_number(name: str, meaning: FlagMeaning, value: Any) -> int | float:
    text = str(value).strip().replace("_", "")
    thousands = re.fullmatch(r"(\d+)[kK]", text)
    if thousands:
        return int(thousands[1]) * 1024
    try:
        return float(text) if meaning.kind == "float" else int(text)
    except ValueError:
        raise InputError(f"{name} {value!r} is not a number", fix=_usage_hint(name, meaning)) from None


def _usage_hint(name: str, meaning: FlagMeaning) -> str:
    usual = "4096" if "len" in name or "tokens" in name else "8"
    value = {"int": usual, "float": "0.9", "size": "2GiB", "plugin": "auto"}.get(meaning.kind, "VALUE")
    return f"write {name} {value}"
