"""The inputs and optimization profiles an engine has, as TensorRT-LLM derives them from the build settings.

A plan cannot be opened without a GPU, but its profiles follow from config.json. The rules were read at every
stable tag from v0.9.0 to v1.2.1; what changed between them is asked by `EngineSettings.since`.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING

from trtdx.formats.tensorrt.nouns import OptimizationProfile, ShapeRange, TensorSpec
from trtdx.inspect.profiles import engine_inputs
from trtdx.inspect.profiles.engine_settings import (
    ADDS_INPUTS,
    EngineSettings,
    NotDerivableError,
    settings_from_engine,
)

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.profiles.engine_inputs import DimensionSpan, EngineTensor

# With multiple profiles the tokens of a step are cut at these numbers (since 0.10), and the C++ runtime
# chooses the profile by them.
TOKEN_CUTS = (64, 128, 256, 512, 1024)


def engine_profiles(engine: Artifact, pp_rank: int = 0) -> tuple[OptimizationProfile, ...]:
    """Return the profiles of one pipeline rank's engine; empty if they cannot be derived."""
    settings = _derivable_settings(engine)
    if settings is None:
        return ()
    inputs = [tensor for tensor in inputs_of_rank(settings, pp_rank) if tensor.mode == "in"]
    sized_inputs = [tensor for tensor in inputs if tensor.axes]
    unknown = [tensor.name for tensor in inputs if not tensor.axes]
    count = min(len(tensor.axes[0].spans) for tensor in sized_inputs)
    if settings.max_profiles:
        count = min(count, settings.max_profiles)
    source = _source_note(settings, unknown)
    return tuple(_profile_from_inputs(sized_inputs, index, source) for index in range(count))


def engine_tensors(engine: Artifact, pp_rank: int = 0) -> tuple[TensorSpec, ...]:
    """Return what goes in and out of one pipeline rank's engine; a dynamic dimension is its name."""
    settings = _derivable_settings(engine)
    if settings is None:
        return ()
    return tuple(
        TensorSpec(
            tensor.name,
            tensor.mode,
            tensor.dtype,
            tuple(axis.name or "?" if axis.is_dynamic else axis.spans[0][2] for axis in tensor.axes),
        )
        for tensor in inputs_of_rank(settings, pp_rank)
        if tensor.axes
    )


def why_not_derived(engine: Artifact) -> str:
    """Return why an engine has no derived profiles, or nothing when it has."""
    try:
        settings = settings_from_engine(engine)
    except NotDerivableError as err:
        return str(err)
    return "" if settings.since(0, 8) else TOO_OLD_NOTE


TOO_OLD_NOTE = "the inputs of engines before 0.8 are not derived (each build.py had its own); only the limits are"


def _derivable_settings(engine: Artifact) -> EngineSettings | None:
    return None if why_not_derived(engine) else settings_from_engine(engine)


def _profile_from_inputs(inputs: list[EngineTensor], index: int, source: str) -> OptimizationProfile:
    ranges = []
    for tensor in inputs:
        low, best, high = zip(*(axis.spans[index] for axis in tensor.axes), strict=True)
        ranges.append(ShapeRange(tensor.name, low, best, high))
    return OptimizationProfile(index, tuple(ranges), source)


def _source_note(settings: EngineSettings, unknown: list[str]) -> str:
    source = f"derived from build settings of {settings.version or 'an unstated release'}"
    if not settings.is_verified:
        source += " by the rules of 0.9 to 1.2.1, which were not verified for it"
    if settings.architecture in ADDS_INPUTS:
        source += f"; the inputs that {ADDS_INPUTS[settings.architecture]} adds are left out"
    if unknown:
        source += f"; left out because the engine does not state their sizes: {', '.join(unknown)}"
    return source


def inputs_of_rank(settings: EngineSettings, pp_rank: int = 0) -> list[EngineTensor]:
    """Return every tensor of one pipeline rank's engine, in the order TensorRT-LLM adds them."""
    if settings.is_cross_decoder or settings.is_encoder:
        from trtdx.inspect.profiles.cross_attention import decoder_inputs, encoder_inputs

        return list((encoder_inputs if settings.is_encoder else decoder_inputs)(settings, pp_rank))
    make = engine_inputs.TensorMaker(settings, dimension_spans(settings), pp_rank)
    return [tensor for part in engine_inputs.INPUT_GROUPS for tensor in part(make)]


def span_to(most: int, *, least: int = 1) -> DimensionSpan:
    """Return the bounds TensorRT-LLM gives a dimension by default: the optimum is half-way."""
    return least, (most + least) // 2, most


def dimension_spans(settings: EngineSettings) -> dict[str, tuple[DimensionSpan, ...]]:
    """Return the bounds of every named dimension, one for each profile."""
    s = settings
    tokens = _token_spans(s)
    count = len(tokens)
    step = s.max_draft_len + 1
    prompts, answers = span_to(s.max_batch_size), span_to(s.max_batch_size * s.max_beam_width)
    prompt_span = (1, 1, s.max_input_len)
    sequences = _spans_by_phase(s, prompts, answers, count)
    cache = _cache_spans(s, count)
    return {
        "num_tokens": tokens,
        "input_len_task": tokens,
        "position_ids_num_tokens_range": _position_spans(s, tokens),
        "batch_size_beam_width": sequences,
        "batch_size_beam_width_0": tuple((0, best, high) for _, best, high in sequences),
        "batch_size_last_token_ids": tuple((low, best * step, high * step) for low, best, high in sequences),
        "input_len": _spans_by_phase(s, span_to(s.max_input_len), (1, 1, step), count, prompt_span),
        "position_ids_inlen_range": _spans_by_phase(s, span_to(s.max_input_len), (1, 1, 1), count, prompt_span),
        "batch_size_cache": (prompts,) * count,
        "beam_width": (span_to(s.max_beam_width),) * count,
        "max_seq_len": (span_to(s.max_seq_len),) * count,
        "mask_len": _spans_by_phase(s, span_to(s.max_input_len), span_to(s.max_seq_len), count),
        "past_key_len": cache,
        "max_blocks_per_seq": tuple(engine_inputs.blocks_span(span, s.tokens_per_block) for span in cache),
        "prompt_embedding_table_size": ((1, s.prompt_table // 2, s.prompt_table),) * count,
        "last_token_ids": ((1, step, step),) * count,
        "spec_decoding_position_ids_dim0": ((1, step, step),) * count,
        "spec_decoding_packed_mask_dim0": (span_to(answers[2] * step, least=0),) * count,
        "spec_decoding_packed_mask_dim1": ((0, 1, -(-step // 32)),) * count,
    }


def _spans_by_phase(
    settings: EngineSettings,
    prompts: DimensionSpan,
    answers: DimensionSpan,
    count: int,
    both: DimensionSpan | None = None,
) -> tuple[DimensionSpan, ...]:
    """Return one span for prompts and one for answers, or for every profile one that serves both."""
    return (prompts, answers)[:count] if settings.splits_phases else (both or answers,) * count


def _token_spans(settings: EngineSettings) -> tuple[DimensionSpan, ...]:
    """Return the bounds of the tokens of a step; their number is the number of profiles."""
    s = settings
    if s.splits_phases:
        spans = _phase_token_spans(s)
        return spans[:1] if s.cache == "disabled" and s.since(0, 13) else spans
    if s.multiple_profiles:
        return _cut_token_spans(s)
    # trtllm-build writes the optimum it used (before 0.11 too, where prepare_inputs alone would not clip it)
    best = s.opt_num_tokens or min(s.max_num_tokens, s.max_batch_size * s.max_beam_width)
    return ((1, best, s.max_num_tokens),)


def _phase_token_spans(settings: EngineSettings) -> tuple[DimensionSpan, ...]:
    step = settings.max_draft_len + 1
    if not settings.since(0, 10):
        return span_to(settings.max_num_tokens), span_to(settings.max_batch_size * step * settings.max_beam_width)
    answers = settings.max_batch_size * max(step, settings.max_beam_width)  # drafts and beams exclude each other
    return span_to(settings.max_batch_size * settings.max_input_len), span_to(answers)


def _cut_token_spans(settings: EngineSettings) -> tuple[DimensionSpan, ...]:
    most = settings.max_num_tokens
    if not settings.since(0, 10):
        few = settings.max_batch_size * settings.max_beam_width
        return ((1, few, few), (few, most, most)) if most > few else ((1, most, most),)
    if most <= TOKEN_CUTS[0]:
        # split_num_tokens_range returns a flat list here, so that each of its numbers becomes a profile
        return ((1, 1, 1), (most, most, most), (most, most, most))
    cuts = [1, *(cut for cut in TOKEN_CUTS if cut < most), most]
    return tuple((low, high, high) for low, high in pairwise(cuts))


def _position_spans(settings: EngineSettings, tokens: tuple[DimensionSpan, ...]) -> tuple[DimensionSpan, ...]:
    if not (settings.max_draft_len and settings.since(0, 15)):
        return tokens
    return tuple((ceil(low / (settings.max_draft_len + 1)), best, high) for low, best, high in tokens)


def _cache_spans(settings: EngineSettings, count: int) -> tuple[DimensionSpan, ...]:
    """Return the bounds of a sequence's cache; beams and attention sinks need a block more than the text."""
    longest = settings.max_seq_len
    if settings.cache == "paged" or (settings.since(0, 13) and settings.cache != "disabled"):
        longest += (settings.tokens_per_block - 1) * settings.streaming
        longest += settings.tokens_per_block * (settings.max_beam_width > 1)
    if not settings.splits_phases or settings.attention_plugin:
        return (span_to(longest),) * count
    low, best, high = span_to(settings.max_seq_len)
    return ((0, 0, 0), (low - 1, best - 1, high - 1))[:count]
