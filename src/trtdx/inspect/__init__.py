"""Artifacts to facts, facts to what disagrees."""

from trtdx.api import make_callable

make_callable(__name__)
