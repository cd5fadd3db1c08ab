"""Numbers in words, the same in every message and table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable


def format_count(number: int, noun: str) -> str:
    """Return the number with its noun: "1 line", "2 lines"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_large_count(number: int, noun: str) -> str:
    """Return a large number with its noun: "1 line", "12 000 lines"."""
    return f"{group_digits(number)} {noun}{'' if number == 1 else 's'}"


def format_bytes(size_bytes: float) -> str:
    """Return a number of bytes in the largest unit it fills."""
    value = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def group_digits(number: int) -> str:
    """Return a number with its digits in groups of three."""
    return f"{number:,}".replace(",", " ")


def abbreviate_list(items: Iterable[object], max_items: int = 6, separator: str = ", ") -> str:
    """Return the first few items and how many more there are: "a, b and 3 more"."""
    words = [str(item) for item in items]
    more = f" and {len(words) - max_items} more" if len(words) > max_items else ""
    return separator.join(words[:max_items]) + more


def join_words(items: Iterable[object], conjunction: str = "and") -> str:
    """Return all items as a sentence has them: "a", "a and b", "a, b and c"."""
    *first, last = [str(item) for item in items] or [""]
    return f"{', '.join(first)} {conjunction} {last}" if first else last


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes that a text such as "2GiB", "500 MB" or "4096" means."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r} is not a size", fix="write sizes as 2GiB, 500MB or 4096")
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def describe_holds_for(text: str) -> str:
    """Return which releases something is for, as a page states it: "TensorRT-LLM <0.20"."""
    return f"TensorRT-LLM {text}" if text[:1] in "<>=!~" else text
