"""The words of a page with values put in."""

from __future__ import annotations

import pytest

from trtdx.knowledge.template import fill_template


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("1", "1 rank was started, 1 MPI process is needed"),
        ("2", "2 ranks were started, 2 MPI processes are needed"),
        ("11", "11 ranks were started, 11 MPI processes are needed"),
    ],
)
def test_one_is_not_spoken_of_as_many(number, words):
    assert fill_template("{n} ranks were started, {n} MPI processes are needed", {"n": number}) == words


def test_the_verb_follows_its_noun():
    assert (
        fill_template("{n} layers do not divide, {n} beams, {n} times", {"n": "1"})
        == "1 layer does not divide, 1 beam, 1 time"
    )
