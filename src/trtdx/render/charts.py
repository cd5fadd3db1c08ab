"""Charts as files: matplotlib draws a `Chart`, without a display, where it is installed.

    write(Chart(title="drift", x="layer", y="relative error", curves=(Curve("observed", layers, errors),)), "drift.png")

`inline_svg` takes the colour of the text around it, so that a notebook or page shows it in dark and in light mode.
Files have a background of their own.
"""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.optional import import_optional
from trtdx.pictures import HeatMap

if TYPE_CHECKING:
    from trtdx.pictures import Chart

FORMATS = ("png", "svg")
INCHES = (7.2, 3.2)
DPI = 144
PAPER, INK = "#ffffff", "#24292f"
TEXT_COLOR = "#010203"  # stands for the colour of the text around, which only the reader's page knows
MOST_TICKS = 16


def inline_svg(chart: Chart) -> str:
    """Return a chart as an SVG element to stand inside a page."""
    figure = draw_chart(chart, ink=TEXT_COLOR, paper="none")
    text = _save_figure(figure, "svg", transparent=True).decode()
    text = text[text.index("<svg") :].replace(TEXT_COLOR, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Width and height give way to the page's; without them the picture keeps its proportions by its view box.
    return re.sub(r'<svg ([^>]*?)height="[^"]*"([^>]*?)width="[^"]*"', r'<svg \1width="100%"\2', text, count=1)


def write_chart(chart: Chart | HeatMap, path: str) -> None:
    """Write a chart as a PNG or SVG file, as its name says."""
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise InputError(f"{path} is not a kind of picture that can be written", fix="name it .png or .svg")
    figure = draw_heat_map(chart) if isinstance(chart, HeatMap) else draw_chart(chart)
    RealHost().write(path, _save_figure(figure, kind))


def check_drawing() -> None:
    """Raise where nothing can be drawn.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    _import_matplotlib("figure")


def draw_chart(chart: Chart, axes: Any = None, *, ink: str = INK, paper: str = PAPER) -> Any:
    """Return a matplotlib figure of a chart, drawn into the axes of another figure if given.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    if axes is None:
        # Not pyplot: it would look for a display and keep every figure.
        figure = _import_matplotlib("figure").Figure(figsize=INCHES, dpi=DPI, facecolor=paper, layout="constrained")
        axes = figure.add_subplot()
        _colour_axes(axes, ink)
    for curve in chart.curves:
        y = [math.nan if value is None or not math.isfinite(value) else value for value in curve.y]
        style = {"color": curve.color, "linestyle": curve.line or "none", "linewidth": 1.6, "markersize": 4}
        axes.plot(list(curve.x), y, label=curve.label, marker=curve.marker or None, **style)
    for mark in chart.marks:
        axes.axvline(mark.x, color=mark.color, linewidth=1.2, linestyle=":", label=mark.label)
    _label_axes(axes, chart, ink)
    _add_legend(axes, ink)
    return axes.figure


def draw_heat_map(picture: HeatMap) -> Any:
    """Return a matplotlib figure of a map: every cell says its value, the marked one has a frame."""
    height = 1.2 + 0.32 * len(picture.rows)
    figure = _import_matplotlib("figure").Figure(
        figsize=(INCHES[0], height), dpi=DPI, facecolor=PAPER, layout="constrained"
    )
    axes = figure.add_subplot()
    _colour_axes(axes, INK)
    axes.imshow(
        [[cell.level for cell in cells] for _, cells in picture.rows], cmap="Greens", vmin=0, vmax=1.6, aspect="auto"
    )
    for row, (_, cells) in enumerate(picture.rows):
        for column, cell in enumerate(cells):
            weight = "bold" if cell.is_marked else "normal"
            axes.text(column, row, cell.text, ha="center", va="center", fontsize=8, color=INK, fontweight=weight)
            if cell.is_marked:
                frame = {"fill": False, "edgecolor": INK, "linewidth": 2}
                axes.add_patch(_import_matplotlib("patches").Rectangle((column - 0.5, row - 0.5), 1, 1, **frame))
    axes.set_xticks(range(len(picture.columns)), picture.columns)
    axes.set_yticks(range(len(picture.rows)), [name for name, _ in picture.rows])
    axes.set_title(picture.title, fontsize=9, loc="left", color=INK)
    axes.set_xlabel(picture.across, fontsize=9)
    axes.set_ylabel(picture.down, fontsize=9)
    return figure


def _colour_axes(axes: Any, ink: str) -> None:
    axes.set_facecolor("none")
    axes.tick_params(colors=ink, which="both", labelsize=8)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(ink)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(ink)


def _label_axes(axes: Any, chart: Chart, ink: str) -> None:
    axes.set_title(chart.title, fontsize=10, loc="left", color=ink)  # each of the three titles has its own
    axes.set_xlabel(chart.x, fontsize=9)
    axes.set_ylabel(chart.y, fontsize=9)
    for is_log, scale in ((chart.log_x, axes.set_xscale), (chart.log_y, axes.set_yscale)):
        if is_log:
            scale("log")
    if chart.whole_x:
        axes.xaxis.set_major_locator(_import_matplotlib("ticker").MaxNLocator(MOST_TICKS, integer=True))
    axes.grid(True, color="#808080", alpha=0.25, linewidth=0.6)


def _add_legend(axes: Any, ink: str) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    legend = axes.legend(handles, labels, fontsize=8, frameon=False, loc="best")
    for text in legend.get_texts():
        text.set_color(ink)


def _save_figure(figure: Any, kind: str, *, transparent: bool = False) -> bytes:
    stream = io.BytesIO()
    # The same chart gives the same bytes: no date, and ids that do not come from chance. Text stays text.
    settings: dict[Any, Any] = {"svg.hashsalt": "trtdx", "svg.fonttype": "none"}
    with _import_matplotlib().rc_context(settings):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(stream, format=kind, transparent=transparent, metadata=metadata)
    return stream.getvalue()


def _import_matplotlib(part: str = "") -> Any:
    """Return matplotlib or a module of it."""
    matplotlib = import_optional("matplotlib", extra="plot", purpose="draw")
    return import_optional(f"matplotlib.{part}", extra="plot", purpose="draw") if part else matplotlib
