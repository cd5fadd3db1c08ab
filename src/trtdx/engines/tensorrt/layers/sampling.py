"""Sampling between elements: resize and grid sample."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    compute_in_float32,
    dims_tuple,
    register_torch_kernel,
    shape_along,
)
from trtdx.engines.tensorrt.network.values import FLOAT_DTYPES
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer


class ResizeRules(msgspec.Struct, frozen=True):
    """How coordinates and weights of a resize are found."""

    mode: str
    transformation: str
    rounding: str
    single_upper: bool  # an output of one element takes the first one
    cubic: float
    exclude_outside: bool

    def source_positions(self, length: int, output_length: int, scale: float | None) -> Any:
        """Return where in the input each output element lies."""
        numbers = torch.arange(output_length, dtype=torch.float32)
        if output_length == 1 and self.single_upper:
            return torch.zeros(1)
        if self.transformation == "ALIGN_CORNERS":
            return numbers * ((length - 1) / (output_length - 1)) if output_length > 1 else torch.zeros(1)
        ratio = length / output_length if scale is None else 1 / scale
        if self.transformation == "ASYMMETRIC":
            return numbers * ratio
        return (numbers + 0.5) * ratio - 0.5

    def nearest_indices(self, places: Any, length: int) -> Any:
        rounded = {
            "HALF_UP": lambda x: torch.floor(x + 0.5),
            "HALF_DOWN": lambda x: torch.ceil(x - 0.5),
            "FLOOR": torch.floor,
            "CEIL": torch.ceil,
        }[self.rounding](places)
        return rounded.to(torch.int64).clamp(0, length - 1)

    def weighted_indices(self, places: Any, length: int) -> list[tuple[Any, Any]]:
        """Return the input elements each output element is made of, and their weights."""
        base = torch.floor(places)
        part = places - base
        if self.mode == "LINEAR":
            weighted = [(base, 1 - part), (base + 1, part)]
        else:
            weighted = [(base + step, self._cubic_weight(torch.abs(part - step))) for step in (-1, 0, 1, 2)]
        if self.exclude_outside:
            weighted = [(at, torch.where((at < 0) | (at >= length), 0.0, weight)) for at, weight in weighted]
            total = sum(weight for _, weight in weighted)
            weighted = [(at, weight / total) for at, weight in weighted]
        return [(at.to(torch.int64).clamp(0, length - 1), weight) for at, weight in weighted]

    def _cubic_weight(self, x: Any) -> Any:
        a = self.cubic
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


@register_torch_kernel("RESIZE")
def resize_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    rules = ResizeRules(
        trt.resize_mode.name,
        trt.coordinate_transformation.name,
        trt.nearest_rounding.name,
        trt.selector_for_single_pixel.name == "UPPER",
        trt.cubic_coeff,
        bool(trt.exclude_outside),
    )
    scales = [] if layer.has_input(1) else list(trt.scales)
    fixed = None if layer.has_input(1) or scales else dims_tuple(trt.shape)

    def compute(value: Any, shape: Any = None) -> Any:
        sizes = list(fixed or ()) if shape is None else shape.tolist()
        if shape is None and scales:
            sizes = [math.floor(size * scale) for size, scale in zip(value.shape, scales, strict=True)]
        for axis, size in enumerate(sizes):
            scale = scales[axis] if scales and shape is None else None
            if size != value.shape[axis] or (scale is not None and scale != 1):
                value = _resize_axis(value, axis, size, scale, rules)
        return value

    if layer.outputs[0].dtype in FLOAT_DTYPES:
        return compute_in_float32(compute, layer)
    return compute


def _resize_axis(value: Any, axis: int, size: int, scale: float | None, rules: ResizeRules) -> Any:
    length = value.shape[axis]
    places = rules.source_positions(length, size, scale)
    if rules.mode == "NEAREST":
        return value.index_select(axis, rules.nearest_indices(places, length))
    shape = shape_along(axis, value.dim())
    parts = [
        value.index_select(axis, at) * weight.reshape(shape) for at, weight in rules.weighted_indices(places, length)
    ]
    return sum(parts[1:], parts[0])


@register_torch_kernel("GRID_SAMPLE")
def grid_sample_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    mode = {"NEAREST": "nearest", "LINEAR": "bilinear", "CUBIC": "bicubic"}[trt.interpolation_mode.name]
    border = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}[trt.sample_mode.name]
    corners = trt.align_corners

    def compute(value: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(value, grid, mode, border, corners)

    return compute_in_float32(compute, layer)
