"""Whether optimization profiles fit the inputs of an ONNX model, by TensorRT's own judgement.

TensorRT refuses a profile whose ranges are out of order, have another rank than the input or differ from a fixed
dimension, one that leaves a dynamic input out, and one whose optima do not fit together. What it accepts without
a word is in `onnx_silent_faults`; tests/inspect/profiles/test_against_tensorrt.py holds both against the compiler.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from trtdx.inspect.profiles.onnx_case import case_from_artifacts, is_one_size, named_spans, range_fault
from trtdx.inspect.profiles.onnx_silent_faults import SILENT_CHECKS
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.tensorrt.nouns import OptimizationProfile
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.inspect.profiles.onnx_case import ProfileCase

FILLS_MISSING_INPUTS = "Polygraphy"  # gives an input without shapes 1 in every dynamic dimension
MAX_NAMED_INPUTS = 5


def profile_problems(onnx: Artifact, profile_source: Artifact) -> Iterator[Violation]:
    """Yield everything that is wrong with the profiles, each with its severity; errors are what is refused."""
    case = case_from_artifacts(onnx, profile_source)
    for check in (missing_inputs, unknown_inputs, invalid_ranges, *SILENT_CHECKS):
        yield from check(case)


def missing_inputs(case: ProfileCase) -> Iterator[Violation]:
    """Yield the dynamic inputs that a profile leaves out; a misspelt one is told by its wrong name."""
    if case.profile_source.has("malformed") or case.profile_source.has("unparsed"):
        return  # what was written of it could not be read, which is told already
    dynamic = [name for name, dims in case.inputs.items() if any(isinstance(dim, str) for dim in dims)]
    if dynamic and not case.profiles:
        nothing = Evidence(case.profile_source.path, "holds no profile")
        yield Violation((nothing,), _missing_input_values(case, None, dynamic), Severity.ERROR)
    for profile in case.profiles:
        misspelt = misspelt_inputs(case, profile).values()
        lacking = [name for name in dynamic if not profile.range_of(name) and name not in misspelt]
        if lacking:
            severity = Severity.WARNING if profile.source.startswith(FILLS_MISSING_INPUTS) else Severity.ERROR
            evidence = case.evidence(profile, *lacking[:MAX_NAMED_INPUTS])
            yield Violation(evidence, _missing_input_values(case, profile, lacking), severity)


def _missing_input_values(
    case: ProfileCase, profile: OptimizationProfile | None, inputs: list[str]
) -> dict[str, object]:
    more = f" and {len(inputs) - MAX_NAMED_INPUTS} more" if len(inputs) > MAX_NAMED_INPUTS else ""
    return {
        "profile": f"optimization profile {profile.index}" if profile else case.profile_source.path,
        "inputs": ", ".join(inputs[:MAX_NAMED_INPUTS]) + more,
        "options": _trtexec_options(case, profile, inputs[0]),
    }


def _trtexec_options(case: ProfileCase, profile: OptimizationProfile | None, tensor: str) -> str:
    """Return trtexec's options for an input, with what other inputs say of its dimensions filled in."""
    sizes_by_name = {name: spans[0].values for name, spans in named_spans(case, profile).items()} if profile else {}
    options = []
    for position, option in enumerate(("minShapes", "optShapes", "maxShapes")):
        dims = [sizes_by_name[dim][position] if dim in sizes_by_name else dim for dim in case.inputs[tensor]]
        words = "x".join(f"<{dim}>" if isinstance(dim, str) else str(dim) for dim in dims)
        options.append(f"--{option}={tensor}:{words}")
    return " ".join(options)


def misspelt_inputs(case: ProfileCase, profile: OptimizationProfile) -> dict[str, str]:
    """Return the names in a profile that no input has, each with the left-out input it is closest to."""
    left_out = [name for name in case.inputs if not profile.range_of(name)]
    unknown = [span.tensor for span in profile.ranges if span.tensor not in case.inputs]
    near = {name: difflib.get_close_matches(name, left_out, n=1, cutoff=0.6) for name in unknown}
    return {name: matches[0] if matches else "" for name, matches in near.items()}


def unknown_inputs(case: ProfileCase) -> Iterator[Violation]:
    """Yield the names that no input has: TensorRT takes shapes for them without a word."""
    if not case.inputs:
        return
    for profile in case.profiles:
        for name, near in misspelt_inputs(case, profile).items():
            left_out = bool(near) and any(isinstance(dim, str) for dim in case.inputs[near])
            values = {
                "profile": profile.index,
                "tensor": name,
                "inputs": ", ".join(list(case.inputs)[: 2 * MAX_NAMED_INPUTS]),
                "remedy": f"write {near} in place of {name}" if near else f"leave {name} out",
            }
            severity = Severity.ERROR if left_out else Severity.WARNING
            yield Violation(case.evidence(profile, name), values, severity)


def invalid_ranges(case: ProfileCase) -> Iterator[Violation]:
    """Yield what TensorRT refuses: ranges against themselves, against the input, or against one another."""
    for profile in case.profiles:
        faults = [(span.tensor, *range_fault(span, case.inputs.get(span.tensor))) for span in profile.ranges]
        for tensor, problem, remedy in faults:
            if problem:
                values = {"profile": profile.index, "problem": f"{tensor} {problem}", "remedy": remedy}
                yield Violation(case.evidence(profile, tensor), values, Severity.ERROR)
        yield from _contradicting_dimensions(case, profile)


def _contradicting_dimensions(case: ProfileCase, profile: OptimizationProfile) -> Iterator[Violation]:
    """Yield dimensions of one name whose optima differ: TensorRT takes one name for one size."""
    for name, spans in named_spans(case, profile).items():
        first = spans[0]
        odd = next((span for span in spans if span.values[1] != first.values[1]), None)
        if odd and not is_one_size(spans):
            bounds = f"{first} (min / opt / max) in {first.tensor} and {odd} in {odd.tensor}"
            remedy = f"give {name} the same min, opt and max in {first.tensor} and {odd.tensor}"
            values = {"profile": profile.index, "problem": f"dimension {name} is {bounds}", "remedy": remedy}
            yield Violation(case.evidence(profile, first.tensor, odd.tensor), values, Severity.ERROR)
