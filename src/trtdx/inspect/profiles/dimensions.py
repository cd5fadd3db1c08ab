"""The dimensions TensorRT-LLM gives the inputs of its engines: what each counts, and which flag bounds it.

They live in one data file, `data/engine_dimensions.txt`.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class EngineDimension(NamedTuple):
    """A dimension under TensorRT-LLM's own name for it."""

    name: str
    meaning: str
    flags: tuple[str, ...] = ()  # of trtllm-build, the ones its upper bound comes from


def _load_dimensions() -> Iterator[EngineDimension]:
    text = resources.files("trtdx").joinpath("data/engine_dimensions.txt").read_text("utf-8")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, flags, meaning = (cell.strip() for cell in line.split("|"))
            yield EngineDimension(name, meaning, tuple(flags.split()))


DIMENSIONS = {known.name: known for known in _load_dimensions()}

_Axes = dict[int, tuple[str, ...]]
# The axes of the tensors that tables at run time show, by number of dimensions. Other tensors have one axis
# of sequences, or axes that never change.
_PACKED_OR_PADDED: _Axes = {1: ("num_tokens",), 2: ("batch_size_beam_width", "input_len")}
_SEQUENCES: _Axes = {1: ("batch_size_beam_width",)}
_BLOCKS: _Axes = {
    3: ("batch_size_beam_width", "kv", "max_blocks_per_seq"),
    4: ("num_kv_cache_pools", "batch_size_beam_width", "kv", "max_blocks_per_seq"),
}
_POINTERS: _Axes = {4: ("num_layers", "batch_size_beam_width", "kv", "max_blocks_per_seq")}
_CROSS_BLOCKS: _Axes = {
    dims: tuple("max_cross_blocks_per_seq" if name == "max_blocks_per_seq" else name for name in names)
    for dims, names in _BLOCKS.items()
}
_AXES_BY_TENSOR: dict[str, _Axes] = {
    "input_ids": _PACKED_OR_PADDED,
    "position_ids": _PACKED_OR_PADDED,
    "tasks": {1: ("input_len_task",), 2: ("batch_size_beam_width", "")},
    "hidden_states_input": {
        2: ("num_tokens", "hidden_size"),
        3: ("batch_size_beam_width", "input_len", "hidden_size"),
    },
    "last_token_ids": {1: ("batch_size_last_token_ids",), 2: ("batch_size_beam_width", "last_token_ids")},
    "logits": {2: ("batch_size_last_token_ids", "")},
    "sequence_length": _SEQUENCES,
    "context_lengths": _SEQUENCES,
    "host_context_lengths": _SEQUENCES,
    "host_request_types": _SEQUENCES,
    "host_past_key_value_lengths": _SEQUENCES,
    "kv_cache_block_offsets": _BLOCKS,
    "host_kv_cache_block_offsets": _BLOCKS,
    "kv_cache_block_pointers": _POINTERS,
    "host_kv_cache_block_pointers": _POINTERS,
    "cross_kv_cache_block_offsets": _CROSS_BLOCKS,
    "host_cross_kv_cache_block_offsets": _CROSS_BLOCKS,
    "cache_indirection": {3: ("batch_size_cache", "beam_width", "max_seq_len")},
    "attention_mask": {2: ("batch_size_beam_width", "mask_len")},
    "prompt_embedding_table": {2: ("prompt_embedding_table_size", "hidden_size")},
    "encoder_output": {2: ("encoder_num_tokens", ""), 3: ("batch_size_beam_width", "encoder_input_len", "")},
    "encoder_input_lengths": _SEQUENCES,
    "encoder_max_input_length": {1: ("encoder_max_input_length",)},
    "cross_attention_mask": {2: ("decoder_num_tokens_2", "encoder_input_len_2")},
    "spec_decoding_generation_lengths": {1: ("batch_size_beam_width_0",)},
    "spec_decoding_position_offsets": {2: ("batch_size_beam_width_0", "spec_decoding_position_ids_dim0")},
    "spec_decoding_packed_mask": {2: ("spec_decoding_packed_mask_dim0", "spec_decoding_packed_mask_dim1")},
}


def dimension_by_name(name: str) -> EngineDimension:
    """Return a dimension by TensorRT-LLM's name; one that is not in the table means only itself."""
    return DIMENSIONS.get(name) or EngineDimension(name, name.replace("_", " "))


def dimension_of_axis(tensor: str, axis: int, dims: int) -> EngineDimension:
    """Return what one axis of a tensor counts, by the tensor's name as an engine or a log shows it."""
    names = _tensor_axes(tensor, dims)
    if axis < len(names) and names[axis]:
        return dimension_by_name(names[axis])
    return EngineDimension("", f"axis {axis}")


def _tensor_axes(tensor: str, dims: int) -> tuple[str, ...]:
    if tensor in _AXES_BY_TENSOR:
        return _AXES_BY_TENSOR[tensor].get(dims, ())
    if "_lora_ranks_" in tensor or "_lora_weights_pointers_" in tensor:
        return ("batch_size_beam_width", "")
    if tensor.startswith(("past_key_value_", "present_key_value_")):
        return ("batch_size_beam_width", "kv", "num_heads", "past_key_len", "head_size")
    return ()


def shape_text(shape: tuple[object, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
