"""`trtdx run stacks`: where every process of a run, or one process, is just now."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.run.job.live import read_agents
from trtdx.run.job.processes import all_processes, command_line, read_process
from trtdx.run.job.stacks import group_stacks, main_frames, parse_stacks, request_stacks, source_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.run.job.stacks import StackFrame

TOOL_S = 30.0


def stacks_of_case(case: str) -> Iterator[str]:
    """Yield who is where: asked anew where the processes live, else as they were last seen.

    Raises:
        InputError: no process of that case has left a stack.
    """
    live = Path(case, "live")
    agents = read_agents(live)
    alive = [agent.pid for agent in agents if read_process(agent.pid)]
    answered = request_stacks(live, alive)
    agents = read_agents(live)
    stacks: dict[str, tuple[StackFrame, ...]] = {}
    for agent in agents:
        name = f"rank {agent.ring_rank}" if agent.ring_rank >= 0 else f"process {agent.pid}"
        frames = main_frames(agent.stacks)
        if frames:
            stacks[f"{name} ({agent.pid})" if name in stacks else name] = frames
    if not stacks:
        raise InputError(f"{case}: no process of it has left a stack", fix="name the folder of a run, or a process id")
    yield (
        f"{len(answered)} processes answered just now"
        if answered
        else "no process lives; these are the last stacks taken"
    )
    for names, frames in group_stacks(stacks):
        yield f"\n{len(names)} in {frames[0].function}: {', '.join(sorted(names))}"
        for frame in frames:
            yield f"  {frame}" + (f"    {line}" if (line := source_line(frame)) else "")
    for agent in agents:
        others = [thread for thread in parse_stacks(agent.stacks) if thread.frames != main_frames(agent.stacks)]
        for thread in others[:16]:
            if thread.frames:
                yield f"\nanother thread of process {agent.pid}: {' <- '.join(map(str, thread.frames[:6]))}"


def stacks_of_process(host: Host, pid: int) -> Iterator[str]:
    """Yield the stacks of a process and what it has started, with py-spy or gdb.

    Raises:
        InputError: there is no such process, or no tool that can look into it.
    """
    if read_process(pid) is None:
        raise InputError(f"there is no process {pid}")
    for member in _descendants(pid):
        yield f"\nprocess {member}: {' '.join(command_line(member))[:120]}"
        yield from _tool_output(host, member)


def _descendants(pid: int) -> list[int]:
    parents = {process.pid: process.ppid for process in all_processes()}
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members


def _tool_output(host: Host, pid: int) -> Iterator[str]:
    spy = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    attempts = (
        (spy, "dump", "--native", "--pid", str(pid)),
        (spy, "dump", "--pid", str(pid)),
        ("gdb", "-p", str(pid), "-batch", "-nx", "-ex", "thread apply all bt 12"),
    )
    problems = []
    for argv in attempts:
        result = host.run(argv, timeout_s=TOOL_S)
        if result.status == 0 and result.stdout.strip():
            yield result.stdout.decode("utf-8", "replace").rstrip()
            return
        problems.append(result.problem or result.stderr.decode("utf-8", "replace").strip().splitlines()[-1:])
    yield f"  no stack: {problems[0]}; {problems[-1]}"
