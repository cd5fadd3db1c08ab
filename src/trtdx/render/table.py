"""A section of a report as aligned columns."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.model import Cell, Section

ELLIPSIS = "..."
LEAST_CELL, LEAST_LAST, LEAST_END = (
    16,
    28,
    12,
)  # of a column, the last one, a name, where there is little room
WIDTH = 98  # two less than the findings': sections are indented


def cell_text(value: Cell) -> str:
    """Return a cell's value in words: yes and no for truth, nothing for nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def table_lines(section: Section, *, width: int | None = WIDTH) -> Iterator[str]:
    """Yield the heading, if the columns have names, and the rows; numbers stand to the right.

    The last column goes on in the next line. Where a table is wider than `width`, columns without a value are left
    out and the longest names give way, first by what they share with the names around them; two names that differ are
    never made the same. None cuts nothing.
    """
    rows = [[_printable_text(cell_text(value)) for value in row] for row in section.rows]
    if not rows:
        return
    if any(section.columns):
        rows.insert(0, list(section.columns))
    columns = list(range(len(rows[0])))
    if width is not None:
        if any(section.columns) and sum(_column_widths(rows)) + 2 * len(columns) - 2 > width:
            columns = [at for at in columns if any(row[at] is not None for row in section.rows)]
            rows = [[row[at] for at in columns] for row in rows]
        _narrow_columns(rows, width)
    widths = _column_widths(rows)
    numbers = number_columns(section)
    right = [index in numbers for index in columns]
    indent = sum(widths[:-1]) + 2 * len(widths[:-1])
    for row in rows:
        lines = _wrap_cell(row[-1], indent, width or WIDTH) if not right[-1] else [row[-1]]
        yield "  ".join(map(_pad_cell, [*row[:-1], lines[0]], widths, right)).rstrip()
        yield from (" " * indent + line for line in lines[1:])


def _column_widths(rows: list[list[str]]) -> list[int]:
    return [max(map(_display_width, column)) for column in zip(*rows, strict=True)]


def _narrow_columns(rows: list[list[str]], width: int) -> None:
    """Cut the widest columns but the last until the table fits; the last needs room for a few words at least."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    for _ in columns[:-1]:
        widths = [max(map(_display_width, column)) for column in columns]
        excess = sum(widths[:-1]) + 2 * len(widths[:-1]) + min(widths[-1], LEAST_LAST) - width
        at = max(range(len(widths) - 1), key=widths.__getitem__)
        if excess <= 0 or widths[at] <= LEAST_CELL:
            break
        columns[at] = _shorten_name(columns[at], max(widths[at] - excess, LEAST_CELL))
    for row, cells in zip(rows, zip(*columns, strict=True), strict=True):
        row[:] = cells


def _shorten_name(names: list[str], most: int) -> list[str]:
    """Return the names no longer than `most`, except where that would make two of them the same."""
    parts = {name: tuple(re.split(r"(?<=[^.][./])(?!\.)", name)) for name in names}
    frequency = Counter(part for words in parts.values() for part in set(words))
    short = {name: _without_repeats(parts[name], frequency, most) for name in names}
    clashes = Counter(short.values())
    return [short[name] if clashes[short[name]] == 1 else name for name in names]


def _without_repeats(parts: tuple[str, ...], frequency: Counter[str], most: int) -> str:
    """Return a path or dotted name without the parts that most of its neighbours have too; numbers and its end stay."""
    left: list[str | None] = list(parts)
    words = [at for at, part in enumerate(parts[:-1]) if not part[:-1].isdigit()]
    for at in sorted(words, key=lambda at: (-frequency[parts[at]], at)):
        if len(_without_gaps(left)) <= most:
            break
        left[at] = None
    *_, last = parts
    room = max(most - len(_without_gaps(left)) + len(last), LEAST_END)
    left[-1] = _without_middle(last, room)
    return _without_gaps(left)


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = (most - len(ELLIPSIS)) // 2
    return f"{text[:half]}{ELLIPSIS}{text[len(text) - (most - len(ELLIPSIS) - half) :]}"


def _without_gaps(parts: list[str | None]) -> str:
    """Return what is left, with dots where something was; the dot before a gap is one of them."""
    text = ""
    for part in parts:
        gap = "" if text.endswith(ELLIPSIS) else ELLIPSIS[1:] if text.endswith(".") else ELLIPSIS
        text += gap if part is None else part
    return text


def _wrap_cell(text: str, indent: int, width: int) -> list[str]:
    if text.startswith("  "):  # a command to be pasted: only a shell's own line breaks may break it
        return [text]
    room = max(width - indent, LEAST_LAST)
    return textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]


def number_columns(section: Section) -> set[int]:
    """Return the columns that hold nothing but numbers, which stand to the right."""
    return {index for index in range(len(section.columns)) if _is_number_column(section, index)}


def _is_number_column(section: Section, index: int) -> bool:
    values = [row[index] for row in section.rows if row[index] is not None]
    return bool(values) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _pad_cell(text: str, width: int, right: bool) -> str:
    space = " " * (width - _display_width(text))
    return space + text if right else text + space


def _display_width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _printable_text(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
