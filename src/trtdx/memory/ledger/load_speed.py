"""How fast a load can be served at best: time per token, time to the first token, tokens in a second.

A load is a number of requests that are always there: where one ends the next comes. So a step gives each of them a
token and works on prompts of those that come, and what a prompt computes can hide behind what decoding reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.memory.ledger.step_bounds import bound_step, speeds_of
from trtdx.memory.ledger.step_work import StepLoad

if TYPE_CHECKING:
    from trtdx.memory.ledger.step_bounds import GpuSpeeds, StepBound
    from trtdx.memory.nouns import Setup

# Of the bound, what is usually reached: 36 of the 44 figures for Llama 2 and GPT-J in TensorRT-LLM's own tables
# (docs/source/performance.md@v0.7.1) lie within. Throughput is 0.15 to 0.79 of its bound there (median 0.50), the time
# to the first token 0.20 to 0.67 (median 0.44).
LIKELY_SHARE = (0.35, 0.8)


class RequestLoad(NamedTuple):
    """Requests that are served at the same time, and their lengths."""

    batch: int
    input: int
    output: int
    step: int  # max_num_tokens: longer prompts are worked on in pieces


def split_length(length: int) -> tuple[int, int]:
    """Return the prompt and the answer of a request, of which only the length together is known: halves."""
    return max(length // 2, 1), max(length - length // 2, 1)


class LoadSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The best that a load can be served at, and the band (slow, fast) that is likely."""

    batch: int
    input_tokens: int
    output_tokens: int
    tpot_ms: float  # time per output token: nothing is faster
    ttft_ms: float  # time to the first token of a request that need not wait
    tokens_per_s: float  # output of all GPUs together, at most
    likely_tpot_ms: tuple[float, float]
    likely_ttft_ms: tuple[float, float]
    likely_tokens_per_s: tuple[float, float]
    binding: str  # what no kernel can get around


def bound_load(setup: Setup, load: RequestLoad) -> LoadSpeed | None:
    """Return the best that a load can be served at; None where the GPU's figures are not known."""
    speeds = speeds_of(setup)
    if speeds is None:
        return None
    stages = setup.layout.pp
    in_stage = max(load.batch / stages, 1.0)
    step = bound_step(setup, speeds, StepLoad(decoding=in_stage, context=load.input + load.output / 2))
    prompt = bound_step(setup, speeds, StepLoad(prompt_tokens=load.input, prompts=1, ends=1))
    arriving = in_stage / load.output  # prompts, in each step
    with_others = _add_prompts(step, prompt, arriving * (load.batch - 1) / load.batch)
    # Requests that begin together have no prompts beside them while they decode, so only what is likely counts those.
    token_s, likely_s = stages * step.seconds, stages * with_others.seconds
    rate = load.batch / (stages * _add_prompts(step, prompt, arriving).seconds)
    first_s = _first_token_seconds(setup, speeds, load)
    low, high = LIKELY_SHARE
    return LoadSpeed(
        batch=load.batch,
        input_tokens=load.input,
        output_tokens=load.output,
        tpot_ms=token_s * 1e3,
        ttft_ms=first_s * 1e3,
        tokens_per_s=rate,
        likely_tpot_ms=(likely_s * 1e3 / low, likely_s * 1e3 / high),
        likely_ttft_ms=(first_s * 1e3 / low, first_s * 1e3 / high),
        likely_tokens_per_s=(rate * low, rate * high),
        binding=with_others.binding,
    )


def _add_prompts(step: StepBound, prompt: StepBound, count: float) -> StepBound:
    """Return a step that also works on some prompts; the weights are read once for all."""
    return step._replace(
        compute_s=step.compute_s + count * prompt.compute_s, link_s=step.link_s + count * prompt.link_s
    )


def _first_token_seconds(setup: Setup, speeds: GpuSpeeds, load: RequestLoad) -> float:
    """Return the least time of a prompt's steps, in which the other requests get their tokens too.

    Of many pieces the one in the middle stands for all: a bound never bends downwards as the prompt grows, so the mean
    of all pieces is not below it.
    """
    others = max(load.batch / setup.layout.pp, 1.0) - 1.0
    room = max(load.step - others, 1.0)
    pieces = int((load.input - 1) // room)  # before the last one
    beside = StepLoad(prompts=1, decoding=others, context=load.input + load.output / 2)
    last = beside._replace(prompt_tokens=load.input - pieces * room, cached=pieces * room, ends=1)
    last_s = bound_step(setup, speeds, last).seconds
    seconds = setup.layout.pp * last_s
    if pieces:
        middle = beside._replace(prompt_tokens=room, cached=(pieces - 1) * room / 2)
        seconds += pieces * bound_step(setup, speeds, middle).seconds
    return seconds
