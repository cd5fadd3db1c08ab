"""Which TensorRT is there: `tensorrt` where it is installed, else `tensorrt_rtx`, which has the same API."""

from __future__ import annotations

import gc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from trtdx.errors import BrokenExtraError, InputError, MissingExtraError
from trtdx.installation import install_packages
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from types import ModuleType

PACKAGES = ("tensorrt", "tensorrt_rtx")
PURPOSE = "compile or open a TensorRT engine"


def load_bindings(package: str = "") -> ModuleType:
    """Return TensorRT's Python module: the one named, or else the first of `PACKAGES` that loads."""
    if package:
        if package not in PACKAGES:
            raise InputError(f"{package!r} is not a TensorRT package", fix=f"one of {', '.join(PACKAGES)}")
        return import_optional(package, extra="trt", purpose=PURPOSE)
    broken: list[BrokenExtraError] = []
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # no origin: a mere folder of that name
            continue
        try:
            return import_optional(name, extra="trt", purpose=PURPOSE)
        except BrokenExtraError as err:
            broken.append(err)
    if broken:
        raise broken[0]
    raise MissingExtraError(
        f"neither tensorrt nor tensorrt_rtx is installed, and one is needed to {PURPOSE}",
        fix=f"{install_packages('tensorrt-rtx')}   # compiles without a GPU; with one, tensorrt does too",
    )


def bindings_of_object(trt_object: Any) -> ModuleType:
    """Return the module that a network, builder or engine comes from."""
    inner = type(trt_object).__module__  # "tensorrt_rtx_bindings.tensorrt_rtx"; the outer one has more names
    module = sys.modules.get(inner.rpartition(".")[2]) or sys.modules.get(inner)
    if module is None or not hasattr(module, "ILayer"):
        raise InputError(f"{type(trt_object).__name__} is not an object of TensorRT's")
    return module


def create_builder(trt: ModuleType, logger: Any) -> Any:
    """Return a builder, made while no garbage is collected.

    TensorRT tells loggers in Python about a second logger while it holds the lock that a builder's end waits for
    (measured with TensorRT-RTX 1.7): a builder that is garbage and is collected during that call never returns.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return trt.Builder(logger)
    finally:
        if collecting:
            gc.enable()
