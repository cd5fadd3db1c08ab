"""Every agreement is a rule page that keeps its promises, and every such page is an agreement."""

from __future__ import annotations

import pytest

from trtdx.host import RealHost
from trtdx.inspect.agreements import agreement_table
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.facts.page_examples import deployment_from_example
from trtdx.knowledge.load import load_book
from trtdx.knowledge.template import template_fields
from trtdx.model import Severity
from trtdx.rule import RuleHarm

BOOK = load_book(RealHost())
PAGES = [rule for rule in BOOK if rule.front.found is not None]
FIRING = [(rule, number) for rule in PAGES for number in range(len(rule.artifacts_fire))]
SILENT = [(rule, number) for rule in PAGES for number in range(len(rule.artifacts_silent))]


def named(case):
    return f"{case[0].code}-{case[1] + 1}"


def templates(rule):
    found = rule.front.found
    yield from (found.message, found.why, found.verify)
    yield from (part for fix in found.fix for part in (fix.text, fix.command or ""))


@pytest.mark.heavy
@pytest.mark.parametrize("case", FIRING, ids=named)
def test_the_violated_example_gives_exactly_this_rule(case):
    rule, number = case
    found = judge_findings(agreement_table(), deployment_from_example(rule.artifacts_fire[number]), BOOK)
    assert {finding.code for finding in found} == {rule.code}
    assert all(finding.evidence and all(each.where for each in finding.evidence) for finding in found)


@pytest.mark.parametrize("case", FIRING, ids=named)
def test_the_page_is_filled_with_the_values_found(case):
    rule, number = case
    deployment = deployment_from_example(rule.artifacts_fire[number])
    rows = tuple(row for row in agreement_table() if row.code == rule.code)
    wanted = {name for template in templates(rule) for name, _ in template_fields(template)}
    assert all(wanted <= set(each.values) for row in rows for each in row.check(deployment))
    for finding in judge_findings(rows, deployment, BOOK):
        assert finding.message != rule.front.message or not rule.front.found.message
        assert len(finding.fixes) == len(rule.front.found.fix or rule.front.fix)
        told = (finding.message, *(part for fix in finding.fixes for part in (fix.text, fix.command or "")))
        assert not any(f"{{{name}" in text for text in told for name in wanted)


@pytest.mark.heavy
@pytest.mark.parametrize("case", SILENT, ids=named)
def test_the_satisfied_example_does_not_give_it(case):
    rule, number = case
    found = judge_findings(agreement_table(), deployment_from_example(rule.artifacts_silent[number]), BOOK)
    assert rule.code not in {finding.code for finding in found}


@pytest.mark.parametrize("row", agreement_table(), ids=lambda row: f"{row.code}-{row.check.__name__}")
def test_every_agreement_has_a_page_that_shows_it(row):
    rule = BOOK.get(row.code)
    assert rule.front.found is not None
    assert rule.front.harm is not None
    assert row.sides
    assert row.check.__doc__
    fired = [text for text in rule.artifacts_fire if list(row.check(deployment_from_example(text)))]
    assert fired, "no example of the page is found by this row"


def test_every_page_with_words_for_a_finding_is_an_agreement():
    agreements = {rule.code for rule in PAGES if rule.front.harm is not None}  # others are found in tensors
    assert agreements - {row.code for row in agreement_table()} == set()


def test_there_are_enough_agreements():
    assert len({row.code for row in agreement_table()}) >= 45


# What is only suspicious: it may be meant so, or it costs accuracy without making answers wrong.
SUSPICIOUS = {
    "DX104": "without its scales an FP8 cache runs at a scale of 1, which often does",
    "DX478": "a 4-bit cache that was not calibrated for is less accurate",
    "DX485": "a smaller attention window may be chosen to save memory",
    "DX501": "a client may write the beginning token itself",
    "DX820": "an id only for filling never reaches the model",
    "DX822": "an id only for filling never reaches the model",
    "DX824": "the tokenizer's limit is only a hint",
    "DX840": "an output layer in few bits is less accurate",
    "DX841": "the engine is another conversion, which may be as good",
    "DX855": "files beyond the ranks are not read",
    "DX877": "a data type may be chosen",
    "DX896": "an adapter is converted on loading",
    "DX938": "no request need have the shapes that do not fit",
}


@pytest.mark.parametrize("case", [each for each in FIRING if each[0].front.harm is RuleHarm.SILENT], ids=named)
def test_what_makes_answers_wrong_in_silence_fails_the_default_gate(case):
    rule, number = case
    found = judge_findings(agreement_table(), deployment_from_example(rule.artifacts_fire[number]), BOOK)
    worst = max(found, key=lambda finding: finding.severity.badness)
    assert worst.severity is Severity.ERROR or rule.code in SUSPICIOUS


def test_what_is_called_suspicious_does_not_fail_it():
    def severities(code):
        rule = BOOK.get(code)
        for text in rule.artifacts_fire:
            yield from (
                finding.severity for finding in judge_findings(agreement_table(), deployment_from_example(text), BOOK)
            )

    assert [code for code in SUSPICIOUS if set(severities(code)) == {Severity.ERROR}] == []
