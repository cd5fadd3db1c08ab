"""What a request and a server of the PyTorch backend must agree on."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import agreement
from trtdx.inspect.agreements.serving import verify_of
from trtdx.inspect.requests.limits import each_server, prompts_are_cut
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.requests.limits import Server


@agreement("DX272", "llm-args", "command", "request")
@each_server
def unchunked(server: Server) -> Iterator[Violation]:
    """A prompt fits into one step of the PyTorch backend, or is cut into chunks."""
    limit = server.options.integer("max_num_tokens")
    if not limit or prompts_are_cut(server.options):
        return
    excess = server.over(lambda request: request.input_len - limit)
    if excess:
        yield Violation(
            server.evidence(excess.worst, "max_num_tokens", "runtime.chunked_context"),
            {
                "length": excess.worst.input_len,
                "limit": limit,
                "among": excess.among,
                "words": excess.worst.words,
            },
        )


@agreement("DX920", "llm-args", "command", "request")
@each_server
def server_length(server: Server) -> Iterator[Violation]:
    """Prompt and answer together are no longer than the max_seq_len a server is started with."""
    limit = server.options.integer("max_seq_len")
    if not limit:
        return
    excess = server.over(lambda request: request.input_len + request.output_len - limit)
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
            "verify": verify_of(server.options),
            "model": shlex.quote(server.options.text("runtime.model") or "MODEL"),
            "prompt": worst.input_len,
            "answer": worst.output_len,
            "total": worst.input_len + worst.output_len,
            "limit": limit,
            "among": excess.among,
            "words": excess.worst.words,
            "effect": "the request is refused"
            if refused
            else f"the answer is cut to {room} tokens with a warning",
        },
        Severity.ERROR if refused else None,
    )


@agreement("DX213", "llm-args", "command", "request")
@each_server
def server_beams(server: Server) -> Iterator[Violation]:
    """Every request has as many beams as the server was started with (PyTorch backend)."""
    width = server.options.integer("max_beam_width")
    if not width:
        return
    excess = server.over(lambda request: request.beam != width)
    if excess:
        yield Violation(
            server.evidence(excess.worst, "max_beam_width"),
            {"beams": excess.worst.beam, "width": width, "among": excess.among, "words": excess.worst.words},
        )
