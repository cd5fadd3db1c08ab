"""What a request and the engine or server that is to take it must agree on: lengths, batch, beams, tokens."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import quoted_path
from trtdx.inspect.rebuild.build_command import build_command
from trtdx.inspect.requests.limits import check_each_engine, prompt_limit, requests_over_limit
from trtdx.inspect.requests.requests import requests_of_artifacts
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.inspect.profiles.engine_settings import EngineSettings
    from trtdx.inspect.requests.limits import EngineLoad, LimitExcess
    from trtdx.inspect.requests.requests import Request

# The dimensions that grow with each part of a request: inputs that do not fit are named as evidence.
TOKEN_DIMENSIONS = ("num_tokens", "position_ids_num_tokens_range", "input_len_task", "decoder_num_tokens")
SEQUENCE_DIMENSIONS = ("batch_size_beam_width", "batch_size_cache", "batch_size_last_token_ids", "batch_size")
FAR_FROM_OPTIMUM = 16  # so many times away from the optimum other kernels would have been chosen


@make_agreement("DX312", "engine", "request")
@check_each_engine
def beam_width(taker: EngineLoad) -> Iterator[Violation]:
    """A request has no more beams than the engine was built for."""
    limit = taker.settings.max_beam_width
    excess = taker.requests_over(lambda request: request.beam - limit)
    if excess:
        yield Violation(
            taker.evidence(excess.worst, ("max_beam_width",), "beam_width"),
            {
                "beams": excess.worst.beam,
                "limit": limit,
                "most": format_count(limit, "beam"),
                "among": excess.count_words,
                **taker.request_values(excess, {"max_beam_width": excess.worst.beam}),
            },
        )


@make_agreement("DX274", "engine", "request")
@check_each_engine
def batch_size(taker: EngineLoad) -> Iterator[Violation]:
    """A batch is no larger than the engine was built for."""
    s = taker.settings
    excess = taker.requests_over(lambda request: request.batch - s.max_batch_size)
    if excess is None:
        return
    queued = (
        f"the C++ executor runs {s.max_batch_size} at once and lets the others wait, ModelRunner and run.py refuse it"
    )
    yield Violation(
        taker.evidence(excess.worst, ("max_batch_size",), *SEQUENCE_DIMENSIONS),
        {
            "batch": excess.worst.batch,
            "limit": s.max_batch_size,
            "most": format_count(s.max_batch_size, "request"),
            "among": excess.count_words,
            "effect": queued if s.supports_inflight else "the Python session refuses it",
            **taker.request_values(excess, {"max_batch_size": excess.worst.batch}),
        },
        Severity.WARNING if s.supports_inflight else None,
    )


@make_agreement("DX918", "engine", "request")
@check_each_engine
def step_tokens(taker: EngineLoad) -> Iterator[Violation]:
    """The prompts of a batch together have no more tokens than one step takes."""
    s = taker.settings
    by_prompts = s.splits_phases and s.since(0, 10)  # the bound is then batch times prompt length
    if not s.is_packed or by_prompts or s.is_encoder or s.is_cross_decoder:
        return
    longest = min(s.max_num_tokens, prompt_limit(taker)[0])
    excess = taker.requests_over(lambda request: _step_tokens(request, s, longest) - s.max_num_tokens)
    if excess:
        yield Violation(
            taker.evidence(excess.worst, ("max_num_tokens",), *TOKEN_DIMENSIONS),
            _step_values(s, excess) | taker.request_values(excess, {"max_num_tokens": _batch_tokens(s, excess.worst)}),
            None if s.supports_inflight else Severity.ERROR,
        )


def _step_tokens(request: Request, s: EngineSettings, longest: int) -> int:
    """Return the tokens of all prompts that may share a step; a prompt that is refused is another finding."""
    return min(request.batch, s.max_batch_size) * request.input_len * (request.input_len <= longest)


def _batch_tokens(s: EngineSettings, request: Request) -> int:
    return min(request.batch, s.max_batch_size) * request.input_len


def _step_values(s: EngineSettings, excess: LimitExcess) -> dict[str, object]:
    worst = excess.worst
    at_once = s.max_num_tokens // worst.input_len
    steps = ceil(min(worst.batch, s.max_batch_size) / at_once)
    spread = f"the C++ executor takes {format_count(at_once, 'prompt')} at a time, {steps} steps in all; the Python session refuses the batch"
    return {
        "batch": min(worst.batch, s.max_batch_size),
        "length": worst.input_len,
        "tokens": _batch_tokens(s, worst),
        "limit": s.max_num_tokens,
        "at_once": format_count(at_once, "such prompt"),
        "among": excess.count_words,
        "effect": spread if s.supports_inflight else "the Python session refuses the batch",
    }


@make_agreement("DX273", "engine", "request")
@check_each_engine
def draft_tokens(taker: EngineLoad) -> Iterator[Violation]:
    """A request carries no more draft tokens than the engine was built for."""
    limit = taker.settings.max_draft_len
    excess = taker.requests_over(lambda request: request.draft_len - limit)
    if excess and taker.engine.has("max_draft_len"):
        yield Violation(
            taker.evidence(excess.worst, ("max_draft_len", "speculative_mode"), "last_token_ids"),
            {
                "drafts": excess.worst.draft_len,
                "limit": limit,
                "most": format_count(limit, "draft token"),
                "among": excess.count_words,
                **taker.request_values(excess, {"max_draft_len": excess.worst.draft_len}),
                "rebuild": _build_for_drafts(taker, excess.worst.draft_len),
            },
        )


def _build_for_drafts(taker: EngineLoad, drafts: int) -> str:
    """Return the command for a target engine that takes so many draft tokens."""
    mode = taker.engine.text("speculative_mode") or "NONE"
    changed = {"speculative_decoding_mode": "draft_tokens_external"} if mode == "NONE" else {}
    return build_command(taker.engine, raised={"max_draft_len": drafts}, changed=changed)


@make_agreement("DX919", "engine", "request")
@check_each_engine
def prompt_table(taker: EngineLoad) -> Iterator[Violation]:
    """A request's prompt embedding table has no more rows than the engine keeps for one request.

    The C++ executor gives each of max_batch_size requests the same share (`PromptTuningBuffers`, 1.2.1).
    """
    s = taker.settings
    lowered = [size for server in taker.servers if (size := server.integer("max_batch_size"))]
    shares = min([s.max_batch_size, *lowered]) if s.supports_inflight else 1
    excess = taker.requests_over(
        lambda request: request.prompt_table * (1 if s.supports_inflight else request.batch) - s.prompt_table // shares
    )
    if excess is None or not taker.engine.has("max_prompt_table"):
        return
    rows = excess.worst.prompt_table * (1 if s.supports_inflight else excess.worst.batch)
    stated = ("max_prompt_table", "max_batch_size") if s.supports_inflight else ("max_prompt_table",)
    yield Violation(
        taker.evidence(excess.worst, stated, "prompt_embedding_table_size"),
        {
            "rows": rows,
            "limit": s.prompt_table // shares,
            "table": s.prompt_table,
            "shares": shares,
            "otherwise": _table_alternative(s, rows),
            "among": excess.count_words,
            **taker.request_values(excess, {"max_prompt_embedding_table_size": rows * shares}),
        },
    )


def _table_alternative(s: EngineSettings, rows: int) -> str:
    fewer = s.prompt_table // rows
    if s.supports_inflight and fewer:
        return f"or start the server with max_batch_size {fewer}, so that each request's share is large enough"
    return "or send fewer image tokens or virtual tokens with the request"


@make_agreement("DX115", "engine", "llm-args", "command", "request", needs=("engine|llm-args|command", "request"))
def adapter_rank(deployment: Deployment) -> Iterator[Violation]:
    """The adapter a request asks for has no higher rank than the engine or server takes."""
    requests = list(requests_of_artifacts(deployment.of_kinds("request")))
    for host in deployment.of_kinds("engine", "llm-args", "command"):
        yield from _adapter_rank(host, requests)


def _adapter_rank(host: Artifact, requests: list[Request]) -> Iterator[Violation]:
    most = host.integer("lora.max_rank") or 0
    excess = requests_over_limit(requests, lambda request: request.lora_rank - most)
    if excess and most:
        yield Violation(
            (excess.evidence, *host.evidence("lora.max_rank")),
            {"rank": excess.worst.lora_rank, "most": most, "kind": host.title, "adapter": "ADAPTER_DIR"},
        )


@make_agreement("DX396", "engine", "request")
@check_each_engine
def optimal_tokens(taker: EngineLoad) -> Iterator[Violation]:
    """The tokens of a generation step are near the number the engine was tuned for."""
    s = taker.settings
    if not s.supports_inflight or s.multiple_profiles or s.gemm_plugin or not s.opt_num_tokens:
        return
    # only a request that says how many run at once tells how many tokens a step has
    batched = [request for request in taker.requests if request.batch > 1 and request.output_len > 1]
    excess = requests_over_limit(
        batched, lambda request: s.opt_num_tokens - FAR_FROM_OPTIMUM * _generation_tokens(request, s)
    )
    if excess is None or len(batched) < len(taker.requests):
        return
    tokens = _generation_tokens(excess.worst, s)
    yield Violation(
        taker.evidence(excess.worst, ("opt_num_tokens",)),
        {
            "tokens": tokens,
            "optimum": s.opt_num_tokens,
            "times": s.opt_num_tokens // tokens,
            "words": excess.worst.words,
            "folder": quoted_path(taker.engine),
            "tuned": build_command(taker.engine, changed={"opt_num_tokens": str(tokens)}),
            "plugin": build_command(taker.engine, changed={"gemm_plugin": "auto"}),
        },
        Severity.NOTE,
        0.6,
    )


def _generation_tokens(request: Request, s: EngineSettings) -> int:
    sequences = min(request.batch, s.max_batch_size) * request.beam
    return sequences * (1 + s.max_draft_len * s.speculative)
