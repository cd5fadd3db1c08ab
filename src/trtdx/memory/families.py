"""What families of models have that their sizes alone do not tell."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from packaging.version import Version

from trtdx.versions import parsed

NEVER = "never"


class Family(NamedTuple):
    """The traits that cost bytes. The defaults are those of Llama."""

    norms: int = 2  # in each layer
    query_key_norm: str = ""  # "head": one head's width, shared by all; "all": of all heads
    embedding_cut_since: str = (
        ""  # the release from which the PyTorch flow cuts the embedding by TP, or NEVER
    )
    head_bias: bool = False
    sinks: bool = False  # one number a head
    router_bias: bool = False
    shared_gate: bool = False  # of the shared expert: one row
    experts_name: str = ""  # where they are not below the MLP
    query_gate: bool = False  # the query projection has a gate of its own size
    embedding_norm: bool = False
    engine_shares_head: bool = False  # an engine with tied embeddings keeps one table
    rope_tables: int = 1
    indexer: int = 0  # bytes of a token's key in a sparse-attention indexer, per layer
    kept_nvfp4: tuple[str, ...] = ()  # modules that the published NVFP4 checkpoints leave in 16 bit


_MLA_KEPT = ("*.q_a_proj", "*.q_b_proj", "*.q_proj", "*.kv_a_proj_with_mqa", "*.kv_b_proj", "mtp*")
_ATTENTION_KEPT = ("*self_attn*",)
_DEEPSEEK = Family(embedding_cut_since=NEVER, router_bias=True, kept_nvfp4=_MLA_KEPT)
_INDEXER = 132  # 128 numbers in FP8 and their scale

# By model_type; the longest name that a model_type begins with is taken.
FAMILIES = {
    "afmoe": Family(norms=4, query_key_norm="head", embedding_cut_since=NEVER),
    "bloom": Family(embedding_norm=True),
    "cohere": Family(norms=1),
    "deepseek": _DEEPSEEK,
    "deepseek_v2": _DEEPSEEK._replace(router_bias=False),
    "deepseek_v32": _DEEPSEEK._replace(indexer=_INDEXER),
    "falcon": Family(norms=1),
    "gemma": Family(engine_shares_head=True),
    "gemma2": Family(norms=4, engine_shares_head=True),
    "gemma3": Family(norms=4, query_key_norm="head", engine_shares_head=True),
    "gemma4": Family(norms=4, query_key_norm="head", kept_nvfp4=_ATTENTION_KEPT, experts_name="experts"),
    "glm4": Family(norms=4),
    "glm4_moe": Family(query_key_norm="head", embedding_cut_since=NEVER, router_bias=True),
    "glm_moe_dsa": _DEEPSEEK._replace(indexer=_INDEXER, kept_nvfp4=(*_ATTENTION_KEPT, "mtp*")),
    "gpt_oss": Family(sinks=True, router_bias=True),
    "gptj": Family(norms=1, head_bias=True),
    "kimi": _DEEPSEEK._replace(kept_nvfp4=("*self_attn*", "*shared_experts*", "*layers.0.*", "mtp*")),
    "minimax": Family(query_key_norm="all", embedding_cut_since=NEVER, kept_nvfp4=_ATTENTION_KEPT),
    "mixtral": Family(embedding_cut_since=NEVER),
    "mllama": Family(embedding_cut_since=NEVER),
    "nemotron": Family(embedding_cut_since=NEVER),
    "nemotron_h": Family(norms=1, embedding_cut_since="1.2.0"),
    "olmo2": Family(query_key_norm="all"),
    "phi": Family(norms=1, head_bias=True),
    "phi3": Family(rope_tables=2, embedding_cut_since="1.0.0"),
    "phi4": Family(rope_tables=2, embedding_cut_since="1.0.0"),
    "qwen2_moe": Family(shared_gate=True),
    "qwen3": Family(query_key_norm="head"),
    "qwen3_5": Family(
        query_key_norm="head", shared_gate=True, query_gate=True,
        kept_nvfp4=("*self_attn*", "*linear_attn*", "*shared_expert*", "mtp*"),
    ),
    "qwen3_next": Family(query_key_norm="head", shared_gate=True, query_gate=True),
}  # fmt: skip
_LLAMA = Family()


@lru_cache(maxsize=1024)
def family_of(model_type: str, model: str = "") -> Family:
    """Return a family by model_type, else by what the model is called."""
    word = model_type.lower().replace("-", "_")
    if not word:  # Phi-3, gemma-2-9b
        word = model.lower().rstrip("/").rpartition("/")[2].replace("-", "_")
        for name in ("phi_", "gemma_"):
            word = (
                word.replace(name, name[:-1])
                if word.startswith(name) and word[len(name) :][:1].isdigit()
                else word
            )
        word = "" if "distill" in word else word  # has another model's shape
    fits = [name for name in FAMILIES if word.startswith(name)]
    return FAMILIES[max(fits, key=len)] if fits else _LLAMA


@lru_cache(maxsize=4096)
def since(version: str, first: str) -> bool:
    """Return whether a release has what came with another; one that cannot be told is the newest."""
    if first == NEVER:
        return False
    one = parsed(version) if version and first else None
    return one is None or one >= Version(first)
