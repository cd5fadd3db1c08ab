"""The inputs and optimization profiles an engine has, as TensorRT-LLM derives them from the build settings.

A plan cannot be opened without a GPU, but its profiles follow from config.json. The rules were read at every
stable tag from v0.9.0 to v1.2.1; what changed between them is asked by `EngineSettings.since`.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING

from trtdx.formats.tensorrt.nouns import Profile, Range, TensorSpec
from trtdx.inspect.profiles import engine_inputs
from trtdx.inspect.profiles.engine_settings import ADDS_INPUTS, NotDerivableError, Settings, settings_of

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.profiles.engine_inputs import Input, Span

# With multiple profiles the tokens of a step are cut at these numbers (since 0.10), and the C++ runtime
# chooses the profile by them.
TOKEN_CUTS = (64, 128, 256, 512, 1024)


def profiles_of(engine: Artifact, pp_rank: int = 0) -> tuple[Profile, ...]:
    """Return the profiles of one pipeline rank's engine; none where they cannot be derived."""
    settings = _derivable(engine)
    if settings is None:
        return ()
    inputs = [tensor for tensor in inputs_of(settings, pp_rank) if tensor.mode == "in"]
    sized_inputs = [tensor for tensor in inputs if tensor.axes]
    unknown = [tensor.name for tensor in inputs if not tensor.axes]
    count = min(len(tensor.axes[0].spans) for tensor in sized_inputs)
    if settings.most_profiles:
        count = min(count, settings.most_profiles)
    source = _source(settings, unknown)
    return tuple(_profile(sized_inputs, index, source) for index in range(count))


def tensors_of(engine: Artifact, pp_rank: int = 0) -> tuple[TensorSpec, ...]:
    """Return what goes in and out of one pipeline rank's engine; a dynamic dimension is its name."""
    settings = _derivable(engine)
    if settings is None:
        return ()
    return tuple(
        TensorSpec(
            tensor.name,
            tensor.mode,
            tensor.dtype,
            tuple(axis.name or "?" if axis.is_dynamic else axis.spans[0][2] for axis in tensor.axes),
        )
        for tensor in inputs_of(settings, pp_rank)
        if tensor.axes
    )


def why_not_derived(engine: Artifact) -> str:
    """Return why an engine has no derived profiles, or nothing when it has."""
    try:
        settings = settings_of(engine)
    except NotDerivableError as err:
        return str(err)
    return "" if settings.since(0, 8) else TOO_OLD


TOO_OLD = "the inputs of engines before 0.8 are not derived (each build.py had its own); only the limits are"


def _derivable(engine: Artifact) -> Settings | None:
    return None if why_not_derived(engine) else settings_of(engine)


def _profile(inputs: list[Input], index: int, source: str) -> Profile:
    ranges = []
    for tensor in inputs:
        low, best, high = zip(*(axis.spans[index] for axis in tensor.axes), strict=True)
        ranges.append(Range(tensor.name, low, best, high))
    return Profile(index, tuple(ranges), source)


def _source(settings: Settings, unknown: list[str]) -> str:
    source = f"derived from build settings of {settings.version or 'an unstated release'}"
    if not settings.verified:
        source += " by the rules of 0.9 to 1.2.1, which were not verified for it"
    if settings.architecture in ADDS_INPUTS:
        source += f"; the inputs that {ADDS_INPUTS[settings.architecture]} adds are left out"
    if unknown:
        source += f"; left out because the engine does not state their sizes: {', '.join(unknown)}"
    return source


def inputs_of(settings: Settings, pp_rank: int = 0) -> list[Input]:
    """Return every tensor of one pipeline rank's engine, in the order TensorRT-LLM adds them."""
    if settings.decoder_of_encoder or settings.encoder:
        from trtdx.inspect.profiles.cross_attention import decoder_inputs, encoder_inputs

        return list((encoder_inputs if settings.encoder else decoder_inputs)(settings, pp_rank))
    make = engine_inputs.Maker(settings, spans_of(settings), pp_rank)
    return [tensor for part in engine_inputs.PARTS for tensor in part(make)]


def middle(most: int, *, least: int = 1) -> Span:
    """Return the bounds TensorRT-LLM gives a dimension by default: the optimum is half-way."""
    return least, (most + least) // 2, most


def spans_of(settings: Settings) -> dict[str, tuple[Span, ...]]:
    """Return the bounds of every named dimension, one for each profile."""
    s = settings
    tokens = _token_spans(s)
    count = len(tokens)
    step = s.max_draft_len + 1
    prompts, answers = middle(s.max_batch_size), middle(s.max_batch_size * s.max_beam_width)
    prompt_span = (1, 1, s.max_input_len)
    sequences = _by_phase(s, prompts, answers, count)
    cache = _cache_spans(s, count)
    return {
        "num_tokens": tokens,
        "input_len_task": tokens,
        "position_ids_num_tokens_range": _position_spans(s, tokens),
        "batch_size_beam_width": sequences,
        "batch_size_beam_width_0": tuple((0, best, high) for _, best, high in sequences),
        "batch_size_last_token_ids": tuple((low, best * step, high * step) for low, best, high in sequences),
        "input_len": _by_phase(s, middle(s.max_input_len), (1, 1, step), count, prompt_span),
        "position_ids_inlen_range": _by_phase(s, middle(s.max_input_len), (1, 1, 1), count, prompt_span),
        "batch_size_cache": (prompts,) * count,
        "beam_width": (middle(s.max_beam_width),) * count,
        "max_seq_len": (middle(s.max_seq_len),) * count,
        "mask_len": _by_phase(s, middle(s.max_input_len), middle(s.max_seq_len), count),
        "past_key_len": cache,
        "max_blocks_per_seq": tuple(engine_inputs.blocks_span(span, s.tokens_per_block) for span in cache),
        "prompt_embedding_table_size": ((1, s.prompt_table // 2, s.prompt_table),) * count,
        "last_token_ids": ((1, step, step),) * count,
        "spec_decoding_position_ids_dim0": ((1, step, step),) * count,
        "spec_decoding_packed_mask_dim0": (middle(answers[2] * step, least=0),) * count,
        "spec_decoding_packed_mask_dim1": ((0, 1, -(-step // 32)),) * count,
    }


def _by_phase(
    settings: Settings, prompts: Span, answers: Span, count: int, both: Span | None = None
) -> tuple[Span, ...]:
    """Return one span for prompts and one for answers, or for every profile one that serves both."""
    return (prompts, answers)[:count] if settings.splits_phases else (both or answers,) * count


def _token_spans(settings: Settings) -> tuple[Span, ...]:
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


def _phase_token_spans(s: Settings) -> tuple[Span, ...]:
    step = s.max_draft_len + 1
    if not s.since(0, 10):
        return middle(s.max_num_tokens), middle(s.max_batch_size * step * s.max_beam_width)
    answers = s.max_batch_size * max(step, s.max_beam_width)  # drafts and beams exclude each other
    return middle(s.max_batch_size * s.max_input_len), middle(answers)


def _cut_token_spans(s: Settings) -> tuple[Span, ...]:
    most = s.max_num_tokens
    if not s.since(0, 10):
        few = s.max_batch_size * s.max_beam_width
        return ((1, few, few), (few, most, most)) if most > few else ((1, most, most),)
    if most <= TOKEN_CUTS[0]:
        # split_num_tokens_range returns a flat list here, so that each of its numbers becomes a profile
        return ((1, 1, 1), (most, most, most), (most, most, most))
    cuts = [1, *(cut for cut in TOKEN_CUTS if cut < most), most]
    return tuple((low, high, high) for low, high in pairwise(cuts))


def _position_spans(s: Settings, tokens: tuple[Span, ...]) -> tuple[Span, ...]:
    if not (s.max_draft_len and s.since(0, 15)):
        return tokens
    return tuple((ceil(low / (s.max_draft_len + 1)), best, high) for low, best, high in tokens)


def _cache_spans(s: Settings, count: int) -> tuple[Span, ...]:
    """Return the bounds of a sequence's cache; beams and attention sinks need a block more than the text."""
    longest = s.max_seq_len
    if s.cache == "paged" or (s.since(0, 13) and s.cache != "disabled"):
        longest += (s.tokens_per_block - 1) * s.streaming
        longest += s.tokens_per_block * (s.max_beam_width > 1)
    if not s.splits_phases or s.attention_plugin:
        return (middle(longest),) * count
    low, best, high = middle(s.max_seq_len)
    return ((0, 0, 0), (low - 1, best - 1, high - 1))[:count]
