"""The findings of a job that stands still."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trtdx.model import Evidence
from trtdx.run.verdict import mismatch as calls
from trtdx.run.verdict.endings import Failure, blame, failures_of
from trtdx.run.verdict.findings import JobView, make_finding, name_each, name_ranks
from trtdx.run.verdict.known import surest_cause
from trtdx.run.verdict.program_order import find_deviation
from trtdx.run.verdict.waiting import (
    CHILD,
    COMPUTE,
    IO,
    LEAVES,
    LOCK,
    PEER,
    SLEEP,
    STOPPED,
    UNKNOWN,
    Activity,
    activity_of,
    find_waiting,
    waited_call,
)
from trtdx.run.verdict.worlds import find_claimed_twice, find_missing_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.model import Finding
    from trtdx.run.nouns import Call, RankStory
    from trtdx.run.verdict.mismatch import CallMismatch
    from trtdx.run.verdict.waiting import WaitVerdict
    from trtdx.run.verdict.worlds import MissingRanks

_CODES = {STOPPED: "DX1255", LOCK: "DX1251", IO: "DX1252"}
_SUSPICION = (STOPPED, LOCK, IO, SLEEP, COMPUTE, UNKNOWN, LEAVES, PEER, CHILD)
_MISMATCH_CODES = {calls.ORDER: "DX1247", calls.SKIPPED: "DX1246", calls.SHAPE: "DX1248", calls.DTYPE: "DX1249",
                   calls.ARGUMENT: "DX1250"}  # fmt: skip


def hang_findings(view: JobView) -> list[Finding]:
    """Return why a job stands still."""
    from trtdx.run.verdict.crash import finding_of_failures

    failures = [failure for failure in failures_of(view.ranks) if failure.time <= view.record.hang_seen]
    culprits = blame(failures)
    mismatch = calls.find_mismatch(view.ranks)
    if mismatch is not None and (not culprits or mismatch.began <= culprits[0].time):
        return [mismatch_finding(view, mismatch)]
    if culprits:
        return [finding_of_failures(view, culprits)]
    if not view.ranks and (killed := _killed_workers(view)):
        return [finding_of_failures(view, killed)]
    if lost := _lost_thread_finding(view):
        return [lost]
    if rendezvous := rendezvous_finding(view):
        return [rendezvous]
    if (waiting := find_waiting(view.ranks)) is not None:
        return [waiting_finding(view, waiting)]
    return [_suspect_finding(view)]


def _killed_workers(view: JobView) -> list[Failure]:
    """Return Python processes, no ranks, that a signal ended before the job stood still: a pool waits for them for ever."""
    failures = [failure for failure in failures_of(view.others) if failure.story.agents and failure.signal]
    return blame([failure for failure in failures if failure.time <= view.record.hang_seen])


def _lost_thread_finding(view: JobView) -> Finding | None:
    stories = [story for story in view.stories if any(one.thrown_in == "thread" for one in story.exceptions)]
    if not stories:
        return None
    exception = next(one for one in stories[0].exceptions if one.thrown_in == "thread")
    ranks = tuple(story.rank for story in stories if story.rank is not None)
    evidence = [Evidence(f"{stories[0].name}: {exception.where}", exception.in_words())]
    evidence += _activity_evidence(view, stories[0])
    values = {"who": stories[0].name, "what": exception.in_words(), "thread": exception.thread}
    return make_finding(view, "DX1243", ranks, evidence, values)


def mismatch_finding(view: JobView, mismatch: CallMismatch, *, is_silent: bool = False) -> Finding:
    """Return the finding of ranks that called something else than the rest."""
    who, wrong, right = name_ranks(mismatch.culprits), mismatch.wrong, mismatch.right
    evidence = [
        Evidence(f"{who}: {wrong.where}", f"{wrong.in_words()} {_data_words(wrong.data)}".strip()),
        Evidence(f"the others: {right.where}", f"{right.in_words()} {_data_words(right.data)}".strip()),
    ]
    key = {"n": "shape", "dtype": "dtype"}.get(mismatch.key, mismatch.key)
    values: dict[str, object] = {
        "who": who,
        "call": right.in_words(),
        "wrong": _value(wrong.data, mismatch.key) if mismatch.key else _name_beside(wrong, right),
        "right": _value(right.data, mismatch.key) if mismatch.key else _name_beside(right, wrong),
        "key": {"root": "root rank", "op": "reduction"}.get(key, key),
        "silently": ", and nothing reported it: the result is wrong" if is_silent else "",
        "then": _then(view, mismatch),
    }
    confidence = 0.95 if len(mismatch.culprits) * 2 < max(len(view.ranks), 2) else 0.7
    return make_finding(
        view, _MISMATCH_CODES[mismatch.kind], mismatch.culprits, evidence, values, confidence=confidence
    )


def _name_beside(call: Call, other: Call) -> str:
    """Return a call's name, with its group where the other call has the same name."""
    return call.name if call.name != other.name else f"{call.name} of group {call.group}"


def _then(view: JobView, mismatch: CallMismatch) -> str:
    return f"went on to {mismatch.wrong.in_words()} at {mismatch.wrong.where}"


def _value(data: dict[str, str], key: str) -> str:
    if key == "n":
        return data.get("shape") or f"{data['n']} elements"
    return data.get(key, "?")


def _data_words(data: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in data.items() if key != "n" or "shape" not in data)


def rendezvous_finding(view: JobView) -> Finding | None:
    """Return why a rendezvous does not come about: two processes with one rank, or ranks that nobody started."""
    missing = find_missing_ranks(view.ranks)
    if missing is not None and (twice := find_claimed_twice(view.ranks, view.record.ends)):
        evidence = [
            Evidence(f"rank {rank}", f"{count} processes brought it to the rendezvous") for rank, count in twice.items()
        ]
        return make_finding(view, "DX1259", tuple(twice), evidence, {"who": name_ranks(tuple(twice))})
    return missing_ranks_finding(view, missing) if missing is not None else None


def missing_ranks_finding(view: JobView, missing: MissingRanks) -> Finding:
    evidence = [
        Evidence("init_process_group", f"waits for {missing.expected} ranks; {name_ranks(missing.present)} came")
    ]
    values = {
        "expected": missing.expected,
        "present": len(missing.present),
        "missing": name_ranks(missing.ranks) if missing.ranks else "nobody",
    }
    return make_finding(view, "DX1258", (), evidence, values)


def waiting_finding(view: JobView, waiting: WaitVerdict) -> Finding:
    """Return the finding of ranks that keep the others waiting."""
    evidence: list[Evidence] = []
    call = waiting.waited_in
    waited = call.in_words() if call else "the others"
    if waiting.waiting and call:
        evidence.append(Evidence(f"{name_ranks(waiting.waiting)}: {call.where}", f"in {waited}"))
    if waiting.is_cycle:
        return _cycle_finding(view, waiting, evidence)
    if failure := _failure_of(view, waiting.culprits):
        return failure
    story = view.story_of(waiting.culprits[0])
    who = name_each(waiting.culprits)
    if not story.is_alive:
        evidence.insert(0, Evidence(story.name, _how_gone(story)))
        left = any(agent.exit_called for agent in story.agents)
        values: dict[str, object] = {"who": who, "call": waited, "then": _last_call_words(story)}
        is_stopped_by_us = story.end is not None and not story.end.is_clean
        code = "DX1244" if left else "DX1253" if is_stopped_by_us else "DX1246"
        values |= {"doing": _last_call_words(story), "arrives": f"does not arrive in {waited}"}
        return make_finding(view, code, waiting.culprits, evidence, values)
    activity = activity_of(story, view.record)
    evidence = _activity_evidence(view, story) + evidence
    if activity.kind == LEAVES:
        values = {"who": who, "call": waited, "then": "has run to its end"}
        return make_finding(view, "DX1246", waiting.culprits, evidence, values)
    values = {
        "who": who,
        "call": waited,
        "doing": activity.words,
        "arrives": f"does not arrive in {waited}",
        "others": f"; the others wait in {waited}",
    }
    return make_finding(view, _CODES.get(activity.kind, "DX1253"), waiting.culprits, evidence, values)


def _failure_of(view: JobView, ranks: Sequence[int]) -> Finding | None:
    """Return how the ranks that are waited for failed, if they did; where one waited in vain itself, it is a victim."""
    from trtdx.run.verdict.crash import finding_of_failures

    failures = [failure for failure in failures_of(view.ranks) if failure.story.rank in ranks]
    own = [failure for failure in failures if failure.exception and waited_call(failure.story) is None]
    return finding_of_failures(view, own) if own and len(own) == len(ranks) else None


def _how_gone(story: RankStory) -> str:
    return story.end.in_words() if story.end else "has gone"


def _last_call_words(story: RankStory) -> str:
    past = [call for call in story.calls if not call.is_open]
    return f"its last call was {past[-1].in_words()} at {past[-1].where}" if past else "it has called no collective"


def _cycle_finding(view: JobView, waiting: WaitVerdict, evidence: list[Evidence]) -> Finding:
    if deviation := find_deviation(view.ranks, {*waiting.culprits, *waiting.waiting}):
        return mismatch_finding(view, deviation)
    for rank in waiting.culprits:
        story = view.story_of(rank)
        call = waited_call(story)
        if call is not None:
            evidence.insert(0, Evidence(f"rank {rank}: {call.where}", f"waits in {call.in_words()}"))
    values = {"who": name_ranks(waiting.culprits), "verb": "waits" if len(waiting.culprits) == 1 else "wait"}
    return make_finding(view, "DX1254", waiting.culprits, evidence, values, confidence=0.85)


def _activity_evidence(view: JobView, story: RankStory) -> list[Evidence]:
    activity = activity_of(story, view.record)
    evidence = [Evidence(story.name, activity.words)]
    if len(activity.frames) > 1:
        evidence.append(Evidence(f"{story.name}: stack", " <- ".join(map(str, activity.frames[:6]))))
    return evidence


def _suspect_finding(view: JobView) -> Finding:
    """Return who is most likely stuck where no rank is seen to wait for another."""
    alive = [story for story in view.ranks if story.is_alive] or [
        story for story in view.others if story.is_alive and story.agents and not _is_service(story)
    ]
    activities = [(story, activity_of(story, view.record)) for story in alive]
    kind = _suspicious_kind([activity.kind for _, activity in activities])
    suspects = [(story, activity) for story, activity in activities if activity.kind == kind]
    if not suspects or suspects[0][1].kind in (PEER, CHILD, UNKNOWN):
        known = surest_cause(view, view.launcher_texts())
        if known is not None:
            return known
    if not suspects:
        return _unexplained(view)
    return _stuck_finding(view, suspects)


def _suspicious_kind(kinds: Sequence[str]) -> str:
    """Return what the culprit does: what fewest do, if it is no waiting for others; among equals the most suspicious.

    Where three wait for a lock and one for input, that one holds the lock.
    """
    counts = Counter(kinds)
    own = {kind: count for kind, count in counts.items() if kind not in (PEER, CHILD, LEAVES, UNKNOWN)} or counts
    return min(own, key=lambda kind: (own[kind], _SUSPICION.index(kind)), default="")


def _is_service(story: RankStory) -> bool:
    """Whether a process is one of multiprocessing's own helpers, which wait by trade."""
    return any("multiprocessing.resource_tracker" in word or "forkserver" in word for word in story.argv)


def _stuck_finding(view: JobView, suspects: list[tuple[RankStory, Activity]]) -> Finding:
    story, activity = suspects[0]
    ranks = tuple(story.rank for story, _ in suspects if story.rank is not None)
    everybody = len(ranks) > 1 and len(ranks) == len(view.ranks)
    if everybody and all(waited_call(story) for story, _ in suspects):
        return _unexplained(view)
    values: dict[str, object] = {
        "who": name_each(ranks) if ranks else story.name,
        "doing": activity.words,
        "arrives": "does not move on",
        "others": "",
    }
    code = _CODES.get(activity.kind, "DX1253")
    evidence = _activity_evidence(view, story)
    return make_finding(view, code, () if everybody else ranks, evidence, values, confidence=0.8)


def _unexplained(view: JobView) -> Finding:
    evidence = []
    for story in view.ranks or view.others:
        call = waited_call(story)
        words = (
            f"in {call.in_words()}" if call else activity_of(story, view.record).words if story.is_alive else "ended"
        )
        evidence.append(Evidence(story.name, words))
    quiet = f"{view.record.hang_seen - view.record.quiet_since:.0f}"
    return make_finding(view, "DX1261", (), evidence[:16], {"quiet": quiet}, confidence=0.5)
