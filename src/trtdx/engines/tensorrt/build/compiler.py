"""Compiling a network that is defined, with TensorRT's logger and progress monitor; runs in the compiling process."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from trtdx.engines.tensorrt.bindings import bindings_of_object
from trtdx.engines.tensorrt.build.errors import BuildCancelledError, BuildError
from trtdx.engines.tensorrt.build.frames import BuildDone, BuildJob, PhaseEvent, write_all
from trtdx.engines.tensorrt.build.nouns import NO_DRIVER_ECHO, Binding, BuildOptions, ShapeProfile
from trtdx.engines.tensorrt.network.define_network import binding_from_tensor
from trtdx.engines.tensorrt.network.mark_tensors import (
    TensorMarks,
    layers_of_tensors,
    network_outputs,
    select_tensors,
)
from trtdx.engines.tensorrt.network.profiles import check_profiles
from trtdx.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.engines.tensorrt.build.child import ParentLink
    from trtdx.engines.tensorrt.network.registration import TensorRegistry

# A loop or conditional: told before anything is compiled, so it costs no time.
REFUSED_BEFORE_COMPILE = "is not allowed to be in"


def create_logger(trt: Any, parent: ParentLink) -> Any:
    """Return a logger that tells the parent everything."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            parent.send_message(severity.name, message)

    return Logger()


def create_progress_monitor(trt: Any, parent_link: ParentLink) -> Any:
    """Return a progress monitor that tells the parent each step and stops when nobody wants the plan."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            parent_link.send(PhaseEvent("start", name, steps, parent or ""))

        def step_complete(self, name: str, step: int) -> bool:
            parent_link.send(PhaseEvent("step", name, step))
            return parent_link.is_parent_waiting()

        def phase_finish(self, name: str) -> None:
            parent_link.send(PhaseEvent("end", name))

    return Monitor()


def adopt_network(network: Any, parent: ParentLink) -> tuple[Any, Any, Any]:
    """Return TensorRT and the builder of a network that lives in this forked process, its logger turned to us.

    TensorRT takes one logger in a process. Python's own can be turned by giving the object another method; the
    one in C++ prints, which the parent reads.
    """
    trt = bindings_of_object(network)
    builder = getattr(network, "builder", None)
    logger = getattr(builder, "logger", None)
    if builder is None:
        raise InputError(
            "this TensorRT does not say which builder a network belongs to",
            fix="give the network as a function: build_plan('file.py:function')",
        )
    if isinstance(logger, trt.Logger):
        logger.min_severity = trt.Logger.VERBOSE
    elif logger is not None:
        logger.log = lambda severity, message: parent.send_message(severity.name, message)
    return trt, builder, logger


def compile_network(
    trt: Any,
    builder: Any,
    network: Any,
    job: BuildJob,
    registry: TensorRegistry,
    inputs: Sequence[Binding],
    parent: ParentLink,
) -> None:
    """Mark, compile, write the plan, and tell what came of it."""
    parent.begin_stage("profile")
    check_profiles(job.profiles, inputs)
    parent.begin_stage("select")
    marks = TensorMarks(network, job.variant, select_tensors(network, job, registry))
    marks.mark_all()
    if job.variant != "none" and not marks.names:
        raise BuildError(
            f"the variant {job.variant} has nothing to mark: no selector was given and nothing is registered",
            stage="select",
            fix="name tensors with a selector, such as 'layers.*.mlp:out', or register them",
        )
    config = create_builder_config(trt, builder, network, job, parent)
    parent.begin_stage("compile")
    plan = _build_with_retries(builder, network, config, marks, job.options.most_retries, parent)
    outputs = tuple(
        binding_from_tensor(tensor, marked=tensor.name in marks.tensors and tensor.name not in marks.model_outputs)
        for tensor in network_outputs(network)
    )
    parent.begin_stage("plan")
    size = _write_plan(plan, job.part)
    version = f"{trt.__name__.partition('.')[0]} {trt.__version__}"
    makers = layers_of_tensors(network, {binding.name for binding in outputs})
    parent.send(BuildDone(version, size, outputs, makers, marks.marked_tensors(), tuple(marks.unmarked)))


def create_builder_config(trt: Any, builder: Any, network: Any, job: BuildJob, parent: ParentLink) -> Any:
    """Return the builder's configuration."""
    config, options = builder.create_builder_config(), job.options
    # The listing of kernels is read from the log.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if hasattr(trt, "IProgressMonitor"):  # TensorRT before 8.6 has none
        config.progress_monitor = create_progress_monitor(trt, parent)
    for name in options.flags:
        if not hasattr(trt.BuilderFlag, name):
            raise UnknownNameError("builder flag", name, list(trt.BuilderFlag.__members__))
        config.set_flag(getattr(trt.BuilderFlag, name))
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    if options.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    _set_compute_capabilities(trt, config, options)
    parent.begin_stage("profile")
    for number, profile in enumerate(job.profiles):
        _add_profile(builder, config, network, number, profile, parent)
    return config


def _set_compute_capabilities(trt: Any, config: Any, options: BuildOptions) -> None:
    if not options.compute_capabilities:
        return
    if not hasattr(config, "set_compute_capability"):
        raise InputError(
            f"{trt.__name__} compiles for the GPU of this machine only",
            fix="leave the compute capability out, or use TensorRT-RTX",
        )
    config.num_compute_capabilities = len(options.compute_capabilities)
    for number, capability in enumerate(options.compute_capabilities):
        name = f"SM{capability.replace('.', '')}"
        if not hasattr(trt.ComputeCapability, name):
            raise UnknownNameError("compute capability", name, list(trt.ComputeCapability.__members__))
        config.set_compute_capability(getattr(trt.ComputeCapability, name), number)


def _add_profile(
    builder: Any, config: Any, network: Any, number: int, profile: ShapeProfile, parent: ParentLink
) -> None:
    trt_profile = builder.create_optimization_profile()
    tensors = {network.get_input(index).name: network.get_input(index) for index in range(network.num_inputs)}
    for name, shapes in profile.items():
        setter = trt_profile.set_shape_input if tensors[name].is_shape_tensor else trt_profile.set_shape
        try:
            setter(name, *shapes)
        except (TypeError, ValueError, RuntimeError) as err:
            raise BuildError(f"profile {number} is refused for {name}: {err}", stage="profile") from err
    before = len(parent.errors)
    if config.add_optimization_profile(trt_profile) < 0:
        reason = _first_telling_error(parent.errors[before:])
        raise BuildError(f"TensorRT refuses profile {number}: {reason}", stage="profile")


def _build_with_retries(
    builder: Any, network: Any, config: Any, marks: TensorMarks, most_retries: int, parent: ParentLink
) -> Any:
    """Return the plan; tensors that prove impossible to mark are left out, and it is tried again."""
    tries = 0
    while True:
        before = len(parent.errors)
        plan = builder.build_serialized_network(network, config)
        if plan is not None:
            return plan
        if not parent.is_parent_waiting():
            raise BuildCancelledError("the compile was cancelled", stage="compile")
        errors = parent.errors[before:]
        if tries >= most_retries or not marks.unmark_offenders(errors):
            more = f" (after {len(marks.unmarked)} tensors were left out)" if tries else ""
            raise BuildError(f"TensorRT does not compile it{more}: {_first_telling_error(errors)}", stage="compile")
        tries += not any(REFUSED_BEFORE_COMPILE in text for text in errors)


def _first_telling_error(errors: Sequence[str]) -> str:
    """Return the first error that is not the echo of a missing driver."""
    telling = [text for text in errors if not NO_DRIVER_ECHO.search(text)]
    return (telling or list(errors) or ["it gave no reason"])[0].strip()


def _write_plan(plan: Any, part: str) -> int:
    """Write the plan to a file that has not its name yet; the parent renames it when everything is well."""
    data = memoryview(plan)
    try:
        fd = os.open(part, os.O_WRONLY | os.O_TRUNC)
        try:
            write_all(fd, data)  # type: ignore[arg-type]
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as err:
        raise BuildError(
            f"the plan of {data.nbytes} bytes cannot be written: {err.strerror or err}",
            stage="plan",
            fix="free space there, or name another folder",
            code="DX182",
        ) from err
    return data.nbytes


def redirect_output(fd: int) -> None:
    """Send all that this process prints, past the logger too, to the parent."""
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
