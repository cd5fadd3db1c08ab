"""The first exception nobody caught: its words, its frames, and the tensors in them."""

from __future__ import annotations

import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from .process import SupervisedProcess

TENSOR_PACKAGES = {"numpy", "torch", "cupy", "jax", "jaxlib", "tensorrt", "tensorrt_llm"}
MOST_FRAMES = 40
MOST_TENSORS = 60
MOST_TEXT = 4000


def describe_tensor(value: Any) -> str:
    """Return shape and dtype of an array or tensor, or nothing for any other value."""
    if type(value).__module__.partition(".")[0] not in TENSOR_PACKAGES:
        return ""
    try:
        shape, dtype = value.shape, value.dtype
    except Exception:
        return ""
    return f"{tuple(shape)} {dtype}"


def tensors_in_frames(trace: TracebackType | None) -> list[str]:
    """Return the tensors among the variables of the frames, innermost frame last."""
    lines: list[str] = []
    while trace is not None and len(lines) < MOST_TENSORS:
        code = trace.tb_frame.f_code
        for name, value in list(trace.tb_frame.f_locals.items())[:200]:
            words = describe_tensor(value)
            if words:
                lines.append(f"{code.co_filename}:{trace.tb_lineno} {code.co_name}: {name} = {words}")
        trace = trace.tb_next
    return lines[:MOST_TENSORS]


def exception_data(
    kind: type[BaseException], value: BaseException | None, trace: TracebackType | None
) -> dict[str, Any]:
    """Return what the journal keeps of an exception; its causes are those it was raised from."""
    lines = traceback.format_exception(kind, value, trace, limit=-MOST_FRAMES)
    origin = traceback.extract_tb(trace, limit=-1) if trace else None
    causes: list[str] = []
    cause = (value.__cause__ or value.__context__) if value else None
    while cause is not None and len(causes) < 5:
        causes.append(f"{type(cause).__name__}: {str(cause)[:300]}")
        cause = cause.__cause__ or cause.__context__
    return {
        "type": f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__,
        "text": str(value)[:MOST_TEXT],
        "where": f"{origin[0].filename}:{origin[0].lineno} in {origin[0].name}" if origin else "",
        "traceback": "".join(lines)[-4 * MOST_TEXT :],
        "causes": causes,
        "tensors": tensors_in_frames(trace),
    }


class ExceptionWatch:
    """Stands before the hooks that print exceptions, and passes everything on to them."""

    def __init__(self, process: SupervisedProcess) -> None:
        self._process = process
        self._recorded: set[int] = set()
        self._main_hook = sys.excepthook
        self._thread_hook = threading.excepthook
        sys.excepthook = self.see_uncaught
        threading.excepthook = self.see_in_thread

    def record(self, where: str, value: BaseException | None, **data: Any) -> None:
        """Write an exception down once; never raises."""
        try:
            if value is None or id(value) in self._recorded or isinstance(value, KeyboardInterrupt):
                return
            if isinstance(value, (SystemExit, GeneratorExit)):
                return
            self._recorded.add(id(value))
            self._process.note_exception(where, **exception_data(type(value), value, value.__traceback__), **data)
        except Exception as err:
            self._process.note_failure("exceptions", err)

    def see_uncaught(self, kind: Any, value: Any, trace: Any) -> None:
        self.record("main", value)
        self._main_hook(kind, value, trace)

    def see_in_thread(self, args: Any) -> None:
        self.record("thread", args.exc_value, thread=getattr(args.thread, "name", "?"))
        self._thread_hook(args)
