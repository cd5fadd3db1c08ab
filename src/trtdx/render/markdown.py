"""A report as a block that pastes well into a GitHub issue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.render.table import cell_text
from trtdx.render.text import confidence_words, printable_text, ranks_in_words, read_in_words, unjudged_in_words
from trtdx.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.model import Finding, Report, Section


def render_markdown(report: Report) -> str:
    """Return the report as GitHub Markdown; log text stands in code blocks only, so it cannot become markup."""
    parts = [_render_section(section) for section in report.sections if not section.after_findings]
    parts += [part for finding in report.findings for part in _render_finding_parts(finding)]
    parts += [_render_section(section) for section in report.sections if section.after_findings]
    summary = report.summary
    if not report.findings or not summary.inputs:
        verdict = f"### {_escape_text(summary.text)}"
        parts = [verdict, *parts] if report.verdict_first else [*parts, verdict]
    parts += [f"- known harmless: {_escape_text(e.message)} (`{e.code}`, {e.lines})" for e in summary.harmless]
    parts += [
        f"- ignored: {_escape_text(ignored.message)} (`{ignored.code}`): {_escape_text(ignored.reason)}"
        for ignored in summary.ignored
    ]
    parts += [f"- not read: {_escape_text(note)}" for note in summary.partial]
    parts += [f"- not judged: {_escape_text(words)}" for words, _ in unjudged_in_words(summary, all_codes=False)]
    read = f" read {', '.join(read_in_words(summary))}" if summary.inputs else ""
    parts.append(f"<sub>trtdx {__version__}{read}</sub>")
    return "\n\n".join(parts) + "\n"


def _render_section(section: Section) -> str:
    columns = section.columns if any(section.columns) else ("",) * len(section.rows[0] if section.rows else ())
    rows = [columns, ("---",) * len(columns)]
    rows += [tuple(_escape_text(cell_text(value)) for value in row) for row in section.rows]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    note = f"\n\n{_escape_text(section.note)}" if section.note else ""
    return f"**{_escape_text(section.title)}**\n\n{table}{note}"


def _render_finding_parts(finding: Finding) -> Iterator[str]:
    yield f"### {finding.severity.value}[{finding.code}]: {_escape_text(finding.message)}"
    if finding.ranks:
        yield f"**To blame:** {ranks_in_words(finding.ranks)}"
    if finding.evidence:
        yield _render_fence("\n".join(f"{evidence.where}: {evidence.text}" for evidence in finding.evidence), "text")
    if finding.why:
        yield f"**Why:** {_escape_text(finding.why.strip())}"
    for number, fix in enumerate(finding.fixes):
        yield f"**{'Fix' if number == 0 else 'Or'}** ({fix.stage.value}): {_escape_text(fix.statement)}"
        if fix.command:
            yield _render_fence(fix.command, fix.lang)
    if finding.verify:
        yield f"**Verify:** {_render_code(finding.verify) if is_command(finding.verify) else _escape_text(finding.verify)}"
    if finding.symptoms:
        rows = "\n".join(
            f"- {_escape_text(symptom.message)} (`{symptom.code}`, {_render_code(symptom.where)})"
            for symptom in finding.symptoms
        )
        yield f"<details><summary>what followed from it ({len(finding.symptoms)})</summary>\n\n{rows}\n\n</details>"
    yield f"_{confidence_words(finding.confidence)}, at {_render_code(str(finding.where))}_"


# What a page's way to verify begins with where it is a command, and the verbs that make a sentence of it.
_PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:sudo )?(?:trtdx|trtexec|trtllm-\w+|trtllm-bench|tritonserver|python3?|pip|uv|conda|apt-get|nvidia-\S+|nvcc|gcc|cmake|"
    r"git|ls|ldd|ldconfig|lsmod|lscpu|uname|cat|head|grep|find|free|df|du|dmesg|env|ps|pgrep|ss|nc|ssh|getent|ulimit|unset|touch|tar|for|cd|"
    r"mkdir|which|kubectl|docker|enroot|systemctl|srun|sbatch|sinfo|sacct|scontrol|mpirun|ompi_info|ibv_\w+|ucx_info|ray|curl|polygraphy|"
    r"compute-sanitizer|huggingface-cli|deepstream-app|\./\S+|/\S+|\$\w+/\S+)(?= |$)"
)
_SENTENCE = re.compile(
    r"\b(?:shows?|prints?|reports?|starts?|ends|names|reach(?:es)?|passes|lists|gives|works|succeeds|is|are|has|takes effect|and the)\b"
)


def is_command(text: str) -> bool:
    """Say whether a way to verify is a command to paste, and not a sentence."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", text)
    return bool(_PROGRAM.match(text)) and not _SENTENCE.search(bare)


def _escape_text(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|@])", r"\\\1", printable_text(text))


def _render_code(text: str) -> str:
    clean = printable_text(text)
    ticks = "`" * (1 + max((len(run) for run in re.findall(r"`+", clean)), default=0))
    pad = " " if "`" in clean else ""
    return f"{ticks}{pad}{clean}{pad}{ticks}"


def _render_fence(text: str, language: str) -> str:
    clean = printable_text(text, lines=True)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", clean)), default=0))
    return f"{fence}{language}\n{clean}\n{fence}"
