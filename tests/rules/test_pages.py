"""Every rule page keeps its promises."""

from __future__ import annotations

import re
import subprocess
from collections import Counter

import pytest

from trtdx.diagnose.rule_examples import RuleExamples
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book, packaged_folder
from trtdx.knowledge.page_check import check_page
from trtdx.render.markdown import is_command
from trtdx.rule import RuleKind

BOOK = load_book(RealHost())
AREAS = {
    "install": 40,
    "build": 25,
    "convert": 25,
    "config": 30,
    "runtime": 30,
    "memory": 20,
    "multigpu": 35,
    "accuracy": 10,
    "performance": 5,
}


@pytest.fixture(scope="module")
def promises():
    return RuleExamples(BOOK)


@pytest.mark.heavy
@pytest.mark.parametrize("rule", BOOK.rules, ids=lambda rule: rule.code)
def test_rule_keeps_its_promises(rule, promises):
    _, problems = check_page(
        (packaged_folder() / rule.front.area / f"{rule.code}-{rule.slug}.md").read_text(), rule.path
    )
    assert not problems
    if rule.has_log_wording or rule.front.harm:  # the others' are run by tests/testing/test_page_examples.py
        assert rule.fires_on or rule.artifacts_fire
        assert rule.silent_on or rule.artifacts_silent
    assert [str(problem) for problem in promises.check_rules([rule])] == []


@pytest.mark.heavy
def test_every_command_is_one_that_a_shell_parses():
    values = re.compile(r"\{\w+(?::\w+)?\}")  # put in when the page is used
    commands = {
        (rule.code, values.sub("X", text))
        for rule in BOOK
        for text in (
            *(fix.command for fix in _fixes(rule) if fix.command and fix.lang == "sh"),
            *([rule.front.verify] if is_command(rule.front.verify) else []),
        )
    }
    refused = {
        (code, command)
        for code, command in commands
        if subprocess.run(["bash", "-n"], input=command, text=True, capture_output=True).returncode
    }
    assert refused == set()


def _fixes(rule):
    return (*rule.front.fix, *(fix for log in rule.front.log for fix in log.fix))


@pytest.mark.heavy
def test_answers_are_the_same_without_the_kernel(monkeypatch):
    monkeypatch.setattr("trtdx.diagnose.scan._kernel", None)
    assert [str(problem) for problem in RuleExamples(BOOK).check_rules(BOOK)] == []


def test_there_is_enough_knowledge_in_every_area():
    counts = Counter(rule.front.area for rule in BOOK)
    assert len(BOOK) >= 220
    assert {area: counts[area] for area in AREAS if counts[area] < AREAS[area]} == {}


def test_a_retired_rule_names_the_one_that_took_its_place():
    dangling = {rule.code for rule in BOOK if rule.front.replaced_by and not BOOK.has_rule(rule.front.replaced_by)}
    assert dangling == set()
    assert {rule.code for rule in BOOK if rule.front.replaced_by and not rule.front.retired} == set()


def test_what_a_rule_follows_is_a_rule():
    dangling = {(rule.code, name) for rule in BOOK for name in rule.front.follows if not BOOK.has_rule(name)}
    assert dangling == set()


def test_fixes_of_causes_name_a_command_where_they_can():
    causes = [rule for rule in BOOK if rule.kind is RuleKind.CAUSE]
    with_command = [rule for rule in causes if any(fix.command for fix in rule.front.fix)]
    assert len(with_command) / len(causes) >= 0.9


@pytest.mark.heavy
def test_no_pattern_takes_long_on_a_hostile_line(promises):
    for line in ("error " * 1400, "a" * 8000, "tensorrt llm engine version " * 280, "(" * 8000, "0 " * 4000):
        assert promises.diagnose_text(line).summary.lines_read == 1


def test_no_command_does_harm_when_pasted():
    harm = re.compile(
        r"\breboot\b(?!.*#)|(?<!# )sudo reboot|prune -a|rm -[rf]+ (?:/dev/shm|/tmp)/|mkfs|dd if=|kill -9 -1|chmod -R 777 /(?:\s|$)"
    )
    commands = [
        (rule.code, fix.command)
        for rule in BOOK
        for fix in (*rule.front.fix, *(fix for log in rule.front.log for fix in log.fix))
        if fix.command
    ]
    assert [(code, command) for code, command in commands if harm.search(command.split("#")[0])] == []


def test_pages_name_no_package_registry():
    hosts = re.compile(r"pypi\.org|files\.pythonhosted|registry\.npmjs|deb\.debian\.org", re.IGNORECASE)
    assert [rule.code for rule in BOOK if hosts.search(rule.body + str(rule.front))] == []


IN_TENSORS = [rule for rule in BOOK if rule.front.found and rule.front.harm is None]


@pytest.mark.parametrize("rule", IN_TENSORS, ids=lambda rule: rule.code)
def test_a_command_for_what_is_found_in_tensors_can_be_pasted(rule):
    """Placeholders are words in capitals: an angle bracket would be a redirection."""
    fixes = (*rule.front.fix, *(rule.front.found.fix or ()))
    commands = [rule.front.verify, *(fix.command for fix in fixes if fix.command)]
    assert not [command for command in commands if re.search(r"<\w+>", command)]
