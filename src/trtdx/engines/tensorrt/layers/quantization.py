"""Quantise, dequantise and dynamic quantisation: per tensor, per channel and per block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.engines.tensorrt.layers.casts import INTEGER_LIMITS, round_to_fp4
from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    dims_tuple,
    read_attribute,
    register_torch_kernel,
    shape_along,
)
from trtdx.engines.tensorrt.network.values import torch_dtype
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer

LARGEST_VALUE = {"FP8": 448.0, "FP4": 6.0, "INT8": 127.0, "INT4": 7.0}


def quantize_scaled(value: Any, dtype: str, zero: Any = None) -> Any:
    """Return float32 values already divided by their scale in a quantised type: nearest, ties to even, cut off."""
    if dtype == "FP8":
        return torch.clamp(value, -448, 448).to(torch.float8_e4m3fn)
    if dtype == "FP4":
        return round_to_fp4(value).to(torch.float8_e4m3fn)
    low, high = INTEGER_LIMITS[dtype]
    rounded = torch.round(value)
    if zero is not None:
        rounded = rounded + zero.to(torch.float32)
    return torch.clamp(torch.nan_to_num(rounded, nan=0.0), low, high).to(torch_dtype(dtype))


def expand_scale(scale: Any, value: Any, axis: int) -> Any:
    """Return a scale in a shape that meets the value: one for all, one an axis, or one a block."""
    if scale is None or scale.numel() == 1:
        return None if scale is None else scale.reshape(())
    if scale.dim() == 1 and value.dim() != 1:
        return scale.reshape(shape_along(axis % value.dim(), value.dim()))
    for dim in range(value.dim()):
        if scale.shape[dim] not in (1, value.shape[dim]):
            block = -(-value.shape[dim] // scale.shape[dim])
            scale = scale.repeat_interleave(block, dim).narrow(dim, 0, value.shape[dim])
    return scale


@register_torch_kernel("QUANTIZE")
def quantize_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    axis, dtype = trt.axis, layer.outputs[0].dtype

    def compute(value: Any, scale: Any, zero: Any = None) -> Any:
        factor = expand_scale(scale.to(torch.float32), value, axis)
        return quantize_scaled(value.to(torch.float32) / factor, dtype, expand_scale(zero, value, axis))

    return compute


@register_torch_kernel("DEQUANTIZE")
def dequantize_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    axis = trt.axis
    dtype = torch_dtype(layer.outputs[0].dtype)

    def compute(value: Any, scale: Any, zero: Any = None) -> Any:
        wide = value.to(torch.float32)
        if zero is not None:
            wide = wide - expand_scale(zero.to(torch.float32), value, axis)
        return (wide * expand_scale(scale.to(torch.float32), value, axis)).to(dtype)

    return compute


@register_torch_kernel("DYNAMIC_QUANTIZE")
def dynamic_quantize_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    """Return the layer's kernel: a scale for each block from its largest size, and the block divided by it.

    With a second input, the scales themselves are divided by it before they are rounded to their type.
    """
    dtype, scale_dtype = layer.outputs[0].dtype, layer.outputs[1].dtype
    shape = dims_tuple(read_attribute(lambda: trt.block_shape))
    axis, size = read_attribute(lambda: trt.axis), read_attribute(lambda: trt.block_size)

    def compute(value: Any, outer: Any = None) -> tuple[Any, Any]:
        value = value.to(torch.float32)
        blocks = shape or tuple(size if number == axis % value.dim() else 1 for number in range(value.dim()))
        largest = _block_max(value, blocks)
        second = 1.0 if outer is None else outer.to(torch.float32).reshape(())
        scale = round_scale(largest / LARGEST_VALUE[dtype] / second, scale_dtype)
        factor = expand_scale(scale.to(torch.float32), value, 0) * second
        inner = torch.where(factor == 0, torch.zeros_like(value), value / factor)
        return quantize_scaled(inner, dtype), scale

    return compute


def _block_max(value: Any, blocks: tuple[int, ...]) -> Any:
    """Return the largest size in each block; a block of -1 is all of its axis."""
    value = torch.abs(value)
    for axis, block in enumerate(blocks):
        count = value.shape[axis] if block == -1 else block
        if count != 1:
            shape = (*value.shape[:axis], value.shape[axis] // count, count, *value.shape[axis + 1 :])
            value = torch.amax(value.reshape(shape), axis + 1)
    return value


def round_scale(scale: Any, dtype: str) -> Any:
    """Return scales in their type: powers of two are rounded up so that nothing is cut off."""
    if dtype == "E8M0":
        up = torch.exp2(torch.ceil(torch.log2(scale.clamp(min=2.0**-127))))
        return up.clamp(max=2.0**127).to(torch.float8_e8m0fnu)
    if dtype == "FP8":
        return torch.clamp(scale, max=448).to(torch.float8_e4m3fn)
    return scale.to(torch_dtype(dtype))
