"""Numbers in words, the same in every message and table."""

from __future__ import annotations


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
