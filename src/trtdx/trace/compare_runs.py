"""Two runs of the same: what became slower, by how much more than the spread of steps explains, and where it went."""

from __future__ import annotations

from collections import defaultdict
from math import sqrt
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Section, Summary
from trtdx.trace.analysis.modules import fold_path
from trtdx.trace.causes.cause import render_us
from trtdx.trace.nouns import Category
from trtdx.trace.report import TraceReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.model import Cell, Finding
    from trtdx.rule import RuleBook
    from trtdx.trace.causes.cause import TraceAnalysis

SLOWER = "DX1590"
LEAST_CHANGE = 0.05  # of a median: less differs between two runs of one program
SURE = 4.0  # standard errors
MOST_ROWS = 16
LEAST_ROW = 0.005  # of the time of a step
MEDIAN_ERROR = 1.2533  # the error of a median in standard errors of a mean, for a bell-shaped spread
MAD_TO_DEVIATION = 1.4826


class PhaseChange(NamedTuple):
    """The typical step of a phase before and after, in microseconds, and how far chance alone could move it."""

    phase: str
    before: float
    after: float
    noise: float
    steps: tuple[int, int]

    @property
    def is_real(self) -> bool:
        return abs(self.after - self.before) > max(SURE * self.noise, LEAST_CHANGE * self.before)


def compare_runs(before: TraceAnalysis, after: TraceAnalysis, book: RuleBook) -> TraceReport:
    """Return what changed from one run to the other; noise is called noise."""
    changes = _phase_changes(before, after)
    rows = _work_changes(before, after)
    slower = [change for change in changes if change.is_real and change.after > change.before]
    findings: tuple[Finding, ...] = ()
    if slower:
        worst = max(slower, key=lambda change: change.after - change.before)
        reason = _largest_growth(rows)
        values = {
            "phase": worst.phase,
            "before": render_us(worst.before),
            "after": render_us(worst.after),
            "factor": f"{worst.after / worst.before:.2f}",
            "reason": reason,
        }
        evidence = tuple(
            Evidence(analysis.timelines[0].path, f"the typical {worst.phase} step takes {render_us(length)}")
            for analysis, length in ((before, worst.before), (after, worst.after))
            if analysis.timelines
        )
        findings = (finding_from(book.get(SLOWER), Violation(evidence, values, confidence=0.9)),)
    files = before.recordings.files + after.recordings.files
    problems = (*before.recordings.problems, *after.recordings.problems)
    summary = Summary(_verdict(changes, rows), inputs=files, partial=problems)
    return TraceReport(summary=summary, findings=findings, sections=(_step_section(changes), _work_section(rows)))


def _verdict(changes: Sequence[PhaseChange], rows: Sequence[WorkChange]) -> str:
    if not changes:
        return "the two have no steps of the same phase, so there is nothing to compare"
    real = [change for change in changes if change.is_real]
    if not real:
        return "no change: the steps of the two differ by no more than their own spread explains"
    worst = max(real, key=lambda change: abs(change.after - change.before))
    word = "slower" if worst.after > worst.before else "faster"
    factor = worst.after / worst.before if worst.after > worst.before else worst.before / worst.after
    reason = f"; most of it: {_largest_growth(rows)}" if word == "slower" else ""
    return f"{worst.phase} is {factor:.2f} times {word}: {render_us(worst.before)} before, {render_us(worst.after)} now{reason}"


def _phase_changes(before: TraceAnalysis, after: TraceAnalysis) -> list[PhaseChange]:
    old, new = _durations(before), _durations(after)
    return [
        PhaseChange(
            phase,
            median(old[phase]),
            median(new[phase]),
            sqrt(_error(old[phase]) ** 2 + _error(new[phase]) ** 2),
            (len(old[phase]), len(new[phase])),
        )
        for phase in old
        if phase in new
    ]


def _durations(analysis: TraceAnalysis) -> dict[str, list[float]]:
    durations: dict[str, list[float]] = defaultdict(list)
    for timeline in analysis.timelines:
        for step in timeline.steps:
            durations[step.phase or "step"].append(step.duration)
    for iteration in analysis.recordings.iterations if not durations else ():
        if iteration.wall_ms > 0:
            phase = "decode" if iteration.context_tokens == 0 else "prefill"
            durations[phase].append(iteration.wall_ms * 1e3)
    return durations


def _error(lengths: Sequence[float]) -> float:
    """Return how far the median of some lengths may be off by chance, from their own spread."""
    middle = median(lengths)
    spread = MAD_TO_DEVIATION * median(abs(length - middle) for length in lengths)
    return MEDIAN_ERROR * spread / sqrt(len(lengths))


class WorkChange(NamedTuple):
    """One kind of work in a step, in microseconds, before and after."""

    name: str
    before: float
    after: float

    @property
    def growth(self) -> float:
        return self.after - self.before

    @property
    def kind(self) -> str:
        if not self.before:
            return "new"
        return "gone" if not self.after else ""


def _work_changes(before: TraceAnalysis, after: TraceAnalysis) -> list[WorkChange]:
    old, new = _work_of_step(before), _work_of_step(after)
    least = LEAST_ROW * max(sum(old.values()), sum(new.values()))
    rows = [WorkChange(name, old.get(name, 0.0), new.get(name, 0.0)) for name in {**old, **new}]
    return sorted((row for row in rows if abs(row.growth) >= least), key=lambda row: -abs(row.growth))


def _work_of_step(analysis: TraceAnalysis) -> dict[str, float]:
    """Return the time of each kind of work in the mean step."""
    steps = max(sum(len(timeline.steps) for timeline in analysis.timelines), 1)
    times: dict[str, float] = defaultdict(float)
    for context, time in analysis.ledger.by_context.items():
        what = context.operator or context.name or context.category.words
        if context.category in (Category.HOST, Category.IDLE, Category.WAIT):
            what = f"{context.category.words}: {context.name or 'no name'}"
        module = f" of {fold_path(context.module)}" if context.module else ""
        times[f"{what}{module}"] += time / steps
    return times


def _largest_growth(rows: Sequence[WorkChange]) -> str:
    growing = [row for row in rows if row.growth > 0]
    if not growing:
        return "spread over everything"
    largest = max(growing, key=lambda row: row.growth)
    word = "new: " if largest.kind == "new" else ""
    return f"{word}{largest.name} (+{render_us(largest.growth)} a step)"


def _step_section(changes: Sequence[PhaseChange]) -> Section:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            change.phase,
            round(change.before / 1e3, 3),
            round(change.after / 1e3, 3),
            round((change.after / change.before - 1) * 100, 1),
            round(SURE * change.noise / change.before * 100, 1),
            "changed" if change.is_real else "noise",
        )
        for change in changes
    )
    columns = ("phase", "before ms", "now ms", "change %", "spread %", "verdict")
    return Section("steps", "typical steps", columns, rows, note="spread: what chance alone may do to the median")


def _work_section(rows: Sequence[WorkChange]) -> Section:
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (row.name, round(row.before / 1e3, 3), round(row.after / 1e3, 3), round(row.growth / 1e3, 3), row.kind or None)
        for row in rows[:MOST_ROWS]
    )
    columns = ("work of a step", "before ms", "now ms", "more ms", "")
    return Section("work", "what a step consists of", columns, cells)
