"""Plans are executed by a GPU: what can be said without one is said, and every name that is used exists.

Tests called `stand_in` run the control flow over a stand-in for the GPU, its memory and its engine. They prove that
tensors reach the sink as they should when TensorRT calls back, not that TensorRT does.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

trt = pytest.importorskip("tensorrt_rtx", reason="the names are those of TensorRT's own bindings")
torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")

from trtdx.engines.errors import EvaluationError  # noqa: E402
from trtdx.engines.tensorrt.execute import device  # noqa: E402
from trtdx.engines.tensorrt.execute import plan as module  # noqa: E402
from trtdx.engines.tensorrt.execute.plan import (  # noqa: E402
    NoDriverError,
    PlanExecution,
    debug_listener_class,
    execute_plan,
)
from trtdx.errors import InputError  # noqa: E402
from trtdx.tensors.taps import Place  # noqa: E402

HERE = not device.driver_problem()
BUILD = """
import sys, numpy as np, tensorrt_rtx as trt
log = trt.Logger(trt.Logger.INTERNAL_ERROR)
builder = trt.Builder(log)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
y = network.add_unary(network.add_input("x", trt.float32, (4,)), trt.UnaryOperation.NEG).get_output(0)
y.name = "y"
network.mark_output(y)
config = builder.create_builder_config()
config.num_compute_capabilities = 1
config.set_compute_capability(trt.ComputeCapability.SM89, 0)
open(sys.argv[1], "wb").write(builder.build_serialized_network(network, config))
"""
LOAD = """
import sys, tensorrt_rtx as trt
from trtdx.engines.tensorrt.execute.plan import NoDriverError, load_engine
try:
    load_engine(trt, open(sys.argv[1], "rb").read())
except NoDriverError as err:
    print(err.message)
"""


def python(code, *args):
    """Run code in a process of its own, whose first logger is the code's."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, timeout=120, check=True, text=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "y.plan"
    python(BUILD, path)
    return path


# Without a GPU


@pytest.mark.skipif(HERE, reason="this machine has a GPU")
def test_without_a_driver_there_is_one_clear_error(plan):
    with pytest.raises(NoDriverError, match=r"executed by a GPU, and here there is no NVIDIA driver") as caught:
        execute_plan(plan, {"x": np.ones(4, np.float32)})
    assert "evaluate" in caught.value.fix
    assert caught.value.verify == "nvidia-smi -L"


@pytest.mark.skipif(HERE, reason="this machine has a GPU")
def test_tensorrt_itself_finds_no_driver(plan):
    """The driver is there and too old, say: then TensorRT is asked and answers with CUDA's error 35."""
    assert "cudaError 35" in python(LOAD, plan)


def test_a_driver_that_does_not_start(monkeypatch):
    """A stand-in for libcuda."""
    driver = SimpleNamespace(cuInit=lambda flags: 999, cuGetErrorString=lambda status, told: 0)
    monkeypatch.setattr(device.ctypes, "CDLL", lambda library: driver)
    assert "does not start" in device.driver_problem()
    driver.cuInit = lambda flags: 0
    assert device.driver_problem() == ""


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: data[: len(data) // 2], "bytes where its header says"),
        (lambda data: data[:16], "too few for a plan's header"),
        (lambda data: data + b"more", "something was appended"),
        (lambda data: bytes(len(data)), "only zeros"),
        (lambda data: b"\x08\x09" + data, "ONNX model"),
    ],
)
def test_what_is_no_whole_plan_is_told_before_the_driver_is_asked(plan, tmp_path, spoil, told):
    data = spoil(plan.read_bytes())
    (tmp_path / "bad.plan").write_bytes(data)
    for given in (data, tmp_path / "bad.plan"):
        with pytest.raises(InputError, match=told):
            execute_plan(given, {})
    with pytest.raises(InputError, match="cannot read"):
        execute_plan(tmp_path / "absent.plan", {})


def test_a_plan_of_the_other_product(plan):
    classic = b"ftrt" + plan.read_bytes()[4:]
    with pytest.raises(InputError, match=r"the plan is TensorRT's, and this is TensorRT-RTX"):
        module.load_engine(trt, classic)


# Every name that is used exists


OWNERS = {  # what a variable or attribute of this name holds
    "trt": trt, "_trt": trt, "engine": trt.ICudaEngine, "_engine": trt.ICudaEngine, "runtime": trt.Runtime,
    "context": trt.IExecutionContext, "_context": trt.IExecutionContext, "torch": torch, "_torch": torch,
    "cuda": torch.cuda, "_stream": torch.cuda.Stream,
}  # fmt: skip


def used(path):
    """Yield (owner, names) for each chain of attributes in a file that begins with one of the owners."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        start = node.id if isinstance(node, ast.Name) else ""
        if start == "self" and len(names) > 1:
            start, names = names[0], names[1:]
        if start in OWNERS and names:
            yield start, tuple(names)


def exists(owner, names):
    for name in names:
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
        if not inspect.isclass(owner) and not inspect.ismodule(owner):
            break  # a property or a function: what it returns is another object
    return True


# A torch without CUDA has the class of streams, but not what it is made on.
ONLY_WITH_CUDA = {("_stream", ("cuda_stream",))}


@pytest.mark.parametrize("file", ["plan.py", "device.py"])
def test_every_attribute_exists_in_the_real_bindings(file):
    found = set(used(Path(module.__file__).with_name(file))) - ONLY_WITH_CUDA
    assert len(found) > 8
    assert [each for each in sorted(found) if not exists(OWNERS[each[0]], each[1])] == []
    if file == "plan.py":
        of_context = {names[0] for start, names in found if start in ("context", "_context")}
        assert {
            "set_input_shape",
            "set_tensor_address",
            "execute_async_v3",
            "set_debug_listener",
        } <= of_context


def test_torch_itself_uses_what_only_a_torch_with_cuda_has():
    assert "self.cuda_stream" in inspect.getsource(torch.cuda.Stream)


def test_a_name_that_does_not_exist_would_be_found():
    assert not exists(trt.IExecutionContext, ("execute_async_v4",))
    assert not exists(trt, ("TensorLocation", "MOON"))


def test_tensors_of_torch_have_what_is_asked_of_them():
    for name in ("data_ptr", "copy_", "cpu", "numpy"):
        assert hasattr(torch.Tensor, name)
    assert hasattr(torch.cuda.Stream, "synchronize")


def test_the_listener_has_the_signature_of_the_bindings():
    told = trt.IDebugListener.process_debug_tensor.__doc__
    names = list(inspect.signature(debug_listener_class(trt).process_debug_tensor).parameters)[1:]
    places = [told.index(f" {name}: ") for name in names]
    assert names == ["addr", "location", "type", "shape", "name", "stream"]
    assert places == sorted(places)


def test_names_of_cuda_python(monkeypatch):
    runtime = pytest.importorskip("cuda.bindings.runtime")
    monkeypatch.setitem(OWNERS, "_cuda", runtime)
    found = {names for start, names in used(Path(device.__file__)) if start == "_cuda"}
    assert len(found) > 5
    assert all(exists(runtime, names) for names in found)


# The control flow over stand-ins


class StandInMemory:
    """Memory of the host in the place of a GPU's."""

    stream = 7

    def __init__(self):
        self.waited = 0

    def allocate(self, count):
        held = np.zeros(max(count, 1), np.uint8)
        return held, held.ctypes.data

    def write(self, held, array):
        held[: array.size] = array

    def read(self, address, count, stream):
        return module.HostMemory().read(address, count, stream)

    def wait(self):
        self.waited += 1


class StandInContext:
    """An execution context that negates x and shows what it has on the way, as TensorRT calls the listener."""

    def __init__(self, engine):
        self.engine, self.shapes, self.addresses, self.on = engine, {}, {}, set()
        self.listener = self.unfused_tensors_debug_state = None

    def set_optimization_profile_async(self, number, stream):
        return number == 0

    def set_debug_listener(self, listener):
        assert isinstance(listener, trt.IDebugListener)
        self.listener = listener
        return True

    def set_all_tensors_debug_state(self, flag):
        self.on = set(self.engine.debug)
        return True

    def set_tensor_debug_state(self, name, flag):
        self.on.add(name)
        return True

    def set_input_shape(self, name, shape):
        self.shapes[name] = shape
        return len(shape) == 1 and shape[0] <= 8

    def infer_shapes(self):
        return []

    def get_tensor_shape(self, name):
        return self.engine.output_shape or self.shapes["x"]

    def set_tensor_address(self, name, address):
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream):
        count = self.shapes["x"][0]
        x = module.HostMemory().read(self.addresses["x"], 4 * count, stream).view(np.float32)
        fine = True
        for name in self.engine.debug:
            if name in self.on:
                kind, location, value = self.engine.debug[name](x)
                fine &= self.listener.process_debug_tensor(
                    value.ctypes.data, location, kind, trt.Dims(self.engine.dims(name, value)), name, stream
                )
        out = np.frombuffer((module.ctypes.c_char * (4 * count)).from_address(self.addresses["y"]), np.float32)
        out[:] = -x
        return fine and self.engine.works


class StandInEngine:
    num_io_tensors = 2
    works, output_shape = True, None

    def __init__(self):
        bf16, fp8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
        device_, host = trt.TensorLocation.DEVICE, trt.TensorLocation.HOST
        self.debug = {
            "layers.0/half": lambda x: (trt.DataType.BF16, device_, x.astype(bf16)),
            "layers.0/eighth": lambda x: (trt.DataType.FP8, device_, x.astype(fp8)),
            "shape": lambda x: (trt.DataType.INT64, host, np.array([len(x)])),
            "packed": lambda x: (trt.DataType.INT4, device_, np.array([0x21, 0x0F], np.uint8)),
        }
        self.context = StandInContext(self)

    def dims(self, name, value):
        return (3,) if name == "packed" else value.shape

    def create_execution_context(self):
        return self.context

    def get_tensor_name(self, number):
        return ("x", "y")[number]

    def get_tensor_mode(self, name):
        return trt.TensorIOMode.INPUT if name == "x" else trt.TensorIOMode.OUTPUT

    def get_tensor_shape(self, name):
        return (-1,)

    def get_tensor_dtype(self, name):
        return trt.DataType.FLOAT

    def get_tensor_location(self, name):
        return trt.TensorLocation.DEVICE

    def is_debug_tensor(self, name):
        return name in self.debug


X = np.array([1.5, -2.0, 3.0], np.float32)


def stand_in(sink=None, places=None):
    engine, seen = StandInEngine(), []
    return PlanExecution(trt, engine, StandInMemory(), sink or seen.append, places or {}), engine, seen


def test_stand_in_outputs_and_debug_tensors_of_every_type():
    execution, _, seen = stand_in()
    execution.watch_debug_tensors("all")
    for _ in range(2):
        result = execution.run({"x": X})
    assert np.array_equal(result["y"], -X)
    assert [(each.step, each.place.tensor, each.place.dtype) for each in seen][:4] == [
        (0, "layers.0/half", "bfloat16"), (0, "layers.0/eighth", "float8_e4m3fn"), (0, "shape", "int64"), (0, "packed", "int4"),
    ]  # fmt: skip
    assert [each.tensor.astype(np.float32).tolist() for each in seen[:4]] == [
        [1.5, -2, 3], [1.5, -2, 3], [3], [1, 2, -1],
    ]  # fmt: skip
    assert {each.step for each in seen} == {0, 1}


def test_stand_in_some_by_name_at_the_places_they_are_known_by():
    places = {"layers.0/half": [Place("layers.0", "out", tensor=""), Place("layers.1", "in")]}
    execution, _, seen = stand_in(places=places)
    execution.watch_debug_tensors(["layers.0/half"])
    execution.run({"x": X})
    assert [each.place.name for each in seen] == ["layers.0:out", "layers.1:in"]
    with pytest.raises(InputError, match="hidden is not a debug tensor of this plan"):
        execution.watch_debug_tensors("hidden")
    execution.watch_debug_tensors("unfused")
    assert execution._context.unfused_tensors_debug_state is True


def test_stand_in_a_sink_that_raises_is_not_raised_through_tensorrt():
    def stop(seen):
        raise KeyError("enough")

    execution, _, _ = stand_in(stop)
    execution.watch_debug_tensors("all")
    with pytest.raises(KeyError, match="enough"):
        execution.run({"x": X})
    assert execution._memory.waited == 1


def test_stand_in_what_does_not_fit_is_told():
    execution, engine, _ = stand_in()
    with pytest.raises(InputError, match=r"does not take x of shape \[9\]") as caught:
        execution.run({"x": np.ones(9, np.float32)})
    assert "profile" in caught.value.fix
    with pytest.raises(InputError, match="x is float64"):
        execution.run({"x": np.ones(2)})
    with pytest.raises(EvaluationError, match="optimization profile 3"):
        execution.use_profile(3)
    engine.works = False
    with pytest.raises(EvaluationError, match="does not execute"):
        execution.run({"x": X})
    engine.output_shape = (-1,)
    with pytest.raises(InputError, match="depends on the data"):
        execution.run({"x": X})


def test_an_address_in_a_capsule():
    make = module.ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = (
        module.ctypes.py_object,
        [module.ctypes.c_void_p, module.ctypes.c_char_p, module.ctypes.c_void_p],
    )
    assert module._address_from_capsule(make(1234, None, None)) == 1234
    assert module._address_from_capsule(make(99, b"a name", None)) == 99
    assert module._address_from_capsule(42) == 42
