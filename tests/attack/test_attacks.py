"""A few rounds of each attack that `scripts/attack` runs by the hour, and everything it ever found."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.attacks import ATTACKS, problem_of
from trtdx import api
from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.knowledge.literals import compile_pattern
from trtdx.knowledge.pattern_cost import exponential_part
from trtdx.rule import LogPattern, RuleBook, parse_rule

CORPUS = Path(__file__).parent / "corpus"
ROUNDS = {"artifacts": 8, "patterns": 12, "secrets": 1}


@pytest.mark.heavy
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_breaks_nothing(name, tmp_path):
    attack, _ = ATTACKS[name]
    assert list(attack(tmp_path, 20_261_118, ROUNDS[name])) == []


@pytest.mark.heavy
@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_what_an_attack_found_once_breaks_nothing_again(path):
    if path.suffix == ".log":
        assert problem_of(lambda: api.diagnose(str(path))) == ""
    else:
        assert problem_of(lambda: api.inspect(str(path), show=["all"])) == ""


def test_a_pattern_that_would_take_for_ever_is_stopped_and_noted():
    page = next(iter((Path(api.__file__).parent / "rules" / "config").glob("DX210-*.md")))
    rule = parse_rule(page.read_text(), str(page))
    endless = LogPattern(pattern=r"mpiSize (?:x+x+)+y", message="", confidence=0.9)
    rule = type(rule)(
        **{**{name: getattr(rule, name) for name in rule.__struct_fields__}, "front": _with_log(rule.front, endless)}
    )
    line = "[TensorRT-LLM][ERROR] mpiSize " + "x" * 60 + "\n"
    report = diagnose_sources([source_from_text(line * 3 + "quiet\n" * 20_000)], RuleBook([rule, *_unknown_page()]))
    assert "DX210 not tried in time" in " ".join(report.summary.partial)


def _with_log(front, log):
    return type(front)(**{**{name: getattr(front, name) for name in front.__struct_fields__}, "log": (log,)})


def _unknown_page():
    pages = (Path(api.__file__).parent / "rules").glob("*/DX000-*.md")
    return [parse_rule(page.read_text(), str(page)) for page in pages]


@pytest.mark.parametrize(
    "pattern", [r"(?:a+)+b", r"(\w+\s*)+:", r"(.*)*x", r"([a-z]+|\d+)*!", r"(x+x+)+y", r"(?:\w+\s?){1,40}z"]
)
def test_a_repeat_of_a_repeat_is_refused(pattern):
    assert exponential_part(pattern)


@pytest.mark.parametrize(
    "pattern", [r"(?:\d+\.)+x", r"(?:\w+ )*x", r"(?:foo|bar)+", r"\d+(?:\.\d+)*", r"(?:[^,]+,)+", r"\w*.{0,80}x"]
)
def test_a_repeat_with_a_border_is_not_refused(pattern):
    assert compile_pattern(pattern)
    assert exponential_part(pattern) == ""
