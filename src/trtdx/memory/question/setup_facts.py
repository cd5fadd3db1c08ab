"""A set-up as commands and files state it: each setting under the name that artifacts use.

Data flows one way: facts that were read become a `Setup`, plans and changes are made of it, and what two set-ups
differ in is written into commands. Nothing here is read back into the set-up it came from.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from trtdx.knowledge.versions import at_least
from trtdx.model import Stage

if TYPE_CHECKING:
    from trtdx.memory.nouns import Setup

SetupFacts = dict[str, Any]
TRTLLM_BUILD_SINCE = "0.8.0"  # trtllm-build; before, each example had a build.py that converted too
GRAPHS_FACT, PIECEWISE_FACT = (
    "option.use_cuda_graph",
    "option.torch_compile_config.enable_piecewise_cuda_graph",
)
# Of an engine: what its weights are converted with, and what is only said when it is started. The rest is built in.
CONVERT_FACTS = (
    "tp_size", "pp_size", "cp_size", "moe_tp_size", "moe_ep_size", "dtype", "quant.algo", "runtime.kv_cache_dtype",
    "option.int8_kv_cache", "option.fp8_kv_cache", "use_parallel_embedding",
)  # fmt: skip
LAUNCH_FACTS = (
    "runtime.free_gpu_memory_fraction", "runtime.max_tokens_in_cache", "runtime.chunked_context",
    "runtime.block_reuse", "option.disable_kv_cache_reuse", "option.kv_cache_config.host_cache_size",
    "runtime.attention_window", "option.kv_cache_config.max_gpu_total_bytes",
)  # fmt: skip


# The field of a set-up that each fact is about.
FIELD_OF_FACT = {
    "tp_size": "layout.tp", "pp_size": "layout.pp", "moe_ep_size": "layout.ep", "moe_tp_size": "layout.moe_tp",
    "quant.algo": "formats.weights", "runtime.kv_cache_dtype": "formats.kv", "max_batch_size": "limits.max_batch_size",
    "max_num_tokens": "limits.max_num_tokens", "max_seq_len": "limits.max_seq_len",
    "max_beam_width": "limits.max_beam_width", "runtime.free_gpu_memory_fraction": "running.free_fraction",
    "runtime.max_tokens_in_cache": "running.max_tokens", "runtime.chunked_context": "running.chunked",
}  # fmt: skip
ENGINE_FIELDS = {
    "use_parallel_embedding": "layout.parallel_embedding", "plugin.gemm_plugin": "running.gemm_plugin",
    "plugin.gpt_attention_plugin": "running.attention_plugin", "plugin.context_fmha": "running.context_fmha",
    "plugin.remove_input_padding": "running.packed", "plugin.paged_kv_cache": "running.paged_kv",
    "multiple_profiles": "running.multiple_profiles", "gather_context_logits": "running.gather_context_logits",
}  # fmt: skip
TORCH_FIELDS = {GRAPHS_FACT: "running.cuda_graphs", PIECEWISE_FACT: "running.piecewise_graphs"}
# What nobody has to say where it is empty.
OPTIONAL_FACTS = (
    "moe_ep_size", "moe_tp_size", "quant.algo", "runtime.kv_cache_dtype", "runtime.max_tokens_in_cache",
    "runtime.chunked_context", "gather_context_logits",
)  # fmt: skip


def facts_from_setup(setup: Setup) -> SetupFacts:
    """Return the facts that can be changed; None where a fact need not be stated."""
    fields = FIELD_OF_FACT | (ENGINE_FIELDS if setup.is_engine else TORCH_FIELDS)
    facts = {fact: attrgetter(field)(setup) for fact, field in fields.items()}
    return {fact: value or None if fact in OPTIONAL_FACTS else value for fact, value in facts.items()}


def differing_facts(before: Setup, after: Setup) -> SetupFacts:
    """Return what has to be stated to make one set-up into another."""
    stated = facts_from_setup(before)
    return {name: value for name, value in facts_from_setup(after).items() if stated.get(name) != value}


def stages_to_rerun(setup: Setup, names: SetupFacts) -> frozenset[Stage]:
    """Return the stages that have to be run again when these facts change."""
    return frozenset(stage for name in names for stage in _stages_of_fact(setup, name))


def _stages_of_fact(setup: Setup, name: str) -> set[Stage]:
    if not setup.is_engine:
        return {Stage.CONVERT, Stage.LAUNCH} if name == "quant.algo" else {Stage.LAUNCH}
    if name in LAUNCH_FACTS:
        return {Stage.LAUNCH}
    converts = name in CONVERT_FACTS and at_least(setup.release, TRTLLM_BUILD_SINCE)
    return {Stage.CONVERT, Stage.BUILD} if converts else {Stage.BUILD}
