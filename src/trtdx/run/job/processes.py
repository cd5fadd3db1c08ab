"""The job's processes as the system shows them: started, found, watched until they end, signalled."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.run.nouns import JobProcess, ProcessEnd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PR_SET_CHILD_SUBREAPER = 36
PIDFD_GET_INFO = 0xC040FF0B
PIDFD_INFO_EXIT = 1 << 3
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE")


def adopt_orphans(is_wanted: bool = True) -> None:
    """Become the parent of processes whose own has ended, so that how they end can be seen; or stop being it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0)


def start_command(argv: Sequence[str], environment: Mapping[str, str], output: Mapping[int, int]) -> int:
    """Start the command in our process group with our standard input; `output` maps its descriptors to ours.

    Raises:
        OSError: there is no such program, or it cannot be run.
    """
    actions = [(os.POSIX_SPAWN_DUP2, channel, fd) for fd, channel in output.items()]
    return os.posix_spawnp(
        argv[0],
        list(argv),
        dict(environment),
        file_actions=actions,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores both, and programs expect their default
    )


def send_signal(pid: int, number: int) -> bool:
    """Send a signal and return whether there was somebody to take it."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def read_process(pid: int) -> JobProcess | None:
    """Return a process as /proc shows it, or None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(") ")
    fields = rest.split()
    return JobProcess(pid=pid, ppid=int(fields[1]), name=name, state=fields[0], started=int(fields[19]))


def all_processes() -> Iterator[JobProcess]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := read_process(int(entry.name))):
            yield process


def command_line(pid: int) -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
        return tuple(os.fsdecode(word) for word in data.split(b"\0")[:-1])
    return ()


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty where it may not be read."""
    with contextlib.suppress(OSError):
        data = Path(f"/proc/{pid}/environ").read_bytes()
        pairs = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0") if entry)
        return {name: value for name, _, value in pairs}
    return {}


def bytes_moved(pid: int) -> int:
    """Return how many bytes a process has read and written so far; 0 where that may not be seen."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return int(lines[0].split()[1]) + int(lines[1].split()[1])
    return 0


def cpu_ticks(pid: int) -> int:
    """Return how long a process has computed, in ticks of the system's clock."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def catches_signal(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, and so would not die of it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def memory_group(pid: int) -> str:
    """Return the folder of the control group that limits a process's memory, or nothing."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                return f"/sys/fs/cgroup/memory{path}"
            if number == "0" and not controllers:
                return f"/sys/fs/cgroup{path}"
    return ""


def oom_kills(folder: str) -> int:
    """Return how many processes the kernel has killed for the memory limit of a control group."""
    for name in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError, ValueError):
            for line in Path(folder, name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def memory_limit(folder: str) -> int:
    for name in ("memory.limit_in_bytes", "memory.max"):
        with contextlib.suppress(OSError, ValueError):
            return int(Path(folder, name).read_text())
    return 0


def kernel_kills(since_s: float) -> dict[int, str]:
    """Return the kernel's own lines about processes it killed for want of memory, by process id.

    Args:
        since_s: seconds since boot before which lines are somebody else's.
    """
    lines: dict[int, str] = {}
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return lines
    try:
        for _ in range(100_000):
            try:
                record = os.read(fd, 8192).decode("utf-8", "replace")
            except BrokenPipeError:  # overwritten while we read
                continue
            head, _, text = record.partition(";")
            if "Killed process" in text and int(head.split(",")[2]) / 1e6 >= since_s:
                words = text.partition("Killed process ")[2].split()
                if words and words[0].isdigit():
                    lines[int(words[0])] = text.splitlines()[0]
    except (OSError, ValueError, IndexError):
        pass
    finally:
        os.close(fd)
    return lines


class EndWatch:
    """Notices the end of processes, our children or not, and how they ended."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._pidfds: dict[int, int] = {}  # descriptor -> pid
        self._pending: dict[int, tuple[int, float, int]] = {}  # pid -> pidfd, when, status seen while a zombie
        self._others: set[int] = set()

    def add_descriptor(self, fd: int) -> None:
        """Wake up for this descriptor too."""
        self._others.add(fd)
        self._poll.register(fd, select.EPOLLIN)

    def add_process(self, pid: int) -> bool:
        """Watch a process; False when it has gone already or the system cannot."""
        try:
            fd = os.pidfd_open(pid)
            self._poll.register(fd, select.EPOLLIN)
        except (OSError, AttributeError):
            return False
        self._pidfds[fd] = pid
        return True

    def wait(self, timeout_s: float) -> tuple[list[ProcessEnd], set[int]]:
        """Return the processes that have ended and the other descriptors with something to read."""
        ready: set[int] = set()
        with contextlib.suppress(InterruptedError):
            events = self._poll.poll(timeout_s)
            now = time.time()
            for place, (fd, _) in enumerate(events):
                if fd in self._others:
                    ready.add(fd)
                elif fd in self._pidfds:
                    self._poll.unregister(fd)
                    when = now + place * 1e-6  # the kernel lists them in the order in which they ended
                    self._pending[self._pidfds.pop(fd)] = (fd, when, _zombie_status(self._pending_pid(fd)))
        return self._settle(time.time()), ready

    def _pending_pid(self, fd: int) -> int:
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines():
                if line.startswith("Pid:"):
                    return int(line.split()[1])
        return -1

    def _settle(self, now: float) -> list[ProcessEnd]:
        ended = []
        for pid, (fd, when, zombie) in list(self._pending.items()):
            status = _reap(pid)
            if status is None:
                status = _status_from_pidfd(fd)
            if status is None and zombie == -1:
                zombie = _zombie_status(pid)
            if status is None and now - when > 1.0 and not Path(f"/proc/{pid}").exists():
                status = zombie
            if status is None and now - when > 3.0 and zombie >= 0:  # a zombie that nobody reaps
                status = zombie
            if status is not None:
                os.close(fd)
                del self._pending[pid]
                ended.append(ProcessEnd(pid=pid, time=when, status=status))
        return ended

    @property
    def pending(self) -> int:
        return len(self._pending)

    def close(self) -> None:
        for fd in [*self._pidfds, *(fd for fd, _, _ in self._pending.values())]:
            os.close(fd)
        self._poll.close()


def reap_child(process: JobProcess) -> None:
    """Take a zombie off the system's hands if it is our child: a process that was adopted and is nobody's concern."""
    if process.ppid == os.getpid():
        _reap(process.pid)


def _reap(pid: int) -> int | None:
    """Return the status of a child that has ended; None for what is not our child or lives."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except OSError:
        return None
    return status if ended else None


def _status_from_pidfd(fd: int) -> int | None:
    """Return how a process that somebody else has reaped ended; Linux tells since 6.15."""
    request = bytearray(struct.pack("<QQ", PIDFD_INFO_EXIT, 0) + bytes(48))
    try:
        fcntl.ioctl(fd, PIDFD_GET_INFO, request)
    except OSError:
        return None
    mask, status = struct.unpack_from("<Q", request)[0], struct.unpack_from("<i", request, 60)[0]
    return int(status) if mask & PIDFD_INFO_EXIT else None


def _zombie_status(pid: int) -> int:
    """Return a zombie's status as /proc shows it, or -1."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        if fields[0] in "ZX":
            return int(fields[49])
    return -1


class HostClock(msgspec.Struct, frozen=True):
    """When the job was started, on both clocks that its traces are dated by."""

    started: float
    uptime_s: float


def boot_clock(now: float) -> HostClock:
    with contextlib.suppress(OSError, ValueError):
        return HostClock(now, float(Path("/proc/uptime").read_text().split()[0]))
    return HostClock(now, 0.0)
