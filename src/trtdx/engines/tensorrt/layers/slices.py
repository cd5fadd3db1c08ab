"""Slices with every way to treat what is out of bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trtdx.engines.errors import LayerError
from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    dims_tuple,
    register_kernel,
    shape_along,
)

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer
    from trtdx.engines.tensorrt.network.values import Array

MOST_SLICE_PLANS = 256  # slices of one layer that are remembered


class SliceWindow(NamedTuple):
    """What to take along each axis."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def render(self) -> str:
        return f"from {list(self.start)} of {list(self.size)} by {list(self.stride)}"


class SlicePlan(NamedTuple):
    """How a slice of one shape is done."""

    window: SliceWindow  # over all axes
    numpy_slices: tuple[slice, ...] | None  # what numpy takes for it; None if it leaves the bounds
    repeated_shape: tuple[int, ...] | None  # the shape, where single elements are repeated
    backward: bool


@register_kernel("SLICE")
def slice_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    mode = trt.mode.name
    inputs = (("start", 1), ("shape", 2), ("stride", 3), ("axes", 5))
    # Asking for what an input gives makes TensorRT log a warning.
    fixed = [None if layer.has_input(number) else dims_tuple(getattr(trt, name, None)) for name, number in inputs]
    plans: dict[Any, SlicePlan] = {}

    def compute(
        value: Array,
        start: Array | None = None,
        size: Array | None = None,
        stride: Array | None = None,
        fill: Array | None = None,
        axes: Array | None = None,
    ) -> Array:
        key = (
            fixed[0] if start is None else tuple(start.tolist()),
            fixed[1] if size is None else tuple(size.tolist()),
            fixed[2] if stride is None else tuple(stride.tolist()),
            fixed[3] if axes is None else tuple(axes.tolist()),
            value.shape,
        )
        plan = plans.get(key)
        if plan is None:
            if len(plans) >= MOST_SLICE_PLANS:
                plans.clear()
            plan = plans[key] = _plan_slice(*key)  # type: ignore[arg-type]
        if plan.numpy_slices is None:
            if mode == "STRICT_BOUNDS":
                raise LayerError(f"the slice {plan.window.render()} leaves {list(value.shape)}")
            return _slice_out_of_bounds(value, plan.window, mode, fill)
        sliced = value[plan.numpy_slices]
        if plan.backward:  # torch knows no negative strides
            sliced = sliced.copy()
        return sliced if plan.repeated_shape is None else repeat_elements(sliced, plan.repeated_shape)

    return compute


def _plan_slice(
    start: tuple[int, ...],
    size: tuple[int, ...],
    stride: tuple[int, ...],
    axes: tuple[int, ...] | None,
    shape: tuple[int, ...],
) -> SlicePlan:
    window = _window_over_all_axes(SliceWindow(start, size, stride), axes, shape)
    index, repeats = [], False
    for begin, count, step, length in zip(*window, shape, strict=True):
        last = begin + (count - 1) * step
        if count and not (0 <= begin < length and 0 <= last < length):
            return SlicePlan(window, None, None, False)
        if not count:
            index.append(slice(0, 0))
        elif not step:
            index.append(slice(begin, begin + 1))
            repeats = repeats or count > 1
        elif step > 0:
            index.append(slice(begin, last + 1, step))
        else:
            index.append(slice(begin, last - 1 if last else None, step))
    return SlicePlan(window, tuple(index), window.size if repeats else None, min(window.stride, default=1) < 0)


def _window_over_all_axes(window: SliceWindow, axes: tuple[int, ...] | None, shape: tuple[int, ...]) -> SliceWindow:
    """Return start, size and stride for every axis; an axis not named is taken whole."""
    if not axes:
        return window
    start, size, stride = [0] * len(shape), list(shape), [1] * len(shape)
    for axis, begin, count, step in zip(axes, *window, strict=True):
        start[axis], size[axis], stride[axis] = begin, count, step
    return SliceWindow(tuple(start), tuple(size), tuple(stride))


def repeat_elements(value: Array, shape: tuple[int, ...]) -> Array:
    """Return a view with elements of axes of length 1 repeated; torch may look at it, which wants it writable."""
    if value.flags.c_contiguous and value.dtype.isbuiltin == 1:  # ten times as quick
        strides = [
            0 if have != want else step for have, want, step in zip(value.shape, shape, value.strides, strict=True)
        ]
        return np.ndarray(shape, value.dtype, value, 0, strides)
    view = np.broadcast_to(value, shape)
    view.flags.writeable = True
    return view


def _slice_out_of_bounds(value: Array, window: SliceWindow, mode: str, fill: Array | None) -> Array:
    """Return a slice element by element, out of bounds as the mode says."""
    outside: Any = None
    for axis, (begin, count, step) in enumerate(zip(*window, strict=True)):
        length = value.shape[axis]
        indices = begin + step * np.arange(count)
        if mode == "FILL":
            shape = shape_along(axis, value.ndim)
            missed = ((indices < 0) | (indices >= length)).reshape(shape)
            outside = missed if outside is None else outside | missed
            value = _fill_empty_axis(value, axis) if not length and count else value
        value = value.take(_indices_in_bounds(indices, length, mode), axis)
    if outside is None:
        return value
    blank = np.zeros((), value.dtype) if fill is None else fill.astype(value.dtype).reshape(())
    return np.where(outside, blank, value)


def _fill_empty_axis(value: Array, axis: int) -> Array:
    """Return a value with one element on an empty axis, so that there is something to overwrite."""
    shape = list(value.shape)
    shape[axis] = 1
    return np.zeros(shape, value.dtype)


def _indices_in_bounds(indices: Array, length: int, mode: str) -> Array:
    """Return coordinates brought into bounds as the mode says."""
    if mode == "WRAP":
        return np.remainder(indices, length)
    if mode == "REFLECT":
        if length == 1:
            return np.zeros_like(indices)
        folded = np.remainder(indices, 2 * (length - 1))
        return np.where(folded < length, folded, 2 * (length - 1) - folded)
    return np.clip(indices, 0, max(length - 1, 0))
