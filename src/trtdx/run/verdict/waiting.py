"""Who waits for whom: the ranks that everybody waits for, directly or not, are to blame."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.agent.ring import LEAVING
from trtdx.run.job.stacks import StackFrame, main_frames, own_frames, source_line
from trtdx.run.verdict.mismatch import calls_by_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.run.nouns import Call, JobRecord, RankStory

STOPPED, LOCK, IO, PEER, SLEEP, CHILD, COMPUTE, LEAVES, UNKNOWN = (
    "stopped", "lock", "io", "peer", "sleep", "child", "compute", "leaves", "unknown",
)  # fmt: skip
_LOCK_LINE = re.compile(
    r"acquire\(|\block\b|Lock|\.join\(|\.get\(|\.wait\(|Condition|Semaphore|Event|\.result\(", re.IGNORECASE
)
_LOCK_FILE = re.compile(r"/(threading|queue|synchronize|_base|thread)\.py$")
_WAIT_LINE = re.compile(r"\.(?:Wait|wait)(?:all|any|some)?\(", re.IGNORECASE)
_SLEEP_LINE = re.compile(r"\bsleep\(")
_IO_LINE = re.compile(
    r"\bopen\(|\.read|readline|readinto|recv|accept\(|connect\(|input\(|urlopen|requests?\.|flock|lockf"
)


class Activity(NamedTuple):
    """What a process is at, when it is not in a collective."""

    kind: str
    words: str
    frames: tuple[StackFrame, ...] = ()


class WaitVerdict(NamedTuple):
    """Who is to blame for a job that stands still, and what the others wait in."""

    culprits: tuple[int, ...]
    waited_in: Call | None
    waiting: tuple[int, ...]
    is_cycle: bool = False


def activity_of(story: RankStory, record: JobRecord) -> Activity:
    """Return what a live process is doing, from its state, its system call and its stack."""
    frames = own_frames(main_frames(story.stack))
    pid = story.agents[-1].pid if story.agents else story.pids[-1]
    process = record.processes.get(pid)
    syscall, file = (process.syscall, process.syscall_file) if process else ("", "")
    if story.state in ("T", "t"):
        return Activity(STOPPED, "is stopped by a signal (state T)", frames)
    place = f" at {frames[0]}" if frames else ""
    line = source_line(frames[0]) if frames else ""
    shown = f": {line}" if line else ""
    if any(agent.state == LEAVING for agent in story.agents if agent.left):
        return Activity(LEAVES, "has run to its end and waits in its exit handlers (MPI_Finalize)", frames)
    if _SLEEP_LINE.search(line) or syscall == "sleep":
        return Activity(SLEEP, f"sleeps{place}{shown}", frames)
    if syscall == "wait4":
        return Activity(CHILD, f"waits for a child process{place}{shown}", frames)
    if _is_lock(syscall, frames, line):
        return Activity(LOCK, f"waits for a lock, a queue or a thread{_user_place(frames)}", frames)
    is_io = syscall in ("read", "open", "recv", "accept", "connect", "flock", "fcntl", "write", "send")
    if is_io or (syscall != "running" and _IO_LINE.search(line)):
        target = f" on {file}" if file else ""
        is_library = bool(frames) and "/torch/" in frames[0].file  # its rendezvous waits for the other ranks
        kind = PEER if file.startswith("socket:") and (is_library or not frames) else IO
        return Activity(kind, f"waits in {syscall or 'input or output'}{target}{place}{shown}", frames)
    if syscall in ("poll", "select", "epoll"):
        return Activity(PEER, f"waits in {syscall} for a descriptor{place}{shown}", frames)
    if syscall == "running":
        return Activity(COMPUTE, f"computes{place}{shown}", frames)
    return Activity(UNKNOWN, f"is{place or ' somewhere'}{shown}", frames)


def _is_lock(syscall: str, frames: Sequence[StackFrame], line: str) -> bool:
    if frames and _LOCK_FILE.search(frames[0].file):
        return True
    return syscall == "futex" or (not syscall and bool(_LOCK_LINE.search(line)))


def _user_place(frames: Sequence[StackFrame]) -> str:
    """Return the innermost frame of the user's program, not of the library's locks."""
    for frame in frames:
        if not _LOCK_FILE.search(frame.file):
            line = source_line(frame)
            return f" at {frame}" + (f": {line}" if line else "")
    return ""


def waited_call(story: RankStory) -> Call | None:
    """Return the call a rank waits in, or the last one, if that failed: it waited in vain."""
    if story.open_call:
        return story.open_call
    if story.calls and story.calls[-1].is_async and _is_at_wait(story):
        return story.calls[-1]
    calls = [call for call in story.calls if not call.is_async]
    return calls[-1] if calls and calls[-1].has_failed else None


def _is_at_wait(story: RankStory) -> bool:
    """Whether a live rank is at a line that waits for a request, such as what Irecv has given back."""
    frames = own_frames(main_frames(story.stack))
    return story.is_alive and bool(frames) and bool(_WAIT_LINE.search(source_line(frames[0])))


def find_waiting(stories: Sequence[RankStory]) -> WaitVerdict | None:
    """Return who keeps the others waiting; None where no rank waits for another, or all have arrived."""
    ranks = {story.rank: story for story in stories if story.rank is not None}
    edges: dict[int, set[int]] = {}
    for rank, story in ranks.items():
        call = waited_call(story)
        if call is not None and (targets := _waits_for(rank, call, stories) & set(ranks)):
            edges[rank] = targets
    if not edges:
        return None
    reached = {target for targets in edges.values() for target in targets}
    culprits = _without_killed(ranks, sorted(rank for rank in reached if rank not in edges))
    first = _commonest_call([call for rank in edges if (call := waited_call(ranks[rank]))])
    waiting = tuple(sorted(set(edges) - set(culprits)))
    if culprits:
        return WaitVerdict(tuple(culprits), first, waiting)
    return _cycle_verdict(ranks, edges, first)


def _without_killed(ranks: dict[int, RankStory], culprits: list[int]) -> list[int]:
    """Return those who had gone of themselves, where a launcher has killed the others that did not arrive for it."""
    gone = [rank for rank in culprits if (end := ranks[rank].end) is not None and end.is_clean]
    others = [end for rank in culprits if rank not in gone and (end := ranks[rank].end) is not None and end.signal]
    return gone if gone and len(others) + len(gone) == len(culprits) else culprits


def _cycle_verdict(ranks: dict[int, RankStory], edges: dict[int, set[int]], first: Call) -> WaitVerdict:
    """Return the ranks of a ring of waiters; where most are in one collective, those that are not in it."""
    odd = [rank for rank in edges if (call := waited_call(ranks[rank])) and not _is_same_call(call, first)]
    is_minority = 2 * len(odd) < len(edges)
    are_messages = all(call.is_message for rank in odd if (call := waited_call(ranks[rank])))
    members = sorted(odd if odd and len(odd) < len(edges) and (is_minority or are_messages) else edges)
    return WaitVerdict(tuple(members), first, tuple(sorted(set(edges) - set(members))), is_cycle=True)


def _is_same_call(call: Call, other: Call) -> bool:
    return (call.group, call.number, call.is_message) == (other.group, other.number, other.is_message)


def _commonest_call(calls: Sequence[Call]) -> Call:
    collectives = [call for call in calls if not call.is_message] or list(calls)
    return max(collectives, key=lambda call: (sum(_is_same_call(call, other) for other in calls), -call.began))


def _waits_for(rank: int, call: Call, stories: Sequence[RankStory]) -> set[int]:
    if call.is_message:
        return {int(peer) for peer in call.data.get("peer", "").split(",") if peer.isdigit()} - {rank}
    members = next(
        (agent.groups[call.group] for s in stories for agent in s.agents if call.group in agent.groups), None
    )
    table = calls_by_rank(stories, call.group)
    everybody = set(members) if members is not None else {story.rank for story in stories if story.rank is not None}
    return {member for member in everybody if call.number not in table.get(member, {}) and member != rank}
