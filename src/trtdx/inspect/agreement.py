"""An agreement: something two sides must have in common, the check that tells, and the finding it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.rule import Harm
from trtdx.violation import Violation, finding_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.inspect.artifact import Deployment
    from trtdx.model import Finding
    from trtdx.rule import RuleBook


class Agreement(NamedTuple):
    """One row of the table: the rule page that explains it, the sides it is between, and its check."""

    code: str
    sides: tuple[str, ...]  # kinds of artifact
    check: Callable[[Deployment], Iterator[Violation]]


def agreement(code: str, *sides: str) -> Callable[[Callable[[Deployment], Iterator[Violation]]], Agreement]:
    """Make a row of the table from a check."""

    def row(check: Callable[[Deployment], Iterator[Violation]]) -> Agreement:
        return Agreement(code, sides, check)

    return row


def findings_from(rows: tuple[Agreement, ...], deployment: Deployment, book: RuleBook) -> list[Finding]:
    """Return what every row finds: graver first, silent wrong output before what fails loudly."""
    found = [
        (finding_from(book.get(row.code), violation), book.get(row.code))
        for row in rows
        for violation in row.check(deployment)
    ]
    found.sort(key=lambda each: (-each[0].severity.badness, HARM_ORDER[each[1].front.harm]))
    return [finding for finding, _ in found]


HARM_ORDER = {Harm.SILENT: 0, Harm.LOAD: 1, Harm.REQUEST: 2, Harm.SLOW: 3, None: 4}
