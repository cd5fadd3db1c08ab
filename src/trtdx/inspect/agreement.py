"""An agreement: something two sides must have in common, the check that tells, and the finding it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.model import Finding, Fix
from trtdx.rule import Found, Harm
from trtdx.template import filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trtdx.inspect.artifact import Deployment
    from trtdx.model import Evidence, Severity
    from trtdx.rule import Rule, RuleBook


class Violation(NamedTuple):
    """One place where an agreement does not hold: the values for the page's words, and what was seen where."""

    evidence: tuple[Evidence, ...]
    values: Mapping[str, object] = {}
    severity: Severity | None = None  # where this one is less (or more) grave than the page says
    confidence: float = 0.95


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


def finding_from(rule: Rule, violation: Violation) -> Finding:
    """Return the finding of a violation in the words of its page."""
    front, found = rule.front, rule.front.found or Found()
    values = {name: str(value) for name, value in violation.values.items()}
    fixes = found.fix or front.fix
    return Finding(
        code=rule.code,
        slug=rule.slug,
        severity=violation.severity or front.severity,
        message=(found.message and filled(found.message, values)) or front.message,
        why=(found.why and filled(found.why, values)) or rule.why,
        fixes=tuple(
            Fix(fix.stage, text, fix.command and filled(fix.command, values))
            for fix in fixes
            if (text := filled(fix.text, values)) is not None
        )
        or front.fix,
        verify=(found.verify and filled(found.verify, values)) or front.verify,
        confidence=violation.confidence,
        where=violation.evidence[0].where if violation.evidence else "",
        evidence=violation.evidence,
    )
