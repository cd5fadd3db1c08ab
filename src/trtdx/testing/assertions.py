"""Assertions on tensors that say what differs, where and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import InputError, UnknownNameError
from trtdx.tensors.closeness import measure_closeness
from trtdx.testing.recorded_tensors import DxRun, array_from_any
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

    from trtdx.tensors.closeness import Tolerance

    Array = np.ndarray[Any, Any]

HERE, THERE = "here", "in the reference"


def assert_close(name: str, tensor: Any, reference: Any, tolerance: Tolerance) -> None:
    """Fail unless a tensor is close to a reference."""
    __tracebackhide__ = True
    difference = describe_difference(array_from_any(tensor), _reference_array(reference, tensor), tolerance)
    if difference:
        raise AssertionError("\n  ".join([f"{name} is not close to its reference", *difference]))


def describe_difference(candidate: Array, reference: Array, tolerance: Tolerance) -> list[str]:
    """Return in words how a candidate differs from a reference; empty if it is close."""
    layouts = f"{_describe_layout(candidate)} {HERE}, {_describe_layout(reference)} {THERE}"
    if candidate.shape != reference.shape:
        return [f"the shapes differ: {layouts}"]
    distance = measure_closeness(reference, candidate, tolerance)
    return [] if distance.is_fine else [*distance.lines(HERE, THERE), layouts]


def _describe_layout(array: Array) -> str:
    return f"{array.dtype.name} {list(array.shape)}"


def _reference_array(reference: Any, tensor: Any) -> Array:
    """Return a reference as an array; a Python number stands for a tensor of it, in the tensor's own type."""
    if isinstance(reference, (bool, int, float)):
        import numpy as np

        return np.full_like(array_from_any(tensor), reference)
    return array_from_any(reference)


class TensorNamePair(NamedTuple):
    """A tensor here and the name of its counterpart."""

    name: str
    other: str


def assert_runs_match(run: DxRun, reference: Mapping[str, Any], names: Mapping[str, str], tolerance: Tolerance) -> None:
    """Fail unless all tensors that two runs share are close; names the first that is not."""
    __tracebackhide__ = True
    pairs = list(_pair_tensors(run, reference, names))
    if not pairs:
        raise AssertionError(
            f"nothing was compared: no tensor has the same name in both\n"
            f"  {HERE}: {abbreviate_list(run)}\n  {THERE}: {abbreviate_list(reference)}\n"
            f"  name the pairs: dx.assert_matches(reference, names={{'name here': 'name there'}})"
        )
    differences = {
        pair: describe_difference(run[pair.name], array_from_any(reference[pair.other]), tolerance) for pair in pairs
    }
    wrong = [pair for pair in pairs if differences[pair]]
    if wrong:
        raise AssertionError("\n  ".join(_mismatch_lines(pairs, wrong, differences[wrong[0]])))


def _mismatch_lines(pairs: list[TensorNamePair], wrong: list[TensorNamePair], difference: list[str]) -> Iterator[str]:
    first = wrong[0]
    position = "the only tensor that differs" if len(wrong) == 1 else f"the first of {len(wrong)} tensors that differ"
    yield f"{first.name} is {position} from the reference, of {format_count(len(pairs), 'tensor')} compared"
    yield from difference
    agree = [pair.name for pair in pairs[: pairs.index(first)]]
    if agree:
        yield f"before it, these agree: {abbreviate_list(agree[-6:])}"
    if wrong[1:]:
        yield f"after it, these differ too: {abbreviate_list(pair.name for pair in wrong[1:])}"


def _pair_tensors(run: DxRun, reference: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[TensorNamePair]:
    """Yield which tensor here is which one there, in the order of the data's flow here."""
    for here, there in names.items():
        if here not in run:
            raise UnknownNameError("tensor of this run", here, run)
        if there not in reference:
            raise UnknownNameError("tensor of the reference", there, reference)
    pairs = {}
    for name in run:
        other = names.get(name) or _reference_name(name, reference)
        if other is not None:
            pairs[name] = other
    missing = [] if isinstance(reference, DxRun) else [name for name in reference if name not in pairs.values()]
    if missing:
        raise InputError(
            f"the reference has {abbreviate_list(missing)}, but this run has no such tensor: it has {abbreviate_list(run)}"
        )
    return (TensorNamePair(name, other) for name, other in pairs.items())


def _reference_name(name: str, reference: Mapping[str, Any]) -> str | None:
    """Return the same name, or the only one that differs in what it begins with: `layers.3` in `model.layers.3`."""
    if name in reference:
        return name
    near = [other for other in reference if other.endswith(f".{name}") or name.endswith(f".{other}")]
    return near[0] if len(near) == 1 else None
