"""What families of models have that their sizes alone do not tell: data/model_families.toml."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import resources

import msgspec
from packaging.version import Version

from trtdx.knowledge.versions import parse_release

NEVER_RELEASED = "never"


class ModelFamily(msgspec.Struct, frozen=True, forbid_unknown_fields=True, cache_hash=True):
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


class _FamilyTable(msgspec.Struct, frozen=True):
    counted: tuple[str, ...]
    counted_alone: tuple[str, ...]
    family: dict[str, ModelFamily]
    unmodelled: dict[str, str]


@cache
def _family_table() -> _FamilyTable:
    data = resources.files("trtdx").joinpath("data/model_families.toml").read_bytes()
    return msgspec.toml.decode(data, type=_FamilyTable)


@lru_cache(maxsize=1024)
def family_of(model_type: str, model: str = "") -> ModelFamily:
    """Return a family by model_type, else by what the model is called."""
    word = model_type.lower().replace("-", "_")
    if not word:  # Phi-3, gemma-2-9b
        word = model.lower().rstrip("/").rpartition("/")[2].replace("-", "_")
        for name in ("phi_", "gemma_"):
            if word.startswith(name) and word[len(name) :][:1].isdigit():
                word = word.replace(name, name[:-1])
        word = "" if "distill" in word else word  # has another model's shape
    families = _family_table().family
    fits = [name for name in families if word.startswith(name)]
    return families[max(fits, key=len)] if fits else ModelFamily()


@lru_cache(maxsize=1024)
def unmodelled_parts(model_type: str) -> str:
    """Return what of an architecture trtdx does not count; "" if it counts everything."""
    table = _family_table()
    prefixes = [name for name in table.unmodelled if model_type.startswith(name)]
    if prefixes:
        return table.unmodelled[max(prefixes, key=len)]
    if not model_type or model_type in table.counted_alone or model_type.lower().startswith(table.counted):
        return ""
    return "anything that a Llama has not"


@lru_cache(maxsize=4096)
def is_since_release(version: str, first: str) -> bool:
    """Return whether a release has what came with another; one that cannot be told is the newest."""
    if first == NEVER_RELEASED:
        return False
    one = parse_release(version) if version and first else None
    return one is None or one >= Version(first)
