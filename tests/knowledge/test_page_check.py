"""What is wrong with a page is told with its line."""

from __future__ import annotations

import pytest

from trtdx.errors import RulePageError, UnknownNameError
from trtdx.knowledge.page_check import NEW_PAGE, check_page
from trtdx.rule import RuleBook, indented_examples, parse_rule

PAGE = NEW_PAGE.replace("CODE", "ACME001").replace("SLUG", "bad-thing")


def problems(text):
    return [(problem.line, problem.message) for problem in check_page(text, "p.md")[1]]


def test_a_new_page_is_sound():
    assert problems(PAGE) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ('severity = "error" ', 'severity = "awful" ', 4, "Invalid enum value 'awful'"),
        ('stage = "serve"               #', 'stage = "later"  #', 5, "Invalid enum value"),
        ("confidence = 0.8", 'confidence = "much"', 21, "Expected `float`"),
        ("confidence = 0.8", "confidence = 7", 18, "not between 0 and 1"),
        ("confidence = 0.8", 'level = ["loud"]', 18, "'loud' is none of"),
        ("confidence = 0.8", "colour = 1", 21, "unknown field `colour`"),
        ('code = "ACME001"', "code = ACME001", 2, "not TOML"),
        ("the command to paste", "trtllm-serve <model dir>", 16, "takes <model dir> for a redirection: write MODEL_DIR"),
        ('"the command to paste"', '"print("\nlang = "python"', 16, "does not parse"),
        ('code = "ACME001"', 'code = "x"', 2, "is not letters and digits"),
        ('slug = "bad-thing"', 'slug = "Bad Thing"', 3, "words joined by hyphens"),
        ("replace this text: (?P<value>", "((", 18, "is not a regular expression"),
        ("replace this text: (?P<value>\\d+)", "(?P<value>\\d+)", 18, "no fixed run of 3"),
        ("replace this text: (?P<value>\\d+)", "(?P<value>\\d*)", 18, "matches an empty line"),
        ("{value}", "{val}", 18, "{val} is not a named group"),
        ("{value}", "{value:roman}", 18, "no such filter"),
        ("{value}", "{value", 18, "stray brace"),
        ("## How to verify", "## Anything", 23, "`## How to verify` is missing"),
        ("    [TensorRT-LLM][ERROR] replace", "[TensorRT-LLM][ERROR] replace", 30, "not indented by four spaces"),
        ("# What is wrong, as a sentence", "What", 22, "no `# ` heading"),
        ("without the remedy", "with a stop.", 9, "full stop"),
    ],
)  # fmt: skip
def test_each_fault_is_told_where_it_is(old, new, line, words):
    assert old in PAGE
    found = problems(PAGE.replace(old, new))
    assert any(at == line and words in message for at, message in found), found


def test_a_page_without_front_matter_is_refused():
    assert problems("# hello\n") == [(1, "the page does not start with front matter between two lines of +++")]
    with pytest.raises(RulePageError, match=r"p\.md:1"):
        parse_rule("# hello\n", "p.md")


def test_a_clash_of_codes_names_both_pages():
    with pytest.raises(RulePageError, match=r"a\.md and b\.md"):
        RuleBook([parse_rule(PAGE, "a.md"), parse_rule(PAGE, "b.md")])


def test_an_unknown_rule_gets_its_nearest_name():
    with pytest.raises(UnknownNameError) as err:
        RuleBook([parse_rule(PAGE, "a.md")]).get("bad-thin")
    assert err.value.fix == "did you mean bad-thing?"


def test_examples_are_blocks_indented_by_four():
    assert indented_examples("    a\n    b\nor\n    c\n\n    d\n") == ("a\nb", "c\n\nd")


RETIRED = """+++
code = "DX042"
slug = "queue-full"
severity = "error"
stage = "serve"
area = "runtime"
since = "0.1"
retired = "0.1"
replaced_by = "DX000"
message = "the queue is full"
verify = "trtdx explain DX000"
+++
# The queue is full
## What to do
See DX000.
"""


def test_a_retired_page_owes_no_fix_and_no_example_but_may_find_nothing():
    assert problems(RETIRED) == []
    still = RETIRED.replace("verify =", 'described = ["the queue is full"]\nverify =')
    assert [message for _, message in problems(still)] == ["a retired page still has patterns, phrases or [found]"]


@pytest.mark.parametrize(("lang", "command", "fault"), [
    ("yaml", "kv_cache_config:\\n  dtype: fp8", ""),
    ("yaml", "a: [1, 2", "the YAML of a fix does not parse"),
    ("dockerfile", "FROM IMAGE", ""),
])  # fmt: skip
def test_a_command_says_what_it_is_written_in_and_is_read_as_that(lang, command, fault):
    page = PAGE.replace('command = "the command to paste"', f'command = "{command}"\nlang = "{lang}"')
    messages = [message for _, message in problems(page)]
    assert [message for message in messages if fault in message] == messages
    assert bool(messages) == bool(fault)
