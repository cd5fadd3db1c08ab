"""What differs between two artifacts, most consequential first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError
from trtdx.inspect.facts.artifact import Artifact, shortened
from trtdx.inspect.facts.vocabulary import known_term
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence, Section, Severity
from trtdx.words import counted, listed

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
    "weights.files", "weights.sizes", "tokenizer.files", "quant.source", "tokenizer.template_source",
)  # fmt: skip
_OF_ONE_KIND = (
    "weights.bytes", "weights.format", "weights.bytes_by_dtype", "weights.dtypes", "malformed", "unparsed",
)  # fmt: skip

MODELS = {"hf", "checkpoint", "engine"}
NONE_IF_UNSAID = ("rope_scaling",)  # facts that every model with the thing states, in files of all kinds
_IDENTITY = ("architecture", "hidden_size", "num_layers", "num_heads", "intermediate_size")

Row = tuple[str, str, str, str]


# What a difference is to whoever must not have it: by the default --fail-on only wrong answers fail.
SEVERITIES = {4: Severity.ERROR, 3: Severity.ERROR, 2: Severity.WARNING, 1: Severity.NOTE, 0: Severity.NOTE}
REASONS = {
    4: "Architecture and sizes are not the same: these are different models.",
    3: "Both can be loaded and neither says a word, but they do not give the same answers.",
    2: "What was made for the one does not load, or was not built, for the other.",
    1: "Answers are the same; how many requests fit, how fast they run or how much memory they take is not.",
    0: "What differs has no effect on answers, speed or memory.",
}
CODE = "DX554"
NAMED = 4


def violation_from(one: Artifact, other: Artifact, section: Section) -> Violation | None:
    """Return what two artifacts differ in as one violation, as grave as the gravest difference."""
    rows = [[str(cell) for cell in row] for row in section.rows]
    if not rows:
        return None
    worst = _weight(rows[0][0])
    gravest = [row for row in rows if _weight(row[0]) == worst]
    values = {
        "here": one.path,
        "there": other.path,
        "named_here": "--command COMMAND" if one.path == "--command" else shlex.quote(one.path),
        "named_there": shlex.quote(other.path),
        "count": counted(len(rows), "fact"),
        "consequence": CONSEQUENCES[worst] or "without effect",
        "what": listed([row[0] for row in gravest], NAMED),
        "reason": REASONS[worst],
    }
    evidence = tuple(
        Evidence(
            artifact.facts[row[0]].where if row[0] in artifact.facts else artifact.path,
            f"{row[0]}: {row[column]}",
        )
        for row in gravest
        for column, artifact in ((1, one), (2, other))
    )
    return Violation(evidence, values, SEVERITIES[worst])


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
        note=f"{counted(len(rows), 'difference')}; {counted(len(names), 'fact')} compared",
    )


def _shared(one: Artifact, other: Artifact) -> list[str]:
    left_out = _NOT_COMPARED if one.kind == other.kind else (*_NOT_COMPARED, *_OF_ONE_KIND)
    return [name for name in one.distinct() if name in other.facts and name not in left_out]


def _names(one: Artifact, other: Artifact) -> list[str]:
    """Return the facts to compare: what both state and, of two of one kind, also what only one does."""
    if one.kind != other.kind:
        lost = [
            name
            for name in NONE_IF_UNSAID
            if {one.kind, other.kind} <= MODELS and one.has(name) != other.has(name)
        ]
        return [*_shared(one, other), *lost]
    return [name for name in dict.fromkeys((*one.distinct(), *other.distinct())) if name not in _NOT_COMPARED]


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
    if {type(here), type(there)} <= {int, float}:
        return bool(abs(here - there) <= 1e-9 * max(abs(here), abs(there)))
    return bool(here == there)


def _weight(name: str) -> int:
    """Return how grave a difference is; a key inside a fact, such as rope_scaling.factor, weighs as the fact."""
    if name in _IDENTITY:
        return 4
    if name.startswith(("tensor.", "profile.")):
        return 2
    parts = name.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((found_term.weight for fact_name in names if (found_term := known_term(fact_name))), 1)


def _told(value: Any) -> str:
    return ABSENT if value is None else shortened(value, 60)


def _tensor_rows(one: Artifact, other: Artifact) -> Iterator[Row]:
    if not (one.tensors and other.tensors) or "engine" in (one.kind, other.kind):
        return  # an engine's are derived from its settings
    here = {tensor.name: f"{tensor.dtype} {list(tensor.shape)}" for tensor in one.tensors}
    there = {tensor.name: f"{tensor.dtype} {list(tensor.shape)}" for tensor in other.tensors}
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
        f"{profile.index}.{span.tensor}": f"{list(span.min)} .. {list(span.max)}, best {list(span.opt)}"
        for profile in artifact.profiles
        for span in profile.ranges
    }
