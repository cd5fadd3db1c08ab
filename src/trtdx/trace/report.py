"""The answer to a trace: one sentence, then tables that add up."""

from __future__ import annotations

from collections import defaultdict
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, ClassVar

from trtdx.model import Report, Section
from trtdx.trace.analysis.ledger import phase_rows
from trtdx.trace.analysis.modules import module_rows
from trtdx.trace.causes.cause import render_share, render_us
from trtdx.trace.nouns import Category
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.model import Cell, Finding
    from trtdx.trace.analysis.ledger import TimeLedger
    from trtdx.trace.analysis.ranks import RankWaits
    from trtdx.trace.causes.cause import TimeCause
    from trtdx.trace.nouns import BenchmarkFigures, RankTimeline

LEAST_ROW_SHARE = 0.001
MOST_MODULES = 24
CONSTRAINTS = {
    Category.COMPUTE: "what is computed",
    Category.COMMUNICATION: "communication",
    Category.WAIT: "waiting for other ranks",
    Category.COPY: "copies",
    Category.HOST: "the host",
    Category.IDLE: "nothing that was recorded: it idles",
    Category.QUEUE: "queueing",
}


class TraceReport(Report, frozen=True, kw_only=True):
    """A report whose first line is the answer; `trace` has its numbers for programs."""

    verdict_first: ClassVar[bool] = True

    trace: dict[str, Any] = {}  # noqa: RUF012  (msgspec copies it)


def answer_sentence(ledger: TimeLedger, causes: Sequence[TimeCause], findings: Sequence[Finding]) -> str:
    """Return what binds, its share, and the largest thing to change."""
    if not ledger.wall:
        return findings[0].message if findings else "nothing in it has a length"
    times = ledger.by_category()
    binding = max(times, key=times.__getitem__)
    text = f"bound by {CONSTRAINTS[binding]}: {render_share(times[binding] / ledger.wall)} of {render_us(ledger.wall)}"
    if not causes:
        return f"{text}; nothing stands out that a setting would change"
    saved = render_us(ledger.wall * min(causes[0].share, 1.0))
    return f"{text}; change first: {findings[0].message} (up to {saved} less, {findings[0].code})"


def time_section(ledger: TimeLedger) -> Section:
    """Return the table that adds up to the wall time."""
    shown = phase_rows(ledger)
    rows: list[tuple[Cell, ...]] = [
        (row.phase, row.category.words, round(row.time / 1e3, 3), round(row.share * 100, 2), row.largest)
        for row in shown
        if row.share >= LEAST_ROW_SHARE
    ]
    rest = sum(row.time for row in shown if row.share < LEAST_ROW_SHARE)
    if rest:
        rows.append(("", "all else", round(rest / 1e3, 3), round(rest / ledger.wall * 100, 2), ""))
    total = sum(row.time for row in shown)
    rows.append(("total", "", round(total / 1e3, 3), round(total / ledger.wall * 100, 2), ""))
    return Section("time", "where the time goes", ("phase", "spent on", "ms", "%", "most of it"), tuple(rows))


def module_section(ledger: TimeLedger) -> Iterator[Section]:
    rows = module_rows(ledger)
    if rows:
        cells: tuple[tuple[Cell, ...], ...] = tuple(
            (
                row.module,
                row.modules,
                round(row.time / 1e3, 3),
                round(row.share * 100, 2),
                f"{row.slowest}: {row.factor:.1f} times the typical one" if row.slowest else None,
            )
            for row in rows[:MOST_MODULES]
        )
        columns = ("module", "of them", "ms", "%", "stands out")
        yield Section("modules", "by module, each instant with the innermost one", columns, cells)


def step_section(timelines: Sequence[RankTimeline]) -> Iterator[Section]:
    """Yield how long the steps of each phase take."""
    durations: dict[str, list[float]] = defaultdict(list)
    for timeline in timelines:
        for step in timeline.steps:
            durations[step.phase or "step"].append(step.duration)
    if durations:
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (
                phase,
                len(times),
                round(median(times) / 1e3, 3),
                round(_ninety(times) / 1e3, 3),
                round(max(times) / 1e3, 3),
            )
            for phase, times in durations.items()
        )
        yield Section("steps", "steps", ("phase", "steps", "median ms", "90 % ms", "longest ms"), rows)


def _ninety(times: Sequence[float]) -> float:
    return quantiles(times, n=10)[-1] if len(times) > 1 else times[0]


def rank_section(timelines: Sequence[RankTimeline], waits: RankWaits) -> Iterator[Section]:
    """Yield what each rank does, and for how long the others wait for it."""
    if len(timelines) < 2:
        return
    rows: list[tuple[Cell, ...]] = []
    for timeline in timelines:
        sums = _category_times(timeline)
        rows.append(
            (
                timeline.rank,
                round(timeline.wall / 1e3, 2),
                *(
                    round(sums[category] / 1e3, 2)
                    for category in (Category.COMPUTE, Category.HOST, Category.COMMUNICATION, Category.WAIT)
                ),
                round(waits.lateness.get(timeline.rank, 0.0) / 1e3, 2),
                round(timeline.clock_shift / 1e3, 2),
            )
        )
    columns = ("rank", "ms", "compute", "host", "transfer", "waits", "is waited for", "clock moved by")
    note = f"{format_count(waits.matched, 'collective')} matched" if waits.matched else "no collectives to align by"
    yield Section("ranks", "ranks, in ms", columns, tuple(rows), note=note)


def _category_times(timeline: RankTimeline) -> dict[Category, float]:
    sums: dict[Category, float] = defaultdict(float)
    for number, duration in zip(timeline.segments.context.tolist(), timeline.segments.duration.tolist(), strict=True):
        sums[timeline.contexts[number].category] += duration
    return sums


def benchmark_section(benchmarks: Sequence[BenchmarkFigures]) -> Iterator[Section]:
    if benchmarks:
        names = ("ttft_ms", "tpot_ms", "request_latency_ms", "output_tokens_per_s", "concurrency")
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (figures.path, figures.tool, *(_known_value(getattr(figures, name)) for name in names))
            for figures in benchmarks
        )
        columns = ("file", "tool", "first token ms", "per token ms", "request ms", "tokens/s", "at once")
        yield Section("benchmarks", "benchmarks", columns, rows)


def _known_value(value: float) -> float | None:
    return round(value, 3) if value >= 0 else None


def trace_json(ledger: TimeLedger, causes: Sequence[TimeCause]) -> dict[str, Any]:
    """Return the numbers for programs."""
    return {
        "wall_us": ledger.wall,
        "share": {category.name.lower(): time / ledger.wall for category, time in ledger.by_category().items()},
        "causes": [{"code": cause.code, "share": cause.share, "ranks": list(cause.ranks)} for cause in causes],
    }
