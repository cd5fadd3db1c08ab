"""The layout of rule pages: one order of keys and sections, and nothing of their meaning lost."""

from __future__ import annotations

import msgspec
import pytest

from trtdx.errors import RulePageError
from trtdx.knowledge.load import packaged_folder
from trtdx.knowledge.page_check import NEW_PAGE
from trtdx.knowledge.page_format import PAGE_KEYS, TABLES, check_layout, format_page
from trtdx.rule import FrontMatter

PAGES = sorted(packaged_folder().rglob("*.md"))
UNTIDY = """+++
slug = "queue-full"
code = "DX042"
[[log]]
confidence = 0.8
pattern = '''queue (?P<size>
\\d+) full'''

# the better one first
[[fix]]
text = "empty it"
stage = "serve"
+++
# The queue is full
## Stays silent on
    fine
## Why it happens
Because.

"""
TIDY = """+++
code = "DX042"
slug = "queue-full"

# the better one first
[[fix]]
stage = "serve"
text = "empty it"

[[log]]
pattern = '''queue (?P<size>
\\d+) full'''
confidence = 0.8
+++
# The queue is full
## Why it happens
Because.
## Stays silent on
    fine
"""


def test_keys_tables_and_sections_are_put_in_order_with_their_comments():
    assert format_page(UNTIDY, "page.md") == TIDY
    assert format_page(TIDY, "page.md") == TIDY


def test_every_key_of_a_page_has_its_place():
    assert {*PAGE_KEYS, *TABLES} == {field.name for field in msgspec.structs.fields(FrontMatter)}


def test_the_first_line_out_of_place_is_named():
    assert [problem.line for problem in check_layout(UNTIDY, "page.md")] == [2]
    assert check_layout(TIDY, "page.md") == []
    assert check_layout(NEW_PAGE, "page.md") == []


@pytest.mark.heavy
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem[:6])
def test_every_packaged_page_has_the_layout(page):
    assert check_layout(page.read_text(), str(page)) == []


@pytest.mark.parametrize("front", ["code = '''never ends\n", "not toml at all\n", "code = 1\ncode = 2\n"])
def test_front_matter_that_is_not_toml_is_refused_by_name(front):
    with pytest.raises(RulePageError):
        format_page(f"+++\n{front}+++\n# Title\n", "page.md")


def test_a_page_without_front_matter_is_refused_by_name():
    with pytest.raises(RulePageError, match=r"page\.md"):
        format_page("# only a heading\n", "page.md")
