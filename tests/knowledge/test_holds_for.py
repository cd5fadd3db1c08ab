"""Which releases a page or a fix holds for."""

from __future__ import annotations

import pytest
from packaging.specifiers import InvalidSpecifier

from trtdx.knowledge.holds_for import holds_throughout, may_hold, parse_holds_for, releases_to_hold
from trtdx.knowledge.inventory import product_releases


@pytest.mark.parametrize(
    ("text", "product", "inside", "outside"),
    [
        ("<0.20", "TensorRT-LLM", "0.19.0", "0.20.0"),
        (">=1.0,<1.3.0rc21", "TensorRT-LLM", "1.3.0rc13", "1.3.0rc22"),
        ("TensorRT <11", "TensorRT", "10.16", "11.1"),
        ("Open MPI<5", "Open MPI", "4.1.8", "5.0.10"),
        ("huggingface_hub >=1", "huggingface_hub", "1.2.0", "0.36.2"),
    ],
)
def test_a_span_names_a_product_and_its_releases(text, product, inside, outside):
    span = parse_holds_for(text)
    assert span.product == product
    assert span.has_release(inside)
    assert not span.has_release(outside)


@pytest.mark.parametrize("text", ["0.20", "TensorRT 10", "< banana", "1.2 and 1.3"])
def test_what_is_no_span_is_refused(text):
    with pytest.raises(InvalidSpecifier):
        parse_holds_for(text)


def test_a_claim_without_releases_is_held_against_the_stable_and_the_newest_one():
    stable, newest = releases_to_hold("", "TensorRT-LLM")
    assert stable == "1.2.1"
    assert newest == product_releases()[-1]
    assert releases_to_hold("", "TensorRT") == ("10.14", product_releases("TensorRT")[-1])


def test_a_claim_with_releases_is_held_against_each_of_them_and_what_they_were_made_with():
    assert releases_to_hold(">=0.18,<0.20", "TensorRT-LLM") == ("0.18.0", "0.18.1", "0.18.2", "0.19.0")
    assert releases_to_hold("<0.11", "TensorRT")[-1] == "10.0.1"


@pytest.mark.parametrize(
    ("holds_for", "first", "last", "may"),
    [
        ("", "0.12.0", "0.12.0", True),
        ("<0.20", "0.12.0", "0.12.0", True),
        ("<0.20", "1.2.1", "1.2.1", False),
        ("<0.20", "0.19.0", "1.0.0", True),
        (">=0.20,<1.0", "0.12.0", "1.2.1", True),  # a release between the two
        ("<0.20", "unknown", "unknown", True),
        ("TensorRT <10", "0.9.0", "0.9.0", True),
        ("TensorRT <10", "1.2.1", "1.2.1", False),
        ("Open MPI <5", "1.2.1", "1.2.1", True),  # which one runs is not known
    ],
)
def test_a_fix_is_shown_where_it_may_hold(holds_for, first, last, may):
    assert may_hold(holds_for, first, last) is may


@pytest.mark.parametrize(
    ("holds_for", "first", "last", "sure"),
    [
        ("<0.20", "0.12.0", "0.19.0", True),
        ("<0.20", "0.12.0", "0.20.0", False),
        ("", "0.12.0", "0.12.0", False),
        ("TensorRT <11", "1.2.1", "1.2.1", True),
        ("Open MPI <5", "1.2.1", "1.2.1", False),
        ("<0.20", "", "", False),
    ],
)
def test_a_fix_says_its_releases_unless_it_holds_for_all_that_may_run(holds_for, first, last, sure):
    assert holds_throughout(holds_for, first, last) is sure
