"""The frontier as a picture: batch over length, a line for each size of step."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.render.charts import BLUE, GREEN, ORANGE, RED, Chart, Curve, inline_svg, write_chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.memory.ledger.frontier import FrontierPoint

COLORS = (BLUE, ORANGE, GREEN, RED, "#8250df", "#57606a", "#b08800", "#1b7c83")
PAGE_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#24292f;background:#fff}
table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #8884}
td:last-child,th:last-child{text-align:left}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}}"""


def make_frontier_chart(points: Sequence[FrontierPoint], title: str) -> Chart:
    """Return the frontier as a chart; where nothing fits there is a gap."""
    steps = sorted({point.max_num_tokens for point in points})
    curves = []
    for number, step in enumerate(steps):
        step_points = sorted(
            (point for point in points if point.max_num_tokens == step), key=lambda point: point.max_seq_len
        )
        curves.append(
            Curve(
                f"max_num_tokens {step}",
                [point.max_seq_len for point in step_points],
                [point.max_batch_size or None for point in step_points],
                color=COLORS[number % len(COLORS)],
                line="-" if number < len(COLORS) else "--",
                marker="o",
            )
        )
    return Chart(title=title, x="max_seq_len", y="largest max_batch_size", curves=tuple(curves), log_x=True, log_y=True)


def write_frontier(points: Sequence[FrontierPoint], path: str, title: str, text: str = "") -> None:
    """Write the frontier as PNG, SVG or one HTML file that needs nothing else."""
    kind = Path(path).suffix.lower()
    if kind not in (".html", ".htm", ".png", ".svg"):
        raise InputError(f"--plot {path} is not a picture format", fix="name it .png, .svg or .html")
    if kind in (".png", ".svg"):
        write_chart(make_frontier_chart(points, title), path)
        return
    try:
        Path(path).write_text(_frontier_page(points, title, text), "utf-8")
    except OSError as err:
        raise InputError(f"cannot write {path}: {err.strerror or err}") from err


def _frontier_page(points: Sequence[FrontierPoint], title: str, text: str) -> str:
    rows = "".join(
        f"<tr><td>{point.max_seq_len}<td>{point.max_num_tokens}<td>{point.max_batch_size}<td>{point.kv_tokens}"
        f"<td>{html.escape(point.binding)}"
        for point in points
    )
    head = "<tr><th>max_seq_len<th>max_num_tokens<th>max_batch_size<th>KV tokens<th>what stands in the way"
    picture = inline_svg(make_frontier_chart(points, title))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title><style>{PAGE_STYLE}</style>'
        f"<h1>{html.escape(title)}</h1><p>{html.escape(text)}</p>{picture}<table>{head}{rows}</table></html>\n"
    )
