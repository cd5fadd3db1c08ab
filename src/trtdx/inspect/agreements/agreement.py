"""An agreement: something two sides must have in common, the check that tells, and the finding it becomes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.inspect.facts.gaps import collect_gaps, missing_side
from trtdx.knowledge.fix_choice import choose_fixes
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Unjudged
from trtdx.rule import RuleHarm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.inspect.facts.artifact import Deployment
    from trtdx.model import Finding
    from trtdx.rule import Rule, RuleBook


class Agreement(NamedTuple):
    """One row of the table: the rule page that explains it, the sides it is between, and its check."""

    code: str
    sides: tuple[str, ...]  # kinds of artifact
    check: Callable[[Deployment], Iterator[Violation]]
    needs: tuple[str, ...] = ()  # "hf|engine": one of these must be at hand; by default one of each role (gaps.py)


def make_agreement(
    code: str, *sides: str, needs: tuple[str, ...] = ()
) -> Callable[[Callable[[Deployment], Iterator[Violation]]], Agreement]:
    """Make a row of the table from a check."""

    def row(check: Callable[[Deployment], Iterator[Violation]]) -> Agreement:
        return Agreement(code, sides, check, needs)

    return row


class Judgement(NamedTuple):
    """What came of the rows: findings, how many rows were judged, and why the others about these artifacts were not."""

    findings: list[Finding]
    judged_count: int
    unjudged: tuple[Unjudged, ...]


def judge_deployment(rows: tuple[Agreement, ...], deployment: Deployment, book: RuleBook) -> Judgement:
    """Return what every row finds: graver first, silent wrong output before what fails loudly."""
    at_hand = {artifact.kind for artifact in deployment.artifacts}
    findings_and_rules: list[tuple[Finding, Rule]] = []
    gaps: dict[tuple[str, bool], list[str]] = {}
    judged = 0
    for row in rows:
        with collect_gaps() as reasons:
            violations = _collect_violations(row, deployment)
        findings_and_rules += [
            (_finding_from_violation(book.get(row.code), violation, deployment), book.get(row.code))
            for violation in violations
        ]
        side = missing_side(row.sides, row.needs, at_hand)
        keys = [(side, False)] if side else [(reason, True) for reason in dict.fromkeys(reasons)]
        if side is None or (row.sides and not at_hand & set(row.sides)):
            continue
        judged += bool(violations or not keys)
        for key in keys if not violations else ():
            gaps.setdefault(key, []).append(row.code)
    findings_and_rules.sort(key=lambda pair: (-pair[0].severity.badness, HARM_ORDER[pair[1].front.harm]))
    unjudged = [Unjudged(reason, tuple(codes), sides_given) for (reason, sides_given), codes in gaps.items()]
    unjudged.sort(key=lambda gap: (not gap.given, -len(gap.codes)))
    return Judgement([finding for finding, _ in findings_and_rules], judged, tuple(unjudged))


def _collect_violations(row: Agreement, deployment: Deployment) -> list[Violation]:
    """Return what a row finds in each container or job; what several of them share is told once."""
    violations = [violation for unit in deployment.split_units() for violation in row.check(unit)]
    return list({repr(violation): violation for violation in violations}.values())


def _finding_from_violation(rule: Rule, violation: Violation, deployment: Deployment) -> Finding:
    """Return a finding; where the page's own check names no path of the user's, the same look again shows it gone."""
    from trtdx.inspect.agreements.mended_commands import with_user_commands
    from trtdx.inspect.agreements.serving import deployment_releases, inspect_again_command

    finding = choose_fixes(finding_from(rule, violation), *deployment_releases(deployment))
    template = (rule.front.found and rule.front.found.verify) or rule.front.verify
    if PLACEHOLDER.search(template) or SAMPLE_PATH.search(template):
        finding = msgspec.structs.replace(finding, verify=inspect_again_command(deployment))
    return with_user_commands(finding, deployment)


def judge_findings(rows: tuple[Agreement, ...], deployment: Deployment, book: RuleBook) -> list[Finding]:
    """Return the findings alone."""
    return judge_deployment(rows, deployment, book).findings


# What a reader of the page is to put in, and paths that pages use for want of the user's.
PLACEHOLDER = re.compile(r"(?<![\w$'\"=-])[A-Z][A-Z_]{3,}(?![\w='\"])")
SAMPLE_PATH = re.compile(r"^trtdx inspect .*\./(?:model|checkpoint|engine|adapter|config\.yaml)")
HARM_ORDER = {RuleHarm.SILENT: 0, RuleHarm.LOAD: 1, RuleHarm.REQUEST: 2, RuleHarm.SLOW: 3, None: 4}
