"""A decoder on any engine, token by token: the cache goes round, and what is watched is seen at every step.

Example:
    for step in generate_tokens(engine, [[1, 5, 9], [7]], 16):
        print(step.tokens)                 # while the engine's sink gets the tensors of each step
    for step in generate_tokens(engine, step.state, 8): ...   # goes on from there
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.generation_state import GenerationState, Sampling
from trtdx.engines.torch.lazy_import import numpy as np
from trtdx.errors import InputError
from trtdx.tensors.cache_names import PAST_NAME, PRESENT_NAME, cache_key
from trtdx.tensors.dtypes import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.engines.engine import Array, StepRunner
    from trtdx.tensors.feeds import ModelInput

_LENGTH_AXIS_NAME = re.compile(r"past|seq|len|total|cache|kv", re.IGNORECASE)
MASK_RANK = 2


class GenerationStep(NamedTuple):
    """One step of a generation: what was chosen for each row, and where things stand now."""

    number: int
    tokens: Array  # what the next step is fed
    state: GenerationState
    chosen: Array  # what the model would have gone on with; the same unless tokens were forced


def cache_outputs_by_input(engine: StepRunner) -> dict[str, str]:
    """Return the outputs that become inputs of the next step: {"past.0.key": "present.0.key"}.

    Raises:
        InputError: an input looks like a cache, and no output is its next content.
    """
    present = {cache_key(name): name for name in engine.outputs if PRESENT_NAME.fullmatch(name)}
    past = {name: cache_key(name) for name in engine.inputs if PAST_NAME.fullmatch(name)}
    alone = [name for name, key in past.items() if key not in present]
    if alone:
        raise InputError(
            f"the model takes {alone[0]!r}, but none of its outputs is what it becomes: {', '.join(engine.outputs)}",
            fix="export the model with its cache as outputs called present.<layer>.key and .value",
        )
    return {name: present[key] for name, key in past.items()}


def initial_state(
    engine: StepRunner,
    prompts: Sequence[Sequence[int]] | Array,
    *,
    attention_mask: Any = None,
    sampling: Sampling | None = None,
) -> GenerationState:
    """Return where a generation begins.

    Args:
        engine: the model.
        prompts: token ids, a row each; shorter rows are filled up on their left.
        attention_mask: for prompts that are filled up already, 1 where there is a token.
        sampling: how tokens are chosen; the likeliest where it is not told.
    """
    chosen = sampling or Sampling()
    tokens, mask = _pad_prompts(prompts, chosen.pad)
    if attention_mask is not None:
        mask = np.asarray(attention_mask, np.int64)
    if tokens.ndim != MASK_RANK or mask.shape != tokens.shape or not tokens.shape[1]:
        raise InputError(f"prompts of shape {list(tokens.shape)} do not go with a mask of {list(mask.shape)}")
    if not mask[:, -1].all():
        raise InputError("a prompt ends in padding", fix="fill shorter prompts up on their left")
    batch = engine.inputs.get("input_ids")
    past = {
        name: _empty_cache(engine.inputs[name], len(tokens), batch.shape if batch else None)
        for name in cache_outputs_by_input(engine)
    }
    bit_generator = np.random.PCG64(chosen.seed).state["state"]
    done = np.zeros(len(tokens), bool)
    return GenerationState(
        tokens, mask, done, past, 0, 0, chosen, (int(bit_generator["state"]), int(bit_generator["inc"]))
    )


def _pad_prompts(prompts: Sequence[Sequence[int]] | Array, pad: int) -> tuple[Array, Array]:
    longest = max((len(row) for row in prompts), default=0)
    tokens = np.full((len(prompts), longest), pad, np.int64)
    mask = np.zeros(tokens.shape, np.int64)
    for number, row in enumerate(prompts):
        tokens[number, longest - len(row) :] = row
        mask[number, longest - len(row) :] = 1
    return tokens, mask


def _empty_cache(cache_input: ModelInput, batch: int, ids_shape: tuple[int | str, ...] | None) -> Array:
    """Return a cache with nothing in it, in the shape a model declares: [batch, heads, past, width]."""
    batch_name = ids_shape[0] if ids_shape else "batch"
    shape = []
    for dim in cache_input.shape or ():
        if isinstance(dim, int):
            shape.append(dim)
        elif dim == batch_name or "batch" in dim:
            shape.append(batch)
        elif _LENGTH_AXIS_NAME.search(dim):
            shape.append(0)
        else:
            raise InputError(
                f"the cache {cache_input.name} is {cache_input}: what {dim!r} stands for is not known",
                fix="export the model with axes called batch and past, or with fixed sizes",
            )
    return np.zeros(shape, numpy_dtype(cache_input.dtype))


def generate_tokens(
    engine: StepRunner,
    start: GenerationState | Sequence[Sequence[int]] | Array,
    steps: int,
    *,
    attention_mask: Any = None,
    sampling: Sampling | None = None,
    extra: Mapping[str, Any] | None = None,
    forced: Array | None = None,
) -> Iterator[GenerationStep]:
    """Yield each step as it is computed: first the whole prompts, then a token at a time; stops when all rows are done.

    Args:
        engine: the model; its sink sees the selected tensors of each step before the step is yielded.
        start: prompts (see `initial_state`), or a state to go on from.
        steps: how many tokens to add at most.
        attention_mask: for prompts that are filled up already.
        sampling: how tokens are chosen; a state goes on as it began.
        extra: constant inputs that only this model has.
        forced: what to go on with whatever the model chooses, [batch, steps]; so two models see the same tokens.
    """
    if isinstance(start, GenerationState):
        state = start
    else:
        state = initial_state(engine, start, attention_mask=attention_mask, sampling=sampling)
    names = cache_outputs_by_input(engine)
    engine.step = state.step
    for _ in range(steps):
        if state.done.all():
            return
        results = engine.run(_step_feeds(engine, state, names, extra or {}))
        chosen, generator = _choose_tokens(_next_token_logits(results, names), state)
        tokens = chosen if forced is None else forced[:, state.step].astype(np.int64)
        state = _advance_state(state, tokens, {name: results[names[name]] for name in names}, generator)
        yield GenerationStep(state.step - 1, tokens, state, chosen)


def _step_feeds(
    engine: StepRunner, state: GenerationState, cache_outputs: Mapping[str, str], extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a model wants to be fed at this step."""
    step_inputs = _step_inputs(state)
    feeds: dict[str, Any] = {}
    for name, declared in engine.inputs.items():
        if name in extra:
            feeds[name] = extra[name]
        elif name in cache_outputs:
            feeds[name] = state.past[name]
        elif name in step_inputs:
            feeds[name] = step_inputs[name].astype(declared.dtype or "int64")
        elif not declared.optional:
            raise InputError(
                f"the model wants {name} ({declared}), which is not a part of a generation",
                fix=f"pass extra={{{name!r}: ...}}",
            )
    return feeds


def _step_inputs(state: GenerationState) -> dict[str, Array]:
    """Return what follows from the tokens of a step and their mask, by the names models have for it."""
    return {
        "input_ids": state.tokens[:, state.cached :],
        "attention_mask": state.mask,
        "position_ids": np.maximum(np.cumsum(state.mask, 1) - 1, 0)[:, state.cached :],
        "cache_position": np.arange(state.cached, state.tokens.shape[1]),
        "use_cache_branch": np.array([state.cached > 0]),
    }


def complete_feeds(engine: StepRunner, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of some arrays a model takes, and what follows from them: mask, positions, empty caches.

    A part of a cache that is not empty does not follow: what is missing there stays missing.
    """
    completed = {name: feeds[name] for name in engine.inputs if name in feeds}
    missing = {
        name: declared for name, declared in engine.inputs.items() if name not in completed and not declared.optional
    }
    if not missing or np.ndim(feeds.get("input_ids", 0)) != MASK_RANK:
        return completed
    state = _state_from_feeds(engine, feeds)
    step_inputs = _step_inputs(state)
    for name, declared in missing.items():
        if name in step_inputs:
            completed[name] = step_inputs[name].astype(declared.dtype or "int64")
        elif name in state.past and not state.cached:
            completed[name] = state.past[name]
    return completed


def _state_from_feeds(engine: StepRunner, feeds: Mapping[str, Any]) -> GenerationState:
    """Return where a generation stands whose next step is fed these arrays."""
    state = initial_state(engine, np.asarray(feeds["input_ids"]))
    mask = np.asarray(feeds.get("attention_mask", 0))
    if mask.ndim != MASK_RANK:
        cached = max((_cached_length(array) for name, array in feeds.items() if PAST_NAME.fullmatch(name)), default=0)
        mask = np.ones((len(state.tokens), cached + state.tokens.shape[1]), np.int64)
    cached = max(mask.shape[1] - state.tokens.shape[1], 0)
    tokens = np.concatenate([np.zeros((len(mask), cached), np.int64), state.tokens], 1)
    return state._replace(tokens=tokens, mask=mask.astype(np.int64), cached=cached)


def _cached_length(past: Array) -> int:
    """Return how many positions a cache holds: [batch, heads, past, width], or keys and values of it in one."""
    return int(past.shape[-2]) if past.ndim >= MASK_RANK else 0


def _next_token_logits(results: Mapping[str, Array], cache_outputs: Mapping[str, str]) -> Array:
    """Return the scores of the next token: [batch, vocabulary]."""
    caches = set(cache_outputs.values())
    name = "logits" if "logits" in results else next(output for output in results if output not in caches)
    scores = results[name]
    if scores.ndim not in (2, 3):
        raise InputError(f"the output {name} has shape {list(scores.shape)}, which is not that of scores")
    return (scores if scores.ndim == MASK_RANK else scores[:, -1]).astype(np.float32)


def _choose_tokens(scores: Array, state: GenerationState) -> tuple[Array, tuple[int, int]]:
    """Return the next token of each row, and where the random numbers stand then."""
    sampling = state.sampling
    if sampling.temperature <= 0:
        tokens, generator = np.argmax(scores, 1), state.generator
    else:
        draws, generator = _draw_uniform(len(scores), state.generator)
        tokens = np.array([_sample_token(row, draw, sampling) for row, draw in zip(scores, draws, strict=True)])
    return np.where(state.done, sampling.pad, tokens).astype(np.int64), generator


def _draw_uniform(count: int, generator: tuple[int, int]) -> tuple[Array, tuple[int, int]]:
    """Return random numbers from 0 to 1, and where they stand then."""
    source: Any = np.random.PCG64()
    inner = {"state": generator[0], "inc": generator[1]}
    source.state = {"bit_generator": "PCG64", "state": inner, "has_uint32": 0, "uinteger": 0}
    draws = np.random.Generator(source).random(count)
    inner = source.state["state"]
    return draws, (int(inner["state"]), int(inner["inc"]))


def _sample_token(scores: Array, draw: float, sampling: Sampling) -> int:
    """Return a token: the likeliest first, each as long as its share, and the draw falls on one."""
    order = np.argsort(-scores, kind="stable")
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    weights = np.exp((scores[order].astype(np.float64) - scores[order[0]]) / sampling.temperature)
    shares = np.cumsum(weights / weights.sum())
    left = int(np.searchsorted(shares, sampling.top_p)) + 1 if sampling.top_p < 1 else len(shares)
    shares = shares[:left]
    return int(order[min(int(np.searchsorted(shares, draw * shares[-1], "right")), len(shares) - 1)])


def _advance_state(
    state: GenerationState, tokens: Array, past: Mapping[str, Array], generator: tuple[int, int]
) -> GenerationState:
    column = tokens[:, None]
    return state._replace(
        tokens=np.concatenate([state.tokens, column], 1),
        mask=np.concatenate([state.mask, np.ones_like(column)], 1),
        done=state.done | np.isin(tokens, state.sampling.eos),
        past=past,
        cached=state.tokens.shape[1] if past else 0,
        step=state.step + 1,
        generator=generator,
    )
