"""Templates of rule pages: `{group}` puts a captured value in, `{group:filter}` turns it into words first."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Any

from trtdx.knowledge import versions
from trtdx.words import format_bytes, group_digits

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Template(string.Formatter):
    """`{group}` and `{group:filter}`, where a filter turns a captured value into words."""

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        value = kwargs[str(key)]
        if value is None:
            raise KeyError(key)
        return value

    def format_field(self, value: Any, format_spec: str) -> str:
        return FILTERS[format_spec](str(value)) if format_spec else str(value)


FILTERS = {
    "bytes": lambda value: format_bytes(float(value)),
    "thousands": lambda value: group_digits(int(value)),
    "gpus_with_sm": versions.gpus_with_sm,
    "trtllm_with_tensorrt": versions.trtllm_with_tensorrt,
}


# Pages speak of many: "{started} ranks were started". Where the number is one, so are its noun and its verb.
_ONE = re.compile(
    r"(?<![\w.,:/-])1 (?P<adjective>(?:MPI|GPU|KV|other|new|output|input|draft) )?"
    r"(?P<noun>rank|GPU|token|layer|head|row|element|request|node|slot|expert|value|tensor|position|channel|step|file|plan|prompt|line|block|input|"
    r"output|weight|process(?=es)|stage|shard|machine|worker|beam|byte|sample|sequence|dimension|placeholder|binding|instance|"
    r"feature|image|profile|core|time|container)(?:e?s)\b(?P<verb> (?:are|were|have|do)\b)?"
)
_VERB = {"are": "is", "were": "was", "have": "has", "do": "does"}


def fill_template(template: str, values: Mapping[str, str | None]) -> str | None:
    """Return the template with values put in, or None when a value is missing or unusable."""
    try:
        return _ONE.sub(_singular_form, _Template().vformat(template, (), values))
    except (KeyError, ValueError, IndexError):
        return None


def _singular_form(match: re.Match[str]) -> str:
    verb = f" {_VERB[match['verb'].strip()]}" if match["verb"] else ""
    return f"1 {match['adjective'] or ''}{match['noun']}{verb}"


def template_fields(template: str) -> list[tuple[str, str]]:
    """Return the (name, filter) pairs a template asks for."""
    return [(name, spec or "") for _, name, spec, _ in string.Formatter().parse(template) if name is not None]
