"""Numbers in words, the same in every message and table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def counted(number: int, what: str) -> str:
    """Return the number with its noun: "1 line", "2 lines"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def size_in_words(size: float) -> str:
    """Return a number of bytes in the largest unit it fills."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def thousands(number: int) -> str:
    """Return a number with its digits in groups of three."""
    return f"{number:,}".replace(",", " ")


def listed(items: Iterable[object], most: int = 6, by: str = ", ") -> str:
    """Return the first few items and how many more there are: "a, b and 3 more"."""
    words = [str(item) for item in items]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return by.join(words[:most]) + more
