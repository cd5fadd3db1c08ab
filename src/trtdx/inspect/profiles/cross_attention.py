"""The inputs of encoder-decoder engines, which TensorRT-LLM prepares apart from all others.

Read in `models/enc_dec/model.py` at every stable tag from v0.12.0 to v1.2.1.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from trtdx.inspect.profiles.engine_inputs import (
    TensorMaker,
    blocks_span,
    lora_inputs,
    prompt_table_inputs,
    workspace_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.profiles.engine_inputs import DimensionSpan, EngineTensor
    from trtdx.inspect.profiles.engine_settings import EngineSettings


def encoder_inputs(settings: EngineSettings, pp_rank: int) -> Iterator[EngineTensor]:
    """Yield the inputs of an encoder; its position ids are there only for models that learn positions."""
    make = TensorMaker(settings, _encoder_spans(settings), pp_rank)
    s = settings
    axes = ("num_tokens",) if s.is_packed else ("batch_size", "input_len")
    if make.is_first_rank:
        yield make.make_tensor("input_ids", "int32", *axes)
    else:
        yield make.make_tensor("hidden_states_input", s.dtype, *axes, s.hidden_size)
    yield make.make_tensor("input_lengths", "int32", "batch_size")
    yield make.make_tensor("max_input_length", "int32", "max_input_length")
    if (
        make.is_first_rank and s.is_packed
    ):  # padded encoders with a table cannot be built: the profiles differ in number
        yield from prompt_table_inputs(make)
    yield make.make_tensor("encoder_output", s.dtype, *axes, s.hidden_size, mode="out")


def _encoder_spans(settings: EngineSettings) -> dict[str, tuple[DimensionSpan, ...]]:
    tokens, length = settings.max_input_len * settings.max_batch_size, settings.max_input_len
    batch = ((1, (settings.max_batch_size + 1) // 2, settings.max_batch_size),)
    packed = ((1, (tokens + 1) // 2, tokens),)
    one = ((1, (length + 1) // 2, length),)
    return {
        "num_tokens": packed,
        "input_len_task": packed,
        "batch_size": batch,
        "batch_size_beam_width": batch,
        "input_len": one,
        "max_input_length": one,
        "prompt_embedding_table_size": ((1, settings.prompt_table // 2, settings.prompt_table),),
    }


def decoder_inputs(settings: EngineSettings, pp_rank: int) -> Iterator[EngineTensor]:
    """Yield the inputs of a decoder with cross attention."""
    make = TensorMaker(settings, _decoder_spans(settings), pp_rank)
    yield from _token_inputs(make)
    yield from _encoder_side_inputs(make)
    yield from _length_inputs(make)
    yield from workspace_inputs(make)
    yield from lora_inputs(make)
    yield from _cache_inputs(make)
    yield make.make_tensor("cross_kv_cache_gen", "bool", 1)
    yield from _logit_outputs(make)


def _decoder_spans(settings: EngineSettings) -> dict[str, tuple[DimensionSpan, ...]]:
    sequences = settings.max_batch_size * settings.max_beam_width
    # the builder adds the prompt's bound to max_seq_len once more (max_decoder_input_len + max_seq_len)
    longest = settings.max_input_len + settings.max_seq_len
    tokens = max(settings.max_input_len * settings.max_batch_size, sequences)
    encoder, all_encoders = settings.encoder_len, settings.encoder_len * settings.max_batch_size
    cache = (0, (longest + 1) // 2, longest)
    cross = (0, (encoder + 1) // 2, encoder)
    rows = settings.max_batch_size * ceil(settings.max_input_len / 128) * 128
    words = ceil(encoder / 256) * 256 // 32
    spans = {
        "decoder_num_tokens": (1, sequences, tokens),
        "decoder_num_tokens_2": (1, sequences, tokens),
        "batch_size_beam_width": (1, (sequences + 1) // 2, sequences),
        "batch_size_last_token_ids": (1, (sequences + 1) // 2, sequences),
        "batch_size_cache": (1, (settings.max_batch_size + 1) // 2, settings.max_batch_size),
        "beam_width": (1, (settings.max_beam_width + 1) // 2, settings.max_beam_width),
        "input_len": (1, 1, settings.max_input_len),
        "mask_len": (1, (longest + 1) // 2 + 1, longest + 1),
        "max_seq_len": cache,
        "past_key_len": cache,
        "max_blocks_per_seq": blocks_span(cache, settings.tokens_per_block),
        "encoder_max_input_length": (1, (encoder + 1) // 2, encoder),
        "encoder_num_tokens": (0, (all_encoders + 1) // 2, all_encoders),
        "encoder_input_len": cross,
        "encoder_input_len_2": cross,
        "cross_past_key_len": cross,
        "max_cross_blocks_per_seq": blocks_span(cross, settings.tokens_per_block),
        "cross_packed_mask_dim0": (1, (rows + 1) // 2, rows),
        "cross_packed_mask_dim1": (0, (words + 1) // 2, words),
    }
    return {name: (span,) for name, span in spans.items()}


def _token_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    s = make.settings
    axes = ("decoder_num_tokens",) if s.is_packed else ("batch_size_beam_width", "input_len")
    if make.is_first_rank:
        yield make.make_tensor("input_ids", "int32", *axes)
    else:
        yield make.make_tensor("hidden_states_input", s.dtype, *axes, s.hidden_size)


def _encoder_side_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    s = make.settings
    yield make.make_tensor("encoder_input_lengths", "int32", "batch_size_beam_width")
    yield make.make_tensor("encoder_max_input_length", "int32", "encoder_max_input_length")
    axes = ("encoder_num_tokens",) if s.is_packed else ("batch_size_beam_width", "encoder_input_len")
    yield make.make_tensor("encoder_output", s.dtype, *axes, s.hidden_size)
    yield from _mask_inputs(make)
    if s.lora_modules and s.is_packed:
        yield make.make_tensor("host_encoder_input_lengths", "int32", "batch_size_beam_width")


def _mask_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    s = make.settings
    if not s.attention_plugin:
        query = "input_len" if s.since(0, 19) else 1
        axes = ("batch_size_beam_width", query, "encoder_input_len_2")
        yield make.make_tensor("cross_attention_mask", "int32", *axes)
    elif s.since(0, 15):
        yield make.make_tensor("cross_attention_mask", "bool", "decoder_num_tokens_2", "encoder_input_len_2")
        masks = ("cross_packed_mask_dim0", "cross_packed_mask_dim1")
        yield make.make_tensor("cross_attention_packed_mask", "int32", *masks)


def _length_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    s = make.settings
    if s.attention_plugin:
        names = ["host_past_key_value_lengths", "sequence_length", "context_lengths", "host_request_types"]
        names += ["host_context_lengths"] if s.is_packed else []
        for name in names:
            yield make.make_tensor(name, "int32", "batch_size_beam_width")
        yield make.make_tensor("host_runtime_perf_knobs", "int64", 16)
        if s.since(0, 15):
            yield make.make_tensor("host_context_progress", "int64", 1)
        yield make.make_tensor("host_max_attention_window_sizes", "int32", len(make.layers))
        yield make.make_tensor("host_sink_token_length", "int32", 1)
    else:
        yield make.make_tensor("attention_mask", "int32", "batch_size_beam_width", "mask_len")
    if make.is_last_rank and not s.gathers_context_logits:
        yield make.make_tensor("last_token_ids", "int32", "batch_size_last_token_ids")
    yield make.make_tensor("cache_indirection", "int32", "batch_size_cache", "beam_width", "max_seq_len")


def _cache_inputs(make: TensorMaker) -> Iterator[EngineTensor]:
    s, layers = make.settings, len(make.layers)
    if s.cache == "paged":
        pools = (1,) if s.since(0, 14) else ()
        for name, blocks in (("", "max_blocks_per_seq"), ("cross_", "max_cross_blocks_per_seq")):
            axes = (*pools, "batch_size_beam_width", 2, blocks)
            yield make.make_tensor(f"{name}kv_cache_block_offsets", "int32", *axes)
            yield make.make_tensor(f"host_{name}kv_cache_block_offsets", "int32", *axes)
            yield make.make_tensor(f"host_{name}kv_cache_pool_pointers", "int64", *pools, 2)
            if s.since(0, 14):
                where = (layers, 2) if s.since(0, 19) else (layers,)
                yield make.make_tensor(f"host_{name}kv_cache_pool_mapping", "int32", *where)
        return
    heads = -(-s.num_kv_heads // s.tp_size)
    kinds = [("", "past_key_len"), ("cross_", "cross_past_key_len")]
    for layer in make.layers:
        for name, length in kinds if s.attention_plugin else kinds[:1]:
            axes = ("batch_size_beam_width", 2, heads, length, s.head_size)
            yield make.make_tensor(f"{name}past_key_value_{layer}", s.kv_dtype, *axes)


def _logit_outputs(make: TensorMaker) -> Iterator[EngineTensor]:
    s = make.settings
    if make.is_last_rank:
        padded_vocab = -(-s.vocab_size // s.tp_size) * s.tp_size
        yield make.make_tensor("logits", s.logits_dtype, "batch_size_last_token_ids", padded_vocab, mode="out")
