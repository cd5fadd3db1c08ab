"""What a profile's shapes become inside an ONNX graph: shape inference at concrete sizes, without the weights.

TensorRT checks the optima of a profile against every layer and refuses the build where they do not fit; of the
other bounds it says little. The `onnx` package infers the same shapes here, on a copy without weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.formats.onnx.shape_inference import (
    ShapesUnknownError,
    open_without_weights,
    parse_inference_error,
    shape_inference_error,
)
from trtdx.inspect.facts.artifact import Deployment, Fact
from trtdx.inspect.profiles.onnx_case import (
    is_one_size,
    named_spans,
    profile_cases,
    range_fault,
    shared_range,
)
from trtdx.inspect.profiles.onnx_check import (
    NOT_CHECKED,
    UNCHECKED,
    check_graph,
    unchecked_reason,
    with_note,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.tensorrt.nouns import OptimizationProfile
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.profiles.onnx_case import ProfileCase

SHAPE_SELECTORS = ("opt", "max", "min")
MAX_PROFILES = 16


def check_deployment_shapes(host: Host, deployment: Deployment) -> Deployment:
    """Return the deployment whose models and profiles know the nodes that cannot work, or why nobody does."""
    artifacts = tuple(
        check_graph(host, artifact) if artifact.kind == "onnx" else artifact for artifact in deployment.artifacts
    )
    unchecked_paths = {artifact.path for artifact in artifacts if any(NOT_CHECKED in note for note in artifact.unread)}
    checked = {
        case.profile_source.path: _check_profile_shapes(host, case)
        for case in profile_cases(Deployment(artifacts), "profiles")
        if case.onnx.path not in unchecked_paths  # why not is told once
    }
    return Deployment(tuple(checked.get(artifact.path, artifact) for artifact in artifacts))


def _check_profile_shapes(host: Host, case: ProfileCase) -> Artifact:
    try:
        unmet = list(unmet_nodes(host, case))
    except UNCHECKED as err:
        note = f"what the shapes become inside {case.onnx.path} was not checked: {unchecked_reason(err)}"
        return with_note(case.profile_source, note)
    if not unmet:
        return case.profile_source
    fact = Fact(unmet, f"{case.profile_source.path}: profiles")
    return msgspec.structs.replace(case.profile_source, facts=case.profile_source.facts | {"profiles.unmet": fact})


def unmet_nodes(host: Host, case: ProfileCase) -> Iterator[dict[str, Any]]:
    """Yield the first node of each profile whose inputs do not fit together, at its opt, max and min shapes."""
    package, model = open_without_weights(host, case.onnx.path)
    if _failing_node(package, model, {}):
        raise ShapesUnknownError("shape inference fails on the model, whatever the shapes")
    for profile in case.profiles[:MAX_PROFILES]:
        if not _has_sound_ranges(case, profile):
            continue
        for selector in SHAPE_SELECTORS:
            node = _failing_node(package, model, _sizes_to_try(case, profile, selector))
            if node:
                yield {"profile": profile.index, "shapes": selector, **node}


def _sizes_to_try(case: ProfileCase, profile: OptimizationProfile, selector: str) -> dict[str, list[int]]:
    """Return the shapes to try; a named dimension that is left one size has it, as TensorRT fixes it there."""
    sizes = {span.tensor: list(getattr(span, selector)) for span in profile.ranges}
    for spans in named_spans(case, profile).values():
        if is_one_size(spans):
            for span in spans:
                sizes[span.tensor][span.axis] = shared_range(spans)[0]
    return sizes


def _has_sound_ranges(case: ProfileCase, profile: OptimizationProfile) -> bool:
    """Return whether every dynamic input has a sound range; otherwise that is told, and shapes follow from it."""
    ranges = {span.tensor: span for span in profile.ranges}
    return all(
        name in ranges and not range_fault(ranges[name], dims)[0]
        for name, dims in case.inputs.items()
        if any(isinstance(dim, str) for dim in dims)
    )


def _failing_node(package: Any, model: Any, sizes: dict[str, list[int]]) -> dict[str, str]:
    """Return the node at which inference fails with these sizes, and why; nothing when all fits."""
    trial = package.ModelProto()
    trial.CopyFrom(model)
    for value in trial.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, sizes.get(value.name, ()), strict=False):
            dim.dim_value = size
    message = shape_inference_error(package, trial)
    failed = parse_inference_error(message)
    if message and failed.get("kind") != "ShapeInferenceError":
        # an operator without a schema, say: nothing that shapes could mend
        raise ShapesUnknownError(" ".join(message.split())[:200])
    return {name: failed[name] for name in ("node", "operator", "why") if failed}
