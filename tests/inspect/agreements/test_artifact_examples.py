"""`rules check` runs the artifact examples of pages."""

from __future__ import annotations

import msgspec

from trtdx.host import RealHost
from trtdx.inspect.agreements.artifact_examples import broken_artifact_examples
from trtdx.knowledge.load import load_book

BOOK = load_book(RealHost())
RULE = next(rule for rule in BOOK if rule.artifacts_fire and rule.artifacts_silent)


def problems_of(**changes):
    return [problem.message for problem in broken_artifact_examples([msgspec.structs.replace(RULE, **changes)], BOOK)]


def test_examples_that_do_what_their_headings_say_are_no_problem():
    assert problems_of() == []


def test_examples_under_the_wrong_heading_are_named():
    swapped = problems_of(artifacts_fire=RULE.artifacts_silent[:1], artifacts_silent=RULE.artifacts_fire[:1])
    assert len(swapped) == 2
    assert f"it is to give {RULE.code} alone" in swapped[0]
    assert f"gives {RULE.code}, which is to stay silent on it" in swapped[1]


def test_an_example_that_cannot_be_read_is_a_problem_and_no_crash():
    for text in ("no toml", "[no_such_kind]\ntp_size = 1", ""):
        assert len(problems_of(artifacts_fire=(text or "[hf]",), artifacts_silent=())) == 1
