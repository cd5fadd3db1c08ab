"""Ideas that break are mistakes here: users are told of them, tests fail."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def mistakes_in_ideas_are_raised(monkeypatch):
    """A TypeError or KeyError in a hypothesis is told to users, and fails a test."""
    from trtdx.compare.attribute import run

    monkeypatch.setattr(run, "STRICT", True)
