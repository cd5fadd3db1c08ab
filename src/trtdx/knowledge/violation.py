"""What a check found, and the finding it becomes in the words of a rule page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.knowledge.template import fill_template
from trtdx.model import Finding
from trtdx.rule import FindingTemplate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtdx.model import Evidence, Severity
    from trtdx.rule import Rule


class Violation(NamedTuple):
    """One thing that is not as it should be: the values for the page's words, and what was seen where."""

    evidence: tuple[Evidence, ...]
    values: Mapping[str, object] = {}
    severity: Severity | None = None  # where this one is less (or more) grave than the page says
    confidence: float = 0.95


def finding_from(rule: Rule, violation: Violation) -> Finding:
    """Return the finding of a violation in the words of its page."""
    front, template = rule.front, rule.front.found or FindingTemplate()
    values = {name: str(value) for name, value in violation.values.items()}
    fixes = template.fix or front.fix
    return Finding(
        code=rule.code,
        slug=rule.slug,
        severity=violation.severity or front.severity,
        message=(template.message and fill_template(template.message, values)) or front.message,
        why=(template.why and fill_template(template.why, values)) or rule.why,
        fixes=tuple(
            msgspec.structs.replace(fix, text=text, command=fix.command and fill_template(fix.command, values))
            for fix in fixes
            if (text := fill_template(fix.text, values)) is not None
        )
        or front.fix,
        verify=(template.verify and fill_template(template.verify, values)) or front.verify,
        confidence=violation.confidence,
        where=violation.evidence[0].where if violation.evidence else "",
        evidence=violation.evidence,
    )
