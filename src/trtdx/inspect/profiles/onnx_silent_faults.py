"""Faults of optimization profiles that TensorRT accepts without a word (measured with TensorRT-RTX 1.7)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.inspect.profiles.onnx_case import (
    UNNAMED,
    dynamic_spans,
    is_one_size,
    named_spans,
    range_fault,
    shared_range,
)
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.tensorrt.nouns import OptimizationProfile, ShapeRange
    from trtdx.inspect.profiles.onnx_case import NamedSpan, ProfileCase

MASK_INPUTS = ("attention_mask", "decoder_attention_mask")
SEQUENCE_INPUTS = ("input_ids", "inputs_embeds", "position_ids", "decoder_input_ids")
PAST_NAME = re.compile(r"past|cache", re.IGNORECASE)
SELECTORS = ("min", "opt", "max")
REFUSED_NOTE = " (the model cannot be run at these opt shapes, and TensorRT refuses the build)"


def differing_ranges(case: ProfileCase) -> Iterator[Violation]:
    """Yield dimensions of one name whose bounds differ: only what all of them allow can ever be used."""
    for profile in case.profiles:
        for name, spans in named_spans(case, profile).items():
            first = spans[0]
            odd = next((span for span in spans if span.values != first.values), None)
            if odd is None or not (is_one_size(spans) or len({span.values[1] for span in spans}) == 1):
                continue
            low, high = shared_range(spans)
            bounds = f"{first} (min / opt / max) in {first.tensor} but {odd} in {odd.tensor}"
            remedy = f"give {name} one range in all inputs; as it is, only {low} to {high} can be used"
            values = {"profile": profile.index, "problem": f"dimension {name} is {bounds}", "remedy": remedy}
            yield Violation(case.evidence(profile, first.tensor, odd.tensor), values, Severity.WARNING)


class DimensionSum(NamedTuple):
    """A dimension that is to be the sum of others: what it is, what it should be, and of what."""

    total: NamedSpan
    terms: tuple[str, ...]
    values: tuple[int, int, int]
    tensors: tuple[str, ...]
    confidence: float = 0.95


def unmet_dimension_sums(case: ProfileCase) -> Iterator[Violation]:
    """Yield dimensions that are not the sum they stand for, such as a mask that is not past + sequence."""
    for profile in case.profiles:
        for dimension_sum in _dimension_sums(case, profile):
            wrong = [
                f"{selector} is {have}, not {want}"
                for selector, have, want in zip(
                    SELECTORS, dimension_sum.total.values, dimension_sum.values, strict=True
                )
                if have != want
            ]
            if wrong:
                refused = profile.index in profiles_with_wrong_sum(case, "opt")
                expected = " / ".join(map(str, dimension_sum.values))
                values = {
                    "profile": profile.index,
                    "tensor": dimension_sum.total.tensor,
                    "axis": dimension_sum.total.axis,
                    "terms": " + ".join(dimension_sum.terms),
                    "wrong": ", ".join(wrong) + (REFUSED_NOTE if refused else ""),
                    "expected": expected,
                }
                evidence = case.evidence(profile, dimension_sum.total.tensor, *dimension_sum.tensors)
                severity = Severity.ERROR if refused else Severity.WARNING
                yield Violation(evidence, values, severity, dimension_sum.confidence)


def profiles_with_wrong_sum(case: ProfileCase, selector: str) -> set[int]:
    """Return the profiles that cannot be run at these shapes, for which a wrong sum there is the reason."""
    position = SELECTORS.index(selector)
    unmet = {node["profile"] for node in case.profile_source.items("profiles.unmet") if node["shapes"] == selector}
    return {
        profile.index
        for profile in case.profiles
        if profile.index in unmet
        and any(
            dimension_sum.total.values[position] != dimension_sum.values[position]
            for dimension_sum in _dimension_sums(case, profile)
        )
    }


def _dimension_sums(case: ProfileCase, profile: OptimizationProfile) -> Iterator[DimensionSum]:
    named = named_spans(case, profile)
    for name, spans in named.items():
        yield from _sum_from_name(spans[0], [term.strip() for term in name.split("+")], named)
    mask = _mask_sum(case, [span for _, span in dynamic_spans(case, profile)])
    if mask:
        yield mask


def _sum_from_name(total: NamedSpan, terms: list[str], named: dict[str, list[NamedSpan]]) -> Iterator[DimensionSum]:
    """Yield what a name such as "past + 1" says, where its terms are numbers or dimensions of this profile."""
    parts = [named[term][0] for term in terms if term in named]
    constant = sum(int(term) for term in terms if term.isdecimal())
    if len(terms) > 1 and parts and all(term in named or term.isdecimal() for term in terms):
        yield _sum_of_parts(total, tuple(terms), parts, constant)


def _sum_of_parts(total: NamedSpan, terms: tuple[str, ...], parts: list[NamedSpan], constant: int = 0) -> DimensionSum:
    low, best, high = (constant + sum(part.values[position] for part in parts) for position in range(3))
    return DimensionSum(total, terms, (low, best, high), tuple(part.tensor for part in parts))


def _mask_sum(case: ProfileCase, spans: list[NamedSpan]) -> DimensionSum | None:
    """Return what the length of the mask should be, where mask, sequence and past are known by their names."""
    mask = _first_span(spans, MASK_INPUTS, 1)
    sequence = _first_span(spans, SEQUENCE_INPUTS, 1)
    past = _past_span(case, spans)
    if mask is None or sequence is None or past is None:
        return None
    names = [case.inputs[span.tensor][span.axis] for span in (mask, sequence, past)]
    real_names = [name for name in names if name not in UNNAMED]
    if "+" in str(names[0]) or len(set(real_names)) < len(real_names):
        return None  # its name says what it is; or mask and sequence are one dimension, without a past
    return _sum_of_parts(mask, ("past", "sequence"), [past, sequence])._replace(confidence=0.85)


def _first_span(spans: list[NamedSpan], tensors: tuple[str, ...], axis: int) -> NamedSpan | None:
    span_by_tensor = {span.tensor: span for span in spans if span.axis == axis}
    return next((span_by_tensor[tensor] for tensor in tensors if tensor in span_by_tensor), None)


def _past_span(case: ProfileCase, spans: list[NamedSpan]) -> NamedSpan | None:
    """Return the length of the cache: the dynamic dimension of a past input that is not its batch."""
    past = next((name for name in case.inputs if name.startswith("past_key_values")), "")
    elsewhere = {dim for name, dims in case.inputs.items() if not PAST_NAME.search(name) for dim in dims}
    candidates = [span for span in spans if span.tensor == past and case.inputs[past][span.axis] not in elsewhere]
    if len(candidates) > 1:
        candidates = [span for span in candidates if span.axis > 0]
    return candidates[0] if len(candidates) == 1 else None


def redundant_profiles(case: ProfileCase) -> Iterator[Violation]:
    """Yield profiles that another one covers with the same optimum: they cost a build and change nothing."""
    for profile in case.profiles:
        for other in case.profiles:
            if other.index != profile.index and _profile_covers(case, other, profile):
                same = profile.ranges == other.ranges or _profile_covers(case, profile, other)
                if same and other.index > profile.index:
                    continue  # told once, for the later of the two
                values = {
                    "profile": profile.index,
                    "other": other.index,
                    "how": "is the same as" if same else "lies, with the same opt shapes, inside",
                }
                tensor = profile.ranges[0].tensor
                evidence = case.evidence(other, tensor)[:1] + case.evidence(profile, tensor)[:1]
                severity, confidence = (Severity.WARNING, 0.95) if same else (Severity.NOTE, 0.6)
                yield Violation(evidence, values, severity, confidence)
                break


def _profile_covers(case: ProfileCase, wide: OptimizationProfile, narrow: OptimizationProfile) -> bool:
    pairs = [(wide.range_of(span.tensor), span) for span in narrow.ranges if span.tensor in case.inputs]
    return bool(pairs) and all(outer and _range_contains(outer, inner) for outer, inner in pairs)


def _range_contains(outer: ShapeRange, inner: ShapeRange) -> bool:
    if range_fault(outer, None)[0] or range_fault(inner, None)[0] or outer.opt != inner.opt:
        return False
    return all(a <= b for a, b in zip(outer.min, inner.min, strict=True)) and all(
        a >= b for a, b in zip(outer.max, inner.max, strict=True)
    )


def empty_dimensions(case: ProfileCase) -> Iterator[Violation]:
    """Yield dimensions that can be nothing but 0; a cache may be, before the first token."""
    for profile in case.profiles:
        empty = [
            span
            for name, span in dynamic_spans(case, profile)
            if span.values[2] == 0 and not PAST_NAME.search(f"{name} {span.tensor}")
        ]
        if empty:
            tensors = list(dict.fromkeys(span.tensor for span in empty))
            values = {"profile": profile.index, "tensors": ", ".join(tensors[:5]), "axis": empty[0].axis}
            yield Violation(case.evidence(profile, *tensors[:5]), values, Severity.WARNING, 0.9)


SILENT_CHECKS = (differing_ranges, unmet_dimension_sums, redundant_profiles, empty_dimensions)
