"""The examples on rule pages that are artifacts: facts in TOML, one table for each artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import RulePageError, UnknownNameError
from trtdx.inspect.facts.artifact import KIND_TITLES, Artifact, Deployment, FactCollector
from trtdx.inspect.facts.vocabulary import TERMS

if TYPE_CHECKING:
    from collections.abc import Iterator


def deployment_from_example(text: str) -> Deployment:
    """Return the artifacts an example writes as `[engine]` tables; `[hf.other]` is a second one of its kind."""
    try:
        tables = msgspec.toml.decode(text)
    except (msgspec.DecodeError, ValueError) as err:
        raise RulePageError(f"the example is not TOML: {err}") from err
    artifacts = []
    for kind, facts in tables.items():
        if kind not in KIND_TITLES:
            raise UnknownNameError("kind of artifact", kind, KIND_TITLES)
        twin = facts.pop("other", None)
        artifacts += [_artifact_from_table(kind, kind, facts)] + (
            [_artifact_from_table(kind, f"{kind}.other", twin)] if twin else []
        )
    return Deployment(tuple(artifacts))


def _artifact_from_table(kind: str, path: str, facts: dict[str, Any]) -> Artifact:
    collected = FactCollector()
    for name, value in _flatten_facts(facts):
        collected.put(name, value, f"{path}: {name}")
    return Artifact(kind, path, collected.to_dict())


def _flatten_facts(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names; a table below a family's name, such as quant.per_layer, is the value."""
    for name, value in facts.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, dict) and dotted not in TERMS and not prefix:
            yield from _flatten_facts(value, f"{dotted}.")
        else:
            yield dotted, value
