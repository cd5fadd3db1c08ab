"""The nouns of the room: what is wrong with a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trtdx.knowledge.violation import Violation


class TreeTrouble(NamedTuple):
    """One thing wrong with a tree: the page that explains it, and what was seen.

    Attributes:
        explains: codes that are only consequences where this one stands, for the same tree.
    """

    code: str
    violation: Violation
    tree: str = ""
    explains: tuple[str, ...] = ()
