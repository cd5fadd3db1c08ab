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
from trtdx.engines.tensorrt.build.messages import (
    Defined,
    Done,
    Failed,
    Frames,
    Job,
    Said,
    Stage,
    Step,
    packed,
    write_all,
)
from trtdx.engines.tensorrt.build.nouns import LETTERS, Binding, Message, Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.engines.tensorrt.network.registration import Registry

ALIVE_S = 0.1  # how often somebody who waits looks whether anything is still wanted
REAPED_S = 10.0
PIECE = 1 << 16
MOST_OUTPUT = 64 << 20  # of what is printed past the logger
LAST_SAID = 5
# The child sees the modules that its parent sees, and nothing of the folder it happens to be started in.
PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; from trtdx.engines.tensorrt.build.child import main; main()"
)
DOING = {
    "define": "while the network was defined",
    "parse": "inside TensorRT's ONNX parser",
    "select": "while tensors were selected",
    "profile": "while the profiles were set",
    "compile": "inside TensorRT's compiler",
    "plan": "while the plan was written",
}
FIXES = {
    "SIGKILL": "look whether the machine ran out of memory: dmesg | grep -i 'killed process'",
    "SIGSEGV": "a crash inside TensorRT: the last message names where; trtdx inspect shows what is wrong with a model",
    "SIGABRT": "TensorRT gave itself up: the last message names where; trtdx inspect shows what is wrong with a model",
}
PRINTED = re.compile(r"(?:\[[\d/:. -]+\] )?\[TRT\] \[(?P<letter>[FEWIV])\] (?P<text>.*)")
SEVERITIES = {letter: severity for severity, letter in LETTERS.items()}


class Compiler:
    """One compile in a process of its own."""

    def __init__(
        self, job: Job, *, progress: Callable[[Progress], None] | None, cancel: Callable[[], bool] | None
    ) -> None:
        self.job = msgspec.structs.replace(job, began=time.monotonic())
        self.messages: list[Message] = []
        self.inputs: tuple[Binding, ...] = ()
        self.layers = 0
        self.stage = "start"
        self._progress = progress
        self._stop = _Stop(self.job, cancel)
        self._bar = _Bar()
        self._end: Done | Failed | None = None
        self._output = _Output(self.messages, self.job.began)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.job.began

    def run(self, network: Any = None, registry: Registry | None = None) -> Done:
        """Return what came of it, or raise why nothing did; the process is gone either way."""
        control, to_child = os.pipe()
        frames, from_child = os.pipe()
        printed, output = os.pipe()
        child_fds, parent_fds = [control, from_child, output], [to_child, frames, printed]
        process: host.Child | None = None
        try:
            if network is None:
                process = self._started(control, from_child, output)
            else:
                process = host.fork(lambda: self._forked(child_fds, parent_fds, network, registry))
            while child_fds:
                os.close(child_fds.pop())
            if network is None:
                with contextlib.suppress(BrokenPipeError):  # it died already, which is told below
                    write_all(to_child, packed(self.job))
            self._listen(process, frames, printed, to_child)
            status = process.wait(REAPED_S)
        finally:
            if process is not None:
                process.kill()
                process.wait(REAPED_S)
            for fd in (*child_fds, *parent_fds):
                os.close(fd)
        self._output.end()
        return self._ended(status)

    def _started(self, control: int, frames: int, output: int) -> host.Child:
        argv = [sys.executable, "-c", PROGRAM, str(control), str(frames), *sys.path]
        return host.start(argv, output=output, keep=(control, frames))

    def _forked(self, theirs: list[int], ours: list[int], network: Any, registry: Registry | None) -> None:
        from trtdx.engines.tensorrt.build.compiler import redirect_output

        control, frames, output = theirs
        for fd in ours:  # else this process would never see its parent's end
            os.close(fd)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        redirect_output(output)
        child.serve(self.job, control, frames, network, registry)

    def _listen(self, process: host.Child, frames: int, printed: int, to_child: int) -> None:
        """Read what comes until both pipes are at their end, or the process is and nothing is left in them."""
        pieces = Frames()
        with selectors.DefaultSelector() as waiting:
            waiting.register(frames, selectors.EVENT_READ, lambda data: self._take(pieces, data))
            waiting.register(printed, selectors.EVENT_READ, self._output.add)
            while waiting.get_map():
                ready = waiting.select(ALIVE_S)
                for key, _ in ready:
                    data = os.read(key.fd, PIECE)
                    if data:
                        key.data(data)
                    else:
                        waiting.unregister(key.fd)
                if not ready and process.status() is not None:
                    return  # somebody it started still holds a pipe
                self._stop.look(process, to_child)

    def _take(self, pieces: Frames, data: bytes) -> None:
        for frame in pieces.add(data):
            if isinstance(frame, Said):
                self.messages.append(frame.message)
            elif isinstance(frame, Step):
                progress = self._bar.take(frame)
                if self._progress is not None:
                    self._progress(progress)
            elif isinstance(frame, Stage):
                self.stage = frame.name
            elif isinstance(frame, Defined):
                self.inputs, self.layers = frame.inputs, frame.layers
            else:
                self._end = frame

    def _ended(self, status: int | None) -> Done:
        if isinstance(self._end, Done):
            return self._end
        raise self._error(status).with_what_was_said(
            self.job.name, self.messages, self.inputs, self.job.profiles
        )

    def _error(self, status: int | None) -> BuildError:
        if self._stop.reason:
            return BuildCancelledError(self._stop.reason, stage=self.stage)
        end = self._end
        if isinstance(end, Failed):
            kind = BuildCancelledError if end.cancelled else BuildError
            return kind(end.message, stage=end.stage, fix=end.fix, code=end.code, problem=end.problem)
        return self._crashed(status)

    def _crashed(self, status: int | None) -> BuildError:
        """Return the error of a process that left without a word, with the last that was said before."""
        killed = signal.Signals(-status).name if status is not None and status < 0 else ""
        how = f"ended without a result (status {status})"
        if killed:
            how = f"was ended by {killed}" if killed in ("SIGKILL", "SIGTERM") else f"crashed with {killed}"
        doing = DOING.get(self.stage, "when it started")
        texts = [message.text.strip() for message in self.messages if message.severity != "VERBOSE"]
        last = (
            f"; the last it said: {' | '.join(texts[-LAST_SAID:])}" if texts else "; it said nothing before"
        )
        return BuildCrashedError(
            f"the process that builds {self.job.name} {how} {doing}{last}",
            stage=self.stage,
            signal=killed,
            fix=FIXES.get(killed, "run it again; if it ends the same way, report it with this message"),
        )


class _Stop:
    """Notices that nobody wants the plan any more, asks the process to stop, and ends it when it does not."""

    def __init__(self, job: Job, cancel: Callable[[], bool] | None) -> None:
        self.reason = ""
        self._options, self._began, self._cancel = job.options, job.began, cancel
        self._asked = 0.0

    def look(self, process: host.Child, to_child: int) -> None:
        now = time.monotonic()
        if not self.reason:
            self.reason = self._why(now - self._began)
            if self.reason:
                self._asked = now
                with contextlib.suppress(BrokenPipeError):
                    os.write(to_child, b"stop")
        elif now - self._asked > self._options.cancel_s:
            process.kill()

    def _why(self, seconds: float) -> str:
        limit = self._options.timeout_s
        if limit is not None and seconds > limit:
            return f"the compile took longer than {limit:g} s and was stopped"
        return "the compile was cancelled" if self._cancel is not None and self._cancel() else ""


class _Output:
    """What is printed past the logger, as messages; TensorRT's own logger in C++ is recognised."""

    def __init__(self, messages: list[Message], began: float) -> None:
        self._messages, self._began = messages, began
        self._rest, self._taken = b"", 0

    def add(self, data: bytes) -> None:
        if self._taken > MOST_OUTPUT:
            return
        self._taken += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        if self._taken > MOST_OUTPUT:
            self._line(b"(more was printed, and is not kept)")

    def end(self) -> None:
        if self._rest:
            self._line(self._rest)

    def _line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        printed = PRINTED.fullmatch(text)
        severity = SEVERITIES[printed["letter"]] if printed else "OUTPUT"
        seconds = round(time.monotonic() - self._began, 6)
        self._messages.append(Message(seconds, severity, printed["text"] if printed else text))


class _Bar:
    """How far everything is: a phase is as far as its steps, and the step it is in as far as the phase inside it."""

    def __init__(self) -> None:
        self._open: dict[str, list[int]] = {}  # by phase, outermost first: steps done, steps in all
        self._fraction = 0.0

    def take(self, step: Step) -> Progress:
        if step.event == "start":
            self._open[step.phase] = [0, max(step.number, 1)]
        done = self._open.get(step.phase, [0, 1])
        if step.event == "step":
            done[0] = min(step.number + 1, done[1])
        if step.event == "end":
            done[0] = done[1]
        progress = Progress(step.phase, done[0], done[1], self._whole())
        if step.event == "end":
            self._open.pop(step.phase, None)
        return progress

    def _whole(self) -> float:
        inner = 0.0
        for done, steps in reversed(self._open.values()):
            inner = min((done + inner * (done < steps)) / steps, 1.0)
        self._fraction = max(self._fraction, inner)
        return self._fraction
