"""Assertions on tensors that say what differs, where and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import InputError, UnknownNameError
from trtdx.tensors.closeness import closeness
from trtdx.testing.tensors import Run, array_of
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

    from trtdx.tensors.closeness import Tolerance

    Array = np.ndarray[Any, Any]

HERE, THERE = "here", "in the reference"


def assert_close(name: str, tensor: Any, reference: Any, tolerance: Tolerance) -> None:
    """Fail unless a tensor is close to a reference."""
    __tracebackhide__ = True
    difference = differing(array_of(tensor), _like(reference, tensor), tolerance)
    if difference:
        raise AssertionError("\n  ".join([f"{name} is not close to its reference", *difference]))


def differing(candidate: Array, reference: Array, tolerance: Tolerance) -> list[str]:
    """Return in words how a candidate differs from a reference; nothing where it is close."""
    layouts = f"{_layout(candidate)} {HERE}, {_layout(reference)} {THERE}"
    if candidate.shape != reference.shape:
        return [f"the shapes differ: {layouts}"]
    distance = closeness(reference, candidate, tolerance)
    return [] if distance.fine else [*distance.lines(HERE, THERE), layouts]


def _layout(array: Array) -> str:
    return f"{array.dtype.name} {list(array.shape)}"


def _like(reference: Any, tensor: Any) -> Array:
    """Return a reference as an array; a Python number stands for a tensor of it, in the tensor's own type."""
    if isinstance(reference, (bool, int, float)):
        import numpy as np

        return np.full_like(array_of(tensor), reference)
    return array_of(reference)


class Pair(NamedTuple):
    """A tensor here and the name of its counterpart."""

    name: str
    other: str


def assert_runs_match(
    run: Run, reference: Mapping[str, Any], names: Mapping[str, str], tolerance: Tolerance
) -> None:
    """Fail unless all tensors that two runs share are close; names the first that is not."""
    __tracebackhide__ = True
    pairs = list(_paired(run, reference, names))
    if not pairs:
        raise AssertionError(
            f"nothing was compared: no tensor has the same name in both\n"
            f"  {HERE}: {listed(run)}\n  {THERE}: {listed(reference)}\n"
            f"  name the pairs: dx.assert_matches(reference, names={{'name here': 'name there'}})"
        )
    differences = {
        pair: differing(run[pair.name], array_of(reference[pair.other]), tolerance) for pair in pairs
    }
    wrong = [pair for pair in pairs if differences[pair]]
    if wrong:
        raise AssertionError("\n  ".join(_lines(pairs, wrong, differences[wrong[0]])))


def _lines(pairs: list[Pair], wrong: list[Pair], told: list[str]) -> Iterator[str]:
    first = wrong[0]
    position = (
        "the only tensor that differs"
        if len(wrong) == 1
        else f"the first of {len(wrong)} tensors that differ"
    )
    yield f"{first.name} is {position} from the reference, of {counted(len(pairs), 'tensor')} compared"
    yield from told
    agree = [pair.name for pair in pairs[: pairs.index(first)]]
    if agree:
        yield f"before it, these agree: {listed(agree[-6:])}"
    if wrong[1:]:
        yield f"after it, these differ too: {listed(pair.name for pair in wrong[1:])}"


def _paired(run: Run, reference: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Pair]:
    """Yield which tensor here is which one there, in the order of the data's flow here."""
    for here, there in names.items():
        if here not in run:
            raise UnknownNameError("tensor of this run", here, run)
        if there not in reference:
            raise UnknownNameError("tensor of the reference", there, reference)
    pairs = {}
    for name in run:
        other = names.get(name) or _counterpart(name, reference)
        if other is not None:
            pairs[name] = other
    missing = [] if isinstance(reference, Run) else [name for name in reference if name not in pairs.values()]
    if missing:
        raise InputError(
            f"the reference has {listed(missing)}, but this run has no such tensor: it has {listed(run)}"
        )
    return (Pair(name, other) for name, other in pairs.items())


def _counterpart(name: str, reference: Mapping[str, Any]) -> str | None:
    """Return the same name, or the only one that differs in what it begins with: `layers.3` in `model.layers.3`."""
    if name in reference:
        return name
    near = [other for other in reference if other.endswith(f".{name}") or name.endswith(f".{other}")]
    return near[0] if len(near) == 1 else None
