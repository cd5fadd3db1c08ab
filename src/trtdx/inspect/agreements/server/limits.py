"""What a request and a server of the PyTorch backend must agree on."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.serving import verify_command
from trtdx.inspect.requests.limits import are_prompts_chunked, check_each_server
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.requests.limits import PytorchServer


@make_agreement("DX272", "llm-args", "command", "request")
@check_each_server
def prompt_in_one_step(server: PytorchServer) -> Iterator[Violation]:
    """A prompt fits into one step of the PyTorch backend, or is cut into chunks."""
    limit = server.options.integer("max_num_tokens")
    if not limit or are_prompts_chunked(server.options):
        return
    excess = server.requests_over(lambda request: request.input_len - limit)
    if excess:
        yield Violation(
            server.evidence(excess.worst, "max_num_tokens", "runtime.chunked_context"),
            {
                "length": excess.worst.input_len,
                "limit": limit,
                "among": excess.count_words,
                "words": excess.worst.words,
            },
        )


@make_agreement("DX920", "llm-args", "command", "request")
@check_each_server
def server_length(server: PytorchServer) -> Iterator[Violation]:
    """Prompt and answer together are no longer than the max_seq_len a server is started with."""
    limit = server.options.integer("max_seq_len")
    if not limit:
        return
    excess = server.requests_over(lambda request: request.input_len + request.output_len - limit)
    if excess is None:
        return
    worst = excess.worst
    room = limit - worst.input_len
    refused = room < 1
    longer = f"shorten the prompt: it alone leaves no room in {limit} tokens"
    yield Violation(
        server.evidence(worst, "max_seq_len"),
        {
            "advice": longer if refused else f"ask for fewer tokens: {room} are left after this prompt",
            "verify": verify_command(server.options),
            "model": shlex.quote(server.options.text("runtime.model") or "MODEL"),
            "prompt": worst.input_len,
            "answer": worst.output_len,
            "total": worst.input_len + worst.output_len,
            "limit": limit,
            "among": excess.count_words,
            "words": excess.worst.words,
            "effect": "the request is refused" if refused else f"the answer is cut to {room} tokens with a warning",
        },
        Severity.ERROR if refused else None,
    )


@make_agreement("DX213", "llm-args", "command", "request")
@check_each_server
def server_beam_width(server: PytorchServer) -> Iterator[Violation]:
    """Every request has as many beams as the server was started with (PyTorch backend)."""
    width = server.options.integer("max_beam_width")
    if not width:
        return
    excess = server.requests_over(lambda request: request.beam != width)
    if excess:
        yield Violation(
            server.evidence(excess.worst, "max_beam_width"),
            {
                "beams": excess.worst.beam,
                "width": width,
                "among": excess.count_words,
                "words": excess.worst.words,
            },
        )
