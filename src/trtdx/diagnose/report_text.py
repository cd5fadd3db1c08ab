"""A short input as two texts: what somebody complains of or a program reports as wrong, and all that is stated.

A healthy server prints its settings, and these name half of what can go wrong. So a symptom counts only where a person
says it, or where a line is an error (healthy servers warn a lot); a setting counts only where it is not switched off.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from trtdx.cpu_limit import TimedSearches
from trtdx.diagnose.cause import ERROR_LEVELS
from trtdx.diagnose.line_matches import SALIENT
from trtdx.diagnose.prefixes import peel_line
from trtdx.diagnose.unknown import COMPLAINT, is_spoken

if TYPE_CHECKING:
    from collections.abc import Collection

_SWITCHED_OFF = re.compile(
    r"(?i)(?<![\w.\"'])[\w.\"']+\s{0,8}[=:]\s{0,8}(?:none|null|false|\[\]|\{\}|'')(?![\w.])|(?<![\w.])[\w.]*(?:parallel_size|(?:tp|pp|ep|cp)_size)\s{0,8}[=: ]\s{0,8}1\b"
)
_PROGRAM_LINE = re.compile(
    r"(?i)^\s*(?:/|File \"|at /|#\d|\d+ +0x|[$>#] |-{2}|[\w.\"']+ ?[=:](?: |$)(?=\S+$))|\wWarning:|\bWarning:|\.py:\d+|\w=\w.{0,200}\w=\w.{0,200}\w=|it/s\]|\d%\|"
)
_MIN_WORDS = 3


class ReportText:
    """The whole input, and the parts of it that speak of trouble."""

    def __init__(self, text: str, harmless_lines: Collection[int] = ()) -> None:
        self.whole = text
        self._harmless = harmless_lines
        self.lower = text.lower()
        self.searches = TimedSearches()

    @cached_property
    def stated(self) -> str:
        """Return the input without settings that are off; lines keep their numbers."""
        return _SWITCHED_OFF.sub("", self.whole)

    @cached_property
    def complaints(self) -> str:
        """Return the input with an empty line for each that does not speak of trouble; lines keep their numbers."""
        lines = enumerate(self.whole.split("\n"), 1)
        return "\n".join(
            line if number not in self._harmless and _speaks_of_trouble(line) else "" for number, line in lines
        )


def _speaks_of_trouble(line: str) -> bool:
    peeled = peel_line(line)
    if peeled.level != "unknown":
        return peeled.level in ERROR_LEVELS
    if peeled.source:
        return False
    if re.match(r"\s*[\w.]*(?:Error|Exception)\b", line) or (SALIENT.search(line) and not _PROGRAM_LINE.search(line)):
        return True
    return not _PROGRAM_LINE.search(line) and (
        is_spoken(line) or (bool(COMPLAINT.search(line)) and len(line.split()) >= _MIN_WORDS)
    )
