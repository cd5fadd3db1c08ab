"""TensorRT's runtime without a GPU: an engine whose execution is the evaluation of its network definition.

Callers give addresses of memory, as they do on a GPU; here it is the CPU's.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.engine import Sink, TappedTensor
from trtdx.engines.errors import EvaluationError
from trtdx.engines.tensorrt.evaluate.prepared_network import PreparedNetwork, prepare_network
from trtdx.engines.tensorrt.network.places import TensorPlace, places_of_network
from trtdx.engines.tensorrt.network.values import PACKED_DTYPES, shape_matches, trt_numpy_dtype
from trtdx.engines.tensorrt_llm.plugins import PluginReferences, load_rtx_bindings
from trtdx.engines.tensorrt_llm.stand_ins import CudaOnlyError
from trtdx.errors import InputError
from trtdx.tensors.taps import Selector, place_from_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


PLAN_MAGIC = b"trtdx: a network to be evaluated, number "
MOST_RECENT_PLANS = 16  # networks held only because their plan may come back from a file


class CpuRuntime:
    """What all engines of one `on_cpu` share: plugins, who watches, and the networks that were built."""

    def __init__(self, plugins: PluginReferences, sink: Sink | None, selector: Selector | None) -> None:
        self.plugins, self.sink, self.selector = plugins, sink, selector
        self.step, self._numbers = 0, itertools.count()
        self.ignored: dict[str, str] = {}  # what was asked for and changes nothing here -> why
        self._recent_plans: dict[bytes, EvaluatedPlan] = {}  # for those that come back from a file

    def build_plan(self, network: Any, profiles: Sequence[Any]) -> EvaluatedPlan:
        """Return what stands in for a serialized engine."""
        plan = EvaluatedPlan(PLAN_MAGIC + str(next(self._numbers)).encode())
        plan.network, plan.profiles = network, list(profiles)
        plan.prepared = self.prepare_network(network)  # as it is now, whatever is added to the network afterwards
        plan.weight_owners = [referrer for referrer in gc.get_referrers(network) if _wraps_network(referrer, network)]
        self._recent_plans[bytes(plan)] = plan
        if len(self._recent_plans) > MOST_RECENT_PLANS:
            del self._recent_plans[next(iter(self._recent_plans))]
        return plan

    def engine_from_plan(self, plan: Any) -> EvaluatedEngine:
        """Return the engine of a plan of ours."""
        content = bytes(plan)
        if not content.startswith(PLAN_MAGIC):
            raise CudaOnlyError(
                "this plan was compiled by TensorRT; to run it takes a GPU",
                fix="build the network inside on_cpu, where it is evaluated instead",
            )
        known_plan = plan if isinstance(plan, EvaluatedPlan) else self._recent_plans.get(content)
        if known_plan is None:
            raise CudaOnlyError("the network of this plan is gone; it was built long ago", fix="build it again")
        return EvaluatedEngine(self, known_plan)

    def prepare_network(self, network: Any) -> PreparedNetwork:
        return prepare_network(self.plugins.network_with_plugins(network), plugins=self.plugins.checked_functions())

    def selected_places(self, plan: EvaluatedPlan) -> list[TensorPlace]:
        """Return what is selected in one network; nothing is no mistake, for there may be many networks."""
        if self.sink is None or self.selector is None:
            return []
        network_places = places_of_network(plan.prepared.graph)
        chooses = self.selector.predicate_among(network_places.places())
        return [spot for spot in network_places.tensor_places if chooses(spot.place)]

    def emit_values(
        self, values: Mapping[str, Any], outputs: Collection[str], tensor_places: Sequence[TensorPlace]
    ) -> None:
        """Hand the values of one execution to whoever watches."""
        if self.sink is not None:
            for name in outputs:
                place = place_from_name(name)._replace(dtype=str(values[name].dtype))
                self.sink(TappedTensor(place, values[name], self.step, 0))
            for spot in tensor_places:
                if spot.tensor in values and spot.tensor not in outputs:
                    self.sink(TappedTensor(spot.place, values[spot.tensor], self.step, spot.call))
        self.step += 1


class EvaluatedPlan(bytes):
    """Stands in for IHostMemory."""

    network: Any
    profiles: Sequence[Any]
    prepared: PreparedNetwork
    weight_owners: Sequence[Any]  # TensorRT-LLM's own network object: weights are pointers into arrays that it holds

    @property
    def nbytes(self) -> int:
        return len(self)


class EvaluatedEngine:
    """Stands in for ICudaEngine."""

    streamable_weights_size = weight_streaming_budget_v2 = 0
    refittable = False

    def __init__(self, runtime: CpuRuntime, plan: EvaluatedPlan) -> None:
        network = plan.network
        self.runtime, self.profiles = runtime, plan.profiles
        self.prepared = plan.prepared
        shown = runtime.plugins.network_with_plugins(network)
        self._plan, self.name, self.num_layers = plan, network.name, shown.num_layers
        self.inputs: dict[str, Any] = {t.name: t for t in (shown.get_input(at) for at in range(shown.num_inputs))}
        self.outputs: dict[str, Any] = {t.name: t for t in (shown.get_output(at) for at in range(shown.num_outputs))}
        self._tensors: dict[str, Any] = {**self.inputs, **self.outputs}
        self.num_io_tensors = len(self._tensors)
        self.num_optimization_profiles = max(1, len(plan.profiles))

    def get_tensor_name(self, number: int) -> str:
        return list(self._tensors)[number]

    def get_tensor_mode(self, name: str) -> Any:
        mode = load_rtx_bindings().TensorIOMode
        return mode.NONE if name not in self._tensors else mode.INPUT if name in self.inputs else mode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return self._tensors[name].dtype

    def get_tensor_shape(self, name: str) -> Any:
        return self._tensors[name].shape

    def get_tensor_location(self, name: str) -> Any:
        return load_rtx_bindings().TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, profile: int) -> Any:
        shapes = _shapes_from_profile(self.profiles, profile, "get_shape", name)
        return shapes or [self._tensors[name].shape] * 3

    def get_tensor_profile_values(self, profile: int, name: str) -> Any:
        """Return the smallest, usual and largest values of an input that is a shape."""
        return _shapes_from_profile(self.profiles, profile, "get_shape_input", name)

    def get_tensor_format_desc(self, name: str, profile: int = 0) -> str:
        return "row major linear"

    def create_execution_context(self, *_: Any) -> EvaluatedContext:
        return EvaluatedContext(self)

    def serialize(self) -> EvaluatedPlan:
        return self._plan

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CudaOnlyError(f"ICudaEngine.{name} was asked for, but no engine is compiled here: it is evaluated")

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the network; what is tapped is shown, and the outputs come back."""
        tensor_places = self.runtime.selected_places(self._plan)
        values = self.prepared(inputs, [spot.tensor for spot in tensor_places])
        self.runtime.emit_values(
            values, self.outputs, [spot for spot in tensor_places if spot.tensor not in self.inputs]
        )
        return {name: values[name] for name in self.outputs}


def _shapes_from_profile(profiles: Sequence[Any], number: int, method: str, name: str) -> list[Any]:
    """Return what a profile says of an input, or nothing where it says nothing."""
    try:
        return list(getattr(profiles[number], method)(name))
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return []


def _wraps_network(referrer: Any, network: Any) -> bool:
    attributes = referrer if isinstance(referrer, dict) else getattr(referrer, "__dict__", {})
    return isinstance(attributes, dict) and attributes.get("_trt_network") is network


class EvaluatedContext:
    """Stands in for IExecutionContext."""

    def __init__(self, engine: EvaluatedEngine) -> None:
        self.engine, self.active_optimization_profile = engine, 0
        self._shapes: dict[str, tuple[int, ...]] = {name: tuple(tensor.shape) for name, tensor in engine.inputs.items()}
        self._addresses: dict[str, int] = {}
        self._inferred: dict[str, tuple[int, ...]] = {}

    def set_optimization_profile_async(self, number: int, stream: Any) -> bool:
        self.active_optimization_profile = number
        return 0 <= number < self.engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        sizes, declared = tuple(shape), tuple(self.engine.inputs[name].shape)
        if not shape_matches(declared, sizes):
            return False
        least, _, most = self.engine.get_tensor_profile_shape(name, self.active_optimization_profile)
        if any(not (a <= size <= b or a < 0) for a, size, b in zip(least, sizes, most, strict=True)):
            return False
        self._shapes[name] = sizes
        self._inferred.clear()
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = int(address)
        return True

    def get_tensor_address(self, name: str) -> int:
        return self._addresses.get(name, 0)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """Return a shape, with -1 where it depends on values, as TensorRT does before an execution."""
        if name in self._shapes:
            return self._shapes[name]
        fixed = tuple(self.engine.outputs[name].shape)
        if -1 not in fixed:
            return fixed
        if name not in self._inferred:
            self._inferred = _infer_output_shapes(self.engine, self._shapes, self.active_optimization_profile)
        return self._inferred[name]

    def infer_shapes(self) -> list[str]:
        return [name for name, shape in self._shapes.items() if -1 in shape]

    @property
    def all_binding_shapes_specified(self) -> bool:
        return not self.infer_shapes()

    def execute_async_v3(self, stream: Any = 0) -> bool:
        engine = self.engine
        missing = [name for name in (*engine.inputs, *engine.outputs) if name not in self._addresses]
        if missing:
            raise InputError(f"no address was set for {', '.join(missing)}")
        inputs = {name: self._read_input(name, engine.inputs[name].dtype.name) for name in engine.inputs}
        output_shapes = {name: self.get_tensor_shape(name) for name in engine.outputs}
        for name, value in engine.run(inputs).items():
            if not shape_matches(output_shapes[name], value.shape):
                raise EvaluationError(
                    f"output {name!r} came out as {list(value.shape)}, but {list(output_shapes[name])} follows from the shapes "
                    "of the inputs; it was not written to the memory given for it"
                )
            if value.size:
                dtype = engine.outputs[name].dtype.name
                np.copyto(_array_at_address(self._addresses[name], value.shape, dtype, name), value)
            self._inferred[name] = value.shape
        return True

    def _read_input(self, name: str, dtype: str) -> Any:
        shape, address = self._shapes[name], self._addresses[name]
        if -1 in shape:
            raise InputError(f"the shape of input {name!r} was not set: it is {list(shape)}")
        return _array_at_address(address, shape, dtype, name).copy()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CudaOnlyError(f"IExecutionContext.{name} was asked for, but nothing is executed here: it is evaluated")


def _array_at_address(address: int, shape: Sequence[int], dtype: str, name: str) -> Any:
    """Return an array over the caller's memory."""
    if dtype in PACKED_DTYPES:
        raise CudaOnlyError(f"{name} is {dtype}, two values a byte, which is not passed by address here")
    kind, count = trt_numpy_dtype(dtype), math.prod(shape)
    if not count:
        return np.zeros(tuple(shape), kind)
    if not address:
        raise InputError(f"the address of {name!r} is null, but its shape is {list(shape)}")
    raw: Any = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, np.uint8).view(kind).reshape(tuple(shape))


def _infer_output_shapes(
    engine: EvaluatedEngine, shapes: Mapping[str, tuple[int, ...]], profile: int
) -> dict[str, tuple[int, ...]]:
    """Return the outputs' shapes; -1 where two runs with different values disagree, or none succeeds.

    Inputs that are shapes take the smallest and the largest values that the profile allows.
    """
    values = {name: engine.get_tensor_profile_values(profile, name) for name in engine.inputs}
    shapes_of_runs = []
    for fill in (0, 1):
        feeds = {
            name: np.full(
                shapes[name], np.reshape(values[name][2 * fill], shapes[name]) if values[name] else fill
            ).astype(trt_numpy_dtype(tensor.dtype.name))
            for name, tensor in engine.inputs.items()
        }
        try:
            shapes_of_runs.append({name: value.shape for name, value in engine.prepared(feeds).items()})
        except (EvaluationError, InputError):
            continue
    if not shapes_of_runs:
        return {name: tuple(tensor.shape) for name, tensor in engine.outputs.items()}
    first, last = shapes_of_runs[0], shapes_of_runs[-1]
    return {
        name: tuple(a if a == b else -1 for a, b in zip(first[name], last[name], strict=True))
        for name in engine.outputs
    }
