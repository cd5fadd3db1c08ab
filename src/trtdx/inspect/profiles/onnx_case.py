"""An ONNX model and the optimization profiles meant for it, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.formats.tensorrt.nouns import Profile, Range
from trtdx.inspect.profiles.dimensions import shape_text
from trtdx.model import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

MOST_DIMENSION = 2**31 - 1  # TensorRT's set_shape takes no more
UNKNOWN_RANK = ("...",)
UNNAMED = ("?", "...")
Dims = tuple[int | str, ...]


class Span(NamedTuple):
    """Where a named dimension stands, and its smallest, best and largest value there."""

    tensor: str
    axis: int
    values: tuple[int, int, int]

    def __str__(self) -> str:
        return " / ".join(map(str, self.values))


class Case(NamedTuple):
    """A model and the profiles that are meant for it."""

    onnx: Artifact
    given: Artifact
    inputs: dict[str, Dims]
    profiles: tuple[Profile, ...]

    def where(self, profile: Profile, tensor: str) -> str:
        return f"{self.given.path}: profiles[{profile.index}].{tensor}"

    def evidence(self, profile: Profile, *tensors: str) -> tuple[Evidence, ...]:
        """Return what the profile and the model say of these inputs."""
        return tuple(evidence for tensor in tensors for evidence in self._said_of(profile, tensor))

    def _said_of(self, profile: Profile, tensor: str) -> list[Evidence]:
        span = profile.range_of(tensor)
        words = (
            f"min {shape_text(span.min)}, opt {shape_text(span.opt)}, max {shape_text(span.max)}"
            if span
            else "absent"
        )
        evidence = [Evidence(self.where(profile, tensor), words)]
        if tensor in self.inputs:
            evidence.append(
                Evidence(f"{self.onnx.path}: graph.input", f"{tensor} {shape_text(self.inputs[tensor])}")
            )
        return evidence


def case_from(onnx: Artifact, given: Artifact) -> Case:
    return Case(onnx, given, inputs_of(onnx), profiles_of(given))


def cases(deployment: Deployment, *kinds: str) -> Iterator[Case]:
    """Yield what states profiles with the model it is meant for: the one whose input names it uses most."""
    models = [(onnx, set(inputs_of(onnx))) for onnx in deployment.of("onnx") if onnx.has("onnx.inputs")]
    for profile_source in deployment.of(*kinds):
        named = {span.tensor for profile in profiles_of(profile_source) for span in profile.ranges}
        ranked = sorted(models, key=lambda model: -len(named & model[1]))
        if ranked and (len(models) == 1 or named & ranked[0][1]):
            yield case_from(ranked[0][0], profile_source)


def inputs_of(onnx: Artifact) -> dict[str, Dims]:
    """Return the inputs that must be given, with the names of their dynamic dimensions."""
    return {name: tuple(dims) for name, dims in onnx.table("onnx.inputs").items()}


def profiles_of(given: Artifact) -> tuple[Profile, ...]:
    """Return the profiles of an artifact, from its fact where it has no others."""
    if given.profiles:
        return given.profiles
    return tuple(
        Profile(index, tuple(_range(name, shapes) for name, shapes in table.items()), given.path)
        for index, table in enumerate(given.items("profiles.shapes"))
    )


def _range(tensor: str, shapes: dict[str, Any]) -> Range:
    return Range(tensor, tuple(shapes["min"]), tuple(shapes["opt"]), tuple(shapes["max"]))


def fault(each: Range, dims: Dims | None) -> tuple[str, str]:
    """Return what TensorRT refuses in one range, and what would be right; nothing where it is sound."""
    shapes = (each.min, each.opt, each.max)
    if len({len(values) for values in shapes}) > 1:
        return "has min, opt and max of different rank", "give all three the rank of the input"
    has_rank = dims is not None and dims != UNKNOWN_RANK
    if dims is not None and has_rank and len(each.min) != len(dims):
        ranks = f"{len(each.min)} dimensions, the input has {len(dims)}"
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
    if low < 0 or high > MOST_DIMENSION:
        return f"{bounds}, which no dimension can have", f"use values from 0 to {MOST_DIMENSION}"
    if isinstance(fixed, int) and (low, high) != (fixed, fixed):
        return (
            f"{bounds}, which is {fixed} in the model",
            f"use {fixed} for min, opt and max of axis {axis}, or export the model with that axis dynamic",
        )
    return "", ""


def spans_of(case: Case, profile: Profile) -> Iterator[tuple[str, Span]]:
    """Yield each dynamic dimension of a profile with its name; ranges that are unsound are left out."""
    for span in profile.ranges:
        dims = case.inputs.get(span.tensor, UNKNOWN_RANK)
        if dims == UNKNOWN_RANK or fault(span, dims)[0]:
            continue
        for axis, name in enumerate(dims):
            if isinstance(name, str):
                yield name, Span(span.tensor, axis, (span.min[axis], span.opt[axis], span.max[axis]))


def named_spans(case: Case, profile: Profile) -> dict[str, list[Span]]:
    """Return where each named dimension stands in a profile."""
    spans: dict[str, list[Span]] = {}
    for name, span in spans_of(case, profile):
        if name not in UNNAMED:
            spans.setdefault(name, []).append(span)
    return spans


def shared(spans: list[Span]) -> tuple[int, int]:
    """Return the smallest and largest size that all of them allow."""
    return max(span.values[0] for span in spans), min(span.values[2] for span in spans)


def is_one_size(spans: list[Span]) -> bool:
    """Return whether just one size is left: TensorRT then takes it as fixed and no longer looks at the optima."""
    low, high = shared(spans)
    return low == high
