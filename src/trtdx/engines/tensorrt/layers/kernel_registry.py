"""The one table from kind of layer to what makes its kernel.

A maker reads a layer's attributes once and returns a kernel: a function from the layer's inputs (None for one
that is not there) to its output, or to a tuple where the layer has several. Kernels of light layers compute with
numpy, whose calls cost a third of torch's. Those of heavy layers compute with torch tensors and are entered with
`register_torch_kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trtdx.engines.tensorrt.network.graph import TrtLayer
from trtdx.engines.tensorrt.network.values import (
    WIDENED_DTYPES,
    Array,
    numpy_converter,
    torch_converter,
    torch_dtype,
)
from trtdx.engines.torch.lazy_import import torch

Kernel = Callable[..., Any]
KernelMaker = Callable[[TrtLayer, Any], Kernel]  # the record, and TensorRT's layer with the class of its kind

KERNEL_MAKERS: dict[str, KernelMaker] = {}
TORCH_KINDS: set[str] = set()  # kinds whose kernels take and give torch tensors
# Also gets the kernel on arrays for what it does not do itself.
Shortcut = Callable[[TrtLayer, Any, Kernel], Kernel]
SHORTCUTS: dict[str, Shortcut] = {}


def register_kernel(*kinds: str) -> Callable[[KernelMaker], KernelMaker]:
    """Enter a maker of kernels on arrays into the table, under the kinds it makes kernels for."""

    def enter(maker: KernelMaker) -> KernelMaker:
        KERNEL_MAKERS.update(dict.fromkeys(kinds, maker))
        return maker

    return enter


def register_torch_kernel(*kinds: str) -> Callable[[KernelMaker], KernelMaker]:
    """Enter a maker of kernels on torch tensors into the table."""
    TORCH_KINDS.update(kinds)
    return register_kernel(*kinds)


def register_shortcut(kind: str) -> Callable[[Shortcut], Shortcut]:
    """Enter what makes, of a kind's torch kernel, one that does small things with numpy."""

    def enter(shortcut: Shortcut) -> Shortcut:
        SHORTCUTS[kind] = shortcut
        return shortcut

    return enter


def kernel_on_arrays(kernel: Kernel, layer: TrtLayer, fixed: dict[int, Array] | None = None) -> Kernel:
    """Return a kernel on torch tensors as one on arrays; inputs that never change are converted once."""
    into = [torch_converter(tensor.dtype) if tensor else None for tensor in layer.inputs]
    back = [numpy_converter(tensor.dtype) for tensor in layer.outputs]
    ready = {number: torch_converter(input_dtype(layer, number))(array) for number, array in (fixed or {}).items()}
    if len(into) == 2 and len(back) == 1 and set(ready) == {1} and into[0]:
        first, weights, last = into[0], ready[1], back[0]
        return lambda value, _: last(kernel(first(value), weights))
    if len(back) == 1:
        only = back[0]
        return lambda *values: only(kernel(*_torch_arguments(values, into, ready)))
    return lambda *values: tuple(
        convert(output) for convert, output in zip(back, kernel(*_torch_arguments(values, into, ready)), strict=True)
    )


def _torch_arguments(values: tuple[Any, ...], into: list[Any], ready: dict[int, Any]) -> list[Any]:
    return [
        ready[number] if number in ready else None if value is None else into[number](value)
        for number, value in enumerate(values)
    ]


def identity_kernel(value: Any, *_: Any) -> Any:
    """Return a value as it is."""
    return value


def axes_from_mask(mask: int) -> tuple[int, ...]:
    """Return the axes whose bits are set."""
    return tuple(axis for axis in range(32) if mask >> axis & 1)


def shape_along(axis: int, rank: int) -> list[int]:
    """Return the shape with all elements along one axis, to meet a value of this rank."""
    return [-1 if number == axis else 1 for number in range(rank)]


def input_dtype(layer: TrtLayer, number: int = 0) -> str:
    """Return TensorRT's type of an input that must be there."""
    tensor = layer.inputs[number]
    assert tensor is not None, f"{layer.name} has no input {number}"
    return tensor.dtype


def compute_in_float32(function: Kernel, layer: TrtLayer) -> Kernel:
    """Return a torch kernel computed in float32 and rounded once, where the layer's output is narrower."""
    if layer.outputs[0].dtype not in WIDENED_DTYPES:
        return function
    rounded, wide = torch_dtype(layer.outputs[0].dtype), torch.float32

    def compute(*inputs: Any) -> Any:
        widened = [value.to(wide) if value is not None and value.is_floating_point() else value for value in inputs]
        return function(*widened).to(rounded)

    return compute


def read_attribute(getter: Callable[[], Any]) -> Any:
    """Return an attribute, or None where the bindings raise because it was never set."""
    try:
        return getter()
    except (AttributeError, RuntimeError):
        return None


def dims_tuple(trt_dims: Any) -> tuple[int, ...] | None:
    """Return TensorRT's Dims as a tuple; None for dimensions that were never set."""
    return None if trt_dims is None or len(trt_dims) < 0 else tuple(int(size) for size in trt_dims)
