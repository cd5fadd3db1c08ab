"""Whether a rule page keeps its promises: each example that fires does, each near miss stays silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.diagnose.match import Matcher
from trtdx.diagnose.run import report_from, text_source
from trtdx.redact import redacted
from trtdx.rule import Kind, Problem, Rule, RuleBook, example_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtdx.model import Report


class Promises:
    """Runs examples against one rule book, which is indexed once."""

    def __init__(self, book: RuleBook) -> None:
        self._book = book
        self._matcher = Matcher(book, redacted)

    def report_on(self, text: str) -> Report:
        source = text_source(text)
        return report_from(
            [self._matcher.facts(source.name, source.blocks())], self._book, text=redacted(text)
        )

    def broken(self, rules: Iterable[Rule]) -> Iterator[Problem]:
        for rule in rules:
            for example in rule.fires_on:
                yield from self._should_fire(rule, example)
            for example in rule.silent_on:
                yield from self._should_be_silent(rule, example)

    def _should_fire(self, rule: Rule, example: str) -> Iterator[Problem]:
        report = self.report_on(example)
        if rule.kind is Kind.HARMLESS:
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

    def _should_be_silent(self, rule: Rule, example: str) -> Iterator[Problem]:
        report = self.report_on(example)
        codes = [finding.code for finding in report.findings] + [
            harmless.code for harmless in report.summary.harmless
        ]
        if rule.code in codes:
            yield example_problem(rule, example, f"gives {rule.code}, which is to stay silent on it")
