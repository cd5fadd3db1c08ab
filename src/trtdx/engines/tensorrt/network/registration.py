"""Tensors registered by name while a network is defined; they are marked when it is compiled, not in the model.

    from trtdx.engines.tensorrt import register

    hidden = network.add_activation(...).get_output(0)
    register("mlp.hidden", hidden)

Outside of a compile that looks at them `register` does nothing, so that a model may keep its calls.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_ACTIVE_REGISTRY: ContextVar[TensorRegistry | None] = ContextVar("trtdx_registry", default=None)


class TensorRegistry:
    """What was registered, in its order."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}

    def register(self, name: str, tensor: Any) -> None:
        """Keep a tensor of TensorRT's, or of TensorRT-LLM's wrapper of one, under a name."""
        inner = getattr(tensor, "trt_tensor", tensor)
        if not hasattr(inner, "dtype") or not hasattr(inner, "is_network_output"):
            raise InputError(
                f"{name} is registered as a {type(tensor).__name__}, which is not a tensor of a network",
                fix=f"pass layer.get_output(0): register({name!r}, layer.get_output(0))",
            )
        registered = self.tensors.setdefault(name, inner)
        if registered is not inner and registered.name != inner.name:
            raise InputError(
                f"{name} is registered twice, for {registered.name} and {inner.name}",
                fix="give each tensor its own name",
            )

    def register_all(self, model: Any) -> int:
        """Keep all of TensorRT-LLM's `named_network_outputs()`; returns how many there are."""
        named = getattr(model, "named_network_outputs", None)
        if named is None:
            return 0
        pairs = list(named())
        for name, tensor in pairs:
            self.register(name, tensor)
        return len(pairs)


def register(name: str, tensor: Any) -> None:
    """Name a tensor to look at; nothing happens where nobody looks."""
    registry = _ACTIVE_REGISTRY.get()
    if registry is not None:
        registry.register(name, tensor)


@contextlib.contextmanager
def collect_registered() -> Iterator[TensorRegistry]:
    """Collect what is registered inside."""
    registry = TensorRegistry()
    token = _ACTIVE_REGISTRY.set(registry)
    try:
        yield registry
    finally:
        _ACTIVE_REGISTRY.reset(token)
