"""Pictures as SVG and HTML for a page whose policy allows no style attributes, so that matplotlib's cannot stand in it.

Geometry is in attributes, colours in attributes or classes; every value is also there as text.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from markupsafe import Markup

from trtdx.pictures import PALETTE, Chart, HeatMap, PictureFold, StackedBars
from trtdx.render.text import printable_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtdx.pictures import Curve, HeatCell, Picture, StackedBar

WIDTH, LEFT, RIGHT = 720, 110, 20
BAR_HEIGHT, BAR_STEP = 22, 34
MOST_BARS = 64
PLOT_HEIGHT, PLOT_TOP, PLOT_FOOT = 260, 12, 40
HEAT_STEPS = 5
TICKS = 5
LETTER = 6.6  # the width of one


def draw_picture(picture: Picture) -> Markup:
    """Return a picture as a figure of a page."""
    if isinstance(picture, PictureFold):
        return _draw_fold(picture)
    if isinstance(picture, StackedBars):
        body = _draw_bars(picture)
    elif isinstance(picture, HeatMap):
        body = _draw_heat(picture)
    else:
        body = _draw_chart(picture)
    return _join(Markup("<figure><figcaption>{}</figcaption>").format(_text(picture.title)), body, Markup("</figure>"))


def _draw_fold(fold: PictureFold) -> Markup:
    head = Markup('<details class="fold" id="{}"><summary>{}</summary>').format(fold.anchor, _text(fold.title))
    lines = [Markup("<p>{}</p>").format(_text(line)) for line in fold.lines]
    return _join(head, *lines, *map(draw_picture, fold.pictures), Markup("</details>"))


def _text(text: str) -> str:
    return printable_text(text)


def _join(*parts: Markup) -> Markup:
    return Markup("").join(parts)


def _svg(height: float, name: str, parts: Iterable[Markup]) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, round(height), _text(name))
    return _join(head, *parts, Markup("</svg>"))


def _draw_bars(picture: StackedBars) -> Markup:
    bars = picture.bars[:MOST_BARS]
    largest = max([picture.limit, *(max(bar.total, bar.high) for bar in bars)], default=0.0) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / (largest * 1.04)
    names = list(dict.fromkeys(part.name for bar in bars for part in bar.parts))
    height = BAR_STEP * len(bars) + (24 if picture.limit else 4)
    parts = [piece for row, bar in enumerate(bars) for piece in _bar_pieces(bar, row, scale, names, picture.unit)]
    if picture.limit:
        x = round(LEFT + picture.limit * scale, 1)
        line = (
            '<line class="limit" x1="{0}" x2="{0}" y1="0" y2="{1}"/><text x="{0}" y="{2}" text-anchor="end">{3}</text>'
        )
        words = f"{picture.limit_name} {picture.limit:g} {picture.unit}".strip()
        parts.append(Markup(line).format(x, height - 18, height - 4, _text(words)))
    more = len(picture.bars) - len(bars)
    note = Markup('<p class="dim">{} more are not drawn</p>').format(more) if more else Markup("")
    return _join(_svg(height, picture.title, parts), _draw_legend(names), note)


def _bar_pieces(bar: StackedBar, row: int, scale: float, names: Sequence[str], unit: str) -> Iterable[Markup]:
    y, x = BAR_STEP * row + 4, float(LEFT)
    label = '<text x="{}" y="{}" text-anchor="end">{}</text>'
    yield Markup(label).format(LEFT - 8, y + 15, _text(bar.label))
    for part in bar.parts:
        width = max(part.value * scale, 0.0)
        box = '<rect x="{}" y="{}" width="{}" height="{}" fill="{}"><title>{}: {:.2f} {}</title></rect>'
        color = PALETTE[names.index(part.name) % len(PALETTE)]
        yield Markup(box).format(round(x, 1), y, round(width, 1), BAR_HEIGHT, color, _text(part.name), part.value, unit)
        if len(words := f"{part.name} {part.value:.1f}") * LETTER < width:  # readable without colour
            text = '<text class="inside" x="{}" y="{}" text-anchor="middle">{}</text>'
            yield Markup(text).format(round(x + width / 2, 1), y + 15, _text(words))
        x += width
    if bar.high > bar.low:
        low, high = (round(LEFT + value * scale, 1) for value in (bar.low, bar.high))
        band = '<path class="band" fill="none" d="M{0} {2}v8M{1} {2}v8M{0} {3}H{1}"><title>{4:.1f} to {5:.1f} {6}</title></path>'
        yield Markup(band).format(low, high, y + BAR_HEIGHT / 2 - 4, y + BAR_HEIGHT / 2, bar.low, bar.high, unit)


def _draw_legend(names: Sequence[str], colors: Sequence[str] = PALETTE) -> Markup:
    row = '<li><svg width="12" height="12" viewBox="0 0 12 12"><rect width="12" height="12" fill="{}"/></svg> {}</li>'
    rows = [Markup(row).format(colors[number % len(colors)], _text(name)) for number, name in enumerate(names)]
    return _join(Markup('<ul class="legend">'), *rows, Markup("</ul>"))


def _draw_heat(picture: HeatMap) -> Markup:
    columns = [Markup("<th>{}</th>").format(_text(name)) for name in picture.columns]
    head = Markup("<thead><tr><th>{} \\ {}</th>").format(_text(picture.down), _text(picture.across))
    rows = []
    for name, cells in picture.rows:
        rows.append(Markup("<tr><th>{}</th>").format(_text(name)))
        rows += [*map(_draw_cell, cells), Markup("</tr>")]
    note = Markup('<p class="dim">{}</p>').format(_text(picture.note)) if picture.note else Markup("")
    kind = "heat alarming" if picture.is_alarming else "heat"
    open_table = Markup('<div class="scroll"><table class="{}">').format(kind)
    close_table = Markup("</tbody></table></div>")
    return _join(open_table, head, *columns, Markup("</tr></thead><tbody>"), *rows, close_table, note)


def _draw_cell(cell: HeatCell) -> Markup:
    step = min(HEAT_STEPS, max(0, math.ceil(cell.level * HEAT_STEPS)))
    mark = " marked" if cell.is_marked else ""
    detail = Markup(' title="{}"').format(_text(cell.detail)) if cell.detail else Markup("")
    text = Markup('<a href="#{}">{}</a>').format(cell.link, _text(cell.text)) if cell.link else _text(cell.text)
    return Markup('<td class="heat{}{}"{}>{}</td>').format(step, mark, detail, text)


class _Axis:
    """Places values between two ends, evenly or by decades."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, is_log: bool) -> None:
        self._is_log, self._start, self._end = is_log, start, end
        places = [math.log10(value) if is_log else value for value in values] or [0.0]
        self._low, self._high = min(places), max(places)
        if self._low == self._high:
            self._low, self._high = self._low - 0.5, self._high + 0.5

    def place(self, value: float) -> float:
        position = math.log10(value) if self._is_log else value
        share = (position - self._low) / (self._high - self._low)
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self, *, is_whole: bool = False) -> list[float]:
        if self._is_log:
            first, last = math.ceil(self._low), math.floor(self._high)
            stride = max(1, math.ceil((last - first + 1) / TICKS))
            return [10.0**exponent for exponent in range(first, last + 1, stride)]
        step = (self._high - self._low) / TICKS
        power = 10.0 ** math.floor(math.log10(step))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step)
        step = max(1.0, step) if is_whole else step
        count = math.floor((self._high - math.ceil(self._low / step) * step) / step) + 1
        return [math.ceil(self._low / step) * step + number * step for number in range(count)]


def _draw_chart(chart: Chart) -> Markup:
    xs = [value for curve in chart.curves for value in curve.x if _is_drawable(value, chart.log_x)]
    ys = [value for curve in chart.curves for value in curve.y if _is_drawable(value, chart.log_y)]
    if not xs or not ys:
        return Markup('<p class="dim">there is nothing to draw</p>')
    x_axis = _Axis(xs, LEFT, WIDTH - RIGHT, is_log=chart.log_x)
    y_axis = _Axis([value for value in ys if value is not None], PLOT_HEIGHT - PLOT_FOOT, PLOT_TOP, is_log=chart.log_y)
    parts = [*_axis_pieces(chart, x_axis, y_axis)]
    parts += [piece for curve in chart.curves for piece in _curve_pieces(curve, chart, x_axis, y_axis)]
    for mark in chart.marks:
        line = '<line x1="{0}" x2="{0}" y1="{1}" y2="{2}" stroke="{3}" stroke-dasharray="2 3"><title>{4}</title></line>'
        place = x_axis.place(mark.x)
        parts.append(Markup(line).format(place, PLOT_TOP, PLOT_HEIGHT - PLOT_FOOT, mark.color, _text(mark.label)))
    names = [curve.label for curve in chart.curves] + [mark.label for mark in chart.marks]
    colors = [curve.color for curve in chart.curves] + [mark.color for mark in chart.marks]
    return _join(_svg(PLOT_HEIGHT, chart.title, parts), _draw_legend(names, colors))


def _is_drawable(value: float | None, is_log: bool) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not is_log)


def _axis_pieces(chart: Chart, x_axis: _Axis, y_axis: _Axis) -> Iterable[Markup]:
    foot = PLOT_HEIGHT - PLOT_FOOT
    for value in y_axis.ticks():
        y = y_axis.place(value)
        line = '<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" text-anchor="end">{:g}</text>'
        yield Markup(line).format(LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, value)
    for value in x_axis.ticks(is_whole=chart.whole_x):
        yield Markup('<text x="{}" y="{}" text-anchor="middle">{:g}</text>').format(
            x_axis.place(value), foot + 16, value
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(middle, PLOT_HEIGHT - 6, _text(chart.x))
    yield Markup('<text x="4" y="{}">{}</text>').format(PLOT_TOP, _text(chart.y))


def _curve_pieces(curve: Curve, chart: Chart, x_axis: _Axis, y_axis: _Axis) -> Iterable[Markup]:
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(curve.x, curve.y, strict=True):
        if y is None or not _is_drawable(y, chart.log_y) or not _is_drawable(x, chart.log_x):
            runs.append([])
        else:
            runs[-1].append((x_axis.place(x), y_axis.place(y)))
    dash = "6 4" if curve.line == "--" else "none"
    for run in runs:
        if curve.line and len(run) > 1:
            points = " ".join(f"{x},{y}" for x, y in run)
            line = '<polyline fill="none" stroke="{}" stroke-width="1.8" stroke-dasharray="{}" points="{}"/>'
            yield Markup(line).format(curve.color, dash, points)
        if curve.marker or not curve.line:
            for x, y in run:
                yield Markup('<circle cx="{}" cy="{}" r="3" fill="{}"/>').format(x, y, curve.color)
