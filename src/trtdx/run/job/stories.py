"""Processes put together into ranks: which rank each is, how it ended, what it was doing last."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from trtdx.run.job.processes import RANK_VARIABLES, memory_limit, oom_kills, read_process
from trtdx.run.job.stacks import system_call
from trtdx.run.nouns import AgentRecord, ProcessEnd, RankStory
from trtdx.words import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.run.nouns import JobRecord

CHILD_BEFORE_PARENT_S = 5.0


def build_stories(record: JobRecord, agents: Sequence[AgentRecord]) -> list[RankStory]:
    """Return one story for each rank, then one for each Python process that is no rank."""
    by_pid: defaultdict[int, list[AgentRecord]] = defaultdict(list)
    for agent in agents:
        by_pid[agent.pid].append(agent)
    variables = {pid: process.variables for pid, process in record.processes.items()}
    variables |= {pid: entries[-1].variables for pid, entries in by_pid.items() if entries[-1].variables}
    variable = distinguishing_variable(list(variables.values()))
    members: defaultdict[int, list[int]] = defaultdict(list)
    others = []
    for pid in dict.fromkeys([*record.processes, *by_pid]):
        rank = rank_of(variables.get(pid, {}), variable, by_pid.get(pid, []))
        if rank is None:
            others.append(pid)
        else:
            members[rank].append(pid)
    stories = [_tell_story(record, rank, pids, by_pid) for rank, pids in sorted(members.items())]
    plain = [pid for pid in others if pid in by_pid or pid == record.launcher_pid]
    return stories + [_tell_story(record, None, [pid], by_pid) for pid in plain]


def distinguishing_variable(environments: Sequence[Mapping[str, str]]) -> str:
    """Return the variable that tells most processes apart: the innermost launcher's, where launchers are nested."""
    counts = {
        name: len({environment[name] for environment in environments if environment.get(name, "").isdigit()})
        for name in RANK_VARIABLES
    }
    best = max(counts.values())
    return next(name for name in RANK_VARIABLES if counts[name] == best) if best else ""


def rank_of(variables: Mapping[str, str], variable: str, agents: Sequence[AgentRecord]) -> int | None:
    if variables.get(variable, "").isdigit():
        return int(variables[variable])
    worlds = [world for agent in agents for world in agent.worlds if world.get("library") == "torch"]
    if worlds:
        return int(worlds[-1]["rank"])
    # A rendezvous that failed or still waits gave nobody a rank, but each process named its own.
    stated = [
        call.data.get("rank", "") for agent in agents for call in agent.calls if call.name == "init_process_group"
    ]
    return next((int(word) for word in reversed(stated) if word.isdigit()), None)


def _tell_story(
    record: JobRecord, rank: int | None, pids: list[int], by_pid: Mapping[int, list[AgentRecord]]
) -> RankStory:
    top = _first_process(record, pids, by_pid)
    agents = [agent for pid in pids for agent in by_pid.get(pid, [])]
    story = RankStory(rank=rank, pids=[top, *(pid for pid in pids if pid != top)], agents=agents)
    process = record.processes.get(top)
    story.argv = process.argv if process else agents[0].argv if agents else ()
    story.end = _first_failure(record, top, pids)
    live = None if story.end else read_process(top)
    story.is_alive = live is not None and live.state not in "ZX"
    story.state = live.state if live else ""
    for pid in pids:
        if pid in record.processes and pid not in record.ends:
            record.processes[pid].syscall, record.processes[pid].syscall_file = system_call(pid)
    story.oom_words = _oom_words(record, pids)
    story.is_oom_killed = bool(story.oom_words)
    story.stack = next((agent.stacks for agent in reversed(agents) if agent.stacks), "")
    return story


def _first_process(record: JobRecord, pids: Sequence[int], by_pid: Mapping[int, list[AgentRecord]]) -> int:
    """Return the process of a rank that is no child of another one of it: of several, one after the other, the last.

    A shell runs other things before the program, and a launcher starts a rank again that has failed.
    """
    known = {pid: record.processes[pid] for pid in pids if pid in record.processes}
    tops = [pid for pid, process in known.items() if process.ppid not in pids]
    return max(tops, key=lambda pid: (pid in by_pid, known[pid].started), default=pids[0])


def _first_failure(record: JobRecord, top: int, pids: Sequence[int]) -> ProcessEnd | None:
    """Return how a rank ended: where its first process failed, the failure that came before it among its children."""
    end = record.ends.get(top)
    if end is None or end.is_clean:
        return end
    failures = [
        record.ends[pid]
        for pid in pids
        if pid in record.ends
        and not record.ends[pid].is_clean
        and end.time - record.ends[pid].time < CHILD_BEFORE_PARENT_S
    ]
    # A shell says 128+n of a child that died of signal n: the child's own end says more.
    return min(failures, key=lambda failure: failure.time)


def _oom_words(record: JobRecord, pids: Sequence[int]) -> str:
    """Return the words that prove the kernel killed a process of the rank for want of memory."""
    for pid in pids:
        end, process = record.ends.get(pid), record.processes.get(pid)
        if end is None or end.signal != 9 or process is None:
            continue
        if pid in record.kernel_kills:
            return record.kernel_kills[pid]
        group = process.memory_group
        if group and oom_kills(group) > process.oom_kills_before:
            limit = memory_limit(group)
            return f"oom_kill of {group} went up; its limit is {format_bytes(limit)}"
    return ""
