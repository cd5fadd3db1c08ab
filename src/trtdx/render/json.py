"""The JSON contract; the schemas in `docs/` are generated from the same types."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from trtdx.model import Report

# Legal in JSON, and still able to drive or mislead the terminal it is printed on.
_TERMINAL_CONTROL = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def render_json(report: Report, *, one_line: bool = False) -> str:
    return render_data(report, one_line=one_line)


def render_data(data: Any, *, one_line: bool = False) -> str:
    """Return any answer as JSON that drives no terminal."""
    text = msgspec.json.format(msgspec.json.encode(data), indent=-1 if one_line else 2).decode() + "\n"
    return _TERMINAL_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def report_from_json(text: str | bytes) -> Report:
    return msgspec.json.decode(text, type=Report)


def schema_of_report(kind: type[Report] = Report) -> dict[str, Any]:
    """Return the JSON schema of a type of report; a number that is not finite is null in JSON."""
    document: dict[str, Any] = _allow_null_numbers(msgspec.json.schema(kind))
    return document


def _allow_null_numbers(node: Any) -> Any:
    if isinstance(node, list):
        return [_allow_null_numbers(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        name: ["number", "null"] if name == "type" and value == "number" else _allow_null_numbers(value)
        for name, value in node.items()
    }
