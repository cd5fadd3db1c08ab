"""What differs between two artifacts, most consequential first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError
from trtdx.inspect.artifact import Artifact, shortened
from trtdx.inspect.vocabulary import known_term
from trtdx.model import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

CONSEQUENCES = {
    4: "is another model",
    3: "changes the output",
    2: "does not load, or needs another build",
    1: "changes limits, speed or memory",
    0: "",
}
ABSENT = "(not stated)"
# What two files of one model never share: where they lie, how they are cut.
_NOT_COMPARED = (
    "weights.files",
    "weights.sizes",
    "tokenizer.files",
    "quant.source",
    "tokenizer.template_source",
)
_OF_ONE_KIND = (
    "weights.bytes",
    "weights.format",
    "weights.bytes_by_dtype",
    "weights.dtypes",
    "malformed",
    "unparsed",
)

_IDENTITY = ("architecture", "hidden_size", "num_layers", "num_heads", "intermediate_size")

Row = tuple[str, str, str, str]


def differences(one: Artifact, other: Artifact) -> Section:
    """Return the facts both state differently and, for two of one kind, those only one states."""
    rows = sorted(_rows(one, other), key=lambda row: (-_weight(row[0]), ABSENT in row, row[0]))
    if not rows and not _shared(one, other):
        raise InputError(
            f"a {one.title} and a {other.title} state nothing in common",
            fix="compare two artifacts that describe the same model, such as a checkpoint and an engine",
        )
    names = _names(one, other)
    return Section(
        "differences",
        f"{one.path} against {other.path}",
        ("what", "here", "there", "the difference"),
        tuple(rows),
        note=f"{len(rows)} of {len(names)} facts differ",
    )


def _shared(one: Artifact, other: Artifact) -> list[str]:
    left_out = _NOT_COMPARED if one.kind == other.kind else (*_NOT_COMPARED, *_OF_ONE_KIND)
    return [name for name in one.facts if name in other.facts and name not in left_out]


def _names(one: Artifact, other: Artifact) -> list[str]:
    """Return the facts to compare: what both state and, of two of one kind, also what only one does."""
    if one.kind != other.kind:
        return _shared(one, other)
    return [name for name in dict.fromkeys((*one.facts, *other.facts)) if name not in _NOT_COMPARED]


def _rows(one: Artifact, other: Artifact) -> Iterator[Row]:
    for name in _names(one, other):
        yield from _difference(name, one.get(name), other.get(name))
    yield from _tensor_rows(one, other)
    yield from _profile_rows(one, other)


def _difference(name: str, here: Any, there: Any) -> Iterator[Row]:
    if same(here, there):
        return
    if isinstance(here, dict) and isinstance(there, dict):
        for key in dict.fromkeys((*here, *there)):
            yield from _difference(f"{name}.{key}", here.get(key), there.get(key))
        return
    yield name, _told(here), _told(there), CONSEQUENCES[_weight(name)]


def same(here: Any, there: Any) -> bool:
    """Whether two values say the same; numbers may differ in the last digits of their notation."""
    if {here is None or here is False, there is None or there is False} == {True}:
        return True  # what is off is often not written down
    if _is_number(here) and _is_number(there):
        return bool(abs(here - there) <= 1e-9 * max(abs(here), abs(there)))
    return bool(here == there)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _weight(name: str) -> int:
    """Return how grave a difference is; a key inside a fact, such as rope_scaling.factor, weighs as the fact."""
    if name in _IDENTITY:
        return 4
    if name.startswith(("tensor.", "profile.")):
        return 2
    parts = name.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((known.weight for each in names if (known := known_term(each))), 1)


def _told(value: Any) -> str:
    return ABSENT if value is None else shortened(value, 60)


def _tensor_rows(one: Artifact, other: Artifact) -> Iterator[Row]:
    if not (one.tensors and other.tensors) or "engine" in (one.kind, other.kind):
        return  # an engine's are derived from its settings
    here = {each.name: f"{each.dtype} {list(each.shape)}" for each in one.tensors}
    there = {each.name: f"{each.dtype} {list(each.shape)}" for each in other.tensors}
    for name in dict.fromkeys((*here, *there)):
        yield from _difference(f"tensor.{name}", here.get(name), there.get(name))


def _profile_rows(one: Artifact, other: Artifact) -> Iterator[Row]:
    if not (one.profiles and other.profiles) or any(
        profile.source.startswith("derived") for profile in (*one.profiles, *other.profiles)
    ):
        return  # derived profiles only repeat what the settings say
    here, there = _ranges(one), _ranges(other)
    for name in dict.fromkeys((*here, *there)):
        yield from _difference(f"profile.{name}", here.get(name), there.get(name))


def _ranges(artifact: Artifact) -> dict[str, str]:
    return {
        f"{profile.index}.{each.tensor}": f"{list(each.min)} .. {list(each.max)}, best {list(each.opt)}"
        for profile in artifact.profiles
        for each in profile.ranges
    }
