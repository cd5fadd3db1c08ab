"""The names facts go by, whatever file they were read from: one word for one thing in every artifact."""

from __future__ import annotations

from typing import Any

import msgspec

from trtdx.errors import UnknownNameError
from trtdx.inspect.facts.terms import ALONE, GROUPS, OPEN_FAMILIES, Term


class MalformedError(ValueError):
    """A value that is not of its term's type."""


TERMS: dict[str, Term] = {each.name: each for group in GROUPS.values() for each in group} | {
    each.name: each for each in ALONE
}


def known_term(name: str) -> Term | None:
    """Return the term of a name, or None where no artifact states such a thing."""
    family, dot, _ = name.partition(".")
    if name not in TERMS and dot and family in OPEN_FAMILIES:
        return msgspec.structs.replace(OPEN_FAMILIES[family], name=name)
    return TERMS.get(name)


def term(name: str) -> Term:
    """Return the term of a name, or raise: a misspelt fact would otherwise be silently absent."""
    found_term = known_term(name)
    if found_term is None:
        raise UnknownNameError("fact", name, TERMS)
    return found_term


def fitted(name: str, value: Any) -> Any:
    """Return the value as its term's type; a number that is whole counts as an integer."""
    kind = term(name).type
    if kind == "any":
        return value
    if kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind == "int" and isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    types = {"int": int, "str": str, "bool": bool, "list": list, "dict": dict, "float": float}
    if isinstance(value, types[kind]) and not (kind == "int" and isinstance(value, bool)):
        return value
    raise MalformedError(f"expected {WORDS[kind]}")


WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "list": "a list",
    "dict": "a table",
}
