"""A plan executed by a GPU, its debug tensors handed on as they are written.

    execute_plan("model.plan", {"x": array}, sink=show)     # what was marked with mark_debug reaches `show`
    with open_plan("model.plan", sink=show) as engine:      # many steps: it can be generated with, too
        engine.run({"x": array})

A plan is looked at in plain Python first (what it is, whether it is whole), then the driver is asked, and only then
is TensorRT. On a machine without a GPU that ends in one `NoDriverError`. Nothing after that has run where trtdx is made:
`tests/engines/tensorrt/execute/test_plan.py` proves that all it uses of TensorRT and torch exists.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.engines.engine import Array, ClosedOnExit, Sink, TappedTensor
from trtdx.engines.errors import EvaluationError
from trtdx.engines.tensorrt.bindings import load_bindings
from trtdx.engines.tensorrt.execute.device import (
    DeviceMemory,
    NoDriverError,
    driver_problem,
    open_device_memory,
)
from trtdx.engines.tensorrt.network.network_graph import path_parts
from trtdx.engines.tensorrt.network.values import byte_count, dtype_name, value_from_bytes
from trtdx.engines.torch.lazy_import import numpy as np
from trtdx.errors import InputError
from trtdx.tensors.feeds import ModelInput, check_feeds
from trtdx.tensors.taps import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from types import ModuleType

    Places = Mapping[str, Sequence[Place]]

ALL, UNFUSED = "all", "unfused"
NO_USABLE_DRIVER = ("cudaError 35", "cudaError 100", "cudaError 3)")  # too old, no device, not initialised


def execute_plan(
    plan: bytes | str | Path,
    inputs: Mapping[str, Any],
    *,
    sink: Sink | None = None,
    debug_tensors: Collection[str] | str = ALL,
    places: Places | None = None,
    profile: int = 0,
) -> dict[str, Array]:
    """Return a plan's outputs for one step; see `open_plan`."""
    with open_plan(plan, sink=sink, debug_tensors=debug_tensors, places=places, profile=profile) as execution:
        return execution.run(inputs)


def open_plan(
    plan: bytes | str | Path,
    *,
    sink: Sink | None = None,
    debug_tensors: Collection[str] | str = ALL,
    places: Places | None = None,
    profile: int = 0,
) -> PlanExecution:
    """Return a plan loaded onto a GPU, to be executed step by step.

    Args:
        plan: its file, or its bytes.
        sink: called with each debug tensor.
        debug_tensors: "all" that were marked when it was built, "unfused" for all that were not fused away
            (the network was built with mark_unfused_tensors_as_debug_tensors), or some by name.
        places: for a tensor, the places it is known by (`places_by_tensor`); else it is known by its name.
        profile: the number of the optimization profile.

    Raises:
        InputError: this is no plan, not a whole one, or one of another product; or a name is no debug tensor.
        NoDriverError: there is no GPU that this TensorRT can use.
        EvaluationError: TensorRT does not load the plan.
    """
    data = read_plan(plan)
    problem = driver_problem()
    if problem:
        raise NoDriverError(problem)
    trt = load_bindings()
    execution = PlanExecution(trt, load_engine(trt, data), open_device_memory(), sink, places or {})
    execution.use_profile(profile)
    if sink is not None:
        execution.watch_debug_tensors(debug_tensors)
    return execution


class PlanExecution(ClosedOnExit):
    """A plan on a GPU, executed step by step."""

    kind = "tensorrt"

    def __init__(self, trt: Any, engine: Any, memory: DeviceMemory, sink: Sink | None, places: Places) -> None:
        """Take an engine of TensorRT's; `open_plan` makes one of a file."""
        self._trt, self._engine, self._memory = trt, engine, memory
        self._context = engine.create_execution_context()
        if self._context is None:
            raise EvaluationError(
                f"TensorRT makes no execution context: {_last_error(trt)}",
                fix="free memory of the GPU, or build the engine for smaller shapes",
            )
        self.sink, self.step = sink, 0
        self._listener = debug_listener_class(trt)(self._emit_debug_tensor, memory)
        self._places = places
        names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
        modes = {name: engine.get_tensor_mode(name) for name in names}
        self.inputs = {name: self._declared_input(name) for name in names if modes[name] == trt.TensorIOMode.INPUT}
        self.outputs = [name for name in names if modes[name] == trt.TensorIOMode.OUTPUT]

    def _declared_input(self, name: str) -> ModelInput:
        shape = tuple(
            size if size >= 0 else f"dim{axis}" for axis, size in enumerate(self._engine.get_tensor_shape(name))
        )
        return ModelInput(name, dtype_name(self._engine.get_tensor_dtype(name).name), shape)

    def use_profile(self, profile: int) -> None:
        """Use one of the plan's optimization profiles."""
        fine = self._context.set_optimization_profile_async(profile, self._memory.stream)
        self._check_accepted(fine, f"optimization profile {profile}")

    def watch_debug_tensors(self, debug_tensors: Collection[str] | str) -> None:
        """Turn on debug tensors."""
        context = self._context
        self._check_accepted(context.set_debug_listener(self._listener), "a debug listener")
        if debug_tensors == ALL:
            self._check_accepted(context.set_all_tensors_debug_state(True), "debug tensors")
        elif debug_tensors == UNFUSED:
            context.unfused_tensors_debug_state = True
        else:
            for name in [debug_tensors] if isinstance(debug_tensors, str) else debug_tensors:
                self._enable_debug_tensor(name)

    def _enable_debug_tensor(self, name: str) -> None:
        if not self._engine.is_debug_tensor(name):
            raise InputError(
                f"{name} is not a debug tensor of this plan",
                fix="build the debug-tensors variant with it selected: tensors are marked when a plan is built",
            )
        self._check_accepted(self._context.set_tensor_debug_state(name, True), f"the debug tensor {name}")

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Execute one step: returns the outputs, and hands each debug tensor to the sink.

        Raises:
            InputError: something fed is missing, unknown, or not as the plan wants it.
            EvaluationError: TensorRT does not execute it.
        """
        context = self._context
        arrays = check_feeds(self.inputs, feeds)
        allocations = [self._bind_input(name, array) for name, array in arrays.items()]
        short = context.infer_shapes()
        if short:
            raise InputError(f"the shapes of {', '.join(short)} do not follow from what is fed")
        buffers = {name: self._bind_output(name) for name in self.outputs}
        fine = context.execute_async_v3(self._memory.stream)
        self._memory.wait()
        self.step += 1
        del allocations  # not before the stream is done with it
        if self._listener.error is not None:
            error, self._listener.error = self._listener.error, None
            raise error
        if not fine:
            raise EvaluationError(f"TensorRT does not execute the plan: {_last_error(self._trt)}")
        return {name: self._read_output(name, *room) for name, room in buffers.items()}

    def _bind_input(self, name: str, array: Array) -> Any:
        """Give one input to the context; what comes back keeps its memory alive."""
        context = self._context
        packed = np.ascontiguousarray(array).reshape(array.shape)
        if not context.set_input_shape(name, packed.shape):
            raise InputError(
                f"the plan does not take {name} of shape {list(packed.shape)}: {_last_error(self._trt)}",
                fix="stay within the optimization profile, or build with a wider one; trtdx inspect shows it",
            )
        raw = packed.reshape(-1).view(np.uint8)
        if self._engine.get_tensor_location(name) == self._trt.TensorLocation.HOST:
            self._check_accepted(context.set_tensor_address(name, raw.ctypes.data), name)
            return raw
        allocation, address = self._memory.allocate(raw.nbytes)
        self._memory.write(allocation, raw)
        self._check_accepted(context.set_tensor_address(name, address), name)
        return allocation

    def _bind_output(self, name: str) -> tuple[Any, int, tuple[int, ...]]:
        """Give an output its memory."""
        shape = tuple(self._context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            raise InputError(
                f"the shape of the output {name} depends on the data, which cannot be executed here",
                fix="leave that output out, or compute the network definition with trtdx.engines.tensorrt.evaluate",
            )
        dtype = self._engine.get_tensor_dtype(name).name
        allocation, address = self._memory.allocate(byte_count(dtype, math.prod(shape)))
        self._check_accepted(self._context.set_tensor_address(name, address), name)
        return allocation, address, shape

    def _read_output(self, name: str, allocation: Any, address: int, shape: tuple[int, ...]) -> Array:
        dtype = self._engine.get_tensor_dtype(name).name
        return _read_tensor(self._memory, address, dtype, shape, self._memory.stream)

    def _emit_debug_tensor(self, name: str, dtype: str, value: Array) -> None:
        """Hand a debug tensor on, at each of its places."""
        if self.sink is None:
            return
        default_place = Place(".".join(path_parts(name)), "out", tensor=name, dtype=dtype_name(dtype))
        for place in self._places.get(name, (default_place,)):
            self.sink(TappedTensor(place, value, self.step, 0))

    def _check_accepted(self, accepted: bool, what: str) -> None:
        if not accepted:
            raise EvaluationError(f"TensorRT does not take {what}: {_last_error(self._trt)}")

    def close(self) -> None:
        """Let go of the plan and its memory."""
        self._context = self._engine = None


def _read_tensor(memory: Any, address: int, dtype: str, shape: tuple[int, ...], stream: int) -> Array:
    """Return a tensor of any type from memory on either side."""
    count = math.prod(shape)
    size = byte_count(dtype, count)
    raw = memory.read(address, size, stream) if size else np.zeros(0, np.uint8)
    return value_from_bytes(raw, dtype, count).reshape(shape)


@cache
def debug_listener_class(trt: ModuleType) -> Any:
    """Return TensorRT's debug listener that reads each tensor and passes it on."""

    class Listener(trt.IDebugListener):  # type: ignore[misc,name-defined]
        def __init__(self, passed: Any, memory: DeviceMemory) -> None:
            trt.IDebugListener.__init__(self)
            self._pass, self._memory = passed, memory
            self.error: BaseException | None = None

        def process_debug_tensor(
            self,
            addr: Any,
            location: Any,
            type: Any,  # noqa: A002
            shape: Any,
            name: str,
            stream: int,
        ) -> bool:
            if self.error is not None:
                return False
            memory = HostMemory() if location == trt.TensorLocation.HOST else self._memory
            try:  # TensorRT ends the process when something is raised through it
                self._pass(
                    name,
                    type.name,
                    _read_tensor(memory, _address_from_capsule(addr), type.name, tuple(shape), stream),
                )
            except BaseException as err:
                self.error = err
                return False
            return True

    return Listener


def _address_from_capsule(capsule: Any) -> int:
    """Return an address that the bindings give as a number or in a capsule."""
    if isinstance(capsule, int):
        return capsule
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer_of(capsule, name_of(capsule)) or 0)


class HostMemory:
    """What is not on the GPU at all: shapes."""

    def read(self, address: int, count: int, stream: int) -> Array:
        source: Any = (ctypes.c_uint8 * count).from_address(address)
        return np.frombuffer(source, np.uint8).copy()


# Plans


def read_plan(plan: bytes | str | Path) -> bytes:
    """Return a plan's bytes, or say what they are instead, before anything of CUDA is asked."""
    from trtdx.formats.tensorrt.plan_header import START_BYTES, parse_plan_header

    name = "this" if isinstance(plan, bytes) else str(plan)
    try:
        data = plan if isinstance(plan, bytes) else Path(plan).read_bytes()
    except OSError as err:
        raise InputError(f"cannot read {name}: {err.strerror or err}") from err
    header = parse_plan_header(data[:START_BYTES], len(data))
    if header.fault:
        raise InputError(f"{name} {header.problem}", fix="copy or build the plan again")
    return data


def load_engine(trt: ModuleType, data: bytes) -> Any:
    """Return the engine in a plan."""
    from trtdx.formats.tensorrt.plan_header import START_BYTES, parse_plan_header

    header = parse_plan_header(data[:START_BYTES], len(data))
    installed = "TensorRT-RTX" if trt.__name__ == "tensorrt_rtx" else "TensorRT"
    if header.product != installed:
        raise InputError(
            f"the plan is {header.product}'s, and this is {installed} {trt.__version__}",
            fix=f"build it with {installed}, or install {header.product}",
        )
    log = error_logger(trt)
    log.told.clear()
    runtime = trt.Runtime(log)
    engine = runtime.deserialize_cuda_engine(data)
    if engine is not None:
        return engine
    reason = _last_error(trt)
    if any(mark in reason for mark in NO_USABLE_DRIVER):
        raise NoDriverError(f"TensorRT finds none that it can use: {reason}")
    versions = f"; the plan is of {header.version}, this is {trt.__version__}"
    raise EvaluationError(
        f"TensorRT does not load the plan: {reason}{versions if header.version != trt.__version__ else ''}",
        fix=f"build it with {installed} {trt.__version__} for this GPU",
    )


@cache
def error_logger(trt: ModuleType) -> Any:
    """Return a logger that keeps errors. Of an IErrorRecorder TensorRT-RTX 1.7 dies when the process ends."""

    class Log(trt.ILogger):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.told: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.told.append(msg)

    return Log()


def _last_error(trt: ModuleType) -> str:
    """Return the last error; where another logger was first in this process, TensorRT tells that one."""
    errors = error_logger(trt).told
    return errors[-1] if errors else "it says why to the logger that was made first in this process"
