"""What the limits of one engine must agree on among themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.profiles.engine_settings import derivable_settings
from trtdx.inspect.rebuild.build_command import build_command
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.inspect.profiles.engine_settings import EngineSettings

MIN_PROFILE_TOKENS = 64  # the first number of tokens at which multiple profiles are cut


def _engines_with_settings(deployment: Deployment) -> Iterator[tuple[Artifact, EngineSettings]]:
    for engine in deployment.of_kinds("engine"):
        settings = derivable_settings(engine)
        if settings:
            yield engine, settings


# Pairs that the builder itself puts right (since a release, or only for packed engines), so that an engine it
# built never breaks them.
ORDERED_LIMITS = (
    ("max_input_len", "max_seq_len", (0, 12), False),
    ("opt_num_tokens", "max_num_tokens", (0, 9), True),
)


@make_agreement("DX921", "engine")
def ordered_limits(deployment: Deployment) -> Iterator[Violation]:
    """An engine's limits are in the order the builder keeps them in."""
    for engine, s in _engines_with_settings(deployment):
        for smaller, larger, since, packed in ORDERED_LIMITS:
            low, high = engine.integer(smaller), engine.integer(larger)
            if low is None or high is None or low <= high or not s.since(*since) or packed > s.is_packed:
                continue
            yield Violation(
                engine.evidence(smaller, larger),
                {
                    "smaller": smaller,
                    "low": low,
                    "larger": larger,
                    "high": high,
                    "rebuild": build_command(engine, raised={larger: low}),
                },
                confidence=0.85,
            )


@make_agreement("DX922", "engine")
def reachable_limits(deployment: Deployment) -> Iterator[Violation]:
    """No limit of an engine makes another one unreachable."""
    for engine, s in _engines_with_settings(deployment):
        if s.supports_inflight and engine.has("max_num_tokens"):
            yield from _unreachable_batch(engine, s)
            yield from _unreachable_prompt(engine, s)


def _unreachable_batch(engine: Artifact, s: EngineSettings) -> Iterator[Violation]:
    sequences = s.max_batch_size * s.max_beam_width
    if s.max_num_tokens < sequences:
        beams = f" of {s.max_beam_width} beams" if s.max_beam_width > 1 else ""
        yield Violation(
            engine.evidence("max_num_tokens", "max_batch_size"),
            {
                "unreachable": f"a batch of {s.max_batch_size} requests{beams} (max_batch_size)",
                "tokens": s.max_num_tokens,
                "because": f"each of its {sequences} sequences adds at least one token to every step",
                "rebuild": build_command(engine, raised={"max_num_tokens": sequences}),
                "otherwise": f"--max_batch_size {max(1, s.max_num_tokens // s.max_beam_width)}",
            },
            Severity.NOTE,
        )


def _unreachable_prompt(engine: Artifact, s: EngineSettings) -> Iterator[Violation]:
    """Yield where a prompt of max_input_len tokens can neither be one step nor be cut into several."""
    unchunkable = engine.get("plugin.use_paged_context_fmha") is False and s.since(0, 11)
    longest = engine.integer("max_input_len") or 0
    if unchunkable and s.max_num_tokens < longest <= s.max_seq_len and not s.is_cross_decoder:
        yield Violation(
            engine.evidence("max_num_tokens", "max_input_len", "plugin.use_paged_context_fmha"),
            {
                "unreachable": f"a prompt of {longest} tokens (max_input_len)",
                "tokens": s.max_num_tokens,
                "because": "without paged context FMHA a prompt cannot be cut into chunks and is one step",
                "rebuild": build_command(engine, raised={"max_num_tokens": longest}),
                "otherwise": "--use_paged_context_fmha enable, and serve with chunked context",
            },
        )


@make_agreement("DX923", "engine")
def profiles_without_gaps(deployment: Deployment) -> Iterator[Violation]:
    """Multiple profiles cover every number of tokens up to max_num_tokens."""
    for engine, s in _engines_with_settings(deployment):
        cut = s.multiple_profiles and not s.splits_phases and s.since(0, 10) and s.is_packed
        if cut and 2 < s.max_num_tokens <= MIN_PROFILE_TOKENS:
            yield Violation(
                engine.evidence("multiple_profiles", "max_num_tokens"),
                {
                    "tokens": s.max_num_tokens,
                    "least": MIN_PROFILE_TOKENS,
                    "rebuild": build_command(engine, changed={"multiple_profiles": "disable"}),
                },
                confidence=0.85,
            )
