"""Engines as facts alone: what `trtllm-build` of 1.2.1 writes for a Llama 3 8B, with changes."""

from __future__ import annotations

from trtdx.inspect.facts.artifact import Artifact, Fact

LLAMA = {
    "version": "1.2.1",
    "architecture": "LlamaForCausalLM",
    "dtype": "float16",
    "num_layers": 32,
    "num_heads": 32,
    "num_kv_heads": 8,
    "hidden_size": 4096,
    "vocab_size": 128256,
    "max_batch_size": 64,
    "max_beam_width": 1,
    "max_input_len": 1024,
    "max_seq_len": 4096,
    "max_num_tokens": 8192,
    "opt_num_tokens": 64,
    "kv_cache_type": "paged",
    "tokens_per_block": 32,
    "plugin.remove_input_padding": True,
    "plugin.gpt_attention_plugin": "auto",
    "plugin.gemm_plugin": "auto",
}
PADDED = {"plugin.remove_input_padding": False, "kv_cache_type": "continuous"}


def engine(**changes) -> Artifact:
    facts = LLAMA | {name.replace("__", "."): value for name, value in changes.items()}
    return Artifact("engine", "engine", {name: Fact(value, name) for name, value in facts.items() if value is not None})
