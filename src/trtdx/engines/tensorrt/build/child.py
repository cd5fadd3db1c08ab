"""The compiling process: takes a job, compiles, and tells its parent everything on the way.

It may die of what it is given: some inputs abort TensorRT. Whoever wants to compile uses `build_plan`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
import traceback
from typing import Any

import msgspec

from trtdx.engines.tensorrt.build.errors import BuildCancelledError, BuildError
from trtdx.engines.tensorrt.build.messages import Defined, Failed, Job, Pipe, Said, Stage
from trtdx.engines.tensorrt.build.nouns import Message
from trtdx.errors import TrtdxError

PR_SET_PDEATHSIG = 1


class Teller:
    """Tells the parent what happens, and knows whether it still wants the plan."""

    def __init__(self, pipe: Pipe, control: int, began: float) -> None:
        self._pipe, self._control, self._began = pipe, control, began
        self.errors: list[str] = []
        self.stage = "define"
        self.send = pipe.send

    def said(self, severity: str, text: str) -> None:
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self.errors.append(text)
        self._pipe.send(Said(Message(round(time.monotonic() - self._began, 6), severity, text)))

    def begins(self, stage: str) -> None:
        self.stage = stage
        self._pipe.send(Stage(stage))

    def wanted(self) -> bool:
        """Whether nobody cancelled and the parent is there; its death closes the pipe."""
        return not select.select([self._control], [], [], 0)[0]


def main() -> None:
    """Serve one job: read it from the control pipe, write frames to the other one."""
    control, frames = int(sys.argv[1]), int(sys.argv[2])
    sys.argv[1:] = []  # a user's module may read them
    with open(control, "rb", buffering=0, closefd=False) as pipe:
        line = pipe.readline()  # and nothing of what may follow, which is the wish to stop
    if not line.endswith(b"\n"):
        os._exit(1)  # the parent is gone
    serve(msgspec.json.decode(line, type=Job), control, frames)


def serve(job: Job, control: int, frames: int, network: Any = None, registry: Any = None) -> None:
    """Compile, and end the process: what TensorRT leaves behind may crash when it is taken down."""
    die_with_parent()
    parent = Teller(Pipe(frames), control, job.began)
    status = 0
    try:
        _serve(job, parent, network, registry)
    except BrokenPipeError:
        status = 1  # nobody listens any more
    except BaseException as err:
        status = 1
        with contextlib.suppress(BrokenPipeError):
            parent.send(_failed(err, parent))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def die_with_parent() -> None:
    """Ask Linux to end this process with its parent, which may be killed while we are deep inside TensorRT."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _failed(err: BaseException, teller: Teller) -> Failed:
    if isinstance(err, BuildError):
        cancelled = isinstance(err, BuildCancelledError)
        return Failed(err.stage, err.message, err.fix, err.code, err.problem, cancelled)
    if isinstance(err, TrtdxError):
        return Failed(teller.stage, err.message, err.fix)
    teller.said("OUTPUT", "".join(traceback.format_exception(err)).rstrip())
    return Failed(teller.stage, f"{type(err).__name__}: {err}")


def _serve(job: Job, teller: Teller, network: Any, registry: Any) -> None:
    from trtdx.engines.tensorrt.build import compiler
    from trtdx.engines.tensorrt.network import define
    from trtdx.engines.tensorrt.network.registration import registering

    teller.begins("define")
    with registering() as active:
        if network is None:
            trt, builder, network, owners = _defined(job, teller, active)
        else:
            trt, builder, owners = compiler.adopted(network, teller)
            active = registry
        if job.kind != "onnx":  # the parser tells the nodes itself
            define.name_layers(network)
        inputs = define.bindings_from_inputs(network)
        teller.send(Defined(inputs, network.num_layers))
        compiler.compile_network(trt, builder, network, job, active, inputs, teller)
    del owners


def _defined(job: Job, teller: Teller, registry: Any) -> tuple[Any, Any, Any, Any]:
    from trtdx.engines.tensorrt.bindings import bindings, new_builder
    from trtdx.engines.tensorrt.build import compiler
    from trtdx.engines.tensorrt.network import define

    trt = bindings(job.options.package)
    logger = compiler.logger_for(trt, teller)
    builder = new_builder(trt, logger)
    network = define.new_network(trt, builder, strongly_typed=job.options.strongly_typed)
    if job.kind == "onnx":
        teller.begins("parse")
        owner = define.parse_onnx(trt, network, logger, job.path)
    else:
        owner = define.call_function(network, job, registry)
    return trt, builder, network, (owner, logger)
