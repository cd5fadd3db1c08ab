"""A page says where its claims can be read again, and shows what programs print."""

from __future__ import annotations

import pytest

from trtdx.knowledge.page_check import NEW_PAGE
from trtdx.knowledge.page_sources import check_sources
from trtdx.rule import parse_rule

PAGE = NEW_PAGE.replace("CODE", "DX999").replace("SLUG", "bad-thing")
SOURCED = PAGE.replace('since = "0.1"', 'since = "0.1"\nchecked = "2026-11, 1.2.1"\nsource = ["setup.py@v1.2.1"]')


def problems(text):
    return [(one.check, one.is_note, one.message) for one in check_sources([parse_rule(text, "p.md")])]


def test_a_page_without_source_is_told_and_a_teams_own_page_is_not():
    assert ("source", False, "the page has no `source` and no `checked`") in problems(PAGE)
    assert "source" not in {check for check, *_ in problems(PAGE.replace("DX999", "ACME001"))}


def test_an_example_that_no_source_prints_is_refused_unless_a_thread_shows_it():
    [(check, is_note, message)] = problems(SOURCED)
    assert (check, is_note) == ("atlas", False)
    assert "is printed nowhere in the sources of TensorRT-LLM" in message
    [(_, is_note, _)] = problems(SOURCED.replace("setup.py@v1.2.1", "NVIDIA/TensorRT-LLM#123"))
    assert is_note


@pytest.mark.parametrize(
    "line",
    [
        "[TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (mpiSize is 1, tp is 2, pp is 1)",
        "the server says replace this text: 42",  # nobody's logger
        "[TRT] [E] 4: [network.cpp::validate::2965] Error Code 4: replace this text: 42",  # sources are not public
    ],
)
def test_a_line_that_is_known_or_cannot_be_is_no_problem(line):
    page = SOURCED.replace("[TensorRT-LLM][ERROR] replace this text: 42", line)
    assert [check for check, *_ in problems(page) if check == "atlas"] == (
        [] if "Assertion" not in line else [check for check, *_ in problems(page)]
    )


def test_each_pattern_of_a_harmless_page_has_a_message():
    harmless = SOURCED.replace('kind = "cause"', 'kind = "harmless"')
    second = "\n[[log]]\npattern = '''another text'''\n+++\n# What"
    assert "harmless" not in {check for check, *_ in problems(harmless)}
    assert "harmless" in {check for check, *_ in problems(harmless.replace("+++\n# What", second.lstrip("\n")))}
