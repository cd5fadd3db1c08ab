"""What a network or an engine is made of, as its logs and files tell: tensors, optimization profiles, kernels."""

from __future__ import annotations

import msgspec


class TensorSpec(msgspec.Struct, frozen=True):
    """A tensor that goes in or out; a dynamic dimension is its name, or "?" where it has none."""

    name: str
    mode: str  # "in" or "out"
    dtype: str
    shape: tuple[int | str, ...]


class ShapeRange(msgspec.Struct, frozen=True):
    """The shapes one tensor may have in one optimization profile."""

    tensor: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


class OptimizationProfile(msgspec.Struct, frozen=True):
    """One optimization profile, and how it is known: read from a log, or derived from build settings."""

    index: int
    ranges: tuple[ShapeRange, ...]
    source: str

    def range_of(self, tensor: str) -> ShapeRange | None:
        return next((shape_range for shape_range in self.ranges if shape_range.tensor == tensor), None)


class Kernel(msgspec.Struct, frozen=True):
    """One entry of a compiled engine's layer listing."""

    name: str
    kind: str
    nodes: tuple[str, ...] = ()  # the ONNX nodes it computes
    tactic: str = ""
    profile: int = 0
