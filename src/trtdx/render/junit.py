"""A report as JUnit XML: a test case a finding, failed where the finding fails the run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.model import Severity
from trtdx.render.places import FilePlace, parse_place, place_of_finding
from trtdx.render.text import render_finding_body

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from trtdx.model import Report

# What XML 1.0 cannot hold, and what would drive the reader's terminal.
_FORBIDDEN = re.compile(r"[^\t\n\x20-\x7e\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(report: Report, *, fails_from: Severity | None = Severity.ERROR) -> str:
    """Return findings as test cases.

    Args:
        report: what was found.
        fails_from: the least severity that is a failure, None for no failures; milder findings pass with their text
            as output. Ignored findings are skipped with their reason.
    """
    from xml.etree.ElementTree import Element, SubElement, indent, tostring

    suite = Element("testsuite", name="trtdx")
    failures = 0
    for finding in report.findings:
        case = _add_case(suite, finding.code, finding.message, place_of_finding(finding))
        body = f"{finding.message}\n{render_finding_body(finding)}"
        if fails_from is not None and finding.severity.badness >= fails_from.badness:
            failures += 1
            child = SubElement(case, "failure", message=_escape_text(finding.message), type=finding.severity.value)
        else:
            child = SubElement(case, "system-out")
        child.text = _escape_text(body)
    for ignored in report.summary.ignored:
        case = _add_case(suite, ignored.code, ignored.message, parse_place(ignored.where))
        SubElement(case, "skipped", message=_escape_text(ignored.reason))
    if len(suite) == 0:
        _add_case(suite, "trtdx", report.summary.text, None)
    counts = {"tests": len(suite), "failures": failures, "errors": 0, "skipped": len(report.summary.ignored)}
    for name, count in counts.items():
        suite.set(name, str(count))
    if report.summary.partial:
        SubElement(suite, "system-err").text = _escape_text(
            "\n".join(f"not read: {note}" for note in report.summary.partial)
        )
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{tostring(root, encoding='unicode')}\n"


def _add_case(suite: Element, code: str, message: str, place: FilePlace | None) -> Element:
    from xml.etree.ElementTree import SubElement

    case = SubElement(suite, "testcase", classname=_escape_text(code), name=_escape_text(message))
    if place is not None:
        case.set("file", _escape_text(place.file))
        if place.line:
            case.set("line", str(place.line))
    return case


def _escape_text(text: str) -> str:
    """Return text with control characters written out."""
    return _FORBIDDEN.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
