"""The findings of a job that failed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.model import Evidence
from trtdx.run.job.stacks import StackFrame, own_frames, parse_stacks, source_line
from trtdx.run.nouns import signal_name
from trtdx.run.verdict.endings import (
    CRASH_SIGNALS,
    KILLED,
    Failure,
    blame,
    exit_under_way,
    failures_of,
    left_early,
    left_without_finalize,
)
from trtdx.run.verdict.findings import JobView, make_finding, name_ranks
from trtdx.run.verdict.known import LEAST_CONFIDENCE, known_causes, surest_cause, with_blame
from trtdx.run.verdict.mismatch import find_mismatch
from trtdx.run.verdict.stalled import mismatch_finding, rendezvous_finding, waiting_finding
from trtdx.run.verdict.waiting import find_waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.model import Finding
    from trtdx.run.nouns import RaisedException

SURE_DESPITE_OWN_WORDS = 0.93
_LIBRARY_FILE = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<")
MEMORY_TYPES = ("MemoryError", "numpy._core._exceptions._ArrayMemoryError", "numpy.core._exceptions._ArrayMemoryError")


def crash_findings(view: JobView) -> list[Finding]:
    """Return the cause of a failure, from the surest evidence to the weakest."""
    failures = failures_of(view.ranks)
    culprits = blame(failures)
    mismatch = find_mismatch(view.ranks)
    if mismatch is not None and (not culprits or mismatch.began <= culprits[0].time):
        return [mismatch_finding(view, mismatch)]
    if gone := left_without_finalize(view.ranks, culprits):
        return [_left_early_finding(view, [story.rank for story in gone if story.rank is not None])]
    if culprits:
        return [finding_of_failures(view, culprits)]
    if failures and (rendezvous := rendezvous_finding(view)):
        return [rendezvous]
    waiting = find_waiting(view.ranks)
    if waiting is not None:
        return [waiting_finding(view, waiting)]
    gone = left_early(view.ranks)
    if gone and all(failure.is_victim_like or not failure.exception for failure in failures):
        return [_left_early_finding(view, [story.rank for story in gone if story.rank is not None])]
    return _fallback(view, failures)


def _fallback(view: JobView, failures: Sequence[Failure]) -> list[Finding]:
    """Return what is known of a failure in which no rank stands out."""
    others = plain_failures(view)
    if (culprits := blame(others)) and not failures:
        return [finding_of_failures(view, culprits)]
    known = surest_cause(view, view.launcher_texts())
    if known is not None:
        return [known]
    if failures:
        return [finding_of_failures(view, failures[:1])]
    return [_launcher_finding(view)]


def plain_failures(view: JobView) -> list[Failure]:
    """Return failures of Python processes that are no ranks; the launcher's own exit follows from theirs."""
    return [failure for failure in failures_of(view.others) if failure.story.agents]


def _launcher_finding(view: JobView) -> Finding:
    end = view.record.launcher_end
    assert end is not None
    evidence = [Evidence(f"{view.record.command[0]}, process {end.pid}", end.in_words())]
    if end.signal:
        source = "passed on to it by trtdx" if end.signal in view.record.signals else "sent to it from outside"
        values: dict[str, object] = {
            "signal": signal_name(end.signal),
            "source": source,
            "program": view.record.command[0],
        }
        return make_finding(view, "DX1260", (), evidence, values)
    guesses = known_causes(view, view.launcher_texts())
    words = [evidence for guess in guesses[:1] for evidence in guess.evidence[:2]]
    values = {"who": f"{view.record.command[0]} ended with", "status": end.exit_code or 0}
    return make_finding(view, "DX1245", (), [*evidence, *words], values, confidence=0.6)


def finding_of_failures(view: JobView, culprits: Sequence[Failure]) -> Finding:
    """Return the finding for ranks that failed in the same way; a failure common to all ranks is no rank's fault."""
    first = culprits[0]
    ranks = tuple(sorted(failure.story.rank for failure in culprits if failure.story.rank is not None))
    blamed = () if len(ranks) > 1 and len(ranks) == len(view.ranks) else ranks
    who = name_ranks(ranks) if ranks else first.story.name
    evidence = failure_evidence(view, first)
    texts = {name: text for failure in culprits[:4] for name, text in view.texts_of(failure.story).items()}
    if first.story.is_oom_killed:
        return make_finding(view, "DX350", blamed, evidence, {"who": who, "proof": first.story.oom_words})
    if first.kind == KILLED:
        known = surest_cause(view, view.launcher_texts())
        if known is not None and known.code in ("DX455", "DX350", "DX454"):
            return with_blame(known, blamed, evidence)
        return make_finding(view, "DX1240", blamed, evidence, {"who": who, "signal": "SIGKILL"})
    is_memory = first.exception is not None and first.exception.type in MEMORY_TYPES
    least = SURE_DESPITE_OWN_WORDS if first.exception and _is_own_words(first.exception) else LEAST_CONFIDENCE
    known = None if is_memory else surest_cause(view, texts, least)
    if known is not None:
        return with_blame(known, blamed, evidence)
    return _finding_of_kind(view, first, blamed, who, evidence)


def _is_own_words(exception: RaisedException) -> bool:
    """Whether the user's own program raised it: its words need not mean what they mean in a library's log."""
    file, _, rest = exception.where.partition(":")
    line = rest.partition(" ")[0]
    if _LIBRARY_FILE.search(file) or not line.isdigit():
        return False
    return bool(re.match(r"(?:.*:\s*)?(?:raise|assert)\b", source_line(StackFrame(file, int(line), ""))))


def _finding_of_kind(
    view: JobView, failure: Failure, ranks: tuple[int, ...], who: str, evidence: list[Evidence]
) -> Finding:
    exception = failure.exception
    if exception is not None and exception.type in MEMORY_TYPES:
        return make_finding(view, "DX352", ranks, evidence, {"who": who, "what": exception.in_words()})
    if exception is not None:
        hangs = "; it has not ended since and hangs in MPI_Finalize" if failure.story.is_alive else ""
        values = {"who": who, "what": exception.in_words(), "where": exception.where, "hangs": hangs}
        return make_finding(view, "DX1242", ranks, evidence, values)
    if failure.abort_status is None and failure.signal in CRASH_SIGNALS:
        values = {"who": who, "signal": signal_name(failure.signal)}
        return make_finding(view, "DX1241", ranks, evidence, values)
    if failure.abort_status is None and failure.signal:
        return make_finding(view, "DX1240", ranks, evidence, {"who": who, "signal": signal_name(failure.signal)})
    status = failure.abort_status if failure.abort_status is not None else failure.exit_code
    how = (
        "called MPI_Abort with"
        if failure.abort_status is not None
        else "ended with"
        if failure.end
        else "called sys.exit and hangs in MPI_Finalize, with"
    )
    if status == 137:
        return make_finding(view, "DX1262", ranks, evidence, {"who": who, "how": how})
    return make_finding(view, "DX1245", ranks, evidence, {"who": f"{who} {how}", "status": status})


def failure_evidence(view: JobView, failure: Failure) -> list[Evidence]:
    """Return how a rank was seen to fail: its exception, its end, its stack, its last words."""
    story, exception = failure.story, failure.exception
    evidence = []
    if exception is not None:
        evidence.append(Evidence(f"{story.name}: {exception.where}", exception.in_words()))
        evidence += [Evidence(f"{story.name}: raised from", cause) for cause in exception.causes[:2]]
    if story.end is not None and not story.end.is_clean:
        place = story.name if story.rank is None else f"{story.name}, process {story.end.pid}"
        evidence.append(Evidence(place, story.end.in_words()))
    for agent in story.agents:
        if agent.abort or agent.exit_called:
            event = agent.abort or agent.exit_called
            name = "MPI_Abort" if agent.abort else "os._exit"
            evidence.append(Evidence(f"{story.name}: {event.get('where')}", f"calls {name}({event.get('status')})"))
        elif event := exit_under_way(agent):
            words = event.get("words") or event.get("status")
            evidence.append(Evidence(f"{story.name}: {event.get('where')}", f"calls sys.exit({words!r})"))
        if agent.crash and (threads := parse_stacks(agent.crash)):
            crashed = next((thread for thread in threads if thread.is_main), threads[0])
            evidence.append(Evidence(f"{story.name}: stack", " <- ".join(map(str, own_frames(crashed.frames)[:5]))))
    if exception is not None:
        evidence += [Evidence(f"{story.name}: tensor", words) for words in exception.tensors[-6:]]
    if words := view.last_words(story):
        evidence.append(Evidence(f"{story.name}: last line printed", words))
    return evidence


def _left_early_finding(view: JobView, ranks: list[int]) -> Finding:
    evidence = [item for rank in ranks for item in failure_evidence(view, Failure(view.story_of(rank), None, 0.0))]
    evidence = evidence or [Evidence(name_ranks(ranks), "ended with status 0 while the others were at work")]
    return make_finding(view, "DX1244", ranks, evidence, {"who": name_ranks(ranks)}, confidence=0.85)
