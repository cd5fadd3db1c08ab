"""What runs, status, verification and repetition of a plan become as reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Finding, Report, Section, Summary, Symptom, headline_from_findings
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.build.plan.manifest import ManifestCheck
    from trtdx.build.plan.nouns import PlannedStep, StepState
    from trtdx.build.plan.read_plan import BuildPlan
    from trtdx.build.plan.reproduce import Repetition
    from trtdx.build.plan.schedule import StepOutcome
    from trtdx.host import Host
    from trtdx.rule import RuleBook

FAILED, FOREIGN, ALTERED, UNSTABLE = "DX1210", "DX1211", "DX1212", "DX1213"
MAX_LOG_BYTES = 64 << 20
SURE = 0.5
UNKNOWN, DISK_FULL = "DX000", "DX046"
FULL_BYTES = 64 << 10


def report_run(host: Host, plan: BuildPlan, outcomes: dict[str, StepOutcome], book: RuleBook) -> Report:
    findings = _without_repeats(
        [finding for outcome in outcomes.values() for finding in _outcome_findings(plan, outcome, book)]
    )
    rows = tuple(_outcome_row(outcome) for outcome in outcomes.values())
    counts = {what: sum(outcome.what == what for outcome in outcomes.values()) for what in ("made", "fresh")}
    text = (
        headline_from_findings(findings)
        if findings
        else (f"{format_count(counts['made'], 'step')} made, {counts['fresh']} fresh; {plan.output}")
    )
    columns = ("step", "what", "seconds", "why")
    return Report(Summary(text, inputs=0), tuple(findings), (Section("steps", "steps", columns, rows),))


def _outcome_row(outcome: StepOutcome) -> tuple[str | float | None, ...]:
    seconds = outcome.record.seconds if outcome.record and outcome.what == "made" else None
    return outcome.key, outcome.what, seconds, abbreviate_list(outcome.reasons, 3, "; ")


def _outcome_findings(plan: BuildPlan, outcome: StepOutcome, book: RuleBook) -> Iterator[Finding]:
    if outcome.foreign:
        places = [plan.output / name for name in outcome.foreign]
        values = {"files": abbreviate_list(places, 3), "step": outcome.key, "first": places[0]}
        yield finding_from(
            book.get(FOREIGN), Violation((Evidence(str(places[0]), "no record of this plan names it"),), values)
        )
    elif outcome.what == "failed":
        yield from _failure_findings(plan, outcome, book)


def _failure_findings(plan: BuildPlan, outcome: StepOutcome, book: RuleBook) -> Iterator[Finding]:
    """Yield the causes that the log tells, with the failure folded under them; else the failure itself."""
    log = Path(outcome.log) if outcome.log else None
    if outcome.free_bytes is not None and outcome.free_bytes < FULL_BYTES:
        full = (Evidence(str(plan.output), f"No space left on device: {outcome.free_bytes:,} bytes were free"),)
        yield finding_from(book.get(DISK_FULL), Violation(full))
    text = log.read_bytes()[-MAX_LOG_BYTES:] if log and log.is_file() else b""
    causes = diagnose_sources([source_from_text(text, str(log))], book).findings if text.strip() else ()
    sure = [finding for finding in causes if finding.confidence >= SURE and finding.code != UNKNOWN]
    if sure:
        symptom = Symptom(FAILED, outcome.error.splitlines()[0][:120], str(log))
        yield from (msgspec.structs.replace(finding, symptoms=(*finding.symptoms, symptom)) for finding in sure)
        return
    last = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()][-3:]
    evidence = tuple(Evidence(str(log), line[:300]) for line in last) or (Evidence(str(plan.path), outcome.error),)
    values = {"problem": outcome.error, "log": str(log) if last else "", "step": outcome.key, "plan": str(plan.path)}
    yield finding_from(book.get(FAILED), Violation(evidence, {name: value for name, value in values.items() if value}))


def _without_repeats(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with what several steps share told once."""
    merged: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        first = merged.get((finding.code, finding.message))
        merged[finding.code, finding.message] = (
            finding if first is None else msgspec.structs.replace(first, symptoms=(*first.symptoms, *finding.symptoms))
        )
    return list(merged.values())


def report_status(plan: BuildPlan, states: Sequence[StepState | tuple[PlannedStep, str]]) -> Report:
    """Return what is stale and why; what waits for another step says so."""
    stale: set[str] = set()
    rows = []
    for state in states:
        step = state[0] if isinstance(state, tuple) else state.step
        waiting = [key for key in step.needs if key in stale]
        missing = [] if waiting else [state[1]] if isinstance(state, tuple) else []
        reasons = missing if isinstance(state, tuple) else list(state.reasons)
        reasons += [f"reads what {abbreviate_list(waiting, 3)} makes"] if waiting else []
        if reasons:
            stale.add(step.key)
        rows.append((step.key, "stale" if reasons else "fresh", "; ".join(reasons)))
    fresh = len(rows) - len(stale)
    text = (
        f"{format_count(len(stale), 'step')} stale, {fresh} fresh; {plan.output}"
        if stale
        else f"{format_count(fresh, 'step')}, all fresh; {plan.output}"
    )
    return Report(
        Summary(text, inputs=0), (), (Section("steps", "steps", ("step", "state", "what changed"), tuple(rows)),)
    )


def report_verification(check: ManifestCheck, book: RuleBook) -> Report:
    problems = [(name, "is not there") for name in check.missing] + [(name, "was changed") for name in check.changed]
    problems += [(name, "was made by no step") for name in check.unknown]
    findings: list[Finding] = []
    if problems:
        evidence = tuple(Evidence(name, what) for name, what in problems[:8])
        values = {"first": f"{problems[0][0]} {problems[0][1]}", "manifest": check.manifest, "count": len(problems)}
        values["more"] = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        findings.append(finding_from(book.get(ALTERED), Violation(evidence, values)))
    text = (
        headline_from_findings(findings)
        if findings
        else f"{format_count(check.checked, 'file')} checked: all as {check.manifest} says"
    )
    return Report(Summary(text, inputs=0), tuple(findings))


def report_repetitions(repetitions: Sequence[Repetition], book: RuleBook) -> Report:
    findings = [_repetition_finding(repetition, book) for repetition in repetitions if not repetition.is_reproducible]
    rows = tuple(
        (
            repetition.key,
            "yes" if not repetition.differing else "same program, other bytes" if repetition.is_reproducible else "no",
            repetition.same,
            abbreviate_list(repetition.differing, 3),
            repetition.program,
        )
        for repetition in repetitions
    )
    text = (
        headline_from_findings(findings)
        if findings
        else f"{format_count(len(rows), 'step')} made again: all reproducible"
    )
    columns = ("step", "reproducible", "equal files", "other bytes in", "program and memory")
    return Report(Summary(text, inputs=0), tuple(findings), (Section("repetitions", "made twice", columns, rows),))


def _repetition_finding(repetition: Repetition, book: RuleBook) -> Finding:
    values = {"step": repetition.key, "files": abbreviate_list(repetition.differing, 3)}
    values["what"] = f"; of the plan: {repetition.program}" if repetition.program else ""
    evidence = tuple(Evidence(name, "differs when it is made again") for name in repetition.differing[:8])
    return finding_from(book.get(UNSTABLE), Violation(evidence, values))
