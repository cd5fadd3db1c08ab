"""The dimensions TensorRT-LLM gives the inputs of its engines: what each counts, and which flag bounds it."""

from __future__ import annotations

from typing import NamedTuple


class Dimension(NamedTuple):
    """A dimension under TensorRT-LLM's own name for it."""

    name: str
    meaning: str
    flags: tuple[str, ...] = ()  # of trtllm-build, the ones its upper bound comes from


_BATCH_BEAM = ("--max_batch_size", "--max_beam_width")
_ALL = (
    Dimension("num_tokens", "tokens of one step, all requests packed", ("--max_num_tokens",)),
    Dimension(
        "position_ids_num_tokens_range", "tokens of one step, all requests packed", ("--max_num_tokens",)
    ),
    Dimension("input_len_task", "tokens of one step, all requests packed", ("--max_num_tokens",)),
    Dimension("batch_size_beam_width", "sequences, requests times beams", _BATCH_BEAM),
    Dimension("batch_size_beam_width_0", "sequences that generate", _BATCH_BEAM),
    Dimension("batch_size_last_token_ids", "tokens that get logits", (*_BATCH_BEAM, "--max_draft_len")),
    Dimension("batch_size_cache", "requests", ("--max_batch_size",)),
    Dimension("batch_size", "requests", ("--max_batch_size",)),
    Dimension("beam_width", "beams", ("--max_beam_width",)),
    Dimension("input_len", "tokens of the longest prompt in the batch", ("--max_input_len",)),
    Dimension("position_ids_inlen_range", "tokens of the longest prompt in the batch", ("--max_input_len",)),
    Dimension("max_seq_len", "prompt and answer together", ("--max_seq_len",)),
    Dimension("past_key_len", "tokens in the cache of a sequence", ("--max_seq_len",)),
    Dimension("mask_len", "tokens that a token may look at", ("--max_seq_len",)),
    Dimension("max_blocks_per_seq", "cache blocks of a sequence", ("--max_seq_len", "--tokens_per_block")),
    Dimension("num_kv_cache_pools", "pools of cache blocks, one for each attention window size"),
    Dimension("num_pools_layers", "pools of cache blocks, one for each attention window size"),
    Dimension("num_layers", "attention layers of the rank"),
    Dimension("pools_mapping", "attention layers of the rank"),
    Dimension("num_heads", "key/value heads of the rank"),
    Dimension("head_size", "the size of a head"),
    Dimension("hidden_size", "the hidden size"),
    Dimension("kv", "keys and values"),
    Dimension(
        "prompt_embedding_table_size",
        "rows of the prompt embedding table",
        ("--max_prompt_embedding_table_size",),
    ),
    Dimension("last_token_ids", "tokens of a sequence in one step", ("--max_draft_len",)),
    Dimension("spec_decoding_position_ids_dim0", "tokens of a sequence in one step", ("--max_draft_len",)),
    Dimension(
        "spec_decoding_packed_mask_dim0", "draft tokens of all sequences", (*_BATCH_BEAM, "--max_draft_len")
    ),
    Dimension("spec_decoding_packed_mask_dim1", "32-bit words of a draft token's mask", ("--max_draft_len",)),
    Dimension("mult_dim", "columns of the multimodal rotary table"),
    Dimension("decoder_num_tokens", "decoder tokens of one step", ("--max_batch_size", "--max_input_len")),
    Dimension("decoder_num_tokens_2", "decoder tokens of one step", ("--max_batch_size", "--max_input_len")),
    Dimension(
        "encoder_num_tokens",
        "encoder tokens of one step",
        ("--max_batch_size", "--max_encoder_input_len"),
    ),
    Dimension(
        "encoder_max_input_length", "tokens of the longest encoder input", ("--max_encoder_input_len",)
    ),
    Dimension("encoder_input_len", "tokens of an encoder input", ("--max_encoder_input_len",)),
    Dimension("encoder_input_len_2", "tokens of an encoder input", ("--max_encoder_input_len",)),
    Dimension("cross_past_key_len", "encoder tokens in the cache", ("--max_encoder_input_len",)),
    Dimension(
        "max_cross_blocks_per_seq",
        "cache blocks of an encoder input",
        ("--max_encoder_input_len", "--tokens_per_block"),
    ),
    Dimension(
        "cross_packed_mask_dim0",
        "decoder tokens, rounded up for the mask",
        ("--max_batch_size", "--max_input_len"),
    ),
    Dimension(
        "cross_packed_mask_dim1", "32-bit words of a cross attention mask", ("--max_encoder_input_len",)
    ),
    Dimension("max_input_length", "tokens of the longest encoder input", ("--max_input_len",)),
)
DIMENSIONS = {each.name: each for each in _ALL}

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
_AXES: dict[str, _Axes] = {
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
    "encoder_output": {
        2: ("encoder_num_tokens", ""),
        3: ("batch_size_beam_width", "encoder_input_len", ""),
    },
    "encoder_input_lengths": _SEQUENCES,
    "encoder_max_input_length": {1: ("encoder_max_input_length",)},
    "cross_attention_mask": {2: ("decoder_num_tokens_2", "encoder_input_len_2")},
    "spec_decoding_generation_lengths": {1: ("batch_size_beam_width_0",)},
    "spec_decoding_position_offsets": {2: ("batch_size_beam_width_0", "spec_decoding_position_ids_dim0")},
    "spec_decoding_packed_mask": {2: ("spec_decoding_packed_mask_dim0", "spec_decoding_packed_mask_dim1")},
}


def dimension(name: str) -> Dimension:
    """Return a dimension by TensorRT-LLM's name; one that is not in the table means only itself."""
    return DIMENSIONS.get(name) or Dimension(name, name.replace("_", " "))


def dimension_of(tensor: str, axis: int, dims: int) -> Dimension:
    """Return what one axis of a tensor counts, by the tensor's name as an engine or a log shows it."""
    names = _axes_of(tensor, dims)
    if axis < len(names) and names[axis]:
        return dimension(names[axis])
    return Dimension("", f"axis {axis}")


def _axes_of(tensor: str, dims: int) -> tuple[str, ...]:
    if tensor in _AXES:
        return _AXES[tensor].get(dims, ())
    if "_lora_ranks_" in tensor or "_lora_weights_pointers_" in tensor:
        return ("batch_size_beam_width", "")
    if tensor.startswith(("past_key_value_", "present_key_value_")):
        return ("batch_size_beam_width", "kv", "num_heads", "past_key_len", "head_size")
    return ()
