"""`trtdx` asked many times without starting Python each time: forked children of a parent that has imported everything.

Each child runs the command line's own entry function with its own arguments and standard streams, and ends; nothing of
one question is left for the next. The parent computes nothing, so that there are no threads that a fork would lose.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODULES = (
    "torch", "transformers", "transformers.modeling_utils", "transformers.cache_utils", "transformers.masking_utils", "onnx_ir",
    "onnxruntime", "tensorrt_rtx", "trtdx.cli.main", "trtdx.compare.run", "trtdx.compare.sides.side", "trtdx.compare.attribute.run",
    "trtdx.engines.torch.engine", "trtdx.engines.onnxruntime.engine", "trtdx.engines.tensorrt.evaluate.engine", "trtdx.knowledge.load",
)  # fmt: skip


class Done(NamedTuple):
    """What one question gave."""

    status: int  # -1: it was ended after the time allowed
    stdout: str
    stderr: str
    seconds: float


class Child(NamedTuple):
    """A question that is being answered."""

    pid: int
    folder: Path
    began: float


def warm(more: tuple[str, ...] = ()) -> None:
    """Import what questions need; what is not installed is left out."""
    for name in (*MODULES, *more):
        with suppress(ImportError):
            importlib.import_module(name)


def started(folder: Path, arguments: Callable[[], list[str]]) -> Child:
    """Fork a child that works out its arguments and asks `trtdx` with them."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _answer(folder, arguments)  # does not return
    return Child(pid, folder, began)


def _answer(folder: Path, arguments: Callable[[], list[str]]) -> None:
    status = 3
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.environ["NO_COLOR"] = "1"
        (folder / "scratch").mkdir(exist_ok=True)
        tempfile.tempdir = str(folder / "scratch")
        words = arguments()
        (folder / "asked").write_text(repr(time.monotonic()))
        status = _main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # what the parent has registered for its end is not for the child to do


def _main(words: list[str]) -> int:
    from trtdx.cli.main import main

    sys.argv = ["trtdx", *words]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def ended(child: Child, most_s: float) -> Done:
    """Wait for a child, and return what it said; it is killed after the time allowed."""
    status = -1
    while time.monotonic() - child.began < most_s:
        pid, told = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            status = os.waitstatus_to_exitcode(told)
            break
        time.sleep(0.02)
    else:
        os.kill(child.pid, 9)
        os.waitpid(child.pid, 0)
    asked = child.folder / "asked"
    began = float(asked.read_text()) if asked.exists() else child.began
    said = [(child.folder / name).read_text(errors="replace") for name in ("stdout", "stderr")]
    return Done(status, said[0], said[1], time.monotonic() - began)
