"""Reads a case for the pages: its report in the type that draws its own pictures, and its logs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.errors import CaseError
from trtdx.model import Report, Summary
from trtdx.redact import redact_report, redact_secrets
from trtdx.render.places import parse_place
from trtdx.ui.nouns import CaseView, LogFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.case import Case, CaseRecord


class ReadCase(NamedTuple):
    """A case as pages show it, and the case to read its logs from."""

    view: CaseView
    case: Case


def read_case(case: Case) -> ReadCase:
    """Return a case ready to be shown.

    Raises:
        CaseError: it is damaged.
    """
    records = case.records()
    if not records:
        raise CaseError(f"{case.name} holds no record that can be read")
    report = _last_report(records)
    argv: list[object] = next((record.data.get("argv", []) for record in records if record.kind == "command"), [])
    notes = tuple(redact_secrets(str(record.data)) for record in records if record.kind == "note")
    command = redact_secrets(shlex.join(map(str, argv)))
    logs = tuple(_list_logs(case, records, report))
    return ReadCase(CaseView(case.name, command, records[0].time, report, logs, notes), case)


def _last_report(records: list[CaseRecord]) -> Report:
    """Return the newest report in the type that knows its pictures; without one, a report that says so."""
    data = next((record.data for record in reversed(records) if record.kind == "report"), None)
    if data is None:
        return Report(summary=Summary("the case holds no report: it was cut off, or nothing has been diagnosed yet"))
    return redact_report(report_from_data(data))


def report_from_data(data: Any) -> Report:
    """Return a report from its JSON.

    Raises:
        CaseError: it is no report of this version.
    """
    kind: type[Report] = Report
    if isinstance(data, dict) and data.get("memory"):
        from trtdx.memory.report.plan import MemoryReport as kind  # noqa: N813
    elif isinstance(data, dict) and data.get("tensors"):
        from trtdx.compare.report.comparison_report import ComparisonReport as kind  # noqa: N813
    try:
        return msgspec.convert(data, kind, strict=False)
    except msgspec.ValidationError as err:
        raise CaseError(f"the report in the case cannot be read: {err}") from err


def _list_logs(case: Case, records: list[CaseRecord], report: Report) -> Iterator[LogFile]:
    origins = {record.data["name"]: record.data["from"] for record in records if record.kind == "file"}
    causes = _lines_by_file(item.where for finding in report.findings for item in finding.evidence)
    symptoms = _lines_by_file(item.where for finding in report.findings for item in finding.symptoms)
    for path in case.text_paths():
        stored = path.rsplit("/files/", 1)[-1]
        name = str(origins.get(stored, stored))
        keys = {name, stored, name.rsplit("/", 1)[-1]}
        yield LogFile(
            name,
            path,
            frozenset(line for key in keys for line in causes.get(key, ())),
            frozenset(line for key in keys for line in symptoms.get(key, ())),
        )


def _lines_by_file(places: Iterator[str]) -> dict[str, set[int]]:
    lines: dict[str, set[int]] = {}
    for where in places:
        place = parse_place(where)
        if place is not None and place.line:
            lines.setdefault(place.file, set()).add(place.line)
    return lines
