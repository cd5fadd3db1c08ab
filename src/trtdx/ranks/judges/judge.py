"""From violations to findings: the words of the page, with what is the matter here before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Fix, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trtdx.model import Finding
    from trtdx.ranks.nouns import ProbedJob, RankViolation
    from trtdx.rule import RuleBook

    Judge = Callable[[ProbedJob], Iterator[RankViolation]]


def launch_fix(text: str, command: str = "", stage: Stage = Stage.LAUNCH) -> Fix:
    """Return something to do at the launch, or at another stage."""
    return Fix(stage, text, command or None)


def finding_from_violation(violation: RankViolation, book: RuleBook) -> Finding:
    """Return the finding: what was measured and what mends it here, then what the page says."""
    rule = book.get(violation.code)
    finding = finding_from(
        rule, Violation(violation.evidence, severity=violation.severity, confidence=violation.confidence)
    )
    named = {fix.text for fix in violation.fixes}
    fixes = (*violation.fixes, *(fix for fix in rule.front.fix if fix.text not in named))
    return msgspec.structs.replace(
        finding,
        message=violation.message,
        why=violation.why or rule.why,
        fixes=fixes,
        verify=violation.verify or rule.front.verify,
        ranks=violation.ranks,
    )


def judge_job(judges: Iterable[Judge], job: ProbedJob, book: RuleBook) -> list[Finding]:
    """Return what all judges find, graver first; the same cause on several ranks or hosts is one finding."""
    violations = [violation for judge in judges for violation in judge(job)]
    findings = [finding_from_violation(violation, book) for violation in violations]
    return sorted(findings, key=lambda finding: (-finding.severity.badness, -finding.confidence))
