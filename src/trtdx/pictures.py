"""What can be drawn, as values. A report says what its pictures are; `render/` draws them, as SVG or by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

BLUE, ORANGE, RED, GREEN = "#2f81d6", "#c8701a", "#d64545", "#2e9e5b"  # seen on white and on black
VIOLET, GREY, OLIVE, TEAL = "#8250df", "#57606a", "#b08800", "#1b7c83"
PINK, BROWN, LIME, NAVY = "#c2418f", "#8a5a3b", "#6a9a1f", "#4a5fc1"
PALETTE = (BLUE, ORANGE, GREEN, RED, VIOLET, GREY, OLIVE, TEAL, PINK, BROWN, LIME, NAVY)


class Curve(msgspec.Struct, frozen=True):
    """One line or cloud of points; a y that is None or not finite leaves a gap."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: str = BLUE
    line: str = "-"  # "" draws points alone, "--" dashes
    marker: str = ""


class Mark(msgspec.Struct, frozen=True):
    """A place on the x axis to look at, and what is there."""

    x: float
    label: str
    color: str = RED


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Curves over one axis."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...] = ()
    marks: tuple[Mark, ...] = ()
    log_x: bool = False
    log_y: bool = False
    whole_x: bool = False  # layers, ranks: no ticks between
    replaces: str = ""  # the key of the section that says the same in text, which a page leaves out


class BarPart(msgspec.Struct, frozen=True):
    """One part of a bar, in the unit of its picture."""

    name: str
    value: float


class StackedBar(msgspec.Struct, frozen=True):
    """Parts on top of each other, and how far their sum may be off."""

    label: str
    parts: tuple[BarPart, ...]
    low: float = 0.0
    high: float = 0.0

    @property
    def total(self) -> float:
        return sum(part.value for part in self.parts)


class StackedBars(msgspec.Struct, frozen=True, kw_only=True):
    """Bars beside each other that are to stay below a limit."""

    title: str
    unit: str
    bars: tuple[StackedBar, ...]
    limit: float = 0.0  # 0: none
    limit_name: str = ""
    replaces: str = ""


class HeatCell(msgspec.Struct, frozen=True):
    """One cell: what it says, how strong it is from 0 to 1, and more for whoever points at it."""

    text: str
    level: float
    detail: str = ""
    is_marked: bool = False  # what was asked about
    link: str = ""  # the anchor of the picture that shows more


class HeatMap(msgspec.Struct, frozen=True, kw_only=True):
    """Cells by two names; readable without colour, because each cell says its value."""

    title: str
    across: str
    down: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell, ...]], ...]
    note: str = ""
    is_alarming: bool = False  # whether strong cells are bad
    replaces: str = ""


class PictureFold(msgspec.Struct, frozen=True, kw_only=True):
    """Pictures of one thing that are folded away until somebody wants them; cells of a map link to its anchor."""

    title: str
    anchor: str
    lines: tuple[str, ...] = ()  # what there is to say in words
    pictures: tuple[Chart | StackedBars | HeatMap, ...] = ()
    replaces: str = ""


Picture = Chart | StackedBars | HeatMap | PictureFold


def list_maps(pictures: Sequence[Picture]) -> list[HeatMap]:
    """Return all maps among pictures, those that are folded away last."""
    folded = [part for fold in pictures if isinstance(fold, PictureFold) for part in fold.pictures]
    return [picture for picture in (*pictures, *folded) if isinstance(picture, HeatMap)]
