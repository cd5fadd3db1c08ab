"""Windows over space: convolution, deconvolution, pooling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    compute_in_float32,
    dims_tuple,
    input_dtype,
    register_torch_kernel,
)
from trtdx.engines.tensorrt.network.values import torch_converter, torch_dtype, value_from_weights
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.engines.tensorrt.network.graph import TrtLayer


class ConvolutionWindow(msgspec.Struct, frozen=True):
    """A window, how it moves, and how its border is padded."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str
    dilation: tuple[int, ...]

    def extent(self, axis: int) -> int:
        return 1 + self.dilation[axis] * (self.size[axis] - 1)

    def padding(self, sizes: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return for each axis what to pad before and after, and what more a last, incomplete window needs."""
        return [self._padding(axis, size) for axis, size in enumerate(sizes)]

    def _padding(self, axis: int, size: int) -> tuple[int, int, int]:
        step, extent = self.stride[axis], self.extent(axis)
        if self.mode.startswith("SAME"):
            total = max((size - 1) // step * step + extent - size, 0)
            small, large = total // 2, total - total // 2
            return (small, large, 0) if self.mode == "SAME_UPPER" else (large, small, 0)
        before, after = self.before[axis], self.after[axis]
        if self.mode == "EXPLICIT_ROUND_DOWN":
            return before, after, 0
        room = size + before + after - extent
        return before, after, math.ceil(room / step) * step - room

    def trimming(self, axis: int) -> tuple[int, int]:
        """Return how much of a deconvolution's full output to cut off before and after."""
        if not self.mode.startswith("SAME"):
            return self.before[axis], self.after[axis]
        total = max(self.extent(axis) - self.stride[axis], 0)
        small, large = total // 2, total - total // 2
        return (small, large) if self.mode == "SAME_UPPER" else (large, small)


def _window_from_layer(trt: Any, size: Any, dilation: Any) -> ConvolutionWindow:
    sizes = dims_tuple(size) or ()
    return ConvolutionWindow(
        sizes,
        dims_tuple(trt.stride_nd) or (1,) * len(sizes),
        dims_tuple(trt.pre_padding) or (0,) * len(sizes),
        dims_tuple(trt.post_padding) or (0,) * len(sizes),
        trt.padding_mode.name,
        dims_tuple(dilation) or (1,) * len(sizes),
    )


def _torch_padding(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return padding as torch wants it: the last axis first."""
    return [side for pair in reversed(pairs) for side in pair]


def _fixed_weights(layer: TrtLayer, trt: Any) -> tuple[Any, Any]:
    """Return the fixed kernel and bias; None for one that is an input or is not there."""
    dtype = input_dtype(layer)
    kernel = None if layer.has_input(1) else value_from_weights(trt.kernel, dtype)
    bias = None if layer.has_input(2) else value_from_weights(trt.bias, dtype)
    kernel, bias = (
        None if weights is None else torch_converter(dtype)(weights).to(torch.float32) for weights in (kernel, bias)
    )
    return kernel, bias


@register_torch_kernel("CONVOLUTION")
def convolution_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    window = _window_from_layer(trt, trt.kernel_size_nd, trt.dilation_nd)
    groups, maps = trt.num_groups, trt.num_output_maps
    fixed, fixed_bias = _fixed_weights(layer, trt)
    convolve = torch.nn.functional.conv2d if len(window.size) == 2 else torch.nn.functional.conv3d

    def compute(value: Any, kernel: Any = None, bias: Any = None) -> Any:
        kernel = fixed if kernel is None else kernel
        bias = fixed_bias if bias is None else bias
        kernel = kernel.reshape(maps, value.shape[1] // groups, *window.size)
        pads = [(before, after + more) for before, after, more in window.padding(value.shape[2:])]
        padded = torch.nn.functional.pad(value, _torch_padding(pads)) if any(map(any, pads)) else value
        return convolve(padded, kernel, bias, window.stride, 0, window.dilation, groups)

    return compute_in_float32(compute, layer)


@register_torch_kernel("DECONVOLUTION")
def deconvolution_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    window = _window_from_layer(trt, trt.kernel_size_nd, trt.dilation_nd)
    groups, maps = trt.num_groups, trt.num_output_maps
    fixed, fixed_bias = _fixed_weights(layer, trt)
    rank = len(window.size)
    convolve = torch.nn.functional.conv_transpose2d if rank == 2 else torch.nn.functional.conv_transpose3d
    sides = _torch_padding([tuple(-size for size in window.trimming(axis)) for axis in range(rank)])  # type: ignore[misc]

    def compute(value: Any, kernel: Any = None, bias: Any = None) -> Any:
        kernel = fixed if kernel is None else kernel
        bias = fixed_bias if bias is None else bias
        kernel = kernel.reshape(value.shape[1], maps // groups, *window.size)
        full = convolve(value, kernel, None, window.stride, 0, 0, groups, window.dilation)
        result = torch.nn.functional.pad(full, sides)
        return result if bias is None else result + bias.reshape(-1, *[1] * rank)

    return compute_in_float32(compute, layer)


@register_torch_kernel("POOLING")
def pooling_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    window = _window_from_layer(trt, trt.window_size_nd, None)
    kind, blend, excludes = trt.type.name, trt.blend_factor, trt.average_count_excludes_padding

    def compute(value: Any) -> Any:
        if kind == "MAX":
            return _max_pool(value, window)
        mean = _average_pool(value, window, excludes)
        return mean if kind == "AVERAGE" else (1 - blend) * _max_pool(value, window) + blend * mean

    if input_dtype(layer) in ("INT8", "UINT8"):
        dtype = torch_dtype(layer.outputs[0].dtype)
        return lambda value: compute(value.to(torch.float32)).to(dtype)
    return compute_in_float32(compute, layer)


def _max_pool(value: Any, window: ConvolutionWindow) -> Any:
    pool = torch.nn.functional.max_pool2d if len(window.size) == 2 else torch.nn.functional.max_pool3d
    pads = [(before, after + more) for before, after, more in window.padding(value.shape[2:])]
    padded = torch.nn.functional.pad(value, _torch_padding(pads), value=-math.inf) if any(map(any, pads)) else value
    return pool(padded, window.size, window.stride)


def _average_pool(value: Any, window: ConvolutionWindow, excludes: bool) -> Any:
    """Return averages: sums over windows, by how much of a window lies on what counts."""
    padding = window.padding(value.shape[2:])
    sides = _torch_padding([(before, after + more) for before, after, more in padding])
    counted = value.new_ones((1, 1, *value.shape[2:]))
    if excludes:
        counted = torch.nn.functional.pad(counted, sides)
    else:
        counted = torch.nn.functional.pad(counted, _torch_padding([pair[:2] for pair in padding]), value=1)
        counted = torch.nn.functional.pad(counted, _torch_padding([(0, pair[2]) for pair in padding]))
    total = _sum_pool(torch.nn.functional.pad(value, sides), window)
    return total / _sum_pool(counted, window)


def _sum_pool(value: Any, window: ConvolutionWindow) -> Any:
    pool = torch.nn.functional.avg_pool2d if len(window.size) == 2 else torch.nn.functional.avg_pool3d
    return pool(value, window.size, window.stride, divisor_override=1)
