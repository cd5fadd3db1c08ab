"""A comparison as a picture of its drift, and as HTML for notebooks and files. Nothing but the report is read here."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.compare.report.comparison_report import output_layer
from trtdx.errors import InputError, MissingExtraError
from trtdx.host import RealHost
from trtdx.pictures import BLUE, GREEN, ORANGE, RED, Chart, Curve, HeatCell, HeatMap, Mark
from trtdx.render.charts import check_drawing, inline_svg, write_chart
from trtdx.render.table import cell_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtdx.compare.report.comparison_report import ComparisonReport, TensorRow
    from trtdx.model import Finding, Section

PICTURE_SUFFIXES = (".html", ".png", ".svg")
SHOWN_FIRST, FOLDED = ("changes", "way"), ("unmatched", "about")
MOST_EVIDENCE = 4
MOST_MARKED = 100
MOST_STEPS, MOST_LAYERS = 24, 160
_BAD = ("wrong", "poisoned")
# The colours of the page around are inherited; what is added to them is seen in dark and in light mode.
STYLE = """<style>
.trtdx { max-width: 56em; line-height: 1.4 }
.trtdx table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9em; margin: 0.4em 0; }
.trtdx th, .trtdx td { padding: 0.15em 0.7em; text-align: left; background: none; color: inherit;
  border-bottom: 1px solid rgba(128,128,128,.35); }
.trtdx td.n, .trtdx th.n { text-align: right }
.trtdx .tensor { font-family: monospace }
.trtdx .wrong { color: #d64545; font-weight: 600 }
.trtdx .poisoned { color: #c8701a }
.trtdx .good { color: #2e9e5b; font-weight: 600 }
.trtdx .dim { opacity: .7 }
.trtdx summary { cursor: pointer }
.trtdx svg { max-width: 46em; height: auto }
</style>"""


def drift_chart(report: ComparisonReport) -> Chart:
    """Return the error over depth beside what the precision explains.

    Over the layers where tensors leave layers, else over all tensors in the order of the data's flow. What is bitwise
    the same has no place on a scale of decades: it stands below.
    """
    step, rows = _drift_rows(report.tensors)
    by_layer = any(output_layer(row.tensor) is not None for _, row in rows)
    over = "layers" if by_layer else "tensors, in the order of their flow"
    sizes = [size for _, row in rows for size in (row.observed, row.expected) if 0 < size < math.inf]
    return Chart(
        title=f"drift over the {over}" + (f" at step {step}" if step else ""),
        x="layer" if by_layer else "tensor",
        y="relative error",
        curves=tuple(curve for curve in _drift_curves(rows, min(sizes, default=0.0) / 2) if len(curve.x)),
        marks=tuple(Mark(number, "first that is wrong") for number, row in rows if row.verdict in _BAD)[:1],
        log_y=bool(sizes),
        whole_x=True,
        replaces="drift",
    )


def drift_map(tensors: Sequence[TensorRow], anchors: Mapping[tuple[str, int], str]) -> HeatMap | None:
    """Return observed over allowed error by layer and step; None where there is one layer or one step only.

    Args:
        tensors: what was compared.
        anchors: where a page shows more of a tensor at a step.
    """
    by_place: dict[tuple[int, int], TensorRow] = {}
    for row in tensors:
        layer = output_layer(row.tensor)
        if layer is not None and row.verdict != "unknown":
            by_place[layer, row.step] = row
    layers, steps = (sorted({place[at] for place in by_place}) for at in (0, 1))
    if min(len(layers), len(steps)) < 2:
        return None
    shown_steps, shown_layers = steps[:MOST_STEPS], layers[:MOST_LAYERS]
    cut = len(steps) > MOST_STEPS or len(layers) > MOST_LAYERS
    return HeatMap(
        title="observed error over what the precision allows, by layer and step",
        is_alarming=True,
        across="step",
        down="layer",
        columns=tuple(f"{step}" for step in shown_steps),
        rows=tuple(
            (f"{layer}", tuple(_drift_cell(by_place.get((layer, step)), anchors) for step in shown_steps))
            for layer in shown_layers
        ),
        note="The framed cells are wrong; more than 1 is more than the precision explains."
        + (" A cell that is a link leads to the tensor itself." if anchors else "")
        + (f" Only the first {MOST_LAYERS} layers and {MOST_STEPS} steps are shown." if cut else ""),
    )


def _drift_cell(row: TensorRow | None, anchors: Mapping[tuple[str, int], str]) -> HeatCell:
    if row is None:
        return HeatCell("", 0.0, "not compared")
    allowed = row.expected * row.limit
    ratio = row.observed / allowed if allowed else (math.inf if row.observed else 0.0)
    text = "same" if row.verdict == "same" else f"{ratio:.2g}"
    detail = f"{row.tensor}: observed {row.observed:.3g}, allowed {allowed:.3g}, {row.verdict}"
    link = anchors.get((row.tensor, row.step), "")
    return HeatCell(text, min(1.0, ratio / 2), detail, row.verdict in _BAD, link)


def _drift_curves(rows: Sequence[tuple[int, TensorRow]], floor: float) -> Iterator[Curve]:
    x = [number for number, _ in rows]
    if any(row.observed for _, row in rows):
        limits = [row.expected * row.limit if row.expected else None for _, row in rows]
        marker = "o" if len(x) <= MOST_MARKED else ""
        yield Curve("observed", x, [row.observed or None for _, row in rows], BLUE, "-", marker)
        yield Curve("expected of this precision", x, [row.expected or None for _, row in rows], ORANGE, "-")
        yield Curve("limit", x, limits, ORANGE, "--")
    yield Curve("wrong", *_points_with_verdict(rows, "wrong", "poisoned"), RED, "", "o")
    same, _ = _points_with_verdict(rows, "same")
    yield Curve("bitwise the same", same, [floor] * len(same), GREEN, "", "o")


def _points_with_verdict(
    rows: Sequence[tuple[int, TensorRow]], *verdicts: str
) -> tuple[list[float], list[float | None]]:
    points = [(number, row.observed) for number, row in rows if row.verdict in verdicts]
    return [number for number, _ in points], [observed for _, observed in points]


def _drift_rows(rows: Sequence[TensorRow]) -> tuple[int, list[tuple[int, TensorRow]]]:
    """Return a step and its rows by depth: the first step at which one is wrong, or else the first."""
    judged = [row for row in rows if row.verdict != "unknown"]
    layers = [(number, row) for row in judged if (number := output_layer(row.tensor)) is not None]
    by_depth = layers if len({number for number, _ in layers}) > 1 else list(enumerate(judged))
    bad = next((row.step for _, row in by_depth if row.verdict in _BAD), None)
    step = bad if bad is not None else min((row.step for _, row in by_depth), default=0)
    return step, [(number, row) for number, row in by_depth if row.step == step]


def check_picture(path: str) -> None:
    """Raise where a picture cannot be written: better before the models are run than after."""
    kind = Path(path).suffix.lower()
    if kind not in PICTURE_SUFFIXES:
        raise InputError(f"{path} is not a kind of picture that can be written", fix="name it .png, .svg or .html")
    if not Path(path).absolute().parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {Path(path).parent}")
    if kind != ".html":
        check_drawing()


def write_picture(report: ComparisonReport, path: str) -> None:
    """Write the drift as a PNG or SVG file, or with verdict and tables as one HTML file that needs no other."""
    check_picture(path)
    if Path(path).suffix.lower() != ".html":
        write_chart(drift_chart(report), path)
        return
    from trtdx.redact import redact_report
    from trtdx.render.html import render_html

    RealHost().write(path, render_html(redact_report(report), subject="trtdx compare").encode())


def comparison_html(report: ComparisonReport) -> str:
    """Return a comparison as HTML: verdict, cause, the short table, the drift; what explains less is folded."""
    parts = [STYLE, '<div class="trtdx">', f"<p>{_verdict_html(report)}</p>"]
    parts += [part for finding in report.findings for part in _finding_html(finding)]
    sections = {section.key: section for section in report.sections}
    parts += [_section_html(sections[key]) for key in SHOWN_FIRST if key in sections]
    parts.append(_chart_html(report))
    for key in FOLDED:
        if key in sections:
            title, table = escape(sections[key].title), _section_html(sections[key], title=False)
            parts.append(f"<details><summary>{title}</summary>{table}</details>")
    parts += [f'<p class="dim">not read: {escape(note)}</p>' for note in report.summary.partial]
    return "\n".join((*parts, "</div>"))


def _verdict_html(report: ComparisonReport) -> str:
    mark = "wrong" if report.findings else "good" if report.compared else "dim"
    symbol = {"wrong": "✗", "good": "✓", "dim": "?"}[mark]
    return f'<span class="{mark}">{symbol}</span> <b>{escape(report.summary.text)}</b>'


def _finding_html(finding: Finding) -> Iterator[str]:
    head = f"{finding.severity.value}[{finding.code}]"
    rows = "".join(
        f"<li><span class='dim'>{escape(evidence.where)}:</span> {escape(evidence.text)}</li>"
        for evidence in finding.evidence[:MOST_EVIDENCE]
    )
    yield f'<p><span class="wrong">{escape(head)}</span> {escape(finding.slug)}</p><ul>{rows}</ul>'
    fixes = "".join(
        f"<li>{escape(fix.statement)}{f'<pre>{escape(fix.command)}</pre>' if fix.command else ''}</li>"
        for fix in finding.fixes
    )
    yield f"<details><summary>why, and what to do</summary><p>{escape(finding.why)}</p><ul>{fixes}</ul></details>"


def _section_html(section: Section, *, title: bool = True) -> str:
    numbers = [
        all(isinstance(row[at], (int, float)) or row[at] is None for row in section.rows)
        for at in range(len(section.columns))
    ]
    kind = [' class="n"' if number else "" for number in numbers]
    heads = "".join(f"<th{mark}>{escape(name)}</th>" for mark, name in zip(kind, section.columns, strict=True))
    rows = "".join(f"<tr>{''.join(_cells_html(section, row, kind))}</tr>" for row in section.rows)
    head = f"<thead><tr>{heads}</tr></thead>" if any(section.columns) else ""
    caption = f'<div class="dim">{escape(section.title)}</div>' if title else ""
    note = f'<div class="dim">{escape(section.note)}</div>' if section.note else ""
    return f"{caption}<table>{head}<tbody>{rows}</tbody></table>{note}"


def _cells_html(section: Section, row: Sequence[object], kind: Sequence[str]) -> Iterator[str]:
    for name, mark, value in zip(section.columns, kind, row, strict=True):
        text = escape(cell_text(value))  # type: ignore[arg-type]
        if name == "tensor":
            yield f'<td class="tensor">{text}</td>'
        elif name == "verdict":
            yield f'<td class="{text}">{text}</td>'
        else:
            yield f"<td{mark}>{text}</td>"


def _chart_html(report: ComparisonReport) -> str:
    if not any(row.observed for row in report.tensors):
        return ""
    try:
        return inline_svg(drift_chart(report))
    except MissingExtraError as err:
        return f'<p class="dim">no curve: {escape(err.message)}: <code>{escape(err.fix)}</code></p>'
