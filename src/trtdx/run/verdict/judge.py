"""One verdict from everything that was seen: the culprit's cause first, its victims folded under it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.model import Evidence, Severity, Symptom
from trtdx.run.verdict.crash import crash_findings
from trtdx.run.verdict.endings import Failure, failures_of
from trtdx.run.verdict.findings import JobView, make_finding
from trtdx.run.verdict.known import known_causes
from trtdx.run.verdict.mismatch import find_mismatch
from trtdx.run.verdict.stalled import hang_findings, mismatch_finding
from trtdx.run.verdict.stragglers import find_straggler
from trtdx.run.verdict.worlds import find_lonely_world
from trtdx.words import format_count

if TYPE_CHECKING:
    from trtdx.model import Finding

LAUNCHER_SYMPTOMS = ("DX445", "DX443", "DX458", "DX451", "DX415")


class JobState(NamedTuple):
    """How a job stands when it is judged."""

    has_failed: bool
    is_hanging: bool


def judge_job(view: JobView) -> list[Finding]:
    """Return the findings of a job, the cause first; none for one that is well."""
    state = job_state(view)
    lonely = _lonely_findings(view)
    if state.is_hanging:
        findings = hang_findings(view)
    elif state.has_failed:
        findings = lonely or crash_findings(view)
        lonely = []
    else:
        findings = _quiet_findings(view)
    findings = lonely + findings + _not_finite_findings(view)
    return [_with_victims(view, finding) if place == 0 else finding for place, finding in enumerate(findings)]


def job_state(view: JobView) -> JobState:
    record = view.record
    end = record.launcher_end
    is_running = end is None
    is_hanging = bool(record.hang_seen) and (is_running or record.was_killed_by_us or not end.is_clean)  # type: ignore[union-attr]
    has_failed = (end is not None and not end.is_clean) or bool(_failed_ranks(view))
    return JobState(has_failed, is_hanging)


def _failed_ranks(view: JobView) -> list[Failure]:
    """Return ranks that failed although the launcher says that all is well; a restarted rank has not."""
    # MPICH's launcher may say 0 although it killed the ranks that waited for one that had gone.
    return [failure for failure in failures_of(view.ranks) if not failure.is_victim_like]


def _lonely_findings(view: JobView) -> list[Finding]:
    lonely = find_lonely_world(view.ranks)
    if lonely is None:
        return []
    agents = [agent for story in view.ranks for agent in story.agents if agent.worlds]
    evidence = [
        Evidence(
            f"process {agent.pid}",
            f"{_own_rank(agent.variables)}; mpi4py says rank {agent.worlds[0]['rank']} of {agent.worlds[0]['size']}",
        )
        for agent in agents[:4]
    ]
    values = {"count": lonely.processes, "launcher": lonely.launcher}
    return [make_finding(view, "DX1257", (), evidence, values)]


def _not_finite_findings(view: JobView) -> list[Finding]:
    """Return the first NaN that --watch nan has met, on the rank that met it first."""
    events = [
        (float(event["time"]), story, event)
        for story in view.stories
        for agent in story.agents
        for event in agent.events
        if event["kind"] == "not-finite"
    ]
    if not events:
        return []
    _, story, event = min(events, key=lambda entry: entry[0])
    inputs = "its inputs were finite" if event.get("inputs_finite") else "its inputs were not finite either"
    evidence = [Evidence(f"{story.name}: {event['module']}", f"step {event['step']}: {event['what']}; {inputs}")]
    values = {"who": story.name, "module": event["module"], "step": event["step"], "what": event["what"]}
    ranks = () if story.rank is None else (story.rank,)
    return [make_finding(view, "DX1264", ranks, evidence, values)]


def _own_rank(variables: dict[str, str]) -> str:
    shown = [
        f"{name}={value}" for name, value in variables.items() if name.endswith(("RANK", "SIZE", "PROCID", "NTASKS"))
    ]
    return " ".join(shown[:4]) or "no rank variable"


def _quiet_findings(view: JobView) -> list[Finding]:
    """Return what is wrong with a job that ended well: disagreement that nobody noticed, lost threads, a slow rank."""
    findings = []
    mismatch = find_mismatch(view.ranks)
    if mismatch is not None:
        findings.append(mismatch_finding(view, mismatch, is_silent=True))
    findings += _lost_threads(view)
    straggler = find_straggler(view.ranks)
    if straggler is not None and not findings:
        evidence = [
            Evidence(
                f"rank {straggler.rank}",
                f"came last in {straggler.late} of {format_count(straggler.calls, 'collective')}; "
                f"the others waited {straggler.waited_s:.2f} s of {straggler.span_s:.2f} s for it",
            )
        ]
        values = {
            "who": f"rank {straggler.rank}",
            "late": straggler.late,
            "calls": straggler.calls,
            "waited": f"{straggler.waited_s:.1f}",
            "share": f"{straggler.waited_s / max(straggler.span_s, 1e-9):.0%}",
        }
        findings.append(make_finding(view, "DX1256", (straggler.rank,), evidence, values, confidence=0.85))
    return findings


def _lost_threads(view: JobView) -> list[Finding]:
    stories = [story for story in view.stories if any(one.thrown_in == "thread" for one in story.exceptions)]
    if not stories:
        return []
    exception = next(one for one in stories[0].exceptions if one.thrown_in == "thread")
    ranks = tuple(story.rank for story in stories if story.rank is not None)
    values = {"who": stories[0].name, "what": exception.in_words(), "thread": exception.thread}
    evidence = [Evidence(f"{stories[0].name}: {exception.where}", exception.in_words())]
    return [make_finding(view, "DX1243", ranks, evidence, values, severity=Severity.WARNING)]


def _with_victims(view: JobView, finding: Finding) -> Finding:
    """Return the finding with what followed from it: how the other ranks ended, what the launcher said."""
    if finding.severity is not Severity.ERROR:
        return finding
    symptoms = list(finding.symptoms)
    shown = {evidence.text for evidence in finding.evidence}
    symptoms += [
        Symptom("DX445", f"{failure.story.name}: {failure.in_words()}", failure.story.name)
        for failure in failures_of(view.ranks)
        if failure.story.rank not in finding.ranks and failure.in_words() not in shown
    ]
    known = {symptom.code for symptom in symptoms}
    for other in known_causes(view, view.launcher_texts()):
        if other.code in LAUNCHER_SYMPTOMS and other.code != finding.code and other.code not in known:
            symptoms.append(Symptom(other.code, other.message, str(other.where)))
    return msgspec.structs.replace(finding, symptoms=tuple(symptoms))
