"""Whether a rule page keeps its promises: each example that fires does, each near miss stays silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.diagnose.matcher import Matcher
from trtdx.diagnose.run import report_from_facts, source_from_text
from trtdx.redact import redact_secrets
from trtdx.rule import PageProblem, Rule, RuleBook, RuleKind, example_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtdx.model import Report


class RuleExamples:
    """Runs examples against one rule book, which is indexed once."""

    def __init__(self, book: RuleBook) -> None:
        self._book = book
        self._matcher = Matcher(book, redact_secrets)

    def diagnose_text(self, text: str) -> Report:
        source = source_from_text(text)
        return report_from_facts(
            [self._matcher.collect_facts(source.name, source.blocks())],
            self._book,
            short_text=redact_secrets(text),
        )

    def check_rules(self, rules: Iterable[Rule]) -> Iterator[PageProblem]:
        for rule in rules:
            for example in rule.fires_on:
                yield from self._check_fires(rule, example)
            for example in rule.silent_on:
                yield from self._check_silent(rule, example)

    def _check_fires(self, rule: Rule, example: str) -> Iterator[PageProblem]:
        report = self.diagnose_text(example)
        if rule.kind is RuleKind.HARMLESS:
            if rule.code not in [harmless.code for harmless in report.summary.harmless]:
                yield example_problem(rule, example, "is not counted as this harmless line")
            if report.findings:
                yield example_problem(
                    rule, example, f"gives a finding {report.findings[0].code} although it is harmless"
                )
        elif not report.findings:
            yield example_problem(rule, example, "gives no finding")
        elif report.findings[0].code != rule.code:
            others = ", ".join(finding.code for finding in report.findings)
            yield example_problem(rule, example, f"gives {others}; {rule.code} is to be first")

    def _check_silent(self, rule: Rule, example: str) -> Iterator[PageProblem]:
        report = self.diagnose_text(example)
        codes = [finding.code for finding in report.findings] + [harmless.code for harmless in report.summary.harmless]
        if rule.code in codes:
            yield example_problem(rule, example, f"gives {rule.code}, which is to stay silent on it")
