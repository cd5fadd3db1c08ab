"""What families of models have that their sizes alone do not tell."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from packaging.version import Version

from trtdx.knowledge.versions import parsed

NEVER = "never"


class Family(NamedTuple):
    """The traits that cost bytes. The defaults are those of Llama."""

    norms: int = 2  # in each layer
    query_key_norm: str = ""  # "head": one head's width, shared by all; "all": of all heads
    embedding_cut_since: str = ""  # the release from which PyTorch cuts the embedding by TP, or NEVER
    head_bias: bool = False
    sinks: bool = False  # one number a head
    router_bias: bool = False
    shared_gate: bool = False  # of the shared expert: one row
    experts_name: str = ""  # where they are not below the MLP
    query_gate: bool = False  # the query projection has a gate of its own size
    head_gate: bool = False  # one gate for each head
    embedding_norm: bool = False
    final_norm: bool = True
    engine_shares_head: bool = False  # an engine with tied embeddings keeps one table
    rope_tables: int = 1
    kept_nvfp4: tuple[str, ...] = ()  # modules that the published NVFP4 checkpoints leave in 16 bit


_MLA_KEPT = ("*.q_a_proj", "*.q_b_proj", "*.q_proj", "*.kv_a_proj_with_mqa", "*.kv_b_proj", "mtp*")
_ATTENTION_KEPT = ("*self_attn*",)
_DEEPSEEK = Family(embedding_cut_since=NEVER, router_bias=True, kept_nvfp4=_MLA_KEPT)

# By model_type; the longest name that a model_type begins with is taken.
FAMILIES = {
    "afmoe": Family(norms=4, query_key_norm="head", embedding_cut_since=NEVER, query_gate=True, router_bias=True),
    "apertus": Family(query_key_norm="head"),
    "bloom": Family(embedding_norm=True),
    "cohere": Family(norms=1),
    "deepseek": _DEEPSEEK,
    "deepseek_v2": _DEEPSEEK._replace(router_bias=False),
    "deepseek_v4": _DEEPSEEK._replace(sinks=True, router_bias=False),
    "ernie4_5_moe": Family(router_bias=True),
    "exaone": Family(query_key_norm="head"),
    "falcon": Family(norms=1),
    "flex_olmo": Family(query_key_norm="all"),
    "gemma": Family(engine_shares_head=True),
    "gemma2": Family(norms=4, engine_shares_head=True),
    "gemma3": Family(norms=4, query_key_norm="head", engine_shares_head=True),
    "gemma4": Family(norms=4, query_key_norm="head", kept_nvfp4=_ATTENTION_KEPT, experts_name="experts"),
    "glm4": Family(norms=4),
    "glm4_moe": Family(query_key_norm="head", embedding_cut_since=NEVER, router_bias=True),
    "glm4_moe_lite": _DEEPSEEK,
    "glm_moe_dsa": _DEEPSEEK._replace(kept_nvfp4=(*_ATTENTION_KEPT, "mtp*")),
    "gpt_oss": Family(sinks=True, router_bias=True),
    "gptj": Family(norms=1, head_bias=True),
    "hunyuan": Family(query_key_norm="head"),
    "hy_v3": Family(query_key_norm="head", router_bias=True),
    "jais2": Family(),
    "kimi": _DEEPSEEK._replace(kept_nvfp4=("*self_attn*", "*shared_experts*", "*layers.0.*", "mtp*")),
    "laguna": Family(query_key_norm="head", head_gate=True, router_bias=True),
    "mellum": Family(query_key_norm="head"),
    "mimo_v2": Family(router_bias=True),
    "minimax": Family(),
    "minimax_m2": Family(query_key_norm="all", embedding_cut_since=NEVER, kept_nvfp4=_ATTENTION_KEPT),
    "minimax_m3": Family(query_key_norm="head", embedding_cut_since=NEVER, kept_nvfp4=_ATTENTION_KEPT),
    "mixtral": Family(embedding_cut_since=NEVER),
    "mllama": Family(embedding_cut_since=NEVER),
    "nemotron": Family(embedding_cut_since=NEVER),
    "nemotron_h": Family(norms=1, embedding_cut_since="1.2.0"),
    "olmo": Family(norms=0, final_norm=False),
    "olmo2": Family(query_key_norm="all"),
    "olmo3": Family(query_key_norm="all"),
    "olmo_hybrid": Family(query_key_norm="all"),
    "olmoe": Family(query_key_norm="all"),
    "phi": Family(norms=1, head_bias=True),
    "phi3": Family(rope_tables=2, embedding_cut_since="1.0.0"),
    "phimoe": Family(),
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
# Architectures whose layers trtdx does not count part by part, and what they have that it does not know.
UNMODELLED = {
    "axk2": "attention of two kinds", "bailing_hybrid": "gates in its linear attention",
    "ernie4_5_vl_moe": "experts for images of their own", "falcon_h1": "attention and Mamba side by side in a layer",
    "flint": "its layers", "hy_v4": "its layers", "inkling": "its layers", "jetmoe": "experts inside attention",
    "lfm2": "convolutions in place of attention", "longcat_flash": "two attentions and two MLPs in a layer",
    "phi4_multimodal": "adapters for images and speech", "phi4mm": "adapters for images and speech",
    "recurrent_gemma": "recurrent blocks", "rwkv": "recurrent layers", "xlstm": "recurrent layers",
    "zamba": "blocks that layers share", "zaya": "its layers",
}  # fmt: skip
# How the model types begin whose parameters were counted against transformers' own modules, or against published files.
COUNTED = (
    "afmoe", "apertus", "arcee", "aria", "baichuan", "bamba", "bart", "bert", "bitnet", "bloom", "chatglm", "codegen",
    "cohere", "cwm", "deepseek", "dots1", "eagle", "ernie4_5", "exaone", "falcon", "flex_olmo", "gemma", "glm", "gpt2",
    "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "helium", "hunyuan", "hy_v3", "hyperclovax",
    "internlm", "internvl", "jais", "jamba", "kimi", "laguna", "llama", "llava", "mamba", "mbart", "mellum", "mimo",
    "minicpm", "minimax", "ministral", "mistral", "mixtral", "mllama", "mpt", "mt5", "nemotron", "olmo", "opt",
    "persimmon", "phi", "pixtral", "qwen2", "qwen3", "refinedweb", "roberta", "seed_oss", "smollm", "smolvlm", "solar",
    "stablelm", "starcoder2", "step3", "t5", "umt5", "vaultgemma", "whisper", "youtu",
)  # fmt: skip
COUNTED_ALONE = ("qwen", "axk1", "kolibri1")


@lru_cache(maxsize=1024)
def family_of(model_type: str, model: str = "") -> Family:
    """Return a family by model_type, else by what the model is called."""
    word = model_type.lower().replace("-", "_")
    if not word:  # Phi-3, gemma-2-9b
        word = model.lower().rstrip("/").rpartition("/")[2].replace("-", "_")
        for name in ("phi_", "gemma_"):
            if word.startswith(name) and word[len(name) :][:1].isdigit():
                word = word.replace(name, name[:-1])
        word = "" if "distill" in word else word  # has another model's shape
    fits = [name for name in FAMILIES if word.startswith(name)]
    return FAMILIES[max(fits, key=len)] if fits else _LLAMA


@lru_cache(maxsize=1024)
def unmodelled(model_type: str) -> str:
    """Return what of an architecture trtdx does not count; "" where it counts everything."""
    prefixes = [name for name in UNMODELLED if model_type.startswith(name)]
    if prefixes:
        return UNMODELLED[max(prefixes, key=len)]
    if not model_type or model_type in COUNTED_ALONE or model_type.lower().startswith(COUNTED):
        return ""
    return "anything that a Llama has not"


@lru_cache(maxsize=4096)
def since(version: str, first: str) -> bool:
    """Return whether a release has what came with another; one that cannot be told is the newest."""
    if first == NEVER:
        return False
    one = parsed(version) if version and first else None
    return one is None or one >= Version(first)
