"""How long prompts and answers may be: what an engine, its runtime and its runners take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.requests.limits import (
    can_chunk,
    check_each_engine,
    chunked_prompt_limit,
    prompt_limit,
    requests_over_limit,
    reserved_drafts,
)
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.profiles.engine_settings import EngineSettings
    from trtdx.inspect.requests.limits import EngineLoad
    from trtdx.inspect.requests.requests import Request

# The dimensions that grow with each part of a request: inputs that do not fit are named as evidence.
PROMPT_DIMENSIONS = ("input_len", "position_ids_inlen_range", "mask_len")
TOKEN_DIMENSIONS = ("num_tokens", "position_ids_num_tokens_range", "input_len_task", "decoder_num_tokens")
LENGTH_DIMENSIONS = ("max_seq_len", "past_key_len", "max_blocks_per_seq", "mask_len")
ENCODER_DIMENSIONS = (
    "encoder_max_input_length", "encoder_input_len_2", "encoder_num_tokens", "max_cross_blocks_per_seq",
    "max_input_length", "num_tokens", "input_len",
)  # fmt: skip


@make_agreement("DX270", "engine", "request")
@check_each_engine
def prompt_length(taker: EngineLoad) -> Iterator[Violation]:
    """A prompt is no longer than the engine takes."""
    limit, by = prompt_limit(taker)
    if taker.settings.is_encoder:
        return
    if by != "max_num_tokens":
        yield from _long_prompts(taker, taker.requests, limit, by)
        return
    most = chunked_prompt_limit(taker)  # what no chunking saves is told apart from what it would
    yield from _long_prompts(taker, [request for request in taker.requests if request.input_len > most], limit, by)
    yield from _long_prompts(taker, [request for request in taker.requests if request.input_len <= most], limit, by)


def _long_prompts(taker: EngineLoad, requests: list[Request], limit: int, limit_name: str) -> Iterator[Violation]:
    excess = requests_over_limit(requests, lambda request: request.input_len - limit)
    if excess is None:
        return
    excess = excess._replace(total=sum(request.count for request in taker.requests))
    helped = limit_name == "max_num_tokens" and excess.worst.input_len <= chunked_prompt_limit(taker)
    unsure = helped and taker.chunked is None and can_chunk(taker.engine)
    raised = _room_for_prompts(taker, limit_name)
    yield Violation(
        taker.evidence(excess.worst, (limit_name,), *PROMPT_DIMENSIONS, *TOKEN_DIMENSIONS, *LENGTH_DIMENSIONS),
        {
            "what": "a prompt",
            "length": excess.worst.input_len,
            "than": f"the {limit} tokens the engine takes ({LIMIT_WORDS[limit_name]})",
            "among": excess.count_words,
            "otherwise": _too_few_positions(taker, limit, raised) or _alternative_fix(taker, limit, limit_name, helped),
            **taker.request_values(excess, raised),
        },
        Severity.WARNING if unsure else None,
        0.8 if unsure else 0.95,
    )


LIMIT_WORDS = {
    "max_input_len": "max_input_len",
    "max_seq_len": "max_seq_len less one token for the answer",
    "max_num_tokens": "max_num_tokens: without chunked context a prompt is one step",
}


def _room_for_prompts(taker: EngineLoad, limit_name: str) -> dict[str, int]:
    """Return the limits that make room for every one of the requests."""
    s = taker.settings
    longest = max(request.input_len for request in taker.requests)
    room = {"max_input_len": longest} if limit_name == "max_input_len" else {}
    room |= _room_for_answers(taker)
    if s.is_packed and longest > s.max_num_tokens and not taker.chunked:
        room["max_num_tokens"] = longest
    return room


def _room_for_answers(taker: EngineLoad) -> dict[str, int]:
    s = taker.settings
    if not s.since(0, 11):
        return {
            f"max_{name}": max(getattr(request, name) for request in taker.requests)
            for name in ("input_len", "output_len")
        }
    needed = max(request.input_len + request.output_len for request in taker.requests)
    built = s.max_seq_len - s.max_draft_len * s.speculative  # the builder adds the draft tokens itself
    longest = max(request.input_len for request in taker.requests)
    runners = {"max_input_len": longest} if longest > s.max_input_len else {}  # which are held to it
    return runners | ({"max_seq_len": needed} if needed > built else {})


def _too_few_positions(taker: EngineLoad, limit: int, raised: dict[str, int]) -> str:
    """Return what is left to do where no engine of this model takes such prompts."""
    positions = taker.exceeded_positions(raised)
    if positions is None:
        return ""
    return f"shorten (truncate) the prompt to {limit} tokens: no engine helps, the model has {positions} positions"


def _alternative_fix(taker: EngineLoad, limit: int, limit_name: str, helped: bool) -> str:
    short = f"shorten (truncate) the prompt to {limit} tokens"
    if limit_name != "max_num_tokens":
        return f"or {short}"
    chunked = "serve with chunked context (enable_chunked_context, enable_chunked_prefill)"
    most = chunked_prompt_limit(taker)
    if not helped:
        return f"or {short}; chunked context alone does not help, it takes prompts of up to {most} tokens"
    if can_chunk(taker.engine):
        return f"or {chunked}, which takes prompts of up to {most} tokens, or {short}"
    return f"or {short}; to {chunked} the engine must be built with --use_paged_context_fmha enable"


@make_agreement("DX913", "engine", "request")
@check_each_engine
def runner_prompt_length(taker: EngineLoad) -> Iterator[Violation]:
    """A prompt is no longer than max_input_len where a runner, not a server, takes it.

    The C++ executor goes beyond it since 0.11; `_check_inputs` of ModelRunner and ModelRunnerCpp (0.16) does not.
    """
    s, (prompts, by) = taker.settings, prompt_limit(taker)
    if taker.servers or s.is_encoder or by == "max_input_len" or not taker.engine.has("max_input_len"):
        return  # a server is the executor
    others_fit = _fitting_requests(taker, prompts)
    excess = requests_over_limit(others_fit, lambda request: request.input_len - s.max_input_len)
    if excess:
        raised = {"max_input_len": max(request.input_len for request in others_fit)}
        yield Violation(
            taker.evidence(excess.worst, ("max_input_len",)),
            {
                "length": excess.worst.input_len,
                "limit": s.max_input_len,
                "among": excess._replace(total=sum(request.count for request in taker.requests)).count_words,
                **taker.request_values(excess, raised),
            },
            confidence=0.9,
        )


@make_agreement("DX270", "engine", "request")
@check_each_engine
def encoder_input(taker: EngineLoad) -> Iterator[Violation]:
    """The encoder's input is no longer than the engine takes."""
    s = taker.settings
    by = "max_input_len" if s.is_encoder else "max_encoder_input_len"
    limit = s.max_input_len if s.is_encoder else s.encoder_len
    excess = taker.requests_over(lambda request: request.encoder_input_len - limit)
    if excess is None or not limit or not (s.is_encoder or s.is_cross_decoder):
        return
    length = excess.worst.encoder_input_len
    yield Violation(
        taker.evidence(excess.worst, (by,), *ENCODER_DIMENSIONS),
        {
            "what": "an encoder input",
            "length": length,
            "than": f"the {limit} tokens the engine takes ({by})",
            "among": excess.count_words,
            "otherwise": f"or shorten the encoder input to {limit}",
            **taker.request_values(excess, {by: length} | ({"max_seq_len": length} if s.is_encoder else {})),
        },
    )


@make_agreement("DX271", "engine", "request")
@check_each_engine
def answer_length(taker: EngineLoad) -> Iterator[Violation]:
    """Prompt and answer together are no longer than max_seq_len."""
    s, (prompts, _) = taker.settings, prompt_limit(taker)
    excess = taker.requests_over(lambda request: _excess_tokens(request, s, prompts))
    if excess is None or s.is_encoder:
        return
    worst, drafted = excess.worst, reserved_drafts(s, excess.worst)
    needed = {"max_seq_len": worst.input_len + worst.output_len}
    limit = "max_seq_len" if s.since(0, 8) else "max_input_len and max_output_len together, "
    yield Violation(
        taker.evidence(worst, ("max_seq_len", "max_draft_len"), *LENGTH_DIMENSIONS),
        {
            "prompt": worst.input_len,
            "answer": worst.output_len,
            "drafts": f" and {drafted} draft tokens" if drafted else "",
            "limit": f"{limit} {s.max_seq_len}".replace(",  ", ", "),
            "room": _longest_answer(taker, worst, drafted),
            "among": excess.count_words,
            "effect": _refusal_words(s),
            "adds": ADDS_DRAFTS if drafted and s.speculative else "",
            **taker.request_values(excess, _room_for_answers(taker) or needed),
        },
        Severity.WARNING if s.supports_inflight and s.since(0, 8) else None,
    )


ANSWER_IS_CUT = (
    "the C++ executor shortens the answer with a warning; ModelRunner, run.py and the LLM API refuse the request"
)
ADDS_DRAFTS = " (trtllm-build adds max_draft_len to it by itself)"


def _refusal_words(s: EngineSettings) -> str:
    if not s.since(0, 8):
        return "ModelRunner and run.py refuse the request"
    return ANSWER_IS_CUT if s.supports_inflight else "the Python session refuses the request"


def _longest_answer(taker: EngineLoad, worst: Request, drafted: int) -> int:
    """Return the longest answer there is room for after a prompt; before 0.8 an answer has a limit of its own."""
    s = taker.settings
    room = max(0, s.max_seq_len - worst.input_len - drafted)
    max_output = taker.engine.integer("max_output_len")
    return room if max_output is None or s.since(0, 8) else min(room, max_output)


def _excess_tokens(request: Request, s: EngineSettings, prompts: int) -> int:
    """Return how much is over; a prompt that is itself too long is another finding."""
    if request.input_len > prompts:
        return 0
    return request.input_len + request.output_len + reserved_drafts(s, request) - s.max_seq_len


def _fitting_requests(taker: EngineLoad, prompts: int) -> list[Request]:
    """Return the requests of which neither the prompt nor all of it together is too long."""
    return [
        request
        for request in taker.requests
        if request.input_len <= prompts and _excess_tokens(request, taker.settings, prompts) <= 0
    ]


@make_agreement("DX271", "engine", "request")
@check_each_engine
def max_output_length(taker: EngineLoad) -> Iterator[Violation]:
    """An answer is no longer than max_output_len, which bounds it by itself before 0.8 (model_runner.py, 0.7.1)."""
    s, most = taker.settings, taker.engine.integer("max_output_len")
    if s.since(0, 8) or most is None:
        return
    fitting = _fitting_requests(taker, prompt_limit(taker)[0])
    excess = requests_over_limit(fitting, lambda request: request.output_len - most)
    if excess:
        worst = excess.worst
        yield Violation(
            taker.evidence(worst, ("max_output_len",)),
            {
                "prompt": worst.input_len,
                "answer": worst.output_len,
                "drafts": "",
                "limit": f"max_output_len {most} allows",
                "room": most,
                "among": excess.count_words,
                "effect": _refusal_words(s),
                "adds": "",
                **taker.request_values(excess, _room_for_answers(taker)),
            },
        )
