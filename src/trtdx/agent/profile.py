"""Torch's profiler for a bounded window: some steps after the warm-up, where a step is a call of an outermost module.

TensorRT-LLM has switches of its own, which are set here, one file a process: 1.2.1 lets all ranks write the same one.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from .rank import RANK_VARIABLES, first_number

if TYPE_CHECKING:
    from types import ModuleType

    from .process import SupervisedProcess

TRTLLM_PATH, TRTLLM_WINDOW = "TLLM_TORCH_PROFILE_TRACE", "TLLM_PROFILE_START_STOP"


def watch_profile(process: SupervisedProcess) -> None:
    """Prepare the profiler where `TRTDX_PROFILE` says "FOLDER|WARMUP|STEPS|SECONDS|STACKS"."""
    request = os.environ.get("TRTDX_PROFILE", "")
    if not request:
        return
    folder, warmup, steps, seconds, stacks = request.rsplit("|", 4)
    os.makedirs(folder, exist_ok=True)
    if TRTLLM_WINDOW not in os.environ:
        os.environ[TRTLLM_WINDOW] = f"{warmup}-{int(warmup) + int(steps)}"
    if TRTLLM_PATH not in os.environ or os.path.dirname(os.environ[TRTLLM_PATH]) == folder:
        os.environ[TRTLLM_PATH] = _trace_path(folder)
    window = ProfileWindow(process, folder, int(warmup), int(steps), float(seconds), stacks == "stacks")
    process.imports.when_imported("torch.nn.modules.module", window.watch_modules)
    process.imports.when_imported("torch", window.watch_time)
    process.imports.when_imported("tensorrt_llm", window.leave_to_program)


def _trace_path(folder: str) -> str:
    rank = first_number(RANK_VARIABLES)
    return os.path.join(folder, f"trace-{os.getpid()}" + (f"-rank-{rank}" if rank >= 0 else "") + ".json")


class ProfileWindow:
    """Starts the profiler once and stops it once, always in the thread that computes."""

    def __init__(
        self, process: SupervisedProcess, folder: str, warmup: int, steps: int, seconds: float, stacks: bool
    ) -> None:
        self._process, self._folder, self._stacks = process, folder, stacks
        self._first, self._last, self._seconds = warmup, warmup + steps, seconds
        self._calls, self._depth, self._thread, self._pid = 0, 0, 0, 0
        self._profiler: Any = None
        self._is_over = False
        self._deadline = 0.0
        self._open: list[Any] = []  # annotations of modules that are being called
        self._step: Any = None
        self._names: dict[int, str] = {}

    def watch_modules(self, module: ModuleType) -> None:
        module.register_module_forward_pre_hook(self.before)
        module.register_module_forward_hook(self.after, always_call=True)

    def watch_time(self, module: ModuleType) -> None:
        """Let a program that calls no modules be profiled by time, and stop one whose steps are slow."""
        threading.Thread(target=self._keep_time, name="trtdx profile", daemon=True).start()
        atexit.register(self.stop)

    def leave_to_program(self, module: ModuleType) -> None:
        """Keep out of the way of TensorRT-LLM, which runs the profiler itself."""
        self._is_over = True

    def before(self, module: Any, args: Any) -> None:
        if self._is_over or (self._thread and threading.get_ident() != self._thread):
            return
        try:
            if self._depth == 0:
                self._begin_step(module)
            self._depth += 1
            if self._profiler is not None:
                self._open.append(self._annotate("module:" + self._names.get(id(module), type(module).__name__)))
        except Exception as err:
            self._process.note_failure("profile", err)
            self._is_over = True

    def after(self, module: Any, args: Any, output: Any) -> None:
        if self._is_over or threading.get_ident() != self._thread:
            return
        self._depth = max(0, self._depth - 1)
        if self._open:
            self._open.pop().__exit__(None, None, None)

    def _begin_step(self, module: Any) -> None:
        self._thread = threading.get_ident()
        self._calls += 1
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        is_late = self._deadline and time.monotonic() > self._deadline
        if self._profiler is None and self._calls > self._first:
            self.start()
        elif self._calls > self._last or is_late:
            self.stop()
        if self._profiler is not None and not self._is_over:
            self._names.update((id(part), name or "model") for name, part in module.named_modules())
            self._step = self._annotate(f"ProfilerStep#{self._calls - 1}")

    def _annotate(self, name: str) -> Any:
        annotation = sys.modules["torch"].profiler.record_function(name)
        annotation.__enter__()
        return annotation

    def start(self) -> None:
        torch = sys.modules["torch"]
        if self._is_over or self._profiler is not None:
            return
        if torch.autograd._profiler_enabled():  # the program, or TensorRT-LLM, profiles itself
            self._is_over = True
            self._process.journal.add_event("profile", words="the program runs torch's profiler itself")
            return
        self._profiler = torch.profiler.profile(record_shapes=True, with_stack=self._stacks)
        self._profiler.start()
        self._pid = os.getpid()
        self._deadline = time.monotonic() + self._seconds

    def stop(self) -> None:
        """Stop the profiler and write what it has; runs at the end of the program too."""
        if self._profiler is None or self._is_over or os.getpid() != self._pid:  # a fork leaves it to its parent
            return
        self._is_over = True
        for annotation in [*reversed(self._open), self._step]:
            if annotation is not None:
                annotation.__exit__(None, None, None)
        self._profiler.stop()
        path = _trace_path(self._folder)
        self._profiler.export_chrome_trace(path + ".part")
        os.replace(path + ".part", path)
        self._process.journal.add_event("profile", file=path)

    def _keep_time(self) -> None:
        """Start by time where no module is called, and stop by time where none is called any more."""
        time.sleep(self._seconds)
        if self._calls == 0:
            self._call_in_main_thread(self.start)
        until = time.monotonic() + 10 * self._seconds
        while not self._deadline and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(max(0.0, self._deadline + 1.0 - time.monotonic()))
        if self._thread in (0, threading.main_thread().ident):
            self._call_in_main_thread(self.stop)

    def _call_in_main_thread(self, action: Any) -> None:
        """Have the interpreter call something between two instructions of the main thread: torch profiles by thread."""

        def call(_: Any) -> int:
            try:
                action()
            except Exception as err:
                self._process.note_failure("profile", err)
                self._is_over = True
            return 0

        self._pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)  # kept: C holds no reference
        ctypes.pythonapi.Py_AddPendingCall(self._pending, None)
