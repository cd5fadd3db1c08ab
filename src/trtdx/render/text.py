"""A report for a terminal: what happened, where, why, what to do, how to verify."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from trtdx.render.table import table_lines
from trtdx.words import abbreviate_list, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.model import Finding, Fix, ReleaseEstimate, Report, Section, Summary

WIDTH = 100
_SPOKEN = {
    "python": " (in Python)",
    "cpp": " (in C++)",
    "yaml": " (in YAML)",
    "dockerfile": " (in a Dockerfile)",
}  # what is not for a shell is said to be so
_COLORS = {"error": "31", "warning": "33", "note": "36", "dim": "2", "bold": "1", "command": "32"}
_SHOWN_EVIDENCE = 2
_SHOWN_SYMPTOMS = 3
_SHOWN_FIXES = 3
_SHOWN_CODES = 4


def render_text(report: Report, *, color: bool = False, details: bool = False, width: int | None = WIDTH) -> str:
    """Return the report as lines; `details` shows all evidence and symptoms.

    Tables are cut to `width`, or not at all where it is None; prose is never wider than a reader likes.
    """
    paint = _Paint(color, width)
    first, last = ([section for section in report.sections if section.after_findings is late] for late in (False, True))
    blocks = ["\n".join(_section_lines(section, paint, details)) for section in first]
    blocks += ["\n".join(_finding_lines(finding, paint, details)) for finding in report.findings]
    blocks += ["\n".join(_section_lines(section, paint, details)) for section in last]
    verdict = "\n".join(_summary_lines(report, paint, details))
    blocks = [verdict, *blocks] if report.verdict_first else [*blocks, verdict]
    return "\n\n".join(blocks) + "\n"


def render_finding(finding: Finding, *, color: bool = False, details: bool = False) -> str:
    """Return one finding as lines."""
    return "\n".join(_finding_lines(finding, _Paint(color), details))


def render_finding_body(finding: Finding) -> str:
    """Return what stands below a finding's first line: all evidence, why, fixes, how to verify."""
    return "\n".join(list(_finding_lines(finding, _Paint(False), True))[1:])


class _Paint:
    def __init__(self, color: bool, width: int | None = WIDTH) -> None:
        self._color, self.width = color, min(width or WIDTH, WIDTH)
        self.table_width = None if width is None else width - 2  # sections are indented

    def __call__(self, text: str, *names: str) -> str:
        codes = ";".join(_COLORS[name] for name in names)
        return f"\x1b[{codes}m{text}\x1b[0m" if self._color else text


def _section_lines(section: Section, paint: _Paint, details: bool) -> Iterator[str]:
    yield paint(printable_text(section.title), "bold")
    for number, line in enumerate(table_lines(section, width=None if details else paint.table_width)):
        yield "  " + (paint(line, "dim") if number == 0 and any(section.columns) else line)
    yield from textwrap.wrap(printable_text(section.note), paint.width, initial_indent="  ", subsequent_indent="  ")


def _finding_lines(finding: Finding, paint: _Paint, details: bool) -> Iterator[str]:
    head = paint(f"{finding.severity.value}[{finding.code}]", finding.severity.value, "bold")
    yield f"{head}: {paint(printable_text(finding.message), 'bold')}"
    if finding.ranks:
        yield paint(f"   = to blame: {ranks_in_words(finding.ranks)}", "dim")
    evidence = finding.evidence if details else finding.evidence[:_SHOWN_EVIDENCE]
    for item in evidence:
        yield f"  {paint('-->', 'dim')} {printable_text(item.where)}: {printable_text(item.text) if details else _clip_text(item.text)}"
        for place in item.raised_in if details else ():
            yield paint(f"      raised in {printable_text(str(place))}", "dim")
    yield from _wrap_label("why", finding.why, paint.width)
    fixes = finding.fixes if details else finding.fixes[:_SHOWN_FIXES]
    for number, fix in enumerate(fixes):
        yield from _fix_lines(fix, "fix" if number == 0 else "or", paint)
    if len(fixes) < len(finding.fixes):
        yield paint(f"   = and {format_count(len(finding.fixes) - len(fixes), 'more way')} out (-v shows them)", "dim")
    is_long = finding.verify.startswith("trtdx ") and len(finding.verify) > paint.width - len("   = verify: ")
    if is_long or " --command " in finding.verify:  # to be pasted, so it is not broken into lines
        yield from ("   = verify:", f"       {paint(printable_text(finding.verify), 'command')}")
    else:
        yield from _wrap_label("verify", finding.verify, paint.width)
    yield from _symptom_lines(finding, paint, details)
    yield paint(f"   = {confidence_words(finding.confidence)}; more: trtdx explain {finding.code}", "dim")


def _fix_lines(fix: Fix, label: str, paint: _Paint) -> Iterator[str]:
    spoken = _SPOKEN.get(fix.lang, "") if fix.command else ""
    yield from _wrap_label(label, f"[{fix.stage.value}] {fix.statement}{spoken}", paint.width)
    if fix.command:
        for line in printable_text(fix.command, lines=True).splitlines():
            yield f"       {paint(line, 'command')}"


def _symptom_lines(finding: Finding, paint: _Paint, details: bool) -> Iterator[str]:
    listed = finding.symptoms if details else finding.symptoms[:_SHOWN_SYMPTOMS]
    for symptom in listed:
        message = printable_text(symptom.message) if details else _clip_text(symptom.message, 110)
        yield paint(f"   = followed by: {message} ({symptom.code}, {printable_text(symptom.where)})", "dim")
    if len(listed) < len(finding.symptoms):
        yield paint(
            f"   = and {format_count(len(finding.symptoms) - len(listed), 'more consequence')} (-v shows them)",
            "dim",
        )


def _summary_lines(report: Report, paint: _Paint, details: bool) -> Iterator[str]:
    summary = report.summary
    read = f"read {', '.join(read_in_words(summary))}"
    if report.verdict_first:
        yield from (paint(line, "bold") for line in textwrap.wrap(printable_text(summary.text), paint.width))
        yield from (paint(line, "dim") for line in (read,) if summary.inputs)
    elif not summary.inputs:
        yield paint(printable_text(summary.text), "bold")
    else:
        yield paint(read, "dim") if report.findings else f"{paint(summary.text, 'bold')}: {read}"
    yield from _release_lines(summary, paint, details)
    if summary.harmless and report.findings and not details:
        total = sum(harmless.count for harmless in summary.harmless)
        least = "at least " if any(harmless.at_least for harmless in summary.harmless) else ""
        yield paint(
            f"   = {least}{format_count(total, 'line')} of {format_count(len(summary.harmless), 'kind')} known to be harmless (-v lists them)",
            "dim",
        )
    else:
        for harmless in summary.harmless:
            yield paint(
                f"   = known harmless: {harmless.message} ({harmless.code}, {harmless.lines}, first {printable_text(harmless.where)})",
                "dim",
            )
    for ignored in summary.ignored:
        for line in _wrap_label("ignored", f"{ignored.message} ({ignored.code}): {ignored.reason}", paint.width):
            yield paint(line, "dim")
    for note in summary.partial:
        yield paint(f"   = not read: {printable_text(note)}", "warning")
    for words, is_complete in unjudged_in_words(summary, all_codes=details):
        for line in _wrap_label("not judged", words, paint.width):
            yield paint(line, "warning" if is_complete else "dim")


def _release_lines(summary: Summary, paint: _Paint, details: bool) -> Iterator[str]:
    if summary.release and (details or not summary.release.is_stated):
        yield paint(f"   = {release_in_words(summary.release)}", "dim")


def unjudged_in_words(summary: Summary, *, all_codes: bool) -> Iterator[tuple[str, bool]]:
    """Yield why agreements could not be judged, and whether all they are between was given.

    What was not given is folded into one line unless the codes are wanted too.
    """
    for gap in summary.unjudged:
        if gap.given or all_codes:
            codes = list(dict.fromkeys(gap.codes))
            listed_codes = abbreviate_list(codes, len(codes) if all_codes else _SHOWN_CODES)
            because = "because" if gap.given else "for lack of"
            yield (
                f"{format_count(len(gap.codes), 'agreement')}, {because} {gap.reason} ({listed_codes})",
                gap.given,
            )
    lacked = [f"{gap.reason} ({len(gap.codes)})" for gap in summary.unjudged if not gap.given]
    if lacked and not all_codes:
        total = sum(len(gap.codes) for gap in summary.unjudged if not gap.given)
        yield f"{format_count(total, 'agreement')}, for lack of {', '.join(lacked)}", False


def release_in_words(release: ReleaseEstimate) -> str:
    """Return what a log tells of the release it comes from, and how."""
    if release.is_stated:
        return f"{release}, says {printable_text(release.where)}"
    return f"looks like {release}, by {format_count(release.lines, 'line')} that other releases do not print"


def read_in_words(summary: Summary) -> list[str]:
    """Return what was read, part by part; artifacts have no lines to count."""
    parts = [format_count(summary.inputs, "input")]
    if summary.lines_read or summary.bytes_read:
        parts += [format_count(summary.lines_read, "line"), format_bytes(summary.bytes_read)]
    return parts + ([format_count(len(summary.ranks), "rank")] if summary.ranks else [])


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return the ranks to blame as a reader says them: "rank 3", "ranks 1, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {abbreviate_list(ranks, 16)}"


def confidence_words(confidence: float) -> str:
    """Return the confidence in words."""
    scale = ((0.9, "observed"), (0.7, "likely"), (0.4, "possible"), (0.0, "a guess"))
    word = next(word for least, word in scale if confidence >= least)
    return f"{word} ({confidence:.0%})"


def printable_text(text: str, *, lines: bool = False) -> str:
    """Return text without control characters: a log must not drive the reader's terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]" + ("" if lines else r"|[\n\t]"), " ", text)


def _clip_text(text: str, most: int = 160) -> str:
    clean = printable_text(text).strip()
    return clean if len(clean) <= most else clean[: most - 3] + "..."


def _wrap_label(label: str, text: str, width: int) -> Iterator[str]:
    if not text:
        return
    yield from textwrap.wrap(
        f"{label}: {printable_text(text)}",
        width,
        initial_indent="   = ",
        subsequent_indent="     ",
        break_long_words=False,
        break_on_hyphens=False,
    )
