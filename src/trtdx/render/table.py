"""A section of a report as aligned columns."""

from __future__ import annotations

import textwrap
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.model import Cell, Section

MOST_CELL = 60
LEAST_CELL, LEAST_LAST = 20, 28  # what a column keeps where there is little room
WIDTH = 98  # two less than the findings': sections are indented


def cell_text(value: Cell) -> str:
    """Return a cell's value in words: yes and no for truth, nothing for nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def table_lines(section: Section, *, wide: bool = False, width: int = WIDTH) -> Iterator[str]:
    """Yield the heading, if the columns have names, and the rows; numbers stand to the right.

    A long cell is cut, except in the last column, where it goes on in the next line. Where a table is wider than
    `width`, the middle of its longest names gives way.
    """
    rows = [_cells(row, wide) for row in section.rows]
    if not rows:
        return
    if any(section.columns):
        rows.insert(0, list(section.columns))
    if not wide:
        _narrow(rows, width)
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    right = [_is_number_column(section, index) for index in range(len(widths))]
    indent = sum(widths[:-1]) + 2 * len(widths[:-1])
    for row in rows:
        lines = _wrapped(row[-1], indent, width) if not right[-1] else [row[-1]]
        yield "  ".join(map(_padded, [*row[:-1], lines[0]], widths, right)).rstrip()
        yield from (" " * indent + line for line in lines[1:])


def _cells(row: tuple[Cell, ...], wide: bool) -> list[str]:
    cells = [cell_text(value) for value in row]
    return [_clipped(cell, wide or index == len(cells) - 1) for index, cell in enumerate(cells)]


def _narrow(rows: list[list[str]], width: int) -> None:
    """Cut the widest column but the last until the table fits; the last needs room for a few words at least."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    last = min(widths[-1], LEAST_LAST)
    excess = sum(widths[:-1]) + 2 * len(widths[:-1]) + last - width
    if excess <= 0 or len(widths) < 2:
        return
    at = max(range(len(widths) - 1), key=widths.__getitem__)
    most = max(widths[at] - excess, LEAST_CELL)
    for row in rows:
        row[at] = _without_middle(row[at], most)


def _without_middle(text: str, most: int) -> str:
    """Return a text cut in its middle: the ends of a name tell more than what is between."""
    if len(text) <= most:
        return text
    left = (most - 3) // 2
    return f"{text[:left]}...{text[len(text) - (most - 3 - left) :]}"


def _wrapped(text: str, indent: int, width: int) -> list[str]:
    room = max(width - indent, LEAST_LAST)
    return textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]


def _is_number_column(section: Section, index: int) -> bool:
    values = [row[index] for row in section.rows if row[index] is not None]
    return bool(values) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in values
    )


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _clipped(text: str, wide: bool) -> str:
    clean = "".join(char if char.isprintable() else " " for char in text)
    return clean if wide else _without_middle(clean, MOST_CELL)
