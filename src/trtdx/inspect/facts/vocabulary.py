"""The names facts go by, whatever file they were read from: one word for one thing in every artifact.

They live in one data file, `data/vocabulary.txt`.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import msgspec

from trtdx.errors import UnknownNameError


class VocabularyTerm(msgspec.Struct, frozen=True):
    """One name: its type, its meaning in words, and how grave it is when two artifacts differ in it."""

    name: str
    type: str
    meaning: str
    weight: int


class MalformedFactError(ValueError):
    """A value that is not of its term's type."""


def _load_terms() -> dict[str, VocabularyTerm]:
    text = resources.files("trtdx").joinpath("data/vocabulary.txt").read_text("utf-8")
    rows = (line.split(None, 3) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: VocabularyTerm(name, kind, meaning, int(weight)) for name, kind, weight, meaning in rows}


_ALL_TERMS = _load_terms()
TERMS = {name: entry for name, entry in _ALL_TERMS.items() if not name.endswith(".*")}
OPEN_FAMILIES = {name[:-2]: entry for name, entry in _ALL_TERMS.items() if name.endswith(".*")}


def find_term(name: str) -> VocabularyTerm | None:
    """Return the term of a name, or None where no artifact states such a thing."""
    family, dot, _ = name.partition(".")
    if name not in TERMS and dot and family in OPEN_FAMILIES:
        return msgspec.structs.replace(OPEN_FAMILIES[family], name=name)
    return TERMS.get(name)


def require_term(name: str) -> VocabularyTerm:
    """Return the term of a name, or raise: a misspelt fact would otherwise be silently absent."""
    found_term = find_term(name)
    if found_term is None:
        raise UnknownNameError("fact", name, TERMS)
    return found_term


FACT_TYPES: dict[str, tuple[type, str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "str": (str, "a text"),
    "bool": (bool, "true or false"),
    "list": (list, "a list"),
    "dict": (dict, "a table"),
}


def fit_to_type(name: str, value: Any) -> Any:
    """Return the value as its term's type; a number that is whole counts as an integer."""
    kind = require_term(name).type
    if kind == "any":
        return value
    if kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as err:
            raise MalformedFactError("expected a number that a float can hold") from err
    if kind == "int" and isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    python_type, words = FACT_TYPES[kind]
    if isinstance(value, python_type) and not (kind == "int" and isinstance(value, bool)):
        return value
    raise MalformedFactError(f"expected {words}")
