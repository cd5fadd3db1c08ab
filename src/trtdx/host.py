"""The door to the outside world: environment variables, processes, the clock, and files that a case can hold.

`RealHost` acts on this machine. `RecordedHost` replays what a case recorded, so that every user's case is a
test fixture and nothing behind this door can tell the difference.

Environment variables, processes and the clock are reached through here in the whole house. Files are in the rooms
that a case must be able to replay: `diagnose`, `inspect`, `memory`, `knowledge`, `case.py` and the readers of
`formats`. Rooms that compute tensors (`engines`, `capture`, `compare`, `testing`, `formats/onnx`) open their files
themselves, because the libraries they work with take paths. `tests/test_project.py` holds this, and lists the few
exceptions with their reasons.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Protocol

import msgspec

from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class CommandResult(msgspec.Struct, frozen=True):
    """How a command ended."""

    argv: tuple[str, ...]
    status: int | None  # None: it could not be started or did not end in time
    stdout: bytes = b""
    stderr: bytes = b""
    problem: str = ""


class ChildProcess:
    """A process of ours that runs beside us, at the head of a session of its own."""

    def __init__(self, pid: int, poll: Callable[[], int | None]) -> None:
        self.pid = pid
        self._poll = poll

    def status(self) -> int | None:
        """Return how it ended (a signal's number is negative), or None while it runs."""
        return self._poll()

    def wait(self, timeout_s: float) -> int | None:
        """Return how it ended, or None when it has not ended by then."""
        until = time.monotonic() + timeout_s
        while self._poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        return self._poll()

    def kill(self) -> None:
        """End it and what it started."""
        if self._poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def start_process(
    argv: Sequence[str],
    *,
    output_fd: int,
    inherited_fds: Sequence[int] = (),
    folder: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> ChildProcess:
    """Start a command that prints into the pipe `output` and inherits the descriptors `keep`."""
    process = subprocess.Popen(
        list(argv),
        cwd=folder,
        env=None if environment is None else dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
        pass_fds=tuple(inherited_fds),
        start_new_session=True,
    )
    return ChildProcess(process.pid, process.poll)


def end_orphan(pid: int, mark: str) -> bool:
    """End a process group that an earlier run of ours left behind; `mark` in its environment proves that it is ours."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    if mark.encode() not in environment.split(b"\0"):
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return True


MOST_JOB_OUTPUT = 64 << 20


def run_job(argv: Sequence[str], *, timeout_s: float, grace_s: float = 5.0) -> CommandResult:
    """Run a launcher of ranks to its end; when its time is up it is asked to end its ranks before it is killed.

    Standard output and standard error come back as one stream, as a terminal would show them.
    """
    with tempfile.TemporaryFile() as output:
        try:
            job = start_process(argv, output_fd=output.fileno(), inherited_fds=())
        except OSError as err:
            return CommandResult(tuple(argv), None, problem=f"could not be started: {err.strerror or err}")
        status = job.wait(timeout_s)
        if status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(job.pid, signal.SIGTERM)  # a launcher that is killed leaves its ranks behind
            job.wait(grace_s)
            job.kill()
            job.wait(1.0)
        output.seek(0)
        late = "" if status is not None else f"did not end within {timeout_s:g} s"
        return CommandResult(tuple(argv), status, output.read(MOST_JOB_OUTPUT), problem=late)


def run_attached(argv: Sequence[str]) -> int:
    """Run a command on this terminal and return its status as a shell would: 128 + n for a signal n."""
    try:
        status = subprocess.run(list(argv), check=False).returncode
    except OSError as err:
        raise InputError(f"{argv[0]} could not be started: {err.strerror or err}") from err
    return status if status >= 0 else 128 - status


def fork_process(work: Callable[[], None]) -> ChildProcess:
    """Start a copy of this process that does the work and ends; for what cannot be sent to a new process."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns where there are other threads
        pid = os.fork()
    if not pid:
        try:
            os.setsid()
            work()
        finally:
            os._exit(1)  # never back into the caller's code
    ended: list[int] = []

    def poll() -> int | None:
        if not ended:
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
            if ended_pid:
                ended.append(os.waitstatus_to_exitcode(status))
        return ended[0] if ended else None

    return ChildProcess(pid, poll)


class Host(Protocol):
    """What the rest of trtdx may ask of the outside world."""

    def open(self, path: str) -> BinaryIO:
        """Return the file's bytes as a stream; `-` is standard input."""

    def kind(self, path: str) -> str:
        """Return "file", "directory", "other" or "absent"."""

    def entries(self, path: str) -> list[str]:
        """Return the names directly in a directory, in a fixed order."""

    def files(self, path: str) -> list[str]:
        """Return all files below a directory, in a fixed order."""

    def real(self, path: str) -> str:
        """Return where a path really lies: absolute, links followed."""

    def closed_folders(self, path: str) -> list[str]:
        """Return the folders below a directory, itself included, that cannot be listed."""

    def size(self, path: str) -> int:
        """Return a file's length in bytes."""

    def write(self, path: str, data: bytes) -> None:
        """Replace a file in one step, so that a reader sees the old or the new one whole."""

    def append(self, path: str, data: bytes) -> None:
        """Add to the end of a file, in one write where the system takes it whole."""

    def run(self, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        """Run a command to its end or its timeout, keeping its output."""

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables."""

    def now(self) -> float:
        """Return seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


def _is_no_pipe(path: str) -> bool:
    """Whether opening a file cannot wait for ever, as opening a pipe or a device can."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116  (a Path for each of ten thousand files takes longer than the call)
    except OSError:
        return True  # opening it will say why
    return stat.S_ISREG(mode)


class RealHost:
    """This machine."""

    def open(self, path: str) -> BinaryIO:
        if path == "-":
            return sys.stdin.buffer
        try:
            return Path(path).open("rb", buffering=0)  # raw: blocks are read whole
        except OSError as err:
            raise InputError(f"cannot read {path}: {err.strerror or err}") from err

    def kind(self, path: str) -> str:
        target = Path(path)
        try:
            if target.is_dir():
                return "directory"
            if target.is_file():
                return "file"
            return "other" if target.exists() else "absent"
        except OSError:
            return "absent"

    def entries(self, path: str) -> list[str]:
        try:
            return sorted(entry.name for entry in Path(path).iterdir())
        except OSError as err:
            raise InputError(f"cannot list {path}: {err.strerror or err}") from err

    def files(self, path: str) -> list[str]:
        paths = []
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            paths += [str(Path(folder) / name) for name in sorted(names) if not name.startswith(".")]
        return [path for path in paths if _is_no_pipe(path)]

    def real(self, path: str) -> str:
        return os.path.realpath(path)

    def closed_folders(self, path: str) -> list[str]:
        closed: list[str] = []
        for _ in os.walk(path, onerror=lambda err: closed.append(str(err.filename))):
            pass
        return sorted(closed)

    def size(self, path: str) -> int:
        return Path(path).stat().st_size

    def write(self, path: str, data: bytes) -> None:
        target = Path(path)
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(data)
            part.replace(target)
        except OSError as err:
            with contextlib.suppress(OSError):
                part.unlink()
            raise InputError(f"cannot write {path}: {err.strerror or err}") from err

    def append(self, path: str, data: bytes) -> None:
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("ab", buffering=0) as file:
                rest = memoryview(data)
                while rest:  # a full disk or a signal may take less than all of it
                    rest = rest[file.write(rest) or 0 :]
        except OSError as err:
            raise InputError(f"cannot write {path}: {err.strerror or err}") from err

    def run(self, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        try:
            done = subprocess.run(
                list(argv), capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired as late:
            return CommandResult(
                tuple(argv),
                None,
                late.stdout or b"",
                late.stderr or b"",
                f"did not end within {timeout_s:g} s",
            )
        except OSError as err:
            return CommandResult(tuple(argv), None, problem=f"could not be started: {err.strerror or err}")
        return CommandResult(tuple(argv), done.returncode, done.stdout, done.stderr)

    def environment(self) -> Mapping[str, str]:
        return dict(os.environ)

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class RecordedHost:
    """A recording: files, command results, environment and a clock that moves only by `sleep`."""

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        commands: Sequence[CommandResult] = (),
        environment: Mapping[str, str] | None = None,
        now: float = 0.0,
    ) -> None:
        self._files = dict(files or {})
        self._commands = {done.argv: done for done in commands}
        self._environment = dict(environment or {})
        self._now = now

    def open(self, path: str) -> BinaryIO:
        if path not in self._files:
            raise InputError(f"cannot read {path}: it is not in the recording")
        return io.BytesIO(self._files[path])

    def kind(self, path: str) -> str:
        if path in self._files:
            return "file"
        return "directory" if self.files(path) else "absent"

    def entries(self, path: str) -> list[str]:
        depth = len(PurePosixPath(path).parts)
        return sorted({PurePosixPath(name).parts[depth] for name in self.files(path)})

    def files(self, path: str) -> list[str]:
        folder = path.rstrip("/") + "/"
        return sorted(name for name in self._files if name.startswith(folder))

    def real(self, path: str) -> str:
        return posixpath.normpath(path)

    def closed_folders(self, path: str) -> list[str]:
        return []

    def size(self, path: str) -> int:
        return len(self._files[path])

    def write(self, path: str, data: bytes) -> None:
        self._files[path] = data

    def append(self, path: str, data: bytes) -> None:
        self._files[path] = self._files.get(path, b"") + data

    def run(self, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        return self._commands.get(tuple(argv)) or CommandResult(tuple(argv), None, problem="not in the recording")

    def environment(self) -> Mapping[str, str]:
        return dict(self._environment)

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


_CLOSED_AT_START: set[int] = set()


def open_closed_streams() -> set[int]:
    """Put the null device where a standard stream is closed, and return which have been closed since the start.

    Else the next file that is opened would take the stream's number, and be written to by whatever prints.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            _CLOSED_AT_START.add(number)
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    return set(_CLOSED_AT_START)
