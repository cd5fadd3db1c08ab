"""A report as GitHub workflow commands: each finding is an annotation of the file it is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.render.places import FilePlace, parse_place, place_of_finding
from trtdx.render.text import printable_text, render_finding_body

if TYPE_CHECKING:
    from trtdx.model import Report

LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def render_github(report: Report) -> str:
    """Return one `::error file=...,line=...::` command a finding, and the summary as a plain line."""
    lines = [
        _render_annotation(
            LEVELS[finding.severity.value],
            f"{finding.code} {finding.slug}",
            f"{finding.message}\n{render_finding_body(finding)}",
            place_of_finding(finding),
        )
        for finding in report.findings
    ]
    lines += [
        _render_annotation(
            "notice",
            f"{ignored.code} ignored",
            f"{ignored.message}\nignored: {ignored.reason}",
            parse_place(ignored.where),
        )
        for ignored in report.summary.ignored
    ]
    lines += [_render_annotation("warning", "not read", note, None) for note in report.summary.partial]
    return "\n".join([*lines, f"trtdx: {printable_text(report.summary.text)}"]) + "\n"


def _render_annotation(level: str, title: str, text: str, place: FilePlace | None) -> str:
    properties = {"title": title}
    if place is not None:
        properties = {"file": place.file, **({"line": str(place.line)} if place.line else {}), **properties}
    written = ",".join(f"{name}={_escape_property(value)}" for name, value in properties.items())
    return f"::{level} {written}::{_escape_data(text)}"


def _escape_data(text: str) -> str:
    """Return text as the data of a workflow command: a log line must not start a command of its own."""
    clean = printable_text(text, lines=True)
    return clean.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
