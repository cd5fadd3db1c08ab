"""Stacks of the job's processes: asked for, read back, put into words, grouped by what they are doing."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trtdx.agent.stacks import stack_signal
from trtdx.run.job.live import read_agents
from trtdx.run.job.processes import catches_signal, send_signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtdx.run.nouns import AgentRecord

ANSWER_S = 3.0
_THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)[^\n]*\(most recent call first\):\n", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$', re.MULTILINE)
# What the call that a thread is in says it waits for. x86-64 and aarch64 number system calls differently.
_SYSCALLS = {
    "x86_64": {0: "read", 7: "poll", 23: "select", 45: "recv", 47: "recv", 43: "accept", 42: "connect", 61: "wait4",
               202: "futex", 230: "sleep", 35: "sleep", 232: "epoll", 281: "epoll", 257: "open", 2: "open", 1: "write",
               44: "send", 46: "send", 73: "flock", 72: "fcntl", 247: "wait4", 271: "poll", 270: "select", 34: "pause"},
    "aarch64": {63: "read", 73: "poll", 72: "select", 207: "recv", 212: "recv", 202: "accept", 203: "connect",
                260: "wait4", 98: "futex", 115: "sleep", 101: "sleep", 22: "epoll", 56: "open", 64: "write",
                206: "send", 211: "send", 32: "flock", 25: "fcntl", 95: "wait4"},
}  # fmt: skip


class StackFrame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class ThreadStack(NamedTuple):
    """The frames of one thread, innermost first."""

    is_main: bool
    frames: tuple[StackFrame, ...]


def request_stacks(live: Path, pids: Iterable[int]) -> list[int]:
    """Ask the agents in these processes for the stacks of all threads; return who was asked.

    Only a process that is seen to catch the signal, into the file it opened for it, gets it: to any other the signal
    would be deadly.
    """
    alive = set(pids)
    sizes = {}
    for agent in read_agents(live):
        path = Path(agent.folder, "stacks.txt")
        if agent.pid in alive and is_listening(agent):
            before = path.stat().st_size
            if send_signal(agent.pid, stack_signal()):
                sizes[agent.pid] = (path, before)
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline and any(path.stat().st_size == before for path, before in sizes.values()):
        time.sleep(0.02)
    if sizes:
        time.sleep(0.05)  # a long stack takes more than one write
    return list(sizes)


def is_listening(agent: AgentRecord) -> bool:
    """Return whether a process still has the agent's handler and file."""
    with contextlib.suppress(OSError):
        is_open = str(Path(f"/proc/{agent.pid}/fd/{agent.stack_fd}").readlink()) == str(
            Path(agent.folder, "stacks.txt").resolve()
        )
        return is_open and catches_signal(agent.pid, stack_signal())
    return False


def parse_stacks(text: str) -> list[ThreadStack]:
    """Return the threads of the last dump in a text that faulthandler wrote."""
    starts = list(_THREAD.finditer(text))
    if not starts:
        return []
    # A dump lists other threads first and the one that took the signal last or first; a new one begins after a gap.
    threads: list[ThreadStack] = []
    identities: set[str] = set()
    for number in range(len(starts) - 1, -1, -1):
        if starts[number][2] in identities:
            break
        identities.add(starts[number][2])
        stop = starts[number + 1].start() if number + 1 < len(starts) else len(text)
        frames = tuple(
            StackFrame(file, int(line) if line.isdigit() else 0, function)
            for file, line, function in _FRAME.findall(text[starts[number].end() : stop])
        )
        threads.append(ThreadStack(starts[number][1] == "Current thread", frames))
    # faulthandler lists the newest thread first, so the main thread is the last of the dump unless it took the signal.
    return threads


def main_frames(text: str) -> tuple[StackFrame, ...]:
    """Return the frames of the thread that runs the program, innermost first."""
    threads = parse_stacks(text)
    for thread in threads:
        if any(frame.function == "<module>" for frame in thread.frames[-1:]):
            return thread.frames
    bodies = [thread for thread in threads if thread.is_main] or threads
    return bodies[0].frames if bodies else ()


def is_importing(live: Path) -> bool:
    """Return whether a process that answered is inside an import statement."""
    return any(
        any("importlib._bootstrap" in frame.file for frame in main_frames(agent.stacks)) for agent in read_agents(live)
    )


def own_frames(frames: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """Return the frames without the agent's."""
    return tuple(frame for frame in frames if "/trtdx/agent/" not in frame.file)


def source_line(frame: StackFrame) -> str:
    """Return the text of a frame's line, where its file can be read."""
    with contextlib.suppress(OSError, IndexError, UnicodeDecodeError):
        if frame.file.startswith("/") or Path(frame.file).is_file():
            return Path(frame.file).read_text().splitlines()[frame.line - 1].strip()[:160]
    return ""


def system_call(pid: int) -> tuple[str, str]:
    """Return the name of the system call a process's first thread waits in, and the file it concerns."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:
        return "", ""
    if not words or not words[0].lstrip("-").isdigit():
        return words[0] if words else "", ""
    name = _SYSCALLS.get(os.uname().machine, {}).get(int(words[0]), words[0])
    if name in ("read", "write", "recv", "send", "accept", "connect", "flock"):
        with contextlib.suppress(OSError, ValueError):
            return name, str(Path(f"/proc/{pid}/fd/{int(words[1], 16)}").readlink())
    return name, ""


def group_stacks(stacks: dict[str, tuple[StackFrame, ...]]) -> list[tuple[list[str], tuple[StackFrame, ...]]]:
    """Return who shares a stack, the largest group first."""
    groups: defaultdict[tuple[StackFrame, ...], list[str]] = defaultdict(list)
    for name, frames in stacks.items():
        groups[own_frames(frames)].append(name)
    return sorted(((names, frames) for frames, names in groups.items()), key=lambda group: -len(group[0]))
