"""The few names of Polygraphy that TensorRT-LLM's tests run their networks with, answered by evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.tensorrt.network.values import torch_converter
from trtdx.engines.torch.lazy_import import torch
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtdx.engines.tensorrt_llm.runtime import CpuRuntime, EvaluatedEngine


class PolygraphyProfile(dict[str, tuple[Any, Any, Any]]):
    """The shapes of inputs: smallest, usual and largest."""

    def add(self, name: str, min: Any, opt: Any, max: Any) -> PolygraphyProfile:  # as Polygraphy calls them  # noqa: A002
        self[name] = (tuple(min), tuple(opt), tuple(max))
        return self

    def get_shape(self, name: str) -> list[tuple[int, ...]]:
        """Return the shapes of one input, as TensorRT's own profile does."""
        return [tuple(shape) for shape in self.get(name, ())]


class CreateConfig:
    """How to build: only the profiles matter where the network's own types decide."""

    def __init__(self, *, profiles: Any = (), **options: Any) -> None:
        self.profiles, self.options = list(profiles or ()), options

    def __call__(self, builder: Any, network: Any) -> CreateConfig:
        return self


class TrtRunner:
    """Runs an engine on arrays: NumPy's give NumPy's back, and torch's torch's."""

    def __init__(
        self, engine: EvaluatedEngine | Callable[[], EvaluatedEngine], name: str | None = None, **_: Any
    ) -> None:
        self._engine_source, self.name, self._engine = engine, name, None

    def activate(self) -> None:
        """Make the engine, if a function was given."""
        self._engine = self._engine_source() if callable(self._engine_source) else self._engine_source  # type: ignore[assignment]

    def deactivate(self) -> None:
        """Let the engine go."""
        self._engine = None

    def __enter__(self) -> TrtRunner:
        self.activate()
        return self

    def __exit__(self, *_: Any) -> None:
        self.deactivate()

    def infer(self, feed_dict: Mapping[str, Any], check_inputs: bool = True, **_: Any) -> dict[str, Any]:
        """Return the outputs by name."""
        assert self._engine is not None, "the runner is not active"
        engine: EvaluatedEngine = self._engine
        context = engine.create_execution_context()
        for name, value in feed_dict.items():
            if name in engine.inputs and not context.set_input_shape(name, value.shape):
                least, _usual, most = engine.get_tensor_profile_shape(name, 0)
                raise InputError(f"{name} has shape {list(value.shape)}, outside of {least} to {most}")
        outputs = engine.run(feed_dict)
        if not any(isinstance(value, torch.Tensor) for value in feed_dict.values()):
            return outputs
        return {
            name: torch_converter(engine.outputs[name].dtype.name)(np.ascontiguousarray(value))
            for name, value in outputs.items()
        }

    def last_inference_time(self) -> float:
        """Return the time the last run took: none that would mean anything here."""
        return 0.0


def polygraphy_names(runtime: CpuRuntime) -> dict[str, dict[str, Any]]:
    """Return the names by module."""

    def engine_from_network(network: Any, config: Any = None, **_: Any) -> EvaluatedEngine:
        created = network() if callable(network) else network
        builder, definition = created[0], created[1]
        builder_config = config(builder, definition) if callable(config) else config
        return runtime.engine_from_plan(runtime.build_plan(definition, getattr(builder_config, "profiles", ())))

    class EngineFromNetwork:
        def __init__(self, network: Any, config: Any = None, **_: Any) -> None:
            self._network, self._config = network, config

        def __call__(self) -> EvaluatedEngine:
            return engine_from_network(self._network, self._config)

    return {
        "polygraphy.backend.trt": {
            "CreateConfig": CreateConfig,
            "EngineFromNetwork": EngineFromNetwork,
            "Profile": PolygraphyProfile,
            "TrtRunner": TrtRunner,
            "engine_from_network": engine_from_network,
        }
    }
