"""An ONNX model and the optimization profiles meant for it, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.formats.tensorrt.nouns import OptimizationProfile, ShapeRange
from trtdx.inspect.profiles.dimensions import shape_text
from trtdx.model import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

MAX_DIMENSION = 2**31 - 1  # TensorRT's set_shape takes no more
UNKNOWN_RANK = ("...",)
UNNAMED = ("?", "...")
OnnxDims = tuple[int | str, ...]


class NamedSpan(NamedTuple):
    """Where a named dimension stands, and its smallest, best and largest value there."""

    tensor: str
    axis: int
    values: tuple[int, int, int]

    def __str__(self) -> str:
        return " / ".join(map(str, self.values))


class ProfileCase(NamedTuple):
    """A model and the profiles that are meant for it."""

    onnx: Artifact
    profile_source: Artifact
    inputs: dict[str, OnnxDims]
    profiles: tuple[OptimizationProfile, ...]

    def where(self, profile: OptimizationProfile, tensor: str) -> str:
        return f"{self.profile_source.path}: profiles[{profile.index}].{tensor}"

    def evidence(self, profile: OptimizationProfile, *tensors: str) -> tuple[Evidence, ...]:
        """Return what the profile and the model say of these inputs."""
        return tuple(evidence for tensor in tensors for evidence in self._evidence_of_tensor(profile, tensor))

    def _evidence_of_tensor(self, profile: OptimizationProfile, tensor: str) -> list[Evidence]:
        span = profile.range_of(tensor)
        words = (
            f"min {shape_text(span.min)}, opt {shape_text(span.opt)}, max {shape_text(span.max)}" if span else "absent"
        )
        evidence = [Evidence(self.where(profile, tensor), words)]
        if tensor in self.inputs:
            evidence.append(Evidence(f"{self.onnx.path}: graph.input", f"{tensor} {shape_text(self.inputs[tensor])}"))
        return evidence


def case_from_artifacts(onnx: Artifact, profile_source: Artifact) -> ProfileCase:
    return ProfileCase(onnx, profile_source, onnx_inputs(onnx), stated_profiles(profile_source))


def profile_cases(deployment: Deployment, *kinds: str) -> Iterator[ProfileCase]:
    """Yield what states profiles with the model it is meant for: the one whose input names it uses most."""
    models = [(onnx, set(onnx_inputs(onnx))) for onnx in deployment.of_kinds("onnx") if onnx.has("onnx.inputs")]
    for profile_source in deployment.of_kinds(*kinds):
        named = {span.tensor for profile in stated_profiles(profile_source) for span in profile.ranges}
        ranked = sorted(models, key=lambda model: -len(named & model[1]))
        if ranked and (len(models) == 1 or named & ranked[0][1]):
            yield case_from_artifacts(ranked[0][0], profile_source)


def onnx_inputs(onnx: Artifact) -> dict[str, OnnxDims]:
    """Return the inputs that must be given, with the names of their dynamic dimensions."""
    return {name: tuple(dims) for name, dims in onnx.table("onnx.inputs").items()}


def stated_profiles(profile_source: Artifact) -> tuple[OptimizationProfile, ...]:
    """Return the profiles of an artifact, from its fact where it has no others."""
    if profile_source.profiles:
        return profile_source.profiles
    return tuple(
        OptimizationProfile(
            index,
            tuple(_range_from_shapes(name, shapes) for name, shapes in table.items()),
            profile_source.path,
        )
        for index, table in enumerate(profile_source.items("profiles.shapes"))
    )


def _range_from_shapes(tensor: str, shapes: dict[str, Any]) -> ShapeRange:
    return ShapeRange(tensor, tuple(shapes["min"]), tuple(shapes["opt"]), tuple(shapes["max"]))


def range_fault(span: ShapeRange, dims: OnnxDims | None) -> tuple[str, str]:
    """Return what TensorRT refuses in one range, and what would be right; empty if it is sound."""
    shapes = (span.min, span.opt, span.max)
    if len({len(values) for values in shapes}) > 1:
        return "has min, opt and max of different rank", "give all three the rank of the input"
    has_rank = dims is not None and dims != UNKNOWN_RANK
    if dims is not None and has_rank and len(span.min) != len(dims):
        ranks = f"{len(span.min)} dimensions, the input has {len(dims)}"
        return f"has {ranks}", f"write shapes of the form {shape_text(dims)}"
    for axis, values in enumerate(zip(*shapes, strict=True)):
        problem, remedy = _axis_fault(axis, values, dims[axis] if dims is not None and has_rank else "?")
        if problem:
            return problem, remedy
    return "", ""


def _axis_fault(axis: int, values: tuple[int, ...], fixed: int | str) -> tuple[str, str]:
    low, best, high = values
    bounds = f"has min {low}, opt {best}, max {high} in axis {axis}"
    if not low <= best <= high:
        ordered = " / ".join(map(str, sorted(values)))
        return f"{bounds}, which are out of order", f"keep min <= opt <= max, such as {ordered}"
    if low < 0 or high > MAX_DIMENSION:
        return f"{bounds}, which no dimension can have", f"use values from 0 to {MAX_DIMENSION}"
    if isinstance(fixed, int) and (low, high) != (fixed, fixed):
        return (
            f"{bounds}, which is {fixed} in the model",
            f"use {fixed} for min, opt and max of axis {axis}, or export the model with that axis dynamic",
        )
    return "", ""


def dynamic_spans(case: ProfileCase, profile: OptimizationProfile) -> Iterator[tuple[str, NamedSpan]]:
    """Yield each dynamic dimension of a profile with its name; ranges that are unsound are left out."""
    for span in profile.ranges:
        dims = case.inputs.get(span.tensor, UNKNOWN_RANK)
        if dims == UNKNOWN_RANK or range_fault(span, dims)[0]:
            continue
        for axis, name in enumerate(dims):
            if isinstance(name, str):
                yield name, NamedSpan(span.tensor, axis, (span.min[axis], span.opt[axis], span.max[axis]))


def named_spans(case: ProfileCase, profile: OptimizationProfile) -> dict[str, list[NamedSpan]]:
    """Return where each named dimension stands in a profile."""
    spans: dict[str, list[NamedSpan]] = {}
    for name, span in dynamic_spans(case, profile):
        if name not in UNNAMED:
            spans.setdefault(name, []).append(span)
    return spans


def shared_range(spans: list[NamedSpan]) -> tuple[int, int]:
    """Return the smallest and largest size that all of them allow."""
    return max(span.values[0] for span in spans), min(span.values[2] for span in spans)


def is_one_size(spans: list[NamedSpan]) -> bool:
    """Return whether just one size is left: TensorRT then takes it as fixed and no longer looks at the optima."""
    low, high = shared_range(spans)
    return low == high
