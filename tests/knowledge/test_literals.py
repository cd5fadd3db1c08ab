"""Every match of a pattern contains one of its texts."""

from __future__ import annotations

import re

import pytest

from trtdx.host import RealHost
from trtdx.knowledge.literals import is_strong, required_texts
from trtdx.knowledge.load import load_book


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"MPI size (?P<a>\d+) != TP size (?P<b>\d+)", (" != tp size ",)),
        (r"(?i)Cannot (allocate|reserve) memory", ("cannot allocate", "cannot reserve")),
        (r"foo (?:alpha beta|gamma delta) bar", ("foo alpha beta", "foo gamma delta")),
        (r"ab?c", ()),
        (r"x{3,}", ()),
        (r"(?:long text)+ end", ("long text",)),
    ],
)
def test_texts_of_a_pattern(pattern, texts):
    found = required_texts(pattern)
    assert bool(found) == bool(texts)
    assert set(found) <= set(texts) or any(text in texts for text in found)


@pytest.mark.heavy
def test_the_texts_of_every_packaged_pattern_are_in_what_it_matches():
    for rule in load_book(RealHost()):
        for log in rule.front.log:
            texts = required_texts(log.pattern)
            for example in rule.fires_on:
                found = re.search(log.pattern, example, re.MULTILINE)
                assert found is None or any(text in found[0].lower() for text in texts), (
                    rule.code,
                    log.pattern,
                )


def test_words_of_healthy_lines_are_not_strong():
    assert not is_strong("engine")
    assert not is_strong("[MemUsageChange] Allocated")
    assert is_strong("illegal memory access")
