"""Which modules of a quantised model are left unquantised."""

from __future__ import annotations

import fnmatch
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from trtdx.memory.ledger.weight_storage import MXFP4, NVFP4

if TYPE_CHECKING:
    from trtdx.memory.model.families import ModelFamily

# What TensorRT-LLM leaves out by itself (model_config.py), whatever the checkpoint says.
_ALWAYS = {"FP8_BLOCK_SCALES": ("*kv_b_proj*", "*eh_proj")}
_MXFP4_KEPT = ("block.*.attn.out", "block.*.attn.qkv")
_EXPERTS_ONLY = ("*self_attn*", "*shared_expert*", "mtp*")
# The modules of a layer that formats are told by.
LAYER_MODULES = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_a_proj",
    "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj", "mlp.experts", "mlp.shared_experts", "mlp.latent", "mixer", "self_attn.indexer",
    "self_attn.compressor",
)  # fmt: skip
_STEMS = ("model.layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers",
          "transformer.layers", "layers", "block")  # fmt: skip
# What the same module is called elsewhere: engines, gpt-oss, Mixtral, Nemotron-H.
_OTHER_NAMES = {
    "self_attn.q_proj": ("self_attn.qkv_proj", "attention.qkv", "attn.qkv", "mixer.q_proj"),
    "self_attn.k_proj": ("self_attn.qkv_proj", "attention.qkv", "attn.qkv", "mixer.k_proj"),
    "self_attn.v_proj": ("self_attn.qkv_proj", "attention.qkv", "attn.qkv", "mixer.v_proj"),
    "self_attn.o_proj": ("attention.dense", "attn.out", "mixer.o_proj"),
    "mlp.gate_proj": ("mlp.gate_up_proj",),
    "mlp.up_proj": ("mlp.fc", "mlp.gate_up_proj", "mixer.up_proj"),
    "mlp.down_proj": ("mlp.proj", "mixer.down_proj"),
    "mlp.experts": ("mlp.experts.0.gate_proj", "block_sparse_moe.experts", "mixer.experts", "ffn.experts"),
    "mlp.shared_experts": ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj", "mixer.shared_experts",
                           "ffn.shared_experts", "block_sparse_moe.shared_experts"),
    "mixer": ("mixer.in_proj", "linear_attn", "linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv"),
}  # fmt: skip


def default_exclusions(algo: str, family: ModelFamily) -> tuple[str, ...]:
    """Return what published checkpoints of a format leave in 16 bit, for where no list was given."""
    if algo in MXFP4:
        return _EXPERTS_ONLY
    return family.kept_nvfp4 if algo in NVFP4 else ()


def exclusion_patterns(algo: str, stated: tuple[str, ...], family: ModelFamily) -> tuple[str, ...]:
    """Return the patterns that hold for a model: those given, else the usual ones; and what is always left out."""
    if not algo:
        return ()
    always = _MXFP4_KEPT if algo in MXFP4 else _ALWAYS.get(algo, ())
    return (stated or default_exclusions(algo, family)) + always


REGEX_PREFIX = "re:"  # how compressed-tensors marks its regular expressions


def _pattern_regex(pattern: str) -> str:
    if not pattern.startswith(REGEX_PREFIX):
        return fnmatch.translate(pattern)
    try:
        return re.compile(pattern.removeprefix(REGEX_PREFIX)[:1000]).pattern
    except re.error:
        return fnmatch.translate(pattern)


class Exclusions:
    """Patterns made ready to be asked about every layer."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        wild = [
            pattern
            for pattern in patterns
            if pattern.startswith(REGEX_PREFIX) or any(mark in pattern for mark in "*?[")
        ]
        self._exact = frozenset(patterns) - set(wild)
        self._wild = re.compile("|".join(map(_pattern_regex, wild))) if wild else None

    def is_excluded(self, layer: int, name: str, *, mtp: bool = False) -> bool:
        """Return whether a module of a layer is left unquantised."""
        for stem in _STEMS:
            for inner in (name, *_OTHER_NAMES.get(name, ())):
                if self._matches_path(f"{stem}.{layer}.{inner}") or (
                    mtp and self._matches_path(f"mtp.layers.0.{inner}")
                ):
                    return True
        return False

    def _matches_path(self, path: str) -> bool:
        """A pattern that names a module means all that is below it (QuantConfig, models/modeling_utils.py@v1.3.0rc22)."""
        while path:
            if path in self._exact or (self._wild is not None and self._wild.match(path)):
                return True
            path = path.rpartition(".")[0]
        return False


_cached_exclusions = lru_cache(maxsize=256)(Exclusions)


@lru_cache(maxsize=16384)
def unquantised_modules(patterns: tuple[str, ...], layer: int, *, mtp: bool, experts: str = "") -> frozenset[str]:
    """Return the modules of a layer that are not quantised. `experts`: what the family calls these."""
    if not patterns:
        return frozenset()
    matcher = _cached_exclusions(patterns)
    called = {"mlp.experts": experts} if experts else {}
    return frozenset(name for name in LAYER_MODULES if matcher.is_excluded(layer, called.get(name, name), mtp=mtp))
