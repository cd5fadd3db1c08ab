"""Where Triton's preprocessing takes special tokens from, and what the tokenizer and its chat template say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import quoted_path
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

from trtdx.inspect.agreements.model.tokens import ends_with_other_token, stop_ids, tokenizer_in_use


def template_writes_beginning(holder: Artifact) -> bool:
    template, token = holder.text("tokenizer.chat_template"), holder.text("tokenizer.bos_token")
    return "bos_token" in template or bool(token and token in template)


@make_agreement("DX502", "triton", "hf", "tokenizer")
def turn_end_stops_triton(deployment: Deployment) -> Iterator[Violation]:
    """Triton's preprocessing ends an answer at the token that ends a turn.

    It takes the tokenizer's end token alone and reads no generation_config.json (1.2.1).
    """
    for server in deployment.of_kinds("triton"):
        holder = tokenizer_in_use(deployment, server)
        turn_end = holder.integer("tokenizer.turn_end_id") if holder else None
        eos_id = holder.integer("tokenizer.eos_id") if holder else None
        if holder is None or turn_end is None or eos_id is None or turn_end == eos_id or ends_with_other_token(holder):
            continue
        if turn_end in stop_ids(holder) and "preprocessing" in server.items("triton.models"):
            yield Violation(
                holder.evidence("tokenizer.turn_end", "tokenizer.eos_id") + server.evidence("triton.models"),
                {
                    "token": holder.text("tokenizer.turn_end") or f"token {turn_end}",
                    "id": turn_end,
                    "stops": str(eos_id),
                    "who": "Triton's preprocessing",
                },
                Severity.ERROR,  # unless every client sends an end_id or stop words of its own
                0.7,
            )


@make_agreement("DX501", "triton", "hf", "tokenizer")
def beginning_token_added(deployment: Deployment) -> Iterator[Violation]:
    """A beginning token the tokenizer would add is not left out by the preprocessing."""
    for server in deployment.of_kinds("triton"):
        holder = tokenizer_in_use(deployment, server)
        if holder is None or server.get("triton.add_special_tokens") is not False:
            continue
        if holder.get("tokenizer.adds_bos") is True and not template_writes_beginning(holder):
            yield Violation(
                server.evidence("triton.add_special_tokens") + holder.evidence("tokenizer.adds_bos"),
                {
                    "token": holder.text("tokenizer.bos_token") or "the beginning token",
                    "server": quoted_path(server),
                },
                # Clients may write it themselves; Gemma answers nonsense without it.
                Severity.ERROR if holder.text("model_type").startswith("gemma") else None,
                0.8,
            )
