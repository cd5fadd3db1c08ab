"""The schemas that tools promise: those of docs/, inside an envelope with the cursor and the notice."""

from __future__ import annotations

from typing import Any

import msgspec

from trtdx.cases.nouns import SearchHit
from trtdx.render.json import schema_of_report

_TEXT = {"type": "string"}


def report_schema(name: str) -> dict[str, Any]:
    """Return the schema of an answer that holds a report: "report", "memory" or "compare"."""
    schema = schema_of_report(_report_type(name))
    properties = {
        "report": {"$ref": schema["$ref"]},
        "next_cursor": {"type": ["string", "null"]},
        "notice": _TEXT,
    }
    return {"type": "object", "properties": properties, "required": list(properties), "$defs": schema["$defs"]}


def _report_type(name: str) -> Any:
    if name == "memory":
        from trtdx.memory.report.schema import MemoryDocument

        return MemoryDocument
    if name == "compare":
        from trtdx.compare.report.comparison_report import ComparisonReport

        return ComparisonReport
    from trtdx.model import Report

    return Report


_HITS = msgspec.json.schema(list[SearchHit])
HITS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"hits": {key: value for key, value in _HITS.items() if key != "$defs"}, "notice": _TEXT},
    "required": ["hits", "notice"],
    "$defs": _HITS["$defs"],
}
PAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"code": _TEXT, "slug": _TEXT, "title": _TEXT, "page": _TEXT},
    "required": ["code", "slug", "title", "page"],
}
