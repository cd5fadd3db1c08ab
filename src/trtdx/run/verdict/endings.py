"""Ranks that failed: which of them first, and which only fell because another had."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.run.nouns import AgentRecord, ProcessEnd, RaisedException, RankStory

# What a rank says when it is another that has gone: a lost connection, or a wait in vain.
_PEER_LOST = re.compile(
    r"connection (?:was )?(?:closed|reset|refused|aborted)|connection.*by peer|peer.*(?:closed|reset|lost)|broken ?pipe|"
    r"timed out|timeout|remote process exited|proc_failed|process group.*abort|store.*(?:closed|unavailable)|"
    r"no error: 0|MPI_ERR_|\bEOFError\b|IncompleteReadError|ConnectionResetError|ProcessGroupGloo|"
    r"DistNetworkError|DistStoreError|failed to (?:send|recv)",
    re.IGNORECASE | re.DOTALL,
)
# What a process says whose child has failed: the child's own words come first, where it was a rank.
_CHILD_FAILED = re.compile(
    r"BrokenProcessPool|ChildFailedError|ProcessRaisedException|ProcessExitedException|CalledProcessError"
)
_REAL_CAUSE = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)
CRASH_SIGNALS = (4, 5, 6, 7, 8, 11, 31)  # what native code dies of by its own fault
TOGETHER_S = 3.0
LEAVING_S = 5.0  # between sys.exit and the last exit handler
AT_ONCE_S = 0.3
SAME_LOOK_S = 0.05
LAUNCHER_S = 5.0  # in which a launcher ends the others when one rank has gone without MPI_Finalize
KILLED = "signal 9"


class Failure:
    """One rank's failure: when it began, and how."""

    def __init__(self, story: RankStory, exception: RaisedException | None, time: float) -> None:
        self.story, self.exception, self.time = story, exception, time

    @property
    def end(self) -> ProcessEnd | None:
        return self.story.end

    @property
    def signal(self) -> int:
        return self.end.signal if self.end else 0

    @property
    def kind(self) -> str:
        """Return a word under which failures of the same sort fall together."""
        if self.story.is_oom_killed:
            return "oom"
        if self.exception is not None and (not self.signal or self.exception.time <= self.time):
            return f"exception {self.exception.type} {self.exception.text[:200]}"
        if self.abort_status is not None:
            return f"abort {self.abort_status}"
        if self.signal:
            return f"signal {self.signal}"
        return f"exit {self.exit_code}"

    def in_words(self) -> str:
        if self.exception is not None:
            return self.exception.in_words()
        if self.end is None and self.exit_code is not None:
            return f"called sys.exit with status {self.exit_code}"
        return self.end.in_words() if self.end else "gone"

    @property
    def exit_code(self) -> object | None:
        """Return the status it ended with, or wants to end with once MPI_Finalize lets it."""
        if self.end is not None:
            return self.end.exit_code
        return next((event["status"] for event in map(exit_under_way, self.story.agents) if event), None)

    @property
    def was_waiting(self) -> bool:
        """Whether it was in a collective or a message, and so was waiting for another rank."""
        return self.story.open_call is not None and self.exception is None and self.abort_status is None

    @property
    def abort_status(self) -> object | None:
        return next((agent.abort["status"] for agent in self.story.agents if agent.abort), None)

    @property
    def is_victim_like(self) -> bool:
        """Whether it reads like the consequence of another rank's failure."""
        if self.story.is_oom_killed or self.abort_status is not None:
            return False
        if self.exception is not None:
            text = f"{self.exception.type}: {self.exception.text} {' '.join(self.exception.causes)}"
            return bool(_PEER_LOST.search(text)) and not _REAL_CAUSE.search(text)
        return self.signal in (1, 2, 13, 15)

    @property
    def is_of_child(self) -> bool:
        """Whether it says only that a child process has failed."""
        return self.exception is not None and bool(_CHILD_FAILED.search(self.exception.type))


def exit_under_way(agent: AgentRecord) -> dict[str, Any]:
    """Return the call of sys.exit by which a process is leaving; one that was caught is none."""
    event = agent.exit_asked
    return event if event and 0 <= agent.left - float(event["time"]) < LEAVING_S else {}


def failures_of(stories: Sequence[RankStory]) -> list[Failure]:
    """Return all failures, the earliest first."""
    failures = []
    for story in stories:
        exception = next((one for one in story.exceptions if one.thrown_in == "main"), None)
        aborts = [float(agent.abort["time"]) for agent in story.agents if agent.abort]
        aborts += [float(event["time"]) for event in map(exit_under_way, story.agents) if event and story.is_alive]
        is_bad = story.end is not None and not story.end.is_clean and story.end.status >= 0
        if exception is None and not aborts and not is_bad:
            continue
        if exception is not None and story.end is not None and story.end.is_clean and not story.is_alive:
            continue  # it was dealt with after all
        times = [*aborts, *([exception.time] if exception else []), *([story.end.time] if story.end and is_bad else [])]
        failures.append(Failure(story, exception, min(times)))
    return sorted(failures, key=lambda failure: failure.time)


def blame(failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures that came first and stand for themselves; those of the same sort fall together.

    A rank that dies in a collective was waiting for somebody, so one that was not comes before it. SIGKILL is also
    what launchers end the other ranks with: where all who died of it were waiting, somebody else is to blame.
    """
    candidates = [failure for failure in failures if not failure.is_victim_like]
    candidates = [failure for failure in candidates if not failure.is_of_child] or candidates
    if not candidates:
        return []
    first = min(candidates, key=lambda failure: (failure.was_waiting, failure.time))
    others = [failure for failure in candidates if failure.kind != KILLED]
    at_once = [failure for failure in others if failure.time <= first.time + SAME_LOOK_S]
    if first.kind == KILLED and not first.was_waiting and at_once:  # seen at one look, so the order is not known
        first = at_once[0]
    if first.kind == KILLED and first.was_waiting:
        if not others or others[0].time > first.time + AT_ONCE_S:
            return []
        first = others[0]
    reach_s = SAME_LOOK_S if first.kind == KILLED else TOGETHER_S
    same = [
        failure
        for failure in candidates
        if failure.kind == first.kind
        and abs(failure.time - first.time) < reach_s
        and (failure.was_waiting == first.was_waiting or failure.kind != KILLED)
    ]
    # Where one rank is killed, MPICH's launcher kills all others at once.
    return same[:1] if first.kind == KILLED and all(failure.signal == signal.SIGKILL for failure in failures) else same


def left_without_finalize(stories: Sequence[RankStory], culprits: Sequence[Failure]) -> list[RankStory]:
    """Return MPI ranks that ended by os._exit(0) right before their launcher killed those who would be blamed."""
    if not culprits or any(failure.kind != KILLED for failure in culprits):
        return []
    killed = min(failure.time for failure in culprits)
    return [
        story
        for story in stories
        for agent in story.agents
        if agent.worlds and agent.exit_called and story.end is not None and story.end.is_clean
        if -SAME_LOOK_S <= killed - float(agent.exit_called["time"]) < LAUNCHER_S
    ]


def left_early(stories: Sequence[RankStory]) -> list[RankStory]:
    """Return ranks that ended with status 0 by os._exit, or long before the others, while these went on."""
    gone = [story for story in stories if story.end and story.end.is_clean]
    others = [story for story in stories if not (story.end and story.end.is_clean)]
    if not gone or not others:
        return []
    called = [story for story in gone if any(agent.exit_called for agent in story.agents)]
    return called or (gone if len(gone) < len(others) else [])
