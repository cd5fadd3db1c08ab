"""A report as SARIF 2.1.0, the format that code scanning tools read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.model import Where
from trtdx.render.places import parse_place
from trtdx.render.text import printable_text, render_finding_body
from trtdx.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.model import Evidence, Finding, IgnoredFinding, Report

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render_sarif(report: Report) -> str:
    """Return one SARIF run: each finding is a result; ignored ones are results that are suppressed."""
    codes = {finding.code: finding for finding in report.findings}
    rules = [_rule_document(code, finding.slug) for code, finding in codes.items()]
    ignored_codes = {ignored.code: ignored.slug for ignored in report.summary.ignored}
    rules += [_rule_document(code, slug) for code, slug in ignored_codes.items() if code not in codes]
    numbers = {rule["id"]: number for number, rule in enumerate(rules)}
    results = [_result_document(finding, numbers) for finding in report.findings]
    results += [_suppressed_result(ignored, numbers) for ignored in report.summary.ignored]
    run = {
        "tool": {"driver": {"name": "trtdx", "version": __version__, "rules": rules}},
        "invocations": [_invocation_document(report)],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _rule_document(code: str, slug: str) -> dict[str, Any]:
    help_text = f"trtdx explain {code}"
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in slug.split("-")),
        "shortDescription": {"text": slug.replace("-", " ") or code},
        "help": {"text": help_text, "markdown": f"`{help_text}` prints the page of this cause."},
    }


def _invocation_document(report: Report) -> dict[str, Any]:
    """Return how the run went; what could not be read is told, so that no result is not taken for health."""
    notes = [
        {"level": "warning", "message": {"text": f"not read: {printable_text(note)}"}}
        for note in report.summary.partial
    ]
    notification = {"level": "note", "message": {"text": printable_text(report.summary.text) or "no summary"}}
    return {"executionSuccessful": True, "toolExecutionNotifications": [notification, *notes]}


def _result_document(finding: Finding, numbers: dict[str, int]) -> dict[str, Any]:
    body = render_finding_body(finding)
    text = printable_text(finding.message) + (f"\n\n{body}" if body else "")
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": numbers[finding.code],
        "level": finding.severity.value,
        "message": {"text": text},
        "locations": [_location_document(finding.where)],
        "rank": round(100 * min(max(finding.confidence, 0.0), 1.0), 1),
        "properties": {
            "why": finding.why,
            "fixes": [msgspec.to_builtins(fix) for fix in finding.fixes],
            "verify": finding.verify,
        },
    }
    if finding.evidence:
        result["relatedLocations"] = _related_locations(finding.evidence)
    return result


def _suppressed_result(ignored: IgnoredFinding, numbers: dict[str, int]) -> dict[str, Any]:
    return {
        "ruleId": ignored.code,
        "ruleIndex": numbers[ignored.code],
        "level": ignored.severity.value,
        "message": {"text": printable_text(ignored.message)},
        "locations": [_location_document(ignored.where)],
        "suppressions": [{"kind": "external", "justification": ignored.reason}],
    }


def _related_locations(evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            **_location_document(item.where),
            "message": {"text": printable_text(item.text, lines=True) or item.where},
        }
        for number, item in enumerate(evidence)
    ]


def _location_document(where: str | Where) -> dict[str, Any]:
    """Return a place in a file, or for a tensor, a command or a stream its name."""
    place = parse_place(where)
    if place is None:
        kind = {"kind": "variable"} if isinstance(where, Where) else {}
        return {"logicalLocations": [{"fullyQualifiedName": printable_text(str(where)) or "trtdx", **kind}]}
    physical: dict[str, Any] = {"artifactLocation": {"uri": _file_uri(place.file)}}
    if place.line:
        physical["region"] = {"startLine": place.line}
    return {"physicalLocation": physical}


def _file_uri(path: str) -> str:
    from urllib.parse import quote

    quoted = quote(path.encode("utf-8", "surrogateescape"))
    return f"file://{quoted}" if path.startswith("/") else quoted
