"""The sizes of models whose layers differ from each other: Nemotron's searched ones, Gemma 4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.readers.hf.model_config import ModelConfig

FFN_MULTIPLE = 256  # the inner sizes of block_configs are multiples of it
GEMMA_4_GLOBAL_HEAD = 512  # transformers 5.22, Gemma4TextConfig.__post_init__
MIMO_WINDOW_HEADS = 2  # times those of full attention: transformers 5.22, MiMoV2FlashAttention
LINEAR_AS_GATED = 3  # one square matrix is as large as an MLP of three whose inner size is a third


def per_layer_sizes(config: ModelConfig, heads: Any, hidden: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield fields of Dims that have a value for each layer, and the key they follow from."""
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
        return
    yield from _block_config_sizes(config, heads, hidden)
    yield from _global_head_sizes(config)
    yield from _window_head_sizes(config)


def _block_config_sizes(config: ModelConfig, heads: int, hidden: int) -> Iterator[tuple[str, Any, str]]:
    """Yield what `block_configs` (Nemotron Super, Ultra and others of DeciLM) says of each layer."""
    key = "block_configs"
    blocks = config.get(key)
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        return
    attentions = [_block_section(block.get("attention")) for block in blocks]
    kv_heads = tuple(_kv_heads(attention, heads) for attention in attentions)
    inner = tuple(
        _ffn_inner_size(_block_section(block.get("ffn")), hidden) + _linear_inner_size(attention, hidden)
        for block, attention in zip(blocks, attentions, strict=True)
    )
    yield "kv_heads_per_layer", kv_heads, key
    yield "num_kv_heads", max(kv_heads, default=0), key
    yield "inner_per_layer", inner, key
    yield "intermediate_size", max(inner, default=0), key


def _block_section(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _kv_heads(attention: dict[str, Any], heads: int) -> int:
    group = attention.get("n_heads_in_group")
    absent = attention.get("no_op") is True or attention.get("replace_with_linear") is True
    return 0 if absent or not isinstance(group, int) or group < 1 else heads // group


def _linear_inner_size(part: dict[str, Any], hidden: int) -> int:
    return hidden // LINEAR_AS_GATED if part.get("replace_with_linear") is True else 0


def _ffn_inner_size(part: dict[str, Any], hidden: int) -> int:
    ratio = part.get("ffn_mult")
    if part.get("replace_with_linear") is True:
        return _linear_inner_size(part, hidden)
    if part.get("no_op") is True or not isinstance(ratio, (int, float)) or not 0 < ratio < 1e4:
        return 0
    return -(-int(2 * ratio * hidden / 3) // FFN_MULTIPLE) * FFN_MULTIPLE


def _global_head_sizes(config: ModelConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield heads of their own that layers of full attention have beside sliding windows (Gemma 4)."""
    kinds, wide = config.get("layer_types"), config.get("global_head_dim")
    head_dim, fewer = config.get("head_dim"), config.get("num_global_key_value_heads")
    usual = config.get("num_key_value_heads")
    if wide is None and config.model_type.startswith("gemma4"):
        wide = GEMMA_4_GLOBAL_HEAD
    if not isinstance(kinds, list) or not all(isinstance(size, int) for size in (wide, head_dim, usual)):
        return
    full = ["full" in str(kind) for kind in kinds]
    yield "head_dim_per_layer", tuple(wide if is_full else head_dim for is_full in full), "global_head_dim"
    if isinstance(fewer, int) and config.get("attention_k_eq_v") is not False:
        key = "num_global_key_value_heads"
        yield "kv_heads_per_layer", tuple(fewer if is_full else usual for is_full in full), key
    if config.get("attention_k_eq_v") is True:
        yield "keys_are_values", tuple(full), "attention_k_eq_v"


def _window_head_sizes(config: ModelConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield the heads that layers with a sliding window have, where these are others (MiMo-V2)."""
    kinds, usual = config.get("layer_types"), config.get("num_key_value_heads")
    pattern, more = config.get("hybrid_layer_pattern"), config.get("swa_num_key_value_heads")
    if isinstance(pattern, list):  # 1 is a window
        kinds = ["sliding" if flag == 1 else "full" for flag in pattern]
    if more is None and config.model_type == "mimo_v2_flash" and isinstance(usual, int):
        more = MIMO_WINDOW_HEADS * usual
    if isinstance(kinds, list) and isinstance(more, int) and isinstance(usual, int):
        heads = tuple(more if "sliding" in str(kind) else usual for kind in kinds)
        yield "kv_heads_per_layer", heads, "swa_num_key_value_heads"
