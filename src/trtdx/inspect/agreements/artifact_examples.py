"""Whether a page about artifacts keeps its promises: the disagreeing example gives its code alone, the other does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.errors import TrtdxError
from trtdx.inspect.agreements import agreement_table
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.facts.page_examples import deployment_from_example
from trtdx.rule import example_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtdx.rule import PageProblem, Rule, RuleBook


def broken_artifact_examples(rules: Iterable[Rule], book: RuleBook) -> Iterator[PageProblem]:
    """Run the artifact examples of pages and yield those that do not do what their heading says."""
    for rule in rules:
        for example in rule.artifacts_fire:
            codes = _codes_of(example, book)
            if codes != {rule.code}:
                gives = ", ".join(sorted(codes)) or "no finding"
                yield example_problem(rule, example, f"gives {gives}; it is to give {rule.code} alone")
        for example in rule.artifacts_silent:
            if rule.code in _codes_of(example, book):
                yield example_problem(rule, example, f"gives {rule.code}, which is to stay silent on it")


def _codes_of(example: str, book: RuleBook) -> set[str]:
    try:
        deployment = deployment_from_example(example)
    except (TrtdxError, ValueError) as err:
        return {f"an error ({err})"}
    return {finding.code for finding in judge_findings(agreement_table(), deployment, book)}
