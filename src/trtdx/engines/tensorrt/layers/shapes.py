"""Shapes and views: constant, shape, shuffle, squeeze, unsqueeze, concatenation, padding, assertion."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.errors import LayerError
from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    dims_tuple,
    identity_kernel,
    register_kernel,
    register_torch_kernel,
)
from trtdx.engines.tensorrt.network.values import Array, value_from_weights
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer


@register_kernel("CONSTANT")
def constant_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    value = value_from_weights(trt.weights, layer.outputs[0].dtype, dims_tuple(trt.shape) or ())
    return lambda: value


@register_kernel("SHAPE")
def shape_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    return lambda value: np.array(value.shape, np.int64)


@register_kernel("SHUFFLE")
def shuffle_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    first, second = (
        _transpose_kernel(tuple(trt.first_transpose)),
        _transpose_kernel(tuple(trt.second_transpose)),
    )
    used = [part for part in (first, _reshape_kernel(layer, trt), second) if part is not None]
    if not used:
        return identity_kernel
    if len(used) == 1:
        return used[0]
    return functools.partial(_apply_in_turn, tuple(used))


def _apply_in_turn(parts: tuple[Kernel, ...], value: Array, *shape: Array) -> Any:
    for part in parts:
        value = part(value, *shape)
    return value


def _transpose_kernel(permutation: tuple[int, ...]) -> Kernel | None:
    """Return a transposition, or None for one that changes nothing; entries beyond the rank mean nothing."""
    if permutation == tuple(range(len(permutation))):
        return None
    by_rank = [permutation[:rank] for rank in range(len(permutation) + 1)]
    return lambda value, *_: value.transpose(by_rank[value.ndim])


def _reshape_kernel(layer: TrtLayer, trt: Any) -> Kernel | None:
    placeholder = trt.zero_is_placeholder
    if layer.has_input(1):
        return lambda value, shape: reshape_value(value, shape.tolist(), placeholder)
    sizes = dims_tuple(trt.reshape_dims)
    if sizes is None:
        return None
    if 0 in sizes:
        return lambda value, *_: reshape_value(value, list(sizes), placeholder)
    return lambda value, *_: value.reshape(sizes)


def reshape_value(value: Array, sizes: list[int], placeholder: bool) -> Array:
    """Return a value in another shape; a zero may stand for the length of the same axis of the value."""
    if 0 in sizes and placeholder:
        sizes = [value.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    if not value.size and -1 in sizes:  # numpy has no answer where lengths are zero
        others = math.prod(size for size in sizes if size != -1)
        sizes = [0 if size == -1 and others else size for size in sizes]
    return value.reshape(sizes)


@register_kernel("SQUEEZE")
def squeeze_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    def compute(value: Array, axes: Array | None = None) -> Array:
        if axes is None:  # then all axes of length 1 go
            return value.squeeze()
        gone = {axis % value.ndim for axis in axes.tolist()}
        wrong = [axis for axis in gone if value.shape[axis] != 1]
        if wrong:
            raise LayerError(f"axis {wrong[0]} of {list(value.shape)} has not length 1 and cannot be squeezed")
        return value.reshape([size for axis, size in enumerate(value.shape) if axis not in gone])

    return compute


@register_kernel("UNSQUEEZE")
def unsqueeze_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    def compute(value: Array, axes: Array) -> Array:
        numbers = axes.tolist()
        rank = value.ndim + len(numbers)
        sizes = list(value.shape)
        for axis in sorted(axis % rank for axis in numbers):
            sizes.insert(axis, 1)
        return value.reshape(sizes)

    return compute


@register_kernel("CONCATENATION")
def concatenation_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    axis = trt.axis
    return lambda *values: np.concatenate(values, axis)


@register_torch_kernel("PADDING")
def padding_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    before, after = dims_tuple(trt.pre_padding_nd) or (0, 0), dims_tuple(trt.post_padding_nd) or (0, 0)
    sides = [side for pair in reversed(list(zip(before, after, strict=True))) for side in pair]
    return lambda value: torch.nn.functional.pad(value, sides)


@register_kernel("ASSERTION")
def assertion_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    message = trt.message

    def compute(value: Array) -> tuple[()]:
        if not value.all():
            raise LayerError(f"the assertion of layer {layer.name!r} does not hold: {message}")
        return ()

    return compute
