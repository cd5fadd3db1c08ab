"""The examples of rules that only a computation finds are run, and each does what its heading says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from support.run_zoo import JOBS
from trtdx.cli.rules import ask_trtdx
from trtdx.errors import RulePageError
from trtdx.host import RealHost
from trtdx.knowledge.load import load_book
from trtdx.rule import CODE_EXAMPLES, COMMAND_EXAMPLES
from trtdx.testing.page_examples import broken_computed_examples, codes_from_commands

TESTS = Path(__file__).parent.parent
BOOK = load_book(RealHost())
WITH_COMMANDS = [rule for rule in BOOK if rule.examples(COMMAND_EXAMPLES[0])]
WITH_CODE = [rule for rule in BOOK if rule.examples(CODE_EXAMPLES[0])]


def problems_of(rule, body, **options):
    changed = msgspec.structs.replace(rule, body=body)
    return [problem.message for problem in broken_computed_examples([changed], ask_trtdx, **options)]


@pytest.mark.heavy
@pytest.mark.parametrize("rule", WITH_COMMANDS, ids=lambda rule: rule.code)
def test_commands_on_a_page_find_what_they_should(rule):
    assert [str(problem) for problem in broken_computed_examples([rule], ask_trtdx)] == []


@pytest.mark.heavy
@pytest.mark.parametrize("rule", WITH_CODE, ids=lambda rule: rule.code)
def test_code_on_a_page_makes_models_of_which_the_page_is_found(rule):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert [str(problem) for problem in broken_computed_examples([rule], ask_trtdx, run_code=True)] == []


def codes_that_tests_break_things_for():
    """Return the codes of causes that no text on a page can show: real jobs, trees and environments are broken."""
    texts = [
        path.read_text("utf-8")
        for room in ("build", "capture", "check", "run")
        for path in (TESTS / room).rglob("*.py")
    ]
    return set(re.findall(r"DX\d+", "".join(texts))) | {code for job in JOBS for code in job.codes}


def test_every_page_that_only_a_computation_finds_has_examples():
    computed = {rule.code for rule in BOOK if not (rule.front.retired or rule.fires_on or rule.artifacts_fire)}
    on_pages = {rule.code for rule in (*WITH_COMMANDS, *WITH_CODE)}
    assert computed - on_pages - codes_that_tests_break_things_for() == set()
    for rule, sections in [(rule, COMMAND_EXAMPLES) for rule in WITH_COMMANDS] + [
        (rule, CODE_EXAMPLES) for rule in WITH_CODE
    ]:
        assert rule.examples(sections[1]), rule.code


@pytest.mark.heavy
def test_an_example_under_the_wrong_heading_is_told():
    rule = BOOK.get("DX890")
    swapped = rule.body.replace(COMMAND_EXAMPLES[1], "X").replace(COMMAND_EXAMPLES[0], COMMAND_EXAMPLES[1])
    swapped = swapped.replace("## X", f"## {COMMAND_EXAMPLES[0]}")
    first, second = problems_of(rule, swapped)
    assert first.endswith("gives no finding; DX890 is to be first")
    assert second.endswith("gives DX890, which is to stay silent on it")


def test_code_is_run_only_when_it_is_asked_for(tmp_path):
    body = f"## {CODE_EXAMPLES[0]}\n    __import__('pathlib').Path({str(tmp_path / 'x')!r}).touch()\n    codes = ['DX890']\n"
    assert problems_of(BOOK.get("DX890"), body) == []
    assert not (tmp_path / "x").exists()
    assert problems_of(BOOK.get("DX890"), body, run_code=True) == []
    assert (tmp_path / "x").exists()


def test_code_that_breaks_is_a_problem_of_its_page():
    body = f"## {CODE_EXAMPLES[0]}\n    reference = 1 / 0\n"
    (problem,) = problems_of(BOOK.get("DX890"), body, run_code=True)
    assert problem.endswith("cannot be run: ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    "example",
    [
        "rm -rf model",
        "trtdx",
        "trtdx rules new DX1 x",
        "trtdx capture model",
        "trtdx check",
        "trtdx check --fix --from facts.json",
        "",
        "cat > ../x <<'EOF'\nEOF\ntrtdx inspect x",
    ],
)
def test_commands_that_do_more_than_ask_are_refused(example):
    with pytest.raises(RulePageError):
        codes_from_commands(example, ask_trtdx)


def test_an_example_leaves_the_working_folder_and_the_users_settings_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for example in BOOK.get("DX883").examples(COMMAND_EXAMPLES[1]):  # a calibration that succeeds
        assert codes_from_commands(example, ask_trtdx) == []
    assert Path.cwd() == tmp_path
    assert list(tmp_path.iterdir()) == []
