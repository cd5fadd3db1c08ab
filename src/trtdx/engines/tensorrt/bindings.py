"""Which TensorRT is there: `tensorrt` where it is installed, else `tensorrt_rtx`, which has the same API."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from trtdx.errors import BrokenExtraError, InputError, MissingExtraError
from trtdx.optional import need

if TYPE_CHECKING:
    from types import ModuleType

PACKAGES = ("tensorrt", "tensorrt_rtx")
PURPOSE = "compile or open a TensorRT engine"


def bindings(package: str = "") -> ModuleType:
    """Return TensorRT's Python module: the one named, or else the first of `PACKAGES` that loads."""
    if package:
        if package not in PACKAGES:
            raise InputError(f"{package!r} is no TensorRT", fix=f"one of {', '.join(PACKAGES)}")
        return need(package, extra="trt", to=PURPOSE)
    broken: list[BrokenExtraError] = []
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # no origin: a mere folder of that name
            continue
        try:
            return need(name, extra="trt", to=PURPOSE)
        except BrokenExtraError as err:
            broken.append(err)
    if broken:
        raise broken[0]
    raise MissingExtraError(
        f"neither tensorrt nor tensorrt_rtx is installed, and one is needed to {PURPOSE}",
        fix="pip install tensorrt   # with a GPU; pip install tensorrt-rtx compiles without one",
    )


def bindings_of(thing: Any) -> ModuleType:
    """Return the module that a network, builder or engine comes from."""
    inner = type(thing).__module__  # "tensorrt_rtx_bindings.tensorrt_rtx"; the outer one has more names
    module = sys.modules.get(inner.rpartition(".")[2]) or sys.modules.get(inner)
    if module is None or not hasattr(module, "ILayer"):
        raise InputError(f"{type(thing).__name__} is not an object of TensorRT's")
    return module
