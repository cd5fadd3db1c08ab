"""The compiling process seen from its parent: started, listened to, cancelled, and never left behind."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx import host
from trtdx.engines.tensorrt.build import child
from trtdx.engines.tensorrt.build.errors import BuildCancelledError, BuildCrashedError, BuildError
from trtdx.engines.tensorrt.build.frames import (
    BuildDone,
    BuildFailed,
    BuildJob,
    FrameReader,
    MessageLogged,
    NetworkDefined,
    PhaseEvent,
    StageStarted,
    pack_frame,
    write_all,
)
from trtdx.engines.tensorrt.build.nouns import SEVERITY_LETTERS, Binding, BuildMessage, BuildProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.engines.tensorrt.network.registration import TensorRegistry

POLL_S = 0.1  # how often somebody who waits looks whether anything is still wanted
REAP_TIMEOUT_S = 10.0
READ_BYTES = 1 << 16
MOST_OUTPUT_BYTES = 64 << 20  # of what is printed past the logger
LAST_MESSAGES = 5
# The child sees the modules that its parent sees, and nothing of the folder it happens to be started in.
CHILD_PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; from trtdx.engines.tensorrt.build.child import main; main()"
STAGE_TEXTS = {
    "define": "while the network was defined",
    "parse": "inside TensorRT's ONNX parser",
    "select": "while tensors were selected",
    "profile": "while the profiles were set",
    "compile": "inside TensorRT's compiler",
    "plan": "while the plan was written",
}
SIGNAL_FIXES = {
    "SIGKILL": "look whether the machine ran out of memory: dmesg | grep -i 'killed process'",
    "SIGSEGV": "a crash inside TensorRT: the last message names where; trtdx inspect shows what is wrong with a model",
    "SIGABRT": "TensorRT gave itself up: the last message names where; trtdx inspect shows what is wrong with a model",
}
CPP_LOGGER_LINE = re.compile(r"(?:\[[\d/:. -]+\] )?\[TRT\] \[(?P<letter>[FEWIV])\] (?P<text>.*)")
SEVERITY_BY_LETTER = {letter: severity for severity, letter in SEVERITY_LETTERS.items()}


class BuildProcess:
    """One compile in a process of its own."""

    def __init__(
        self,
        job: BuildJob,
        *,
        progress: Callable[[BuildProgress], None] | None,
        cancel: Callable[[], bool] | None,
    ) -> None:
        self.job = msgspec.structs.replace(job, began=time.monotonic())
        self.messages: list[BuildMessage] = []
        self.inputs: tuple[Binding, ...] = ()
        self.layers = 0
        self.stage = "start"
        self._progress = progress
        self._stop = _StopRequest(self.job, cancel)
        self._progress_bar = _ProgressBar()
        self._end: BuildDone | BuildFailed | None = None
        self._output = _PrintedOutput(self.messages, self.job.began)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.job.began

    def run(self, network: Any = None, registry: TensorRegistry | None = None) -> BuildDone:
        """Return what came of it, or raise why nothing did; the process is gone either way."""
        control, to_child = os.pipe()
        frames, from_child = os.pipe()
        printed, output = os.pipe()
        child_fds, parent_fds = [control, from_child, output], [to_child, frames, printed]
        process: host.ChildProcess | None = None
        try:
            if network is None:
                process = self._start_child(control, from_child, output)
            else:
                process = host.fork_process(lambda: self._serve_in_fork(child_fds, parent_fds, network, registry))
            while child_fds:
                os.close(child_fds.pop())
            if network is None:
                with contextlib.suppress(BrokenPipeError):  # it died already, which is told below
                    write_all(to_child, pack_frame(self.job))
            self._read_until_exit(process, frames, printed, to_child)
            status = process.wait(REAP_TIMEOUT_S)
        finally:
            if process is not None:
                process.kill()
                process.wait(REAP_TIMEOUT_S)
            for fd in (*child_fds, *parent_fds):
                os.close(fd)
        self._output.end()
        return self._result_or_error(status)

    def _start_child(self, control: int, frames: int, output: int) -> host.ChildProcess:
        argv = [sys.executable, "-c", CHILD_PROGRAM, str(control), str(frames), *sys.path]
        return host.start_process(argv, output_fd=output, inherited_fds=(control, frames))

    def _serve_in_fork(
        self, child_fds: list[int], parent_fds: list[int], network: Any, registry: TensorRegistry | None
    ) -> None:
        from trtdx.engines.tensorrt.build.compiler import redirect_output

        control, frames, output = child_fds
        for fd in parent_fds:  # else this process would never see its parent's end
            os.close(fd)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        redirect_output(output)
        child.serve_job(self.job, control, frames, network, registry)

    def _read_until_exit(self, process: host.ChildProcess, frames: int, printed: int, to_child: int) -> None:
        """Read what comes until both pipes are at their end, or the process is and nothing is left in them."""
        pieces = FrameReader()
        with selectors.DefaultSelector() as waiting:
            waiting.register(frames, selectors.EVENT_READ, lambda data: self._handle_frames(pieces, data))
            waiting.register(printed, selectors.EVENT_READ, self._output.add)
            while waiting.get_map():
                ready = waiting.select(POLL_S)
                for key, _ in ready:
                    data = os.read(key.fd, READ_BYTES)
                    if data:
                        key.data(data)
                    else:
                        waiting.unregister(key.fd)
                if not ready and process.status() is not None:
                    return  # somebody it started still holds a pipe
                self._stop.check(process, to_child)

    def _handle_frames(self, reader: FrameReader, data: bytes) -> None:
        for frame in reader.feed(data):
            if isinstance(frame, MessageLogged):
                self.messages.append(frame.message)
            elif isinstance(frame, PhaseEvent):
                progress = self._progress_bar.advance(frame)
                if self._progress is not None:
                    self._progress(progress)
            elif isinstance(frame, StageStarted):
                self.stage = frame.name
            elif isinstance(frame, NetworkDefined):
                self.inputs, self.layers = frame.inputs, frame.layers
            else:
                self._end = frame

    def _result_or_error(self, status: int | None) -> BuildDone:
        if isinstance(self._end, BuildDone):
            return self._end
        raise self._build_error(status).with_build_context(self.job.name, self.messages, self.inputs, self.job.profiles)

    def _build_error(self, status: int | None) -> BuildError:
        if self._stop.reason:
            return BuildCancelledError(self._stop.reason, stage=self.stage)
        end = self._end
        if isinstance(end, BuildFailed):
            kind = BuildCancelledError if end.cancelled else BuildError
            return kind(end.message, stage=end.stage, fix=end.fix, code=end.code, problem=end.problem)
        return self._crash_error(status)

    def _crash_error(self, status: int | None) -> BuildError:
        """Return the error of a process that left without a word, with the last that was said before."""
        killed = signal.Signals(-status).name if status is not None and status < 0 else ""
        how = f"ended without a result (status {status})"
        if killed:
            how = f"was ended by {killed}" if killed in ("SIGKILL", "SIGTERM") else f"crashed with {killed}"
        doing = STAGE_TEXTS.get(self.stage, "when it started")
        texts = [message.text.strip() for message in self.messages if message.severity != "VERBOSE"]
        last = f"; the last it said: {' | '.join(texts[-LAST_MESSAGES:])}" if texts else "; it said nothing before"
        return BuildCrashedError(
            f"the process that builds {self.job.name} {how} {doing}{last}",
            stage=self.stage,
            signal=killed,
            fix=SIGNAL_FIXES.get(killed, "run it again; if it ends the same way, report it with this message"),
        )


class _StopRequest:
    """Notices that nobody wants the plan any more, asks the process to stop, and ends it when it does not."""

    def __init__(self, job: BuildJob, cancel: Callable[[], bool] | None) -> None:
        self.reason = ""
        self._options, self._began, self._cancel = job.options, job.began, cancel
        self._requested_at = 0.0

    def check(self, process: host.ChildProcess, to_child: int) -> None:
        now = time.monotonic()
        if not self.reason:
            self.reason = self._stop_reason(now - self._began)
            if self.reason:
                self._requested_at = now
                with contextlib.suppress(BrokenPipeError):
                    os.write(to_child, b"stop")
        elif now - self._requested_at > self._options.cancel_s:
            process.kill()

    def _stop_reason(self, seconds: float) -> str:
        limit = self._options.timeout_s
        if limit is not None and seconds > limit:
            return f"the compile took longer than {limit:g} s and was stopped"
        return "the compile was cancelled" if self._cancel is not None and self._cancel() else ""


class _PrintedOutput:
    """What is printed past the logger, as messages; TensorRT's own logger in C++ is recognised."""

    def __init__(self, messages: list[BuildMessage], began: float) -> None:
        self._messages, self._began = messages, began
        self._rest, self._read_bytes = b"", 0

    def add(self, data: bytes) -> None:
        if self._read_bytes > MOST_OUTPUT_BYTES:
            return
        self._read_bytes += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._append_line(line)
        if self._read_bytes > MOST_OUTPUT_BYTES:
            self._append_line(b"(more was printed, and is not kept)")

    def end(self) -> None:
        if self._rest:
            self._append_line(self._rest)

    def _append_line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        printed = CPP_LOGGER_LINE.fullmatch(text)
        severity = SEVERITY_BY_LETTER[printed["letter"]] if printed else "OUTPUT"
        seconds = round(time.monotonic() - self._began, 6)
        self._messages.append(BuildMessage(seconds, severity, printed["text"] if printed else text))


class _ProgressBar:
    """How far everything is: a phase is as far as its steps, and the step it is in as far as the phase inside it."""

    def __init__(self) -> None:
        self._open: dict[str, list[int]] = {}  # by phase, outermost first: steps done, steps in all
        self._fraction = 0.0

    def advance(self, step: PhaseEvent) -> BuildProgress:
        if step.event == "start":
            self._open[step.phase] = [0, max(step.number, 1)]
        done = self._open.get(step.phase, [0, 1])
        if step.event == "step":
            done[0] = min(step.number + 1, done[1])
        if step.event == "end":
            done[0] = done[1]
        progress = BuildProgress(step.phase, done[0], done[1], self._total_fraction())
        if step.event == "end":
            self._open.pop(step.phase, None)
        return progress

    def _total_fraction(self) -> float:
        inner = 0.0
        for done, steps in reversed(self._open.values()):
            inner = min((done + inner * (done < steps)) / steps, 1.0)
        self._fraction = max(self._fraction, inner)
        return self._fraction
