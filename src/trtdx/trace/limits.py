"""Measured steps against what the GPU's memory, processors and links allow at best."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.memory.ledger.step_bounds import PRACTICAL, bound_decode_step, bound_prefill_step, speeds_of
from trtdx.model import Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.memory.ledger.step_bounds import GpuSpeeds, StepBound
    from trtdx.memory.nouns import Setup
    from trtdx.model import Cell
    from trtdx.trace.causes.cause import TraceAnalysis


class MeasuredStep(NamedTuple):
    """A phase's steps of one size, as they were measured."""

    phase: str
    steps: int
    tokens: int  # of prompts, or requests that get a token each
    milliseconds: float


class LimitRow(NamedTuple):
    """What was measured, and the least that it could have been."""

    measured: MeasuredStep
    bound: StepBound

    @property
    def achieved(self) -> float:
        return self.bound.seconds * 1e3 / self.measured.milliseconds


def compare_with_limits(setup: Setup, analysis: TraceAnalysis, context: int) -> list[LimitRow]:
    """Return each phase and size of steps beside its bound, the most frequent first.

    Raises:
        InputError: the GPU's figures are not known.
    """
    speeds = speeds_of(setup)
    if speeds is None:
        name = setup.device.name if setup.device else "the GPU"
        raise InputError(f"what {name} can do at most is not known", fix="name a GPU: --gpu H100")
    rows = [LimitRow(step, _bound(setup, speeds, step, context)) for step in _measured_steps(analysis)]
    return sorted(rows, key=lambda row: -row.measured.steps * row.measured.milliseconds)


def _bound(setup: Setup, speeds: GpuSpeeds, step: MeasuredStep, context: int) -> StepBound:
    if step.phase == "prefill":
        return bound_prefill_step(setup, speeds, step.tokens)
    return bound_decode_step(setup, speeds, step.tokens, context)


def _measured_steps(analysis: TraceAnalysis) -> Iterator[MeasuredStep]:
    """Yield typical steps by phase and size, as far as their sizes are told."""
    times: dict[tuple[str, int], list[float]] = {}
    for phase, tokens, milliseconds in (*_trace_steps(analysis), *_iterations(analysis), *_benchmarks(analysis)):
        times.setdefault((phase, tokens), []).append(milliseconds)
    for (phase, tokens), lengths in times.items():
        yield MeasuredStep(phase, len(lengths), tokens, median(lengths))


def _trace_steps(analysis: TraceAnalysis) -> Iterator[tuple[str, int, float]]:
    for timeline in analysis.timelines:
        for step in timeline.steps:
            if step.phase == "decode" and step.generation_requests > 0:
                yield "decode", step.generation_requests, step.duration / 1e3
            elif step.phase == "prefill" and step.context_tokens > 0:
                yield "prefill", step.context_tokens, step.duration / 1e3


def _iterations(analysis: TraceAnalysis) -> Iterator[tuple[str, int, float]]:
    for one in analysis.recordings.iterations:
        if one.wall_ms > 0 and one.context_tokens == 0 and one.scheduled > 0:
            yield "decode", one.scheduled, one.wall_ms
        elif one.wall_ms > 0 and one.context_tokens > 0 and one.generation_tokens == 0:
            yield "prefill", one.context_tokens, one.wall_ms


def _benchmarks(analysis: TraceAnalysis) -> Iterator[tuple[str, int, float]]:
    for figures in analysis.recordings.benchmarks:
        if figures.tpot_ms > 0 and figures.concurrency >= 1:
            yield "decode", round(figures.concurrency), figures.tpot_ms


def limit_section(rows: Sequence[LimitRow], setup: Setup, context: int) -> Section:
    """Return the measured steps beside their bounds."""
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (
            row.measured.phase,
            row.measured.steps,
            row.measured.tokens,
            round(row.measured.milliseconds, 3),
            round(row.bound.seconds * 1e3, 3),
            round(row.achieved * 100, 1),
            row.bound.binding,
        )
        for row in rows
    )
    cached = f"{context} tokens behind each request" if context else "the KV cache is not counted: give --context"
    device = setup.device.name if setup.device else ""
    note = (
        f"{setup.model} on {setup.layout.world} x {device}; {cached}. Nothing is faster than the bound; good kernels reach "
        f"some {PRACTICAL:.0%} of it"
    )
    columns = ("phase", "steps", "tokens", "median ms", "bound ms", "% of bound", "what binds")
    return Section("limits", "against the limit", columns, cells, note=note)


def limit_sentence(rows: Sequence[LimitRow]) -> str:
    """Return how close the steps that take most of the time come to their bound."""
    if not rows:
        return "no step tells how many tokens it has, so there is no bound to hold it against"
    first = rows[0]
    share = first.achieved
    verdict = " (more than is possible: the model, GPU or lengths are not those of this run)" if share > 1.02 else ""
    if PRACTICAL <= share <= 1.02:
        verdict = " (there is little left to tune)"
    return f"{first.measured.phase} reaches {share:.0%} of what {first.bound.binding} allows{verdict}"
