"""Nouns of the pages: a case as it is shown, and a log with the lines that matter."""

from __future__ import annotations

import msgspec

from trtdx.model import Report


class LogFile(msgspec.Struct, frozen=True):
    """A text of a case, and which of its lines findings point at.

    Attributes:
        name: what it was called where it came from.
        path: where the case's host has it.
        causes: the lines that are evidence of a cause.
        symptoms: the lines that only follow from one.
    """

    name: str
    path: str
    causes: frozenset[int] = frozenset()
    symptoms: frozenset[int] = frozenset()

    @property
    def first_line(self) -> int:
        """The line to look at first; 0 where no finding points into this log."""
        return min(self.causes or self.symptoms, default=0)


class CaseView(msgspec.Struct, frozen=True):
    """A case as pages show it."""

    name: str
    command: str
    time: float
    report: Report
    logs: tuple[LogFile, ...] = ()
    notes: tuple[str, ...] = ()
