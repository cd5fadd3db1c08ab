"""What differs between two artifacts, most consequential first."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError
from trtdx.inspect.facts.artifact import Artifact, shorten_value
from trtdx.inspect.facts.vocabulary import find_term
from trtdx.knowledge.violation import Violation
from trtdx.model import Evidence, Section, Severity
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

CONSEQUENCE_BY_WEIGHT = {
    4: "is another model",
    3: "changes the output",
    2: "does not load, or needs another build",
    1: "changes limits, speed or memory",
    0: "",
}
NOT_STATED = "(not stated)"
# What two files of one model never share: where they lie, how they are cut.
_NOT_COMPARED = (
    "weights.files", "weights.sizes", "tokenizer.files", "quant.source", "tokenizer.template_source",
)  # fmt: skip
_SAME_KIND_ONLY = (
    "weights.bytes", "weights.format", "weights.bytes_by_dtype", "weights.dtypes", "malformed", "unparsed",
)  # fmt: skip

MODEL_KINDS = {"hf", "checkpoint", "engine"}
NONE_IF_UNSTATED = ("rope_scaling",)  # facts that every model with the thing states, in files of all kinds
_IDENTITY_FACTS = ("architecture", "hidden_size", "num_layers", "num_heads", "intermediate_size")

DifferenceRow = tuple[str, str, str, str]


# What a difference is to whoever must not have it: by the default --fail-on only wrong answers fail.
SEVERITY_BY_WEIGHT = {
    4: Severity.ERROR,
    3: Severity.ERROR,
    2: Severity.WARNING,
    1: Severity.NOTE,
    0: Severity.NOTE,
}
REASON_BY_WEIGHT = {
    4: "Architecture and sizes are not the same: these are different models.",
    3: "Both can be loaded and neither says a word, but they do not give the same answers.",
    2: "What was made for the one does not load, or was not built, for the other.",
    1: "Answers are the same; how many requests fit, how fast they run or how much memory they take is not.",
    0: "What differs has no effect on answers, speed or memory.",
}
CODE = "DX554"
MAX_NAMED_FACTS = 4


def violation_from_differences(left: Artifact, right: Artifact, section: Section) -> Violation | None:
    """Return what two artifacts differ in as one violation, as grave as the gravest difference."""
    rows = [[str(cell) for cell in row] for row in section.rows]
    if not rows:
        return None
    worst = _difference_weight(rows[0][0])
    gravest = [row for row in rows if _difference_weight(row[0]) == worst]
    values = {
        "here": left.path,
        "there": right.path,
        "named_here": "--command COMMAND" if left.path == "--command" else shlex.quote(left.path),
        "named_there": shlex.quote(right.path),
        "count": format_count(len(rows), "fact"),
        "consequence": CONSEQUENCE_BY_WEIGHT[worst] or "without effect",
        "what": abbreviate_list([row[0] for row in gravest], MAX_NAMED_FACTS),
        "reason": REASON_BY_WEIGHT[worst],
    }
    evidence = tuple(
        Evidence(
            artifact.facts[row[0]].where if row[0] in artifact.facts else artifact.path,
            f"{row[0]}: {row[column]}",
        )
        for row in gravest
        for column, artifact in ((1, left), (2, right))
    )
    return Violation(evidence, values, SEVERITY_BY_WEIGHT[worst])


def difference_section(left: Artifact, right: Artifact) -> Section:
    """Return the facts both state differently and, for two of one kind, those only one states."""
    rows = sorted(
        _difference_rows(left, right),
        key=lambda row: (-_difference_weight(row[0]), NOT_STATED in row, row[0]),
    )
    if not rows and not _shared_facts(left, right):
        raise InputError(
            f"a {left.title} and a {right.title} state nothing in common",
            fix="compare two artifacts that describe the same model, such as a checkpoint and an engine",
        )
    names = _compared_facts(left, right)
    return Section(
        "differences",
        f"{left.path} against {right.path}",
        ("what", "here", "there", "the difference"),
        tuple(rows),
        note=f"{format_count(len(rows), 'difference')}; {format_count(len(names), 'fact')} compared",
    )


def _shared_facts(left: Artifact, right: Artifact) -> list[str]:
    left_out = _NOT_COMPARED if left.kind == right.kind else (*_NOT_COMPARED, *_SAME_KIND_ONLY)
    return [name for name in left.distinct_facts() if name in right.facts and name not in left_out]


def _compared_facts(left: Artifact, right: Artifact) -> list[str]:
    """Return the facts to compare: what both state and, of two of one kind, also what only one does."""
    if left.kind != right.kind:
        lost = [
            name
            for name in NONE_IF_UNSTATED
            if {left.kind, right.kind} <= MODEL_KINDS and left.has(name) != right.has(name)
        ]
        return [*_shared_facts(left, right), *lost]
    return [
        name for name in dict.fromkeys((*left.distinct_facts(), *right.distinct_facts())) if name not in _NOT_COMPARED
    ]


def _difference_rows(left: Artifact, right: Artifact) -> Iterator[DifferenceRow]:
    for name in _compared_facts(left, right):
        yield from _value_differences(name, left.get(name), right.get(name))
    yield from _tensor_rows(left, right)
    yield from _profile_rows(left, right)


def _value_differences(name: str, here: Any, there: Any) -> Iterator[DifferenceRow]:
    if is_same_value(here, there):
        return
    if isinstance(here, dict) and isinstance(there, dict):
        for key in dict.fromkeys((*here, *there)):
            yield from _value_differences(f"{name}.{key}", here.get(key), there.get(key))
        return
    yield name, _value_text(here), _value_text(there), CONSEQUENCE_BY_WEIGHT[_difference_weight(name)]


def is_same_value(here: Any, there: Any) -> bool:
    """Whether two values say the same; numbers may differ in the last digits of their notation."""
    if {here is None or here is False, there is None or there is False} == {True}:
        return True  # what is off is often not written down
    if {type(here), type(there)} <= {int, float}:
        return bool(abs(here - there) <= 1e-9 * max(abs(here), abs(there)))
    return bool(here == there)


def _difference_weight(name: str) -> int:
    """Return how grave a difference is; a key inside a fact, such as rope_scaling.factor, weighs as the fact."""
    if name in _IDENTITY_FACTS:
        return 4
    if name.startswith(("tensor.", "profile.")):
        return 2
    parts = name.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((found_term.weight for fact_name in names if (found_term := find_term(fact_name))), 1)


def _value_text(value: Any) -> str:
    return NOT_STATED if value is None else shorten_value(value, 60)


def _tensor_rows(left: Artifact, right: Artifact) -> Iterator[DifferenceRow]:
    if not (left.tensors and right.tensors) or "engine" in (left.kind, right.kind):
        return  # an engine's are derived from its settings
    here = {tensor.name: f"{tensor.dtype} {list(tensor.shape)}" for tensor in left.tensors}
    there = {tensor.name: f"{tensor.dtype} {list(tensor.shape)}" for tensor in right.tensors}
    for name in dict.fromkeys((*here, *there)):
        yield from _value_differences(f"tensor.{name}", here.get(name), there.get(name))


def _profile_rows(left: Artifact, right: Artifact) -> Iterator[DifferenceRow]:
    if not (left.profiles and right.profiles) or any(
        profile.source.startswith("derived") for profile in (*left.profiles, *right.profiles)
    ):
        return  # derived profiles only repeat what the settings say
    here, there = _profile_ranges(left), _profile_ranges(right)
    for name in dict.fromkeys((*here, *there)):
        yield from _value_differences(f"profile.{name}", here.get(name), there.get(name))


def _profile_ranges(artifact: Artifact) -> dict[str, str]:
    return {
        f"{profile.index}.{span.tensor}": f"{list(span.min)} .. {list(span.max)}, best {list(span.opt)}"
        for profile in artifact.profiles
        for span in profile.ranges
    }
