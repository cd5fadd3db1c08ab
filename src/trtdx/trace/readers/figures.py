"""Figures out of files that anyone may have written: what is no sensible number is as if it were not told."""

from __future__ import annotations

from typing import Any

MOST = 1e18  # of anything: microseconds since 1970 are 2e15
NOT_TOLD = -1


def time_from(value: object) -> float | None:
    """Return a time or length; None where it is no number that can be one."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= MOST else None  # type: ignore[arg-type]


def number_from(value: object) -> float:
    """Return a number, or -1."""
    number = time_from(value)
    return NOT_TOLD if number is None else number


def count_from(value: object) -> int:
    """Return a whole number, or -1."""
    return int(number_from(value))


def mapping_from(value: object) -> dict[str, Any]:
    """Return a mapping; an empty one where it is something else."""
    return value if isinstance(value, dict) else {}
