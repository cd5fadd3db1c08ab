"""The module `tensorrt` as TensorRT-LLM sees it here: TensorRT-RTX's builder, with our runtime.

Networks are defined on the real builder. Only what compiles, executes or has gone from TensorRT-RTX is ours.
"""

from __future__ import annotations

import types
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple

from trtdx.engines.tensorrt_llm.plugins import PluginRegistry
from trtdx.engines.tensorrt_llm.runtime import CpuRuntime, EvaluatedContext, EvaluatedEngine, EvaluatedPlan
from trtdx.engines.tensorrt_llm.stand_ins import CudaOnlyError

CLAIMED_VERSION = "10.9.0"  # the classic TensorRT whose interface this is; TensorRT-LLM asks for 10.6 and 10.8
WEAK_TYPING_FLAGS = (
    "FP16",
    "BF16",
    "INT8",
    "FP8",
    "OBEY_PRECISION_CONSTRAINTS",
    "PREFER_PRECISION_CONSTRAINTS",
)
STRONGLY_TYPED_REASON = "the network is strongly typed, so its own types decide"


class WeakFlag(NamedTuple):
    """A builder flag of weakly typed networks."""

    name: str


class BuilderFlags:
    """`BuilderFlag`, with the flags of weakly typed networks."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.__dict__.update({name: WeakFlag(name) for name in WEAK_TYPING_FLAGS if not hasattr(real, name)})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class CpuBuilderConfig:
    """Stands in for IBuilderConfig: the real one, which also remembers its profiles."""

    def __init__(self, real: Any, world: CpuRuntime) -> None:
        self.__dict__.update(real=real, world=world, profiles=[])

    def set_flag(self, flag: Any) -> None:
        if isinstance(flag, WeakFlag):
            self.world.ignored[f"BuilderFlag.{flag.name}"] = STRONGLY_TYPED_REASON
        else:
            self.real.set_flag(flag)

    def clear_flag(self, flag: Any) -> None:
        if not isinstance(flag, WeakFlag):
            self.real.clear_flag(flag)

    def get_flag(self, flag: Any) -> bool:
        return not isinstance(flag, WeakFlag) and bool(self.real.get_flag(flag))

    def add_optimization_profile(self, profile: Any) -> int:
        self.profiles.append(profile)
        return int(self.real.add_optimization_profile(profile))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.real, name, value)


class TensorRtModule(types.ModuleType):
    """A module that answers some names itself and passes the others on."""

    def __init__(self, real: Any, replacements: dict[str, Any]) -> None:
        super().__init__("tensorrt", "A stand-in of trtdx over tensorrt_rtx.")
        self.__dict__.update(replacements, _real=real, tensorrt=self, __path__=[], __version__=CLAIMED_VERSION)
        self.__spec__ = ModuleSpec("tensorrt", None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)


def create_tensorrt_module(real: Any, runtime: CpuRuntime) -> TensorRtModule:
    """Return the module `tensorrt`."""

    class Builder(real.Builder):  # type: ignore[misc]
        platform_has_fast_fp16 = platform_has_fast_int8 = True

        def __del__(self) -> None:
            """Do not call TensorRT's own, which only warns that nobody should."""

        def create_builder_config(self) -> CpuBuilderConfig:
            return CpuBuilderConfig(super().create_builder_config(), runtime)

        def build_serialized_network(self, network: Any, config: Any) -> EvaluatedPlan:
            return runtime.build_plan(network, getattr(config, "profiles", []))

        def build_engine_with_config(self, network: Any, config: Any) -> EvaluatedEngine:
            return runtime.engine_from_plan(self.build_serialized_network(network, config))

    class Runtime:
        def __init__(self, logger: Any) -> None:
            self.logger, self.max_threads = logger, 1

        def deserialize_cuda_engine(self, plan: Any) -> EvaluatedEngine:
            return runtime.engine_from_plan(plan)

        def get_plugin_registry(self) -> PluginRegistry:
            return registry

    class Refitter:
        def __init__(self, *_: Any) -> None:
            raise CudaOnlyError("tensorrt.Refitter was asked for, but no engine is compiled here: it is evaluated")

    registry = PluginRegistry(real.get_plugin_registry())
    return TensorRtModule(
        real,
        {
            "Builder": Builder,
            "Runtime": Runtime,
            "Refitter": Refitter,
            "ICudaEngine": EvaluatedEngine,
            "IExecutionContext": EvaluatedContext,
            "IHostMemory": EvaluatedPlan,
            "IBuilderConfig": CpuBuilderConfig,
            "BuilderFlag": BuilderFlags(real.BuilderFlag),
            "get_plugin_registry": lambda: registry,
            "init_libnvinfer_plugins": lambda *_, **__: True,
        },
    )


class AttributePatch(NamedTuple):
    """An attribute that is exchanged as long as we are there."""

    owner: Any
    name: str
    value: Any

    @property
    def qualified_name(self) -> str:
        """What is exchanged, by its name."""
        return f"{getattr(self.owner, '__module__', '') or ''}.{self.owner.__name__}.{self.name}".lstrip(".")


def tensorrt_patches(real: Any, runtime: CpuRuntime) -> list[AttributePatch]:
    """Return what TensorRT-RTX's own classes are given: what classic TensorRT's have."""
    dtype_property = real.ITensor.dtype

    def set_dtype(tensor: Any, value: Any) -> None:
        if value != dtype_property.__get__(tensor):
            runtime.ignored[f"the type {value.name} of tensor {tensor.name}"] = STRONGLY_TYPED_REASON

    def set_precision(layer: Any, value: Any) -> None:
        runtime.ignored["ILayer.precision"] = STRONGLY_TYPED_REASON

    def set_output_type(layer: Any, number: int, value: Any) -> None:
        if layer.get_output(number).dtype != value:
            runtime.ignored["ILayer.set_output_type"] = STRONGLY_TYPED_REASON

    def add_plugin_v2(network: Any, inputs: Any, plugin: Any) -> Any:
        return runtime.plugins.add_layer(network, inputs, plugin)

    location = property(lambda tensor: real.TensorLocation.DEVICE, lambda tensor, value: None)
    precision = property(lambda layer: layer.get_output(0).dtype, set_precision)
    broadcast = property(lambda tensor: False, lambda tensor, value: None)
    network, tensor, layer = real.INetworkDefinition, real.ITensor, real.ILayer
    where_missing = [
        AttributePatch(tensor, "location", location),
        AttributePatch(tensor, "broadcast_across_batch", broadcast),
        AttributePatch(network, "add_plugin_v2", add_plugin_v2),
        AttributePatch(
            network, "add_plugin_v3", lambda net, inputs, shapes, plugin: add_plugin_v2(net, inputs, plugin)
        ),
        AttributePatch(layer, "precision", precision),
        AttributePatch(layer, "precision_is_set", False),
        AttributePatch(layer, "set_output_type", set_output_type),
    ]
    always = AttributePatch(tensor, "dtype", property(dtype_property.__get__, set_dtype))
    return [always, *(patch for patch in where_missing if not hasattr(patch.owner, patch.name))]
