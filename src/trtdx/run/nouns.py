"""The nouns of a supervised job: its processes, how they ended, what they did, and which rank they are."""

from __future__ import annotations

import signal
from typing import Any, Literal

import msgspec

OnHang = Literal["report", "kill"]
UNKNOWN_STATUS = -1


class ProfileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a run torch's profiler is to record."""

    folder: str  # for the traces, one a process
    warmup: int = 10  # steps before
    steps: int = 20
    seconds: float = 20.0  # at most; where no module is called also the time before
    stacks: bool = False

    def as_variable(self) -> str:
        """Return it as the agent reads it from its environment."""
        stacks = "stacks" if self.stacks else "plain"
        return f"{self.folder}|{self.warmup}|{self.steps}|{self.seconds}|{stacks}"


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line."""

    command: tuple[str, ...]
    case: str
    report_file: str = ""
    quiet_for_s: float = 300.0
    on_hang: OnHang = "report"
    sync: bool = False
    trace: bool = False
    tap: str = ""
    watch_nan: bool = False
    shapes: bool = False
    profile: ProfileRequest | None = None


class JobProcess(msgspec.Struct, kw_only=True):
    """One process of the job, Python or not."""

    pid: int
    ppid: int
    name: str
    state: str = ""
    started: int = 0  # clock ticks since boot
    argv: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    first_seen: float = 0.0
    most_memory_bytes: int = 0
    memory_group: str = ""
    oom_kills_before: int = 0
    is_marked: bool = False
    syscall: str = ""
    syscall_file: str = ""


class ProcessEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: its wait status, or -1 where nobody could see it."""

    pid: int
    time: float
    status: int

    @property
    def signal(self) -> int:
        return self.status & 0x7F if self.status >= 0 else 0

    @property
    def exit_code(self) -> int | None:
        return None if self.status < 0 or self.signal else self.status >> 8 & 0xFF

    @property
    def is_clean(self) -> bool:
        return self.status == 0

    def in_words(self) -> str:
        if self.status < 0:
            return "ended, nobody saw how"
        if self.signal:
            return f"died of {signal_name(self.signal)}"
        return f"exited with status {self.exit_code}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class RaisedException(msgspec.Struct, frozen=True, kw_only=True):
    """An exception that nobody caught, as the agent wrote it down."""

    time: float
    type: str
    text: str
    where: str = ""
    traceback: str = ""
    causes: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    thrown_in: str = "main"
    thread: str = ""

    def in_words(self) -> str:
        first = self.text.strip().splitlines()
        return f"{self.type}: {first[0][:300]}" if first else self.type


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A collective or a message, as one process called it."""

    name: str
    group: str
    number: int  # in its group, from 1; 0 for messages
    place: int = 0  # among all collectives of its process, from 1; 0 for messages
    data: dict[str, str]
    where: str
    began: float
    ended: float | None = None
    is_message: bool = False
    is_async: bool = False
    has_failed: bool = False

    @property
    def is_open(self) -> bool:
        return self.ended is None and not self.is_async

    def in_words(self) -> str:
        if self.is_message:
            return (
                f"{self.name} with {'rank ' + peer if (peer := self.data.get('peer', 'any')) != 'any' else 'any rank'}"
            )
        is_only_one = self.group.startswith(("world", "rendezvous", "multiprocessing")) and "[" not in self.group
        return f"{self.name} #{self.number}" + ("" if is_only_one else f" of group {self.group}")


class AgentRecord(msgspec.Struct, kw_only=True):
    """All that the agent wrote down in one process."""

    folder: str
    pid: int
    host: str = ""
    ppid: int = 0
    argv: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    started: float = 0.0
    stack_fd: int = -1
    ring_rank: int = -1
    ring_world: int = -1
    state: int = 1
    steps: int = 0
    exceptions: list[RaisedException] = []
    worlds: list[dict[str, Any]] = []
    groups: dict[str, list[int]] = {}
    calls: list[Call] = []
    calls_lost: int = 0
    exit_called: dict[str, Any] = {}  # os._exit
    exit_asked: dict[str, Any] = {}  # sys.exit with an error, which a program may still catch
    abort: dict[str, Any] = {}
    left: float = 0.0
    problems: list[str] = []
    stacks: str = ""
    crash: str = ""
    events: list[dict[str, Any]] = []


class RankStory(msgspec.Struct, kw_only=True):
    """All processes of one rank and what became of them; rank None is a process that is no rank."""

    rank: int | None
    pids: list[int]
    agents: list[AgentRecord]
    end: ProcessEnd | None = None  # of the process whose failure came first, else of the rank's first process
    is_alive: bool = False
    state: str = ""
    argv: tuple[str, ...] = ()
    is_oom_killed: bool = False
    oom_words: str = ""
    stack: str = ""

    @property
    def name(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else f"process {self.pids[0]}"

    @property
    def exceptions(self) -> list[RaisedException]:
        return sorted((one for agent in self.agents for one in agent.exceptions), key=lambda one: one.time)

    @property
    def calls(self) -> list[Call]:
        return sorted((call for agent in self.agents for call in agent.calls), key=lambda call: call.began)

    @property
    def open_call(self) -> Call | None:
        calls = [call for call in self.calls if call.is_open]
        return calls[-1] if calls else None


class JobRecord(msgspec.Struct, kw_only=True):
    """The whole job, as far as it could be seen."""

    command: tuple[str, ...]
    started: float
    ended: float = 0.0
    launcher_pid: int = 0
    launcher_end: ProcessEnd | None = None
    processes: dict[int, JobProcess] = {}
    ends: dict[int, ProcessEnd] = {}
    stories: list[RankStory] = []
    quiet_since: float = 0.0  # 0: it was never quiet for too long
    hang_seen: float = 0.0
    was_killed_by_us: bool = False
    kernel_kills: dict[int, str] = {}
    left_behind: list[int] = []
    output_lost: str = ""  # why its output could not be written where it was to go
    signals: list[int] = []  # that reached the supervisor and were passed on
    problems: list[str] = []  # what kept the supervisor from looking
