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
from trtdx.engines.tensorrt.build.frames import (
    BuildFailed,
    BuildJob,
    FrameWriter,
    MessageLogged,
    NetworkDefined,
    StageStarted,
)
from trtdx.engines.tensorrt.build.nouns import BuildMessage
from trtdx.errors import TrtdxError

PR_SET_PDEATHSIG = 1


class ParentLink:
    """Tells the parent what happens, and knows whether it still wants the plan."""

    def __init__(self, pipe: FrameWriter, control: int, began: float) -> None:
        self._pipe, self._control, self._began = pipe, control, began
        self.errors: list[str] = []
        self.stage = "define"
        self.send = pipe.send

    def send_message(self, severity: str, text: str) -> None:
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self.errors.append(text)
        self._pipe.send(MessageLogged(BuildMessage(round(time.monotonic() - self._began, 6), severity, text)))

    def begin_stage(self, stage: str) -> None:
        self.stage = stage
        self._pipe.send(StageStarted(stage))

    def is_parent_waiting(self) -> bool:
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
    serve_job(msgspec.json.decode(line, type=BuildJob), control, frames)


def serve_job(job: BuildJob, control: int, frames: int, network: Any = None, registry: Any = None) -> None:
    """Compile, and end the process: what TensorRT leaves behind may crash when it is taken down."""
    die_with_parent()
    parent = ParentLink(FrameWriter(frames), control, job.began)
    status = 0
    try:
        _compile_job(job, parent, network, registry)
    except BrokenPipeError:
        status = 1  # nobody listens any more
    except BaseException as err:
        status = 1
        with contextlib.suppress(BrokenPipeError):
            parent.send(_failure_from_error(err, parent))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def die_with_parent() -> None:
    """Ask Linux to end this process with its parent, which may be killed while we are deep inside TensorRT."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _failure_from_error(err: BaseException, parent: ParentLink) -> BuildFailed:
    if isinstance(err, BuildError):
        cancelled = isinstance(err, BuildCancelledError)
        return BuildFailed(err.stage, err.message, err.fix, err.code, err.problem, cancelled)
    if isinstance(err, TrtdxError):
        return BuildFailed(parent.stage, err.message, err.fix)
    parent.send_message("OUTPUT", "".join(traceback.format_exception(err)).rstrip())
    return BuildFailed(parent.stage, f"{type(err).__name__}: {err}")


def _compile_job(job: BuildJob, teller: ParentLink, network: Any, registry: Any) -> None:
    from trtdx.engines.tensorrt.build import compiler
    from trtdx.engines.tensorrt.network import define_network
    from trtdx.engines.tensorrt.network.registration import collect_registered

    teller.begin_stage("define")
    with collect_registered() as active:
        if network is None:
            trt, builder, network, owners = _define_network(job, teller, active)
        else:
            trt, builder, owners = compiler.adopt_network(network, teller)
            active = registry
        if job.kind != "onnx":  # the parser tells the nodes itself
            define_network.name_layers(network)
        inputs = define_network.bindings_from_inputs(network)
        teller.send(NetworkDefined(inputs, network.num_layers))
        compiler.compile_network(trt, builder, network, job, active, inputs, teller)
    del owners


def _define_network(job: BuildJob, parent: ParentLink, registry: Any) -> tuple[Any, Any, Any, Any]:
    from trtdx.engines.tensorrt.bindings import create_builder, load_bindings
    from trtdx.engines.tensorrt.build import compiler
    from trtdx.engines.tensorrt.network import define_network

    trt = load_bindings(job.options.package)
    logger = compiler.create_logger(trt, parent)
    builder = create_builder(trt, logger)
    network = define_network.create_network(trt, builder, strongly_typed=job.options.strongly_typed)
    if job.kind == "onnx":
        parent.begin_stage("parse")
        owner = define_network.parse_onnx(trt, network, logger, job.path)
    else:
        owner = define_network.call_function(network, job, registry)
    return trt, builder, network, (owner, logger)
