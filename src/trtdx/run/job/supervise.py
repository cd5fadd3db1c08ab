"""The supervisor: starts the command, passes signals on, watches every process, and never stands in the way."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.run.job import processes
from trtdx.run.job.live import is_all_in_one_call, is_in_call, ring_mark
from trtdx.run.job.stacks import is_importing, request_stacks
from trtdx.run.job.top_output import TopOutput
from trtdx.run.nouns import JobProcess, JobRecord, ProcessEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from trtdx.run.job.signals import SignalDesk
    from trtdx.run.nouns import RunRequest

AGENT_FOLDER = Path(__file__).parent.parent.parent / "agent"
TICK_S = 0.2
SCAN_S = 0.5
IMPORT_S = 16.0  # a large package may take this long to import without a word
GRACE_S = 1.5  # for ranks to follow a launcher that failed
TERM_S = 3.0  # between SIGTERM and SIGKILL for a job that hangs
DRAIN_S = 600.0
RECOVERY_S = 5.0
LONGEST_LOOK_S = 1.0  # that counts as quiet between two looks at the job
TOGETHER_S = 6.0  # more patience where nobody is missing: the first collective of a busy machine takes long
SMALL_TALK_BYTES = 1 << 17  # between two scans


class CommandStartError(Exception):
    """The command cannot be started; `status` is what a shell would end with."""

    def __init__(self, program: str, err: OSError) -> None:
        super().__init__(f"{program}: {err.strerror}")
        self.reason = err.strerror or str(err)
        self.status = 126 if err.errno in (errno.EACCES, errno.ENOEXEC, errno.EISDIR) else 127


class Supervisor:
    """One supervised job."""

    def __init__(
        self,
        request: RunRequest,
        case: Path,
        environment: Mapping[str, str],
        on_hang: Callable[[JobRecord], None],
        on_quiet: Callable[[], None],
        closed: Collection[int] = (),
    ) -> None:
        self._request, self._on_hang, self._on_quiet = request, on_hang, on_quiet
        self._closed = closed
        self.live = case / "live"
        self.live.mkdir(parents=True, exist_ok=True)
        self.run_id = uuid.uuid4().hex
        self._door_folder = Path(tempfile.mkdtemp(prefix="trtdx-"))
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._door.bind(str(self._door_folder / "door"))
        self._door.setblocking(False)
        self._environment = self._job_environment(environment)
        self._heartbeat = self.live / "heartbeat"
        self._watch = processes.EndWatch()
        self._strangers: set[tuple[int, int]] = set()  # processes known not to be the job's
        self.record = JobRecord(command=request.command, started=time.time())
        self._clock = processes.boot_clock(self.record.started)
        self._mark: tuple[object, ...] = ()
        self._moved = time.monotonic()
        self._killing = 0.0
        self._scanned = 0.0
        self._stacks_asked = False
        self._recovering = 0.0
        self._launcher_ticks = 0
        self._checked = 0.0
        self._is_prepared = False
        self._bytes: dict[int, tuple[int, int]] = {}  # by process: at the last scan, and at its last progress

    def _job_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        site = str(AGENT_FOLDER / "site")
        path = environment.get("PYTHONPATH", "")
        return {
            **environment,
            "PYTHONPATH": f"{site}{os.pathsep}{path}" if path else site,
            "TRTDX_RUN_ID": self.run_id,
            "TRTDX_LIVE": str(self.live),
            "TRTDX_SOCKET": str(self._door_folder / "door"),
            "TRTDX_HEARTBEAT": str(self.live / "heartbeat"),
        }

    def run(self, desk: SignalDesk) -> JobRecord:
        """Run the command to its end and return what was seen of the job."""
        processes.adopt_orphans()
        output = TopOutput(self.live / "launcher", self._closed)
        try:
            pid = processes.start_command(self._request.command, self._environment, output.channels)
        except OSError as err:
            self._close(output)
            raise CommandStartError(self._request.command[0], err) from err
        finally:
            output.release_channels()
        self.record.launcher_pid = pid
        self._watch.add_descriptor(desk.descriptor)
        self._watch.add_descriptor(self._door.fileno())
        self._add(processes.read_process(pid) or JobProcess(pid=pid, ppid=os.getpid(), name=self._request.command[0]))
        try:
            self._loop(desk, output)
            output.wait_until_passed_on(DRAIN_S)
            self.record.output_lost = output.lost_words()
        finally:
            self._finish(output)
        return self.record

    def _loop(self, desk: SignalDesk, output: TopOutput) -> None:
        grace_until = 0.0
        while True:
            self._step(desk, output)
            if self.record.launcher_end is None:
                continue
            if not grace_until:
                is_clean = self.record.launcher_end.is_clean and not self.record.was_killed_by_us
                grace_until = time.monotonic() + (0.0 if is_clean else GRACE_S if not self._killing else 2 * TERM_S)
            has_others = any(self._is_rank(pid) for pid in self._alive()) or (self._killing and self._alive())
            if time.monotonic() >= grace_until or not (has_others or self._watch.pending):
                return

    def _step(self, desk: SignalDesk, output: TopOutput) -> None:
        ended, ready = self._watch.wait(TICK_S if self.record.launcher_end is None else 0.02)
        if self._door.fileno() in ready:
            self._admit()
        for end in ended:
            self.record.ends[end.pid] = end
            if end.pid == self.record.launcher_pid:
                self.record.launcher_end = end
        if desk.descriptor in ready:
            self._pass_on(desk, output)
        now = time.monotonic()
        if now - self._scanned >= SCAN_S or (now - self._scanned >= 0.05 and time.time() - self.record.started < 1.0):
            self._scanned = now
            try:
                self._scan()
                self._check_progress(now)
            except (
                Exception
            ) as err:  # a case that was removed, a full disk, a mistake of members: the job must not notice
                self.record.problems.append(f"{type(err).__name__}: {err}")
        if self._killing:
            self._kill_on(now)

    def _admit(self) -> None:
        """Take in the Python processes that have announced themselves."""
        while True:
            try:
                words = self._door.recv(64)
            except OSError:
                return
            pid = int(words) if words.isdigit() else 0
            if pid in self.record.processes and pid not in self.record.ends:
                continue
            process = processes.read_process(pid)
            if process and processes.environment_of(pid).get("TRTDX_RUN_ID", self.run_id) == self.run_id:
                self._add(process)

    def _add(self, process: JobProcess) -> None:
        environment = processes.environment_of(process.pid)
        process.argv = processes.command_line(process.pid)
        process.variables = {
            name: environment[name]
            for name in (*processes.RANK_VARIABLES, *processes.SIZE_VARIABLES)
            if name in environment
        }
        process.is_marked = environment.get("TRTDX_RUN_ID") == self.run_id
        process.first_seen = time.time()
        process.memory_group = processes.memory_group(process.pid)
        process.oom_kills_before = processes.oom_kills(process.memory_group) if process.memory_group else 0
        self.record.processes[process.pid] = process
        self.record.ends.pop(process.pid, None)
        self._watch.add_process(process.pid)

    def _scan(self) -> None:
        """Find processes that are descendants of the command, or carry the mark of this run."""
        table = {process.pid: process for process in processes.all_processes()}
        members = {pid for pid in self._alive() if pid in table}
        for pid, process in table.items():
            if pid in self.record.processes and pid not in self.record.ends:
                self._update(self.record.processes[pid], process)
            elif process.state == "Z":
                processes.reap_child(process)
            elif pid not in members and self._belongs(process, table, members):
                members.add(pid)
                self._add(process)

    def _update(self, known: JobProcess, process: JobProcess) -> None:
        known.state = process.state  # its first parent stays known: an orphan is still a child of its rank
        known.most_memory_bytes = max(known.most_memory_bytes, processes.resident_bytes(known.pid))
        if (argv := processes.command_line(known.pid)) and argv != known.argv:
            known.argv, known.name = argv, process.name
        group = processes.memory_group(known.pid)
        if group and group != known.memory_group:
            known.memory_group, known.oom_kills_before = group, processes.oom_kills(group)

    def _belongs(self, process: JobProcess, table: Mapping[int, JobProcess], members: set[int]) -> bool:
        key = (process.pid, process.started)
        if key in self._strangers or process.pid == os.getpid():
            return False
        argv = processes.command_line(process.pid)
        if not argv:  # it is on its way out
            return False
        is_tee = any(word.endswith("agent/tee.py") for word in argv)
        parent, depth = process.ppid, 0
        while not is_tee and parent > 1 and depth < 200:
            if parent in members or parent == os.getpid():
                return True
            parent, depth = table[parent].ppid if parent in table else 0, depth + 1
        if not is_tee and processes.environment_of(process.pid).get("TRTDX_RUN_ID") == self.run_id:
            return True
        self._strangers.add(key)
        return False

    def _alive(self) -> list[int]:
        return [pid for pid in self.record.processes if pid not in self.record.ends]

    def _is_rank(self, pid: int) -> bool:
        return any(name in self.record.processes[pid].variables for name in processes.RANK_VARIABLES)

    def _check_progress(self, now: float) -> None:
        # Where this process gets no turn for a while, the job gets none either: such time is nobody's silence.
        self._moved += max(0.0, now - self._checked - LONGEST_LOOK_S) if self._checked else 0.0
        self._checked = now
        mark = self._progress_mark()
        if mark != self._mark:
            self._mark, self._moved = mark, now
            self._note_recovery(now)
        quiet = now - self._moved
        if quiet > self._request.quiet_for_s / 2 and not self._is_prepared:
            self._is_prepared = True
            self._on_quiet()
        if quiet < self._request.quiet_for_s or self.record.hang_seen or self.record.launcher_end:
            return
        if quiet < IMPORT_S and (self._is_starting() or self._is_importing()):
            return
        if quiet < self._request.quiet_for_s + TOGETHER_S and is_all_in_one_call(self.live, self._alive()):
            return
        self._report_hang(quiet)

    def _note_recovery(self, now: float) -> None:
        """Forget a hang when the job has been moving again for a while; the last words of a dying one do not count."""
        if not self.record.hang_seen or self._killing:
            return
        self._recovering = self._recovering or now
        if now - self._recovering > RECOVERY_S:
            self.record.hang_seen = self.record.quiet_since = self._recovering = 0.0
            self._stacks_asked = False

    def _is_starting(self) -> bool:
        """Whether a launcher is still at work on the first rank, which may take long on a busy machine."""
        launcher = processes.read_process(self.record.launcher_pid)
        spent = processes.cpu_ticks(self.record.launcher_pid)
        is_busy = spent > self._launcher_ticks or (launcher is not None and launcher.state in "RD")
        self._launcher_ticks = spent
        has_begun = len(self.record.processes) > 1 or any(self.live.glob("*/events.jsonl"))
        return is_busy and not has_begun

    def _is_importing(self) -> bool:
        if not self._stacks_asked:
            self._ask_for_stacks()
        return is_importing(self.live)

    def _ask_for_stacks(self) -> None:
        self._stacks_asked = True
        request_stacks(self.live, self._alive())
        self._mark = self._progress_mark()  # writing the stacks is no progress of the job

    def _report_hang(self, quiet: float) -> None:
        self._ask_for_stacks()
        self.record.hang_seen = time.time()
        self.record.quiet_since = self.record.hang_seen - quiet
        self._on_hang(self.record)
        if self._request.on_hang == "kill":
            self.record.was_killed_by_us = True
            self._killing = time.monotonic()
            self._signal_all(signal.SIGTERM)

    def _progress_mark(self) -> tuple[object, ...]:
        # Launchers keep talking to each other (torchrun's rendezvous does every five seconds) while the ranks stand still.
        alive = self._alive()
        watched = [pid for pid in alive if self._is_rank(pid)] or alive
        rings, outputs, waiting = [], [], set()
        for folder in self.live.iterdir():
            if folder.is_dir():
                rings.append((folder.name, ring_mark(folder)))
                outputs += [path.stat().st_size for path in folder.glob("*.log")]
                if is_in_call(folder):
                    waiting.add(folder.name.split("-")[-2])
        moved = tuple(sorted((pid, self._bytes_moved(pid, str(pid) in waiting)) for pid in watched))
        beat = self._heartbeat.stat().st_mtime_ns if self._heartbeat.exists() else 0
        return moved, tuple(sorted(rings)), sum(outputs), beat

    def _bytes_moved(self, pid: int, is_in_call: bool) -> int:
        """Return the bytes a process has moved; of one that waits in a collective only what is more than small talk.

        The store of a rendezvous is asked again and again by those who wait, and so it is by the watchdogs of torch.
        """
        moved = processes.bytes_moved(pid)
        before, counted = self._bytes.get(pid, (0, 0))
        if not is_in_call or moved - before >= SMALL_TALK_BYTES:
            counted = moved
        self._bytes[pid] = moved, counted
        return counted

    def _kill_on(self, now: float) -> None:
        if now - self._killing < TERM_S or not self._alive():
            return
        self._scan()
        self._signal_all(signal.SIGKILL)
        self._killing = now

    def _signal_all(self, number: int) -> None:
        for pid in self._alive():
            processes.send_signal(pid, number)

    def _pass_on(self, desk: SignalDesk, output: TopOutput) -> None:
        for received in desk.take():
            if received.number == signal.SIGWINCH:
                output.resize()
            is_shared = received.is_from_terminal or received.number in output.group_signals(0.05)
            if not is_shared and self.record.launcher_end is None:
                self.record.signals.append(received.number)
                processes.send_signal(self.record.launcher_pid, received.number)
            if received.number == signal.SIGTSTP:
                processes.send_signal(os.getpid(), signal.SIGSTOP)
            if received.number in (signal.SIGTSTP, signal.SIGCONT):
                self._moved = time.monotonic()

    def _finish(self, output: TopOutput) -> None:
        self._scan()
        deadline = time.monotonic() + 1.0
        while self._watch.pending and time.monotonic() < deadline:
            self.record.ends |= {end.pid: end for end in self._watch.wait(0.02)[0]}
        self.record.ended = time.time()
        self.record.left_behind = self._alive()
        self.record.kernel_kills = processes.kernel_kills(self._clock.uptime_s)
        self._close(output)

    def _close(self, output: TopOutput) -> None:
        processes.adopt_orphans(False)
        self._watch.close()
        output.close()
        self._door.close()
        shutil.rmtree(self._door_folder, ignore_errors=True)


def exit_status(end: ProcessEnd | None) -> int:
    """Return the status to end with: the command's own, or 128 and its signal's number."""
    if end is None or end.status < 0:
        return 1
    return 128 + end.signal if end.signal else end.exit_code or 0
