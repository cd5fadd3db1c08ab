"""From causes to findings: consequences under their cause, and what must be mended first in front."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.check.nouns import MendingOrder
from trtdx.knowledge.violation import finding_from
from trtdx.model import Severity, Symptom

if TYPE_CHECKING:
    from trtdx.check.nouns import Cause
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

ANYTHING = "*"


def order_causes(causes: list[Cause], book: RuleBook) -> tuple[Finding, ...]:
    """Return one finding for each cause, consequences folded under what is to be mended before them; the graver and the earlier to be mended first."""
    unique = list({_identity(cause): cause for cause in reversed(causes)}.values())[::-1]
    unique.sort(key=lambda cause: (severity_of(cause, book) is Severity.NOTE, cause.order))
    heads: list[tuple[Cause, list[Cause]]] = []
    for cause in unique:
        parent = next((entry for entry in heads if _explains(entry[0], cause)), None)
        if parent and severity_of(cause, book) is not Severity.NOTE:
            parent[1].append(cause)
        else:
            heads.append((cause, []))
    heads = [_with_raised_severity(head, consequences, book) for head, consequences in heads]
    heads.sort(key=lambda entry: (-severity_of(entry[0], book).badness, entry[0].order))
    return tuple(_finding(head, consequences, book) for head, consequences in heads)


def severity_of(cause: Cause, book: RuleBook) -> Severity:
    return cause.violation.severity or book.get(cause.code).front.severity


def _identity(cause: Cause) -> tuple[str, str]:
    values = cause.violation.values
    first = next((str(values[name]) for name in ("file", "info", "package", "library", "path") if name in values), "")
    return cause.code, first or repr(sorted(map(str, values.values())))


def _explains(head: Cause, cause: Cause) -> bool:
    """Whether a cause is a consequence of another: a failed import of what is broken, or the same thing seen again."""
    if head.code == cause.code and head.order == cause.order and head.about == cause.about:
        return True
    if not cause.symptom or head.order > cause.order or head is cause or head.violation.severity is Severity.NOTE:
        return False
    if head.order == cause.order == MendingOrder.VARIABLES and head.code == cause.code:
        return True
    if head.order == cause.order and head.symptom:
        return head.code == cause.code and bool(head.about & cause.about)
    return ANYTHING in head.about or bool(head.about & cause.about)


def _with_raised_severity(head: Cause, consequences: list[Cause], book: RuleBook) -> tuple[Cause, list[Cause]]:
    """Return a cause at least as grave as the failed import that it explains."""
    failed = [cause for cause in consequences if cause.order >= MendingOrder.LIBRARIES or "import" in cause.symptom]
    worst = max(
        (severity_of(cause, book) for cause in failed), key=lambda severity: severity.badness, default=Severity.NOTE
    )
    if worst.badness > severity_of(head, book).badness:
        head = head._replace(violation=head.violation._replace(severity=worst))
    return head, consequences


def _finding(head: Cause, consequences: list[Cause], book: RuleBook) -> Finding:
    finding = finding_from(book.get(head.code), head.violation)
    symptoms = tuple(
        Symptom(cause.code, cause.symptom or finding_from(book.get(cause.code), cause.violation).message, _where(cause))
        for cause in consequences
    )
    return msgspec.structs.replace(finding, symptoms=tuple(dict.fromkeys(symptoms)))


def _where(cause: Cause) -> str:
    return cause.violation.evidence[0].where if cause.violation.evidence else ""
