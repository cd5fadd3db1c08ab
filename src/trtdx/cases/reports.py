"""Cases as reports, for people: lists, one case at a glance, what a search found, how the team fares."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import msgspec

from trtdx.model import Report, Section, Summary
from trtdx.words import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.cases.case_file import FileListing
    from trtdx.cases.nouns import CaseRemark, OpenedCase, Recurrence, SearchHit, StoredCase
    from trtdx.cases.statistics import StoreStatistics

MAX_TEXT = 100


def format_day(seconds: float) -> str:
    """Return a time as a list shows it."""
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 3] + "..."


def _setup(case: StoredCase) -> str:
    facts = case.facts
    return ", ".join(filter(None, [facts.release, *facts.gpus[:1], *facts.models[:1]]))


def list_report(cases: Sequence[StoredCase], total: int) -> Report:
    """Return a table of cases."""
    rows = tuple(
        (case.id, format_day(case.created), case.tool, " ".join(case.facts.codes[:3]), case.status, _setup(case), _short(case.title))
        for case in cases
    )  # fmt: skip
    columns = ("id", "when (UTC)", "command", "codes", "status", "set-up", "what")
    text = f"{format_count(len(cases), 'case')} of {total}" if len(cases) < total else format_count(total, "case")
    return Report(Summary(text=text), sections=(Section("cases", "Cases", columns, rows),) if rows else ())


def case_report(
    case: StoredCase, opened: OpenedCase, remarks: Sequence[CaseRemark], recurrence: Recurrence | None
) -> Report:
    """Return a case at a glance: what it is, how it was resolved, what was noted, and the report it was made of."""
    facts = case.facts
    rows = [
        ("id", case.id), ("when (UTC)", format_day(case.created)), ("command", opened.command or case.tool),
        ("status", case.status), ("codes", ", ".join(facts.codes)), ("release", facts.release),
        ("GPU", ", ".join(facts.gpus)), ("model", ", ".join(facts.models)),
    ]  # fmt: skip
    if case.resolution:
        rows += [
            ("cause", case.resolution.cause), ("fix", case.resolution.fix),
            ("verified by", case.resolution.verified_by), ("resolved (UTC)", format_day(case.resolution.resolved_at)),
        ]  # fmt: skip
    if recurrence and recurrence.count > 1:
        rows.append(("occurrences", recurrence_text(recurrence)))
    rows += [(f"{remark.kind} {format_day(remark.time)}", remark.text) for remark in remarks]
    rows += [("log", f"{name} ({format_count(text.count(chr(10)), 'line')})") for name, text in opened.texts.items()]
    section = Section("case", f"Case {case.id}", ("what", "value"), tuple(row for row in rows if row[1]))
    report = opened.report or Report(Summary(text=case.title))
    return msgspec.structs.replace(report, sections=(section, *report.sections))


def recurrence_text(recurrence: Recurrence) -> str:
    """Return how often a problem came back and what worked, in one line."""
    parts = [f"{recurrence.count} times" if recurrence.count > 1 else "once"]
    if recurrence.mean_hours is not None:
        parts.append(f"{recurrence.resolved} resolved, in {_format_hours(recurrence.mean_hours)} on average")
    if recurrence.worked:
        parts.append("what worked: " + "; ".join(f"{_short(fix)} ({count}x)" for fix, count in recurrence.worked))
    return "; ".join(parts)


def _format_hours(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:.1f} days"
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.0f} min"


def search_report(hits: Sequence[SearchHit], question: str) -> Report:
    """Return what a search found, best first."""
    cases = [hit for hit in hits if hit.kind == "case"]
    rows = tuple(
        (
            hit.id, f"{hit.score:.2f}", " ".join(hit.codes[:3]), _short(hit.title), _short(_what_helped(hit)),
            recurrence_text(hit.recurrence) if hit.recurrence else "rule page: trtdx explain " + hit.id,
        )
        for hit in hits
    )  # fmt: skip
    columns = ("id", "score", "codes", "what", "resolution", "occurrences")
    text = f"{format_count(len(cases), 'past case')} like {question}" if cases else f"no past case is like {question}"
    return Report(Summary(text=text), sections=(Section("hits", "Like this", columns, rows),) if rows else ())


def _what_helped(hit: SearchHit) -> str:
    if hit.resolution is None:
        return ""
    return " -> ".join(filter(None, [hit.resolution.cause, hit.resolution.fix]))


def statistics_report(statistics: StoreStatistics) -> Report:
    """Return how many cases there are, how long they take, and what comes back."""
    overview = [("cases", statistics.cases), ("resolved", statistics.resolved)]  # type: list[tuple[str, int | str]]
    if statistics.mean_hours is not None:
        overview.append(("mean time to resolution", _format_hours(statistics.mean_hours)))
    overview += [(f"by {tool}", count) for tool, count in statistics.tools.items()]
    sections = [Section("store", "The store", ("what", "value"), tuple(overview))]
    if statistics.recurring:
        rows = tuple(
            (problem.code, _short(problem.title), problem.recurrence.count, recurrence_text(problem.recurrence), problem.newest)
            for problem in statistics.recurring
        )  # fmt: skip
        sections.append(Section("recurring", "What comes back", ("code", "what", "times", "history", "newest"), rows))
    return Report(Summary(text=format_count(statistics.cases, "case")), sections=tuple(sections))


def listing_report(case: StoredCase, files: Sequence[FileListing], target: str) -> Report:
    """Return what a file to be sent contains."""
    rows = tuple((file.name, format_bytes(file.size), file.lines) for file in files)
    text = f"{target} contains {format_count(len(rows), 'file')} of case {case.id}; secrets are hidden"
    return Report(Summary(text=text), sections=(Section("files", "Contents", ("file", "size", "lines"), rows),))
