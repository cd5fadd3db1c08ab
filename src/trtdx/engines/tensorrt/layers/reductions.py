"""Along axes: reduce, top-k, softmax, cumulative sums, normalisation, local response normalisation."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.tensorrt.layers.arithmetic import NUMPY_FASTER_ELEMENTS, TORCH_FASTER_ELEMENTS
from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    axes_from_mask,
    compute_in_float32,
    identity_kernel,
    input_dtype,
    kernel_on_arrays,
    register_kernel,
    register_torch_kernel,
)
from trtdx.engines.tensorrt.network.values import FLOAT_DTYPES, NUMPY_DTYPES, Array, torch_dtype
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer


@register_kernel("REDUCE")
def reduce_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    axes, keep = axes_from_mask(trt.axes), trt.keep_dims
    operation, dtype = trt.op.name, input_dtype(layer)
    if not axes:
        return identity_kernel
    if dtype not in FLOAT_DTYPES:
        output_dtype = torch_dtype(layer.outputs[0].dtype)
        return kernel_on_arrays(lambda value: INTEGER_REDUCTIONS[operation](value, axes, keep).to(output_dtype), layer)
    large = kernel_on_arrays(
        compute_in_float32(lambda value: FLOAT_REDUCTIONS[operation](value, axes, keep), layer), layer
    )
    if dtype not in NUMPY_DTYPES or operation not in ("SUM", "AVG"):
        return large
    along = axes if len(axes) > 1 else axes[0]
    add_up = _untyped_reduction(np.add.reduce)

    def compute(value: Array) -> Any:
        if value.size > TORCH_FASTER_ELEMENTS or not value.size:
            return large(value)
        total = add_up(value, along, None, None, keep)
        if operation == "AVG":
            total = np.divide(total, value.size // total.size)
        return total if total.__class__ is np.ndarray else np.asarray(total)

    return compute


def _reduce_max(value: Any, axes: tuple[int, ...], keep: bool) -> Any:
    """Return the largest element; a number wins over a NaN, as in TensorRT's elementwise MAX."""
    if not value.numel():
        return _reduce_nothing(value, axes, keep, -torch.inf)
    result = torch.amax(value, axes, keep)
    if not bool(torch.isnan(result).any()):
        return result
    numbers = torch.amax(torch.nan_to_num(value, nan=-torch.inf, posinf=torch.inf), axes, keep)
    return torch.where(torch.isnan(value).all(axes, keep), torch.nan, numbers)


def _reduce_product(value: Any, axes: tuple[int, ...], keep: bool) -> Any:
    for axis in sorted(axes, reverse=True):
        value = torch.prod(value, axis, keep)
    return value


def _reduce_nothing(value: Any, axes: tuple[int, ...], keep: bool, fill: float) -> Any:
    """Return what a reduction over nothing gives."""
    shape = [1 if axis in axes else size for axis, size in enumerate(value.shape)]
    if not keep:
        shape = [size for axis, size in enumerate(value.shape) if axis not in axes]
    return torch.full(shape, fill, dtype=value.dtype)


FLOAT_REDUCTIONS: dict[str, Any] = {
    "SUM": lambda value, axes, keep: torch.sum(value, axes, keep),
    "AVG": lambda value, axes, keep: torch.mean(value, axes, keep),
    "PROD": _reduce_product,
    "MAX": _reduce_max,
    "MIN": lambda value, axes, keep: -_reduce_max(-value, axes, keep),
}


def _reduce_integer_limit(value: Any, axes: tuple[int, ...], keep: bool, name: str) -> Any:
    if not value.numel():
        limit = torch.iinfo(value.dtype)
        return _reduce_nothing(value, axes, keep, limit.min if name == "amax" else limit.max)
    return getattr(torch, name)(value, axes, keep)


def _reduce_integer_mean(value: Any, axes: tuple[int, ...], keep: bool) -> Any:
    count = math.prod(value.shape[axis] for axis in axes)
    total = torch.sum(value, axes, keep)
    return torch.div(total, count, rounding_mode="trunc") if count else torch.zeros_like(total)


INTEGER_REDUCTIONS: dict[str, Any] = {
    "SUM": lambda value, axes, keep: torch.sum(value, axes, keep),
    "AVG": _reduce_integer_mean,
    "PROD": _reduce_product,
    "MAX": functools.partial(_reduce_integer_limit, name="amax"),
    "MIN": functools.partial(_reduce_integer_limit, name="amin"),
}


@register_torch_kernel("TOPK")
def top_k_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    axis = axes_from_mask(trt.axes)[0]
    largest = trt.op.name == "MAX"
    fixed = 0 if layer.has_input(1) else trt.k
    index_dtype = torch_dtype(layer.outputs[1].dtype)

    def compute(value: Any, k: Any = None) -> tuple[Any, Any]:
        count = fixed if k is None else int(k.item())
        index = _sorted_indices(value, axis, largest).narrow(axis, 0, count)
        return torch.gather(value, axis, index), index.to(index_dtype)

    return compute


def _sorted_indices(value: Any, axis: int, largest: bool) -> Any:
    """Return places from best to worst: of equals the first comes first, a NaN after every number."""
    if not value.is_floating_point():
        return torch.sort(value, dim=axis, descending=largest, stable=True).indices
    wide = value.to(torch.float32)
    missing = torch.isnan(wide)
    order = torch.sort(
        torch.nan_to_num(wide, nan=0.0, posinf=torch.inf, neginf=-torch.inf),
        dim=axis,
        descending=largest,
        stable=True,
    ).indices
    if not bool(missing.any()):
        return order
    late = torch.sort(missing.gather(axis, order).to(torch.uint8), dim=axis, stable=True).indices
    return order.gather(axis, late)


@register_kernel("SOFTMAX")
def softmax_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    axis = axes_from_mask(trt.axes)[0]
    large = kernel_on_arrays(compute_in_float32(lambda value: torch.softmax(value, axis), layer), layer)
    if input_dtype(layer) not in NUMPY_DTYPES:
        return large
    largest, add_up = _untyped_reduction(np.maximum.reduce), _untyped_reduction(np.add.reduce)

    def compute(value: Array) -> Any:
        if value.size > NUMPY_FASTER_ELEMENTS or not value.size:
            return large(value)
        # Torch would take several threads even for this, and wait for each other.
        powers = np.exp(np.subtract(value, largest(value, axis, None, None, True)))
        return np.divide(powers, add_up(powers, axis, None, None, True))

    return compute


def _untyped_reduction(reduction: Any) -> Any:
    """Return a reduction of numpy, whose types do not tell that all of its parameters go by position."""
    return reduction


@register_torch_kernel("RAGGED_SOFTMAX")
def ragged_softmax_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    def compute(value: Any, bounds: Any) -> Any:
        inside = torch.arange(value.shape[-1]) < bounds.reshape(*value.shape[:-1], 1)
        return torch.softmax(value.masked_fill(~inside, -torch.inf), -1).masked_fill(~inside, 0)

    return compute_in_float32(compute, layer)


@register_torch_kernel("CUMULATIVE")
def cumulative_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    exclusive, backward = trt.exclusive, trt.reverse
    dtype = torch_dtype(layer.outputs[0].dtype)

    def compute(value: Any, axis: Any) -> Any:
        along = int(axis.item())
        value = value.flip(along) if backward else value
        value = _shift_by_one(value, along) if exclusive else value
        total = torch.cumsum(value, along).to(value.dtype)
        return total.flip(along) if backward else total

    if input_dtype(layer) in FLOAT_DTYPES:
        return compute_in_float32(compute, layer)
    return lambda value, axis: compute(value, axis).to(dtype)


def _shift_by_one(value: Any, axis: int) -> Any:
    """Return a value moved on by one place along an axis, with a zero at the start."""
    length = value.shape[axis]
    first = torch.zeros_like(value.narrow(axis, 0, min(1, length)))
    return torch.cat([first, value.narrow(axis, 0, max(length - 1, 0))], axis)


@register_torch_kernel("NORMALIZATION")
def normalization_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    axes, epsilon, groups = axes_from_mask(trt.axes), trt.epsilon, trt.num_groups
    per_group = groups > 1 and not getattr(trt, "is_v2", False)

    def compute(value: Any, scale: Any, bias: Any) -> Any:
        shape = value.shape
        if groups > 1:
            grouped = value.reshape(shape[0], groups, shape[1] // groups, *shape[2:])
            result = _normalize_axes(grouped, tuple(range(2, grouped.dim())), epsilon).reshape(shape)
        else:
            result = _normalize_axes(value, axes, epsilon)
        if per_group and scale.shape[1] == groups:
            scale, bias = (weights.repeat_interleave(shape[1] // groups, 1) for weights in (scale, bias))
        return result * scale + bias

    return compute_in_float32(compute, layer)


def _normalize_axes(value: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    centred = value - torch.mean(value, axes, keepdim=True)
    variance = torch.mean(centred * centred, axes, keepdim=True)
    return centred / torch.sqrt(variance + epsilon)


@register_torch_kernel("LRN")
def local_response_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    size, alpha, beta, k = trt.window_size, trt.alpha, trt.beta, trt.k

    def compute(value: Any) -> Any:
        return torch.nn.functional.local_response_norm(value, size, alpha, beta, k)

    return compute_in_float32(compute, layer)
