"""Sampling between elements: resize and grid sample."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from trtdx.engines.tensorrt.layers.table import Kernel, Layer, dims, in_float32, shape_along, torch_kernel_of
from trtdx.engines.tensorrt.network.values import FLOATS
from trtdx.engines.torch.lazy import torch


class Resizing(msgspec.Struct, frozen=True):
    """How coordinates and weights of a resize are found."""

    mode: str
    transformation: str
    rounding: str
    single_upper: bool  # an output of one element takes the first one
    cubic: float
    exclude: bool

    def places(self, length: int, wanted: int, scale: float | None) -> Any:
        """Return where in the input each output element lies."""
        numbers = torch.arange(wanted, dtype=torch.float32)
        if wanted == 1 and self.single_upper:
            return torch.zeros(1)
        if self.transformation == "ALIGN_CORNERS":
            return numbers * ((length - 1) / (wanted - 1)) if wanted > 1 else torch.zeros(1)
        ratio = length / wanted if scale is None else 1 / scale
        if self.transformation == "ASYMMETRIC":
            return numbers * ratio
        return (numbers + 0.5) * ratio - 0.5

    def nearest(self, places: Any, length: int) -> Any:
        rounded = {
            "HALF_UP": lambda x: torch.floor(x + 0.5),
            "HALF_DOWN": lambda x: torch.ceil(x - 0.5),
            "FLOOR": torch.floor,
            "CEIL": torch.ceil,
        }[self.rounding](places)
        return rounded.to(torch.int64).clamp(0, length - 1)

    def taps(self, places: Any, length: int) -> list[tuple[Any, Any]]:
        """Return the input elements each output element is made of, and their weights."""
        base = torch.floor(places)
        part = places - base
        if self.mode == "LINEAR":
            weighted = [(base, 1 - part), (base + 1, part)]
        else:
            weighted = [(base + step, self._cubic(torch.abs(part - step))) for step in (-1, 0, 1, 2)]
        if self.exclude:
            weighted = [(at, torch.where((at < 0) | (at >= length), 0.0, weight)) for at, weight in weighted]
            total = sum(weight for _, weight in weighted)
            weighted = [(at, weight / total) for at, weight in weighted]
        return [(at.to(torch.int64).clamp(0, length - 1), weight) for at, weight in weighted]

    def _cubic(self, x: Any) -> Any:
        a = self.cubic
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


@torch_kernel_of("RESIZE")
def resize(layer: Layer, trt: Any) -> Kernel:
    rules = Resizing(
        trt.resize_mode.name,
        trt.coordinate_transformation.name,
        trt.nearest_rounding.name,
        trt.selector_for_single_pixel.name == "UPPER",
        trt.cubic_coeff,
        bool(trt.exclude_outside),
    )
    scales = [] if layer.has_input(1) else list(trt.scales)
    fixed = None if layer.has_input(1) or scales else dims(trt.shape)

    def compute(value: Any, shape: Any = None) -> Any:
        sizes = list(fixed or ()) if shape is None else shape.tolist()
        if shape is None and scales:
            sizes = [math.floor(size * scale) for size, scale in zip(value.shape, scales, strict=True)]
        for axis, size in enumerate(sizes):
            scale = scales[axis] if scales and shape is None else None
            if size != value.shape[axis] or (scale is not None and scale != 1):
                value = _resized(value, axis, size, scale, rules)
        return value

    if layer.outputs[0].dtype in FLOATS:
        return in_float32(compute, layer)
    return compute


def _resized(value: Any, axis: int, size: int, scale: float | None, how: Resizing) -> Any:
    length = value.shape[axis]
    places = how.places(length, size, scale)
    if how.mode == "NEAREST":
        return value.index_select(axis, how.nearest(places, length))
    shape = shape_along(axis, value.dim())
    parts = [value.index_select(axis, at) * weight.reshape(shape) for at, weight in how.taps(places, length)]
    return sum(parts[1:], parts[0])


@torch_kernel_of("GRID_SAMPLE")
def grid_sample(layer: Layer, trt: Any) -> Kernel:
    mode = {"NEAREST": "nearest", "LINEAR": "bilinear", "CUBIC": "bicubic"}[trt.interpolation_mode.name]
    border = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}[trt.sample_mode.name]
    corners = trt.align_corners

    def compute(value: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(value, grid, mode, border, corners)

    return in_float32(compute, layer)
