"""What a request and the engine or server that is to take it must agree on: lengths, batch, beams, tokens."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from trtdx.inspect.agreement import Violation, agreement
from trtdx.inspect.agreements import engine_limits, server_limits
from trtdx.inspect.limits import (
    can_chunk,
    drafts_of,
    each_taker,
    over,
    prompt_rule,
)
from trtdx.inspect.requests import requests_in
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.agreement import Agreement
    from trtdx.inspect.artifact import Artifact, Deployment
    from trtdx.inspect.engine_settings import Settings
    from trtdx.inspect.limits import Over, Taker
    from trtdx.inspect.requests import Request

# The dimensions that grow with each part of a request: inputs that do not fit are named as evidence.
PROMPT = ("input_len", "position_ids_inlen_range", "mask_len")
TOKENS = ("num_tokens", "position_ids_num_tokens_range", "input_len_task", "decoder_num_tokens")
LENGTH = ("max_seq_len", "past_key_len", "max_blocks_per_seq", "mask_len")
SEQUENCES = ("batch_size_beam_width", "batch_size_cache", "batch_size_last_token_ids", "batch_size")
ENCODER = (
    "encoder_max_input_length", "encoder_input_len_2", "encoder_num_tokens", "max_cross_blocks_per_seq",
    "max_input_length", "num_tokens", "input_len",
)  # fmt: skip
FAR = 16  # so many times away from the optimum other kernels would have been chosen


@agreement("DX270", "engine", "request")
@each_taker
def prompt(taker: Taker) -> Iterator[Violation]:
    """A prompt is no longer than the engine takes."""
    limit, by = prompt_rule(taker)
    found = taker.over(lambda each: each.input_len - limit)
    if found is None or taker.settings.encoder:
        return
    unsure = by == "max_num_tokens" and taker.chunked is None and can_chunk(taker.engine)
    yield Violation(
        taker.evidence(found.worst, (by,), *PROMPT, *TOKENS, *LENGTH),
        {
            "what": "a prompt",
            "length": found.worst.input_len,
            "limit": limit,
            "by": BY[by],
            "among": found.among,
            "words": found.worst.words,
            "flags": _prompt_flags(taker, by),
            "otherwise": _other_ways(taker, by, limit),
        },
        Severity.WARNING if unsure else None,
        0.8 if unsure else 0.95,
    )


BY = {
    "max_input_len": "max_input_len",
    "max_seq_len": "max_seq_len less one token for the answer",
    "max_num_tokens": "max_num_tokens: without chunked context a prompt is one step",
}


def _prompt_flags(taker: Taker, by: str) -> str:
    """Return the flags of trtllm-build that make room for every one of the requests."""
    s = taker.settings
    longest = max(each.input_len for each in taker.requests)
    flags = [_length_flags(taker)]
    if by == "max_input_len" and s.since(0, 11):
        flags.insert(0, f"--max_input_len {longest}")
    if s.packed and longest > s.max_num_tokens and not taker.chunked:
        flags.append(f"--max_num_tokens {longest}")
    return " ".join(filter(None, flags))


def _length_flags(taker: Taker) -> str:
    s = taker.settings
    if not s.since(0, 11):
        longest = (max(getattr(r, name) for r in taker.requests) for name in ("input_len", "output_len"))
        return "--max_input_len {} --max_output_len {}".format(*longest)
    needed = max(each.input_len + each.output_len for each in taker.requests)
    built = s.max_seq_len - s.max_draft_len * s.speculative  # the builder adds the draft tokens itself
    return f"--max_seq_len {needed}" if needed > built else ""


def _other_ways(taker: Taker, by: str, limit: int) -> str:
    short = f"shorten (truncate) the prompt to {limit} tokens"
    if by != "max_num_tokens":
        return f"or {short}"
    chunked = "serve with chunked context (enable_chunked_context, enable_chunked_prefill)"
    if can_chunk(taker.engine):
        return (
            f"or {chunked}, which takes prompts of up to {taker.settings.max_seq_len - 1} tokens, or {short}"
        )
    return f"or {short}; to {chunked} the engine must be built with --use_paged_context_fmha enable"


@agreement("DX270", "engine", "request")
@each_taker
def encoder_input(taker: Taker) -> Iterator[Violation]:
    """The encoder's input is no longer than the engine takes."""
    s = taker.settings
    by = "max_input_len" if s.encoder else "max_encoder_input_len"
    limit = s.max_input_len if s.encoder else s.encoder_len
    found = taker.over(lambda each: each.encoder_input_len - limit)
    if found is None or not limit or not (s.encoder or s.decoder_of_encoder):
        return
    length = found.worst.encoder_input_len
    yield Violation(
        taker.evidence(found.worst, (by,), *ENCODER),
        {
            "what": "an encoder input",
            "length": length,
            "limit": limit,
            "by": by,
            "among": found.among,
            "words": found.worst.words,
            "flags": f"--{by} {length}" + (f" --max_seq_len {length}" if s.encoder else ""),
            "otherwise": f"or shorten the encoder input to {limit}",
        },
    )


@agreement("DX271", "engine", "request")
@each_taker
def answer(taker: Taker) -> Iterator[Violation]:
    """Prompt and answer together are no longer than max_seq_len."""
    s, (prompts, _) = taker.settings, prompt_rule(taker)
    found = taker.over(lambda each: _beyond(each, s, prompts))
    if found is None or s.encoder:
        return
    worst, drafted = found.worst, drafts_of(s, found.worst)
    yield Violation(
        taker.evidence(worst, ("max_seq_len", "max_draft_len"), *LENGTH),
        {
            "prompt": worst.input_len,
            "answer": worst.output_len,
            "drafts": f" and {drafted} draft tokens" if drafted else "",
            "limit": s.max_seq_len,
            "room": max(0, s.max_seq_len - worst.input_len - drafted),
            "among": found.among,
            "words": found.worst.words,
            "effect": CUT if s.inflight else "the Python session refuses the request",
            "flags": _length_flags(taker) or f"--max_seq_len {worst.input_len + worst.output_len}",
        },
        Severity.WARNING if s.inflight else None,
    )


CUT = "the C++ executor shortens the answer with a warning; ModelRunner, run.py and the LLM API refuse the request"


def _beyond(request: Request, s: Settings, prompts: int) -> int:
    """Return how much is over; a prompt that is itself too long is another finding."""
    if request.input_len > prompts:
        return 0
    return request.input_len + request.output_len + drafts_of(s, request) - s.max_seq_len


@agreement("DX312", "engine", "request")
@each_taker
def beams(taker: Taker) -> Iterator[Violation]:
    """A request has no more beams than the engine was built for."""
    limit = taker.settings.max_beam_width
    found = taker.over(lambda each: each.beam - limit)
    if found:
        yield Violation(
            taker.evidence(found.worst, ("max_beam_width",), "beam_width"),
            {"beams": found.worst.beam, "limit": limit, "among": found.among, "words": found.worst.words},
        )


@agreement("DX274", "engine", "request")
@each_taker
def batch(taker: Taker) -> Iterator[Violation]:
    """A batch is no larger than the engine was built for."""
    s = taker.settings
    found = taker.over(lambda each: each.batch - s.max_batch_size)
    if found is None:
        return
    queued = f"the C++ executor runs {s.max_batch_size} at once and lets the others wait, ModelRunner and run.py refuse it"
    yield Violation(
        taker.evidence(found.worst, ("max_batch_size",), *SEQUENCES),
        {
            "batch": found.worst.batch,
            "limit": s.max_batch_size,
            "among": found.among,
            "words": found.worst.words,
            "effect": queued if s.inflight else "the Python session refuses it",
        },
        Severity.WARNING if s.inflight else None,
    )


@agreement("DX918", "engine", "request")
@each_taker
def step_tokens(taker: Taker) -> Iterator[Violation]:
    """The prompts of a batch together have no more tokens than one step takes."""
    s = taker.settings
    by_prompts = s.splits_phases and s.since(0, 10)  # the bound is then batch times prompt length
    if not s.packed or by_prompts or s.encoder or s.decoder_of_encoder:
        return
    longest = min(s.max_num_tokens, prompt_rule(taker)[0])
    found = taker.over(lambda each: _step_tokens(each, s, longest) - s.max_num_tokens)
    if found:
        yield Violation(
            taker.evidence(found.worst, ("max_num_tokens",), *TOKENS),
            _step_values(s, found),
            None if s.inflight else Severity.ERROR,
        )


def _step_tokens(request: Request, s: Settings, longest: int) -> int:
    """Return the tokens of all prompts that may share a step; a prompt that is refused is another finding."""
    return min(request.batch, s.max_batch_size) * request.input_len * (request.input_len <= longest)


def _step_values(s: Settings, found: Over) -> dict[str, object]:
    worst = found.worst
    at_once = s.max_num_tokens // worst.input_len
    steps = ceil(min(worst.batch, s.max_batch_size) / at_once)
    spread = f"the C++ executor takes {at_once} prompts at a time, {steps} steps in all; the Python session refuses the batch"
    return {
        "batch": min(worst.batch, s.max_batch_size),
        "length": worst.input_len,
        "tokens": min(worst.batch, s.max_batch_size) * worst.input_len,
        "limit": s.max_num_tokens,
        "at_once": at_once,
        "among": found.among,
        "words": found.worst.words,
        "effect": spread if s.inflight else "the Python session refuses the batch",
    }


@agreement("DX273", "engine", "request")
@each_taker
def drafts(taker: Taker) -> Iterator[Violation]:
    """A request carries no more draft tokens than the engine was built for."""
    limit = taker.settings.max_draft_len
    found = taker.over(lambda each: each.draft_len - limit)
    if found and taker.engine.has("max_draft_len"):
        yield Violation(
            taker.evidence(found.worst, ("max_draft_len", "speculative_mode"), "last_token_ids"),
            {
                "drafts": found.worst.draft_len,
                "limit": limit,
                "among": found.among,
                "words": found.worst.words,
            },
        )


@agreement("DX919", "engine", "request")
@each_taker
def prompt_table(taker: Taker) -> Iterator[Violation]:
    """A request's prompt embedding table has no more rows than the engine keeps for one request.

    The C++ executor gives each of max_batch_size requests the same share (`PromptTuningBuffers`, 1.2.1).
    """
    s = taker.settings
    lowered = [size for each in taker.servers if (size := each.integer("max_batch_size"))]
    shares = min([s.max_batch_size, *lowered]) if s.inflight else 1
    found = taker.over(
        lambda each: each.prompt_table * (1 if s.inflight else each.batch) - s.prompt_table // shares
    )
    if found is None or not taker.engine.has("max_prompt_table"):
        return
    rows = found.worst.prompt_table * (1 if s.inflight else found.worst.batch)
    stated = ("max_prompt_table", "max_batch_size") if s.inflight else ("max_prompt_table",)
    yield Violation(
        taker.evidence(found.worst, stated, "prompt_embedding_table_size"),
        {
            "rows": rows,
            "limit": s.prompt_table // shares,
            "table": s.prompt_table,
            "shares": shares,
            "needed": rows * shares,
            "otherwise": _table_ways(s, rows),
            "among": found.among,
            "words": found.worst.words,
        },
    )


def _table_ways(s: Settings, rows: int) -> str:
    fewer = s.prompt_table // rows
    if s.inflight and fewer:
        return (
            f"or start the server with max_batch_size {fewer}, so that each request's share is large enough"
        )
    return "or send fewer image tokens or virtual tokens with the request"


@agreement("DX115", "engine", "llm-args", "command", "request")
def adapter_rank(deployment: Deployment) -> Iterator[Violation]:
    """The adapter a request asks for has no higher rank than the engine or server takes."""
    requests = list(requests_in(deployment.of("request")))
    for host in deployment.of("engine", "llm-args", "command"):
        yield from _adapter_rank(host, requests)


def _adapter_rank(host: Artifact, requests: list[Request]) -> Iterator[Violation]:
    most = host.integer("lora.max_rank") or 0
    found = over(requests, lambda each: each.lora_rank - most)
    if found and most:
        yield Violation(
            (found.evidence, *host.evidence("lora.max_rank")),
            {
                "rank": found.worst.lora_rank,
                "most": most,
                "kind": host.title,
                "adapter": "<adapter>",
            },
        )


@agreement("DX396", "engine", "request")
@each_taker
def optimum(taker: Taker) -> Iterator[Violation]:
    """The tokens of a generation step are near the number the engine was tuned for."""
    s = taker.settings
    if not s.inflight or s.multiple_profiles or s.gemm_plugin or not s.opt_num_tokens:
        return
    # only a request that says how many run at once tells how many tokens a step has
    asked = [each for each in taker.requests if each.batch > 1 and each.output_len > 1]
    found = over(asked, lambda each: s.opt_num_tokens - FAR * _tokens_after(each, s))
    if found is None or len(asked) < len(taker.requests):
        return
    tokens = _tokens_after(found.worst, s)
    yield Violation(
        taker.evidence(found.worst, ("opt_num_tokens",)),
        {
            "tokens": tokens,
            "optimum": s.opt_num_tokens,
            "times": s.opt_num_tokens // tokens,
            "words": found.worst.words,
        },
        Severity.NOTE,
        0.6,
    )


def _tokens_after(request: Request, s: Settings) -> int:
    sequences = min(request.batch, s.max_batch_size) * request.beam
    return sequences * (1 + s.max_draft_len * s.speculative)


ROWS: tuple[Agreement, ...] = (
    prompt,
    encoder_input,
    answer,
    beams,
    batch,
    step_tokens,
    drafts,
    prompt_table,
    adapter_rank,
    optimum,
    *engine_limits.ROWS,
    *server_limits.ROWS,
)
