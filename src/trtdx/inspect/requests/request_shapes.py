"""Whether an engine takes a request: the shape of every input in every step, and the profile it must fit.

The shapes are those TensorRT-LLM's own runtimes give the inputs (`_get_context_shape_buffer` and
`_get_next_step_shape_buffer` of `runtime/generation.py`, `RuntimeBuffers::setBufferSizes`, read at v1.2.1).
The C++ executor gives `cache_indirection` and the block tables their full size in every step instead of what
the request needs; here they have the size the request needs, since that is what has to fit.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from trtdx.inspect.profiles.dimensions import dimension_by_name, shape_text
from trtdx.inspect.profiles.engine_profiles import (
    TOKEN_CUTS,
    engine_profiles,
    inputs_of_rank,
    why_not_derived,
)
from trtdx.inspect.profiles.engine_settings import settings_from_engine
from trtdx.inspect.requests.requests import requests_of_artifacts
from trtdx.model import Section
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtdx.formats.tensorrt.nouns import OptimizationProfile
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.profiles.dimensions import EngineDimension
    from trtdx.inspect.profiles.engine_inputs import EngineTensor
    from trtdx.inspect.profiles.engine_settings import EngineSettings
    from trtdx.inspect.requests.requests import Request

MAX_SHOWN_REQUESTS = 3  # requests whose shapes are shown; of a trace the first, and those that do not fit
TOKEN_DIMENSIONS = (
    "num_tokens", "position_ids_num_tokens_range", "input_len_task", "decoder_num_tokens", "decoder_num_tokens_2",
)  # fmt: skip
InputShape = tuple[int, ...]


class RequestStep(NamedTuple):
    """One execution of the engine that a request needs, and the size of each dimension in it."""

    name: str
    generates: bool
    sizes: dict[str, int]


class InputFit(NamedTuple):
    """One input in one step: its shape, the bounds of the profile that serves the step, and its dimensions."""

    step: str
    profile: int
    tensor: str
    shape: InputShape
    low: InputShape
    high: InputShape
    axes: tuple[EngineDimension, ...]

    @property
    def misfit_axes(self) -> tuple[int, ...]:
        """Return the axes whose size is outside the bounds."""
        bounds = zip(self.low, self.shape, self.high, strict=True)
        return tuple(axis for axis, (low, size, high) in enumerate(bounds) if not low <= size <= high)


class RequestChecker:
    """An engine's inputs and profiles, ready to be compared with many requests."""

    def __init__(self, engine: Artifact, *, chunked: bool = False) -> None:
        self.settings = settings_from_engine(engine)
        self.profiles = engine.profiles or engine_profiles(engine)
        self.chunked = chunked and self.settings.supports_inflight
        self._inputs = [tensor for tensor in inputs_of_rank(self.settings) if tensor.mode == "in" and tensor.axes]
        self._bounds = [self._dimension_bounds(profile) for profile in self.profiles]

    def _dimension_bounds(self, profile: OptimizationProfile) -> dict[str, tuple[int, int]]:
        """Return the bounds of each dimension by name; inputs that share one share its bounds."""
        bounds_by_name: dict[str, tuple[int, int]] = {}
        for tensor in self._inputs:
            bounds = profile.range_of(tensor.name)
            if bounds and len(bounds.max) == len(tensor.axes):
                for axis, low, high in zip(tensor.axes, bounds.min, bounds.max, strict=True):
                    earlier = bounds_by_name.get(axis.name, (low, high))
                    bounds_by_name[axis.name] = (max(low, earlier[0]), min(high, earlier[1]))
        bounds_by_name.pop("", None)
        return bounds_by_name

    def accepts(self, request: Request) -> bool:
        """Return whether every input of every step fits: the quick answer, for many requests."""
        for step in steps_of_request(self.settings, request, chunked=self.chunked):
            bounds, sizes = self._bounds[self._profile_index(step)], step.sizes
            if any(name in sizes and not low <= sizes[name] <= high for name, (low, high) in bounds.items()):
                return False
        return True

    def excess(self, request: Request) -> tuple[float, int]:
        """Return how many times too large or small the worst dimension of a request is, and by how much all are."""
        worst, total = 0.0, 0
        for step in steps_of_request(self.settings, request, chunked=self.chunked):
            for name, (low, high) in self._bounds[self._profile_index(step)].items():
                size = step.sizes.get(name, low)
                worst = max(worst, size / max(high, 1), low / max(size, 1) if size < low else 0.0)
                total += max(size - high, low - size, 0)
        return worst, total

    def input_fits(self, request: Request) -> Iterator[InputFit]:
        """Yield every input of every step of a request."""
        for step in steps_of_request(self.settings, request, chunked=self.chunked):
            profile = self.profile_for_step(step)
            for tensor in self._inputs:
                bounds = profile.range_of(tensor.name)
                if bounds and len(bounds.max) == len(tensor.axes):
                    shape = _input_shape(tensor, step, bounds.max)
                    axes = tuple(dimension_in_step(axis.name, self.settings, step) for axis in tensor.axes)
                    yield InputFit(step.name, profile.index, tensor.name, shape, bounds.min, bounds.max, axes)

    def misfitting_inputs(self, request: Request) -> list[InputFit]:
        return [fit for fit in self.input_fits(request) if fit.misfit_axes]

    def profile_for_step(self, step: RequestStep) -> OptimizationProfile:
        return self.profiles[self._profile_index(step)]

    def _profile_index(self, step: RequestStep) -> int:
        """Return the profile the runtime chooses for a step: by phase, or by the tokens in it."""
        if len(self.profiles) == 1:
            return 0
        if self.settings.splits_phases:
            return int(step.generates)
        tokens = step.sizes["num_tokens"]
        if self.settings.since(0, 10):
            return min(bisect_left(TOKEN_CUTS, tokens), len(self.profiles) - 1)
        return int(tokens > self.settings.max_batch_size * self.settings.max_beam_width)


def _input_shape(tensor: EngineTensor, step: RequestStep, fixed: InputShape) -> InputShape:
    """Return the shape of an input in a step; an axis that no request changes has its fixed size."""
    sizes = zip(tensor.axes, fixed, strict=True)
    return tuple(step.sizes.get(axis.name, size) for axis, size in sizes)


def dimension_in_step(name: str, settings: EngineSettings, step: RequestStep) -> EngineDimension:
    """Return a dimension with the flags that bound it in this engine and step."""
    named = dimension_by_name(name)
    if settings.splits_phases and settings.since(0, 10) and named.flags == ("--max_num_tokens",):
        other = "--max_beam_width" if step.generates else "--max_input_len"
        return named._replace(flags=("--max_batch_size", other))
    if settings.splits_phases and name == "mask_len" and not step.generates:
        return named._replace(flags=("--max_input_len",))
    if not settings.since(0, 11) and "--max_seq_len" in named.flags:
        return named._replace(flags=("--max_input_len", "--max_output_len", *named.flags[1:]))
    return named


def steps_of_request(settings: EngineSettings, request: Request, *, chunked: bool = False) -> Iterator[RequestStep]:
    """Yield the steps of a request: the prompt (in chunks where it is cut), the first and the last token."""
    drafts = _drafts_per_step(settings, request)
    total = request.input_len + request.output_len + drafts
    common = _common_sizes(settings, request, total)
    tokens = request.batch * (request.input_len + drafts * settings.drafts_from_outside)
    if chunked and tokens > settings.max_num_tokens:
        for name, part in _chunked_steps(settings, tokens):
            yield RequestStep(name, False, common | _prompt_sizes(settings, request, total, part, drafts))
    else:
        yield RequestStep("context", False, common | _prompt_sizes(settings, request, total, tokens, drafts))
    for name, past in () if settings.is_encoder else _generation_steps(settings, request):
        yield RequestStep(name, True, common | _answer_sizes(settings, request, total, past, drafts))


def _drafts_per_step(settings: EngineSettings, request: Request) -> int:
    """Return a sequence's draft tokens in one step; an engine that makes them itself always makes all."""
    return request.draft_len or settings.max_draft_len * (settings.speculative and not settings.drafts_from_outside)


def _chunked_steps(settings: EngineSettings, tokens: int) -> Iterator[tuple[str, int]]:
    count = ceil(tokens / settings.max_num_tokens)
    yield f"context, chunk 1 of {count}", settings.max_num_tokens
    yield f"context, chunk {count} of {count}", tokens - (count - 1) * settings.max_num_tokens


def _generation_steps(settings: EngineSettings, request: Request) -> Iterator[tuple[str, int]]:
    """Yield the steps after the prompt, which gave the first token, and how much cache they find.

    With the attention plugin the cache has its full size from the start, so that all steps are alike.
    """
    last = request.input_len + request.output_len - 2
    if settings.attention_plugin and last >= request.input_len:
        yield "generation", request.input_len
        return
    if last >= request.input_len:
        yield "generation, first step", request.input_len
    if last > request.input_len:
        yield "generation, last step", last


def _common_sizes(settings: EngineSettings, request: Request, total: int) -> dict[str, int]:
    """Return what is the same in every step."""
    encoder = request.encoder_input_len
    step = settings.max_draft_len + 1
    return {
        "batch_size": request.batch,
        "batch_size_cache": request.batch,
        "beam_width": request.beam,
        "max_seq_len": total,
        "max_blocks_per_seq": ceil(total / settings.tokens_per_block),
        "num_kv_cache_pools": 1,
        "prompt_embedding_table_size": max(1, request.batch * request.prompt_table),
        "spec_decoding_position_ids_dim0": step,
        "spec_decoding_packed_mask_dim1": -(-step // 32),
        "encoder_max_input_length": max(1, encoder),
        "max_input_length": max(1, encoder or request.input_len),
        "encoder_input_len_2": encoder,
        "cross_past_key_len": encoder,
        "max_cross_blocks_per_seq": ceil(encoder / settings.tokens_per_block),
        "cross_packed_mask_dim1": ceil(encoder / 256) * 8,
    }


def _prompt_sizes(settings: EngineSettings, request: Request, total: int, tokens: int, drafts: int) -> dict[str, int]:
    batch, length = request.batch, request.input_len
    encoder = request.encoder_input_len
    if settings.is_encoder:
        length = encoder or length
        tokens = batch * length
    return {
        **dict.fromkeys(TOKEN_DIMENSIONS, tokens),
        "batch_size_beam_width": batch,
        "batch_size_beam_width_0": 0,
        "batch_size_last_token_ids": batch * (1 + drafts * settings.drafts_from_outside),
        "input_len": length,
        "position_ids_inlen_range": length,
        "mask_len": length,
        "past_key_len": total if settings.attention_plugin else 0,
        "last_token_ids": 1,
        "spec_decoding_packed_mask_dim0": 0,
        "encoder_num_tokens": batch * encoder,
        "encoder_input_len": encoder,
        "cross_packed_mask_dim0": batch * ceil(length / 128) * 128,
    }


def _answer_sizes(settings: EngineSettings, request: Request, total: int, past: int, drafts: int) -> dict[str, int]:
    sequences = request.batch * request.beam
    step = 1 + drafts * (not settings.drafts_from_outside)
    tokens = sequences * step
    return {
        **dict.fromkeys(TOKEN_DIMENSIONS, tokens),
        "batch_size_beam_width": sequences,
        "batch_size_beam_width_0": sequences,
        "batch_size_last_token_ids": tokens,
        "input_len": step,
        "position_ids_inlen_range": 1,
        "mask_len": past + 1,
        "past_key_len": total if settings.attention_plugin else past,
        "last_token_ids": step,
        "spec_decoding_packed_mask_dim0": tokens,
        "encoder_num_tokens": 0,
        "encoder_input_len": 0,
        "cross_packed_mask_dim0": sequences,
    }


def shape_section(
    engine: Artifact, requests: Iterable[Artifact], *, chunked: bool = False, show_all: bool = True
) -> Section:
    """Return a table of every input in every step: its shape, what the engine allows, and whether it fits.

    A table of several requests has a first column more, with the request in words. One that is not `whole`
    has only what does not fit, a row for each dimension.
    """
    reason = why_not_derived(engine)
    if reason:
        return Section("shapes", f"Shapes in {engine.path}", SHAPE_COLUMNS, (), f"not checked: {reason}")
    checker = RequestChecker(engine, chunked=chunked)
    artifacts = list(requests)
    parsed = list(requests_of_artifacts(artifacts))
    wrong = [request for request in parsed if not checker.accepts(request)]
    shown = _requests_to_show(checker, parsed, wrong)
    notes = [
        *_shape_notes(checker, parsed, wrong, shown),
        *(note for artifact in artifacts for note in artifact.unread),
    ]
    fits = [(request.words, fit) for request in shown for fit in _group_layers(checker.input_fits(request))]
    if not show_all:
        good = sum(not fit.misfit_axes for _, fit in fits)
        notes.insert(0, f"{good} of {len(fits)} shapes fit (--show shapes lists them).")
    columns = SHAPE_COLUMNS if show_all else MISFIT_COLUMNS
    rows: list[tuple[str | int | bool, ...]]
    rows = [(words, *_fit_row(fit)) for words, fit in fits] if show_all else list(_misfit_rows(fits))
    title = f"Shapes of {shown[0].words} in {engine.path}" if len(shown) == 1 else f"Shapes in {engine.path}"
    if len(shown) == 1:
        rows = [row[1:] for row in rows]
    else:
        columns = ("request", *columns)
    return Section("shapes", title, columns, tuple(rows), " ".join(notes))


SHAPE_COLUMNS = ("step", "profile", "tensor", "shape", "allowed", "fits", "what is too large or small")
MISFIT_COLUMNS = ("what is too large or small", "asked", "allowed", "set by", "inputs")


def _requests_to_show(checker: RequestChecker, requests: list[Request], wrong: list[Request]) -> list[Request]:
    """Return the requests to show: all when they are few, else the worst that does not fit, or the largest."""
    if len(requests) <= MAX_SHOWN_REQUESTS:
        return requests
    if wrong:
        return [max(wrong, key=checker.excess)]
    return [max(requests, key=lambda request: (request.input_len + request.output_len) * request.batch)]


def _misfit_rows(fits: list[tuple[str, InputFit]]) -> Iterator[tuple[str | int, ...]]:
    """Yield a row for each dimension that does not fit, with the inputs that have it."""
    tensors_by_row: dict[tuple[str | int, ...], dict[str, None]] = {}
    for words, fit in fits:
        for axis in fit.misfit_axes:
            what, allowed = fit.axes[axis], f"{fit.low[axis]} to {fit.high[axis]}"
            key = (words, what.meaning, fit.shape[axis], allowed, " and ".join(what.flags))
            tensors_by_row.setdefault(key, {})[fit.tensor] = None
    for cells, tensors in tensors_by_row.items():
        yield *cells, abbreviate_list(tensors, 2)


def _group_layers(fits: Iterator[InputFit]) -> Iterator[InputFit]:
    """Yield inputs that can vary, those that all layers have under a number only once."""
    groups: dict[tuple[object, ...], tuple[InputFit, list[str]]] = {}
    for fit in fits:
        if fit.low == fit.high and not fit.misfit_axes:
            continue
        key = (fit.step, re.sub(r"_\d+$", "", fit.tensor), fit.shape)
        groups.setdefault(key, (fit, []))[1].append(fit.tensor)
    for fit, names in groups.values():
        last = names[-1].rpartition("_")[2]
        yield fit if len(names) == 1 else fit._replace(tensor=f"{names[0]} to {last}")


def _fit_row(fit: InputFit) -> tuple[str | int | bool, ...]:
    allowed = shape_text(fit.low) if fit.low == fit.high else f"{shape_text(fit.low)} to {shape_text(fit.high)}"
    wrong = "; ".join(misfit_words(fit, axis) for axis in fit.misfit_axes)
    return fit.step, fit.profile, fit.tensor, shape_text(fit.shape), allowed, not fit.misfit_axes, wrong


def misfit_words(fit: InputFit, axis: int) -> str:
    """Return which axis of an input is outside its bounds, what it counts and which flags set the bounds."""
    what = fit.axes[axis]
    flags = f", set by {' and '.join(what.flags)}" if what.flags else ""
    return f"axis {axis} ({what.meaning}) is {fit.shape[axis]}, allowed {fit.low[axis]} to {fit.high[axis]}{flags}"


def _shape_notes(
    checker: RequestChecker, requests: list[Request], wrong: list[Request], shown: list[Request]
) -> Iterator[str]:
    settings = checker.settings
    yield f"Profiles {checker.profiles[0].source}. Inputs whose shape never changes are left out."
    if len(shown) < len(requests):
        over, total = (sum(request.count for request in some) for some in (wrong, requests))
        which = "the worst" if wrong else "the largest"
        yield f"{over} of {format_count(total, 'request')} {'does' if over == 1 else 'do'} not fit as asked; {which} is shown."
    if settings.supports_inflight:
        yield (
            "The whole batch is shown as one step. The C++ executor puts only as many requests into a step as "
            "fit into max_batch_size and max_num_tokens and lets the rest wait; the Python session and "
            "ModelRunner refuse a batch that does not fit."
        )
    if settings.pp_size > 1:
        yield "Shown for the first pipeline rank; the bounds are the same on all."
