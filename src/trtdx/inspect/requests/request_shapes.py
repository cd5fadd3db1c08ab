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

from trtdx.inspect.profiles.dimensions import dimension, shape_text
from trtdx.inspect.profiles.engine_profiles import TOKEN_CUTS, inputs_of, profiles_of, why_not_derived
from trtdx.inspect.profiles.engine_settings import settings_of
from trtdx.inspect.requests.requests import requests_in
from trtdx.model import Section
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtdx.formats.tensorrt.nouns import Profile
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.profiles.dimensions import Dimension
    from trtdx.inspect.profiles.engine_inputs import Input
    from trtdx.inspect.profiles.engine_settings import Settings
    from trtdx.inspect.requests.requests import Request

MOST_SHOWN = 3  # requests whose shapes are shown; of a trace the first, and those that do not fit
TOKEN_DIMENSIONS = (
    "num_tokens", "position_ids_num_tokens_range", "input_len_task", "decoder_num_tokens", "decoder_num_tokens_2",
)  # fmt: skip
Shape = tuple[int, ...]


class Step(NamedTuple):
    """One execution of the engine that a request needs, and the size of each dimension in it."""

    name: str
    generates: bool
    sizes: dict[str, int]


class Fit(NamedTuple):
    """One input in one step: its shape, the bounds of the profile that serves the step, and its dimensions."""

    step: str
    profile: int
    tensor: str
    shape: Shape
    low: Shape
    high: Shape
    axes: tuple[Dimension, ...]

    @property
    def misfits(self) -> tuple[int, ...]:
        """Return the axes whose size is outside the bounds."""
        bounds = zip(self.low, self.shape, self.high, strict=True)
        return tuple(axis for axis, (low, size, high) in enumerate(bounds) if not low <= size <= high)


class Checker:
    """An engine's inputs and profiles, ready to be compared with many requests."""

    def __init__(self, engine: Artifact, *, chunked: bool = False) -> None:
        self.settings = settings_of(engine)
        self.profiles = engine.profiles or profiles_of(engine)
        self.chunked = chunked and self.settings.inflight
        self._inputs = [tensor for tensor in inputs_of(self.settings) if tensor.mode == "in" and tensor.axes]
        self._bounds = [self._bounds_of(profile) for profile in self.profiles]

    def _bounds_of(self, profile: Profile) -> dict[str, tuple[int, int]]:
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

    def takes(self, request: Request) -> bool:
        """Return whether every input of every step fits: the quick answer, for many requests."""
        for step in steps_of(self.settings, request, chunked=self.chunked):
            bounds, sizes = self._bounds[self._index_of(step)], step.sizes
            if any(name in sizes and not low <= sizes[name] <= high for name, (low, high) in bounds.items()):
                return False
        return True

    def excess(self, request: Request) -> tuple[float, int]:
        """Return how many times too large or small the worst dimension of a request is, and by how much all are."""
        worst, total = 0.0, 0
        for step in steps_of(self.settings, request, chunked=self.chunked):
            for name, (low, high) in self._bounds[self._index_of(step)].items():
                size = step.sizes.get(name, low)
                worst = max(worst, size / max(high, 1), low / max(size, 1) if size < low else 0.0)
                total += max(size - high, low - size, 0)
        return worst, total

    def fits(self, request: Request) -> Iterator[Fit]:
        """Yield every input of every step of a request."""
        for step in steps_of(self.settings, request, chunked=self.chunked):
            profile = self.profile_of(step)
            for tensor in self._inputs:
                bounds = profile.range_of(tensor.name)
                if bounds and len(bounds.max) == len(tensor.axes):
                    shape = _shape_of(tensor, step, bounds.max)
                    axes = tuple(bounded_by(axis.name, self.settings, step) for axis in tensor.axes)
                    yield Fit(step.name, profile.index, tensor.name, shape, bounds.min, bounds.max, axes)

    def misfits(self, request: Request) -> list[Fit]:
        return [fit for fit in self.fits(request) if fit.misfits]

    def profile_of(self, step: Step) -> Profile:
        return self.profiles[self._index_of(step)]

    def _index_of(self, step: Step) -> int:
        """Return the profile the runtime chooses for a step: by phase, or by the tokens in it."""
        if len(self.profiles) == 1:
            return 0
        if self.settings.splits_phases:
            return int(step.generates)
        tokens = step.sizes["num_tokens"]
        if self.settings.since(0, 10):
            return min(bisect_left(TOKEN_CUTS, tokens), len(self.profiles) - 1)
        return int(tokens > self.settings.max_batch_size * self.settings.max_beam_width)


def _shape_of(each: Input, step: Step, fixed: Shape) -> Shape:
    """Return the shape of an input in a step; an axis that no request changes has its fixed size."""
    sizes = zip(each.axes, fixed, strict=True)
    return tuple(step.sizes.get(axis.name, size) for axis, size in sizes)


def bounded_by(name: str, settings: Settings, step: Step) -> Dimension:
    """Return a dimension with the flags that bound it in this engine and step."""
    named = dimension(name)
    if settings.splits_phases and settings.since(0, 10) and named.flags == ("--max_num_tokens",):
        other = "--max_beam_width" if step.generates else "--max_input_len"
        return named._replace(flags=("--max_batch_size", other))
    if settings.splits_phases and name == "mask_len" and not step.generates:
        return named._replace(flags=("--max_input_len",))
    if not settings.since(0, 11) and "--max_seq_len" in named.flags:
        return named._replace(flags=("--max_input_len", "--max_output_len", *named.flags[1:]))
    return named


def steps_of(settings: Settings, request: Request, *, chunked: bool = False) -> Iterator[Step]:
    """Yield the steps of a request: the prompt (in chunks where it is cut), the first and the last token."""
    drafts = _drafts(settings, request)
    total = request.input_len + request.output_len + drafts
    common = _common_sizes(settings, request, total)
    tokens = request.batch * (request.input_len + drafts * settings.drafts_from_outside)
    if chunked and tokens > settings.max_num_tokens:
        for name, part in _chunks(settings, tokens):
            yield Step(name, False, common | _prompt_sizes(settings, request, total, part, drafts))
    else:
        yield Step("context", False, common | _prompt_sizes(settings, request, total, tokens, drafts))
    for name, past in () if settings.encoder else _generation(settings, request):
        yield Step(name, True, common | _answer_sizes(settings, request, total, past, drafts))


def _drafts(settings: Settings, request: Request) -> int:
    """Return a sequence's draft tokens in one step; an engine that makes them itself always makes all."""
    return request.draft_len or settings.max_draft_len * (
        settings.speculative and not settings.drafts_from_outside
    )


def _chunks(settings: Settings, tokens: int) -> Iterator[tuple[str, int]]:
    count = ceil(tokens / settings.max_num_tokens)
    yield f"context, chunk 1 of {count}", settings.max_num_tokens
    yield f"context, chunk {count} of {count}", tokens - (count - 1) * settings.max_num_tokens


def _generation(settings: Settings, request: Request) -> Iterator[tuple[str, int]]:
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


def _common_sizes(s: Settings, request: Request, total: int) -> dict[str, int]:
    """Return what is the same in every step."""
    encoder = request.encoder_input_len
    step = s.max_draft_len + 1
    return {
        "batch_size": request.batch,
        "batch_size_cache": request.batch,
        "beam_width": request.beam,
        "max_seq_len": total,
        "max_blocks_per_seq": ceil(total / s.tokens_per_block),
        "num_kv_cache_pools": 1,
        "prompt_embedding_table_size": max(1, request.batch * request.prompt_table),
        "spec_decoding_position_ids_dim0": step,
        "spec_decoding_packed_mask_dim1": -(-step // 32),
        "encoder_max_input_length": max(1, encoder),
        "max_input_length": max(1, encoder or request.input_len),
        "encoder_input_len_2": encoder,
        "cross_past_key_len": encoder,
        "max_cross_blocks_per_seq": ceil(encoder / s.tokens_per_block),
        "cross_packed_mask_dim1": ceil(encoder / 256) * 8,
    }


def _prompt_sizes(s: Settings, request: Request, total: int, tokens: int, drafts: int) -> dict[str, int]:
    batch, length = request.batch, request.input_len
    encoder = request.encoder_input_len
    if s.encoder:
        length = encoder or length
        tokens = batch * length
    return {
        **dict.fromkeys(TOKEN_DIMENSIONS, tokens),
        "batch_size_beam_width": batch,
        "batch_size_beam_width_0": 0,
        "batch_size_last_token_ids": batch * (1 + drafts * s.drafts_from_outside),
        "input_len": length,
        "position_ids_inlen_range": length,
        "mask_len": length,
        "past_key_len": total if s.attention_plugin else 0,
        "last_token_ids": 1,
        "spec_decoding_packed_mask_dim0": 0,
        "encoder_num_tokens": batch * encoder,
        "encoder_input_len": encoder,
        "cross_packed_mask_dim0": batch * ceil(length / 128) * 128,
    }


def _answer_sizes(s: Settings, request: Request, total: int, past: int, drafts: int) -> dict[str, int]:
    sequences = request.batch * request.beam
    step = 1 + drafts * (not s.drafts_from_outside)
    tokens = sequences * step
    return {
        **dict.fromkeys(TOKEN_DIMENSIONS, tokens),
        "batch_size_beam_width": sequences,
        "batch_size_beam_width_0": sequences,
        "batch_size_last_token_ids": tokens,
        "input_len": step,
        "position_ids_inlen_range": 1,
        "mask_len": past + 1,
        "past_key_len": total if s.attention_plugin else past,
        "last_token_ids": step,
        "spec_decoding_packed_mask_dim0": tokens,
        "encoder_num_tokens": 0,
        "encoder_input_len": 0,
        "cross_packed_mask_dim0": sequences,
    }


def shape_section(
    engine: Artifact, requests: Iterable[Artifact], *, chunked: bool = False, whole: bool = True
) -> Section:
    """Return a table of every input in every step: its shape, what the engine allows, and whether it fits.

    A table of several requests has a first column more, with the request in words. One that is not `whole`
    has only what does not fit, a row for each dimension.
    """
    reason = why_not_derived(engine)
    if reason:
        return Section("shapes", f"Shapes in {engine.path}", COLUMNS, (), f"not checked: {reason}")
    checker = Checker(engine, chunked=chunked)
    artifacts = list(requests)
    parsed = list(requests_in(artifacts))
    wrong = [request for request in parsed if not checker.takes(request)]
    shown = _shown(checker, parsed, wrong)
    notes = [
        *_notes(checker, parsed, wrong, shown),
        *(note for artifact in artifacts for note in artifact.unread),
    ]
    fits = [(request.words, fit) for request in shown for fit in _grouped(checker.fits(request))]
    if not whole:
        good = sum(not fit.misfits for _, fit in fits)
        notes.insert(0, f"{good} of {len(fits)} shapes fit (--show shapes lists them).")
    columns = COLUMNS if whole else MISFIT_COLUMNS
    rows: list[tuple[str | int | bool, ...]]
    rows = [(words, *_row(fit)) for words, fit in fits] if whole else list(_folded(fits))
    title = f"Shapes of {shown[0].words} in {engine.path}" if len(shown) == 1 else f"Shapes in {engine.path}"
    if len(shown) == 1:
        rows = [row[1:] for row in rows]
    else:
        columns = ("request", *columns)
    return Section("shapes", title, columns, tuple(rows), " ".join(notes))


COLUMNS = ("step", "profile", "tensor", "shape", "allowed", "fits", "what is too large or small")
MISFIT_COLUMNS = ("what is too large or small", "asked", "allowed", "set by", "inputs")


def _shown(checker: Checker, asked: list[Request], wrong: list[Request]) -> list[Request]:
    """Return the requests to show: all when they are few, else the worst that does not fit, or the largest."""
    if len(asked) <= MOST_SHOWN:
        return asked
    if wrong:
        return [max(wrong, key=checker.excess)]
    return [max(asked, key=lambda request: (request.input_len + request.output_len) * request.batch)]


def _folded(fits: list[tuple[str, Fit]]) -> Iterator[tuple[str | int, ...]]:
    """Yield a row for each dimension that does not fit, with the inputs that have it."""
    tensors_by_row: dict[tuple[str | int, ...], dict[str, None]] = {}
    for words, fit in fits:
        for axis in fit.misfits:
            what, allowed = fit.axes[axis], f"{fit.low[axis]} to {fit.high[axis]}"
            key = (words, what.meaning, fit.shape[axis], allowed, " and ".join(what.flags))
            tensors_by_row.setdefault(key, {})[fit.tensor] = None
    for cells, tensors in tensors_by_row.items():
        yield *cells, listed(tensors, 2)


def _grouped(fits: Iterator[Fit]) -> Iterator[Fit]:
    """Yield inputs that can vary, those that all layers have under a number only once."""
    groups: dict[tuple[object, ...], tuple[Fit, list[str]]] = {}
    for fit in fits:
        if fit.low == fit.high and not fit.misfits:
            continue
        key = (fit.step, re.sub(r"_\d+$", "", fit.tensor), fit.shape)
        groups.setdefault(key, (fit, []))[1].append(fit.tensor)
    for fit, names in groups.values():
        last = names[-1].rpartition("_")[2]
        yield fit if len(names) == 1 else fit._replace(tensor=f"{names[0]} to {last}")


def _row(fit: Fit) -> tuple[str | int | bool, ...]:
    allowed = (
        shape_text(fit.low) if fit.low == fit.high else f"{shape_text(fit.low)} to {shape_text(fit.high)}"
    )
    wrong = "; ".join(misfit_in_words(fit, axis) for axis in fit.misfits)
    return fit.step, fit.profile, fit.tensor, shape_text(fit.shape), allowed, not fit.misfits, wrong


def misfit_in_words(fit: Fit, axis: int) -> str:
    """Return which axis of an input is outside its bounds, what it counts and which flags set the bounds."""
    what = fit.axes[axis]
    flags = f", set by {' and '.join(what.flags)}" if what.flags else ""
    return (
        f"axis {axis} ({what.meaning}) is {fit.shape[axis]}, "
        f"allowed {fit.low[axis]} to {fit.high[axis]}{flags}"
    )


def _notes(
    checker: Checker, asked: list[Request], wrong: list[Request], shown: list[Request]
) -> Iterator[str]:
    settings = checker.settings
    yield f"Profiles {checker.profiles[0].source}. Inputs whose shape never changes are left out."
    if len(shown) < len(asked):
        over, total = (sum(request.count for request in some) for some in (wrong, asked))
        which = "the worst" if wrong else "the largest"
        yield f"{over} of {counted(total, 'request')} {'does' if over == 1 else 'do'} not fit as asked; {which} is shown."
    if settings.inflight:
        yield (
            "The whole batch is shown as one step. The C++ executor puts only as many requests into a step as "
            "fit into max_batch_size and max_num_tokens and lets the rest wait; the Python session and "
            "ModelRunner refuse a batch that does not fit."
        )
    if settings.pp_size > 1:
        yield "Shown for the first pipeline rank; the bounds are the same on all."
