"""A report as a block that pastes well into a GitHub issue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.render.table import cell_text
from trtdx.render.text import read_in_words, shown, sureness
from trtdx.version import __version__
from trtdx.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.model import Finding, Report, Section


def render_markdown(report: Report) -> str:
    """Return the report as GitHub Markdown; log text stands in code blocks only, so it cannot become markup."""
    parts = [_section(section) for section in report.sections]
    parts += [part for finding in report.findings for part in _finding(finding)]
    summary = report.summary
    if not report.findings or not summary.inputs:
        verdict = f"### {_text(summary.text)}"
        parts = [verdict, *parts] if report.verdict_first else [*parts, verdict]
    parts += [
        f"- known harmless: {_text(e.message)} (`{e.code}`, {counted(e.count, 'line')})"
        for e in summary.harmless
    ]
    parts += [f"- not read: {_code(note)}" for note in summary.partial]
    read = f" read {', '.join(read_in_words(summary))}" if summary.inputs else ""
    parts.append(f"<sub>trtdx {__version__}{read}</sub>")
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> str:
    columns = (
        section.columns if any(section.columns) else ("",) * len(section.rows[0] if section.rows else ())
    )
    rows = [columns, ("---",) * len(columns)]
    rows += [tuple(_text(cell_text(value)) for value in row) for row in section.rows]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    note = f"\n\n{_text(section.note)}" if section.note else ""
    return f"**{_text(section.title)}**\n\n{table}{note}"


def _finding(finding: Finding) -> Iterator[str]:
    yield f"### {finding.severity.value}[{finding.code}]: {_text(finding.message)}"
    if finding.evidence:
        yield _fenced("\n".join(f"{each.where}: {each.text}" for each in finding.evidence), "text")
    if finding.why:
        yield f"**Why:** {_text(finding.why.strip())}"
    for number, fix in enumerate(finding.fixes):
        yield f"**{'Fix' if number == 0 else 'Or'}** ({fix.stage.value}): {_text(fix.text)}"
        if fix.command:
            yield _fenced(fix.command, "sh")
    if finding.verify:
        yield f"**Verify:** {_code(finding.verify)}"
    if finding.symptoms:
        rows = "\n".join(
            f"- {_text(each.message)} (`{each.code}`, {_code(each.where)})" for each in finding.symptoms
        )
        yield f"<details><summary>what followed from it ({len(finding.symptoms)})</summary>\n\n{rows}\n\n</details>"
    yield f"_{sureness(finding.confidence)}, at {_code(str(finding.where))}_"


def _text(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|@])", r"\\\1", shown(text))


def _code(text: str) -> str:
    clean = shown(text)
    ticks = "`" * (1 + max((len(run) for run in re.findall(r"`+", clean)), default=0))
    pad = " " if "`" in clean else ""
    return f"{ticks}{pad}{clean}{pad}{ticks}"


def _fenced(text: str, language: str) -> str:
    clean = shown(text, lines=True)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", clean)), default=0))
    return f"{fence}{language}\n{clean}\n{fence}"
