"""The JSON contract; `docs/report.schema.json` is generated from the same types."""

from __future__ import annotations

from typing import Any

import msgspec

from trtdx.model import Report


def render_json(report: Report, *, one_line: bool = False) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=-1 if one_line else 2).decode() + "\n"


def report_from_json(text: str | bytes) -> Report:
    return msgspec.json.decode(text, type=Report)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a report."""
    return msgspec.json.schema(Report)
