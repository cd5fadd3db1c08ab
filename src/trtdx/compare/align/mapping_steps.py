"""What a mapping asks for, or a part of a fused tensor needs, before anything else is done with a pair's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.align.layouts import parse_change

if TYPE_CHECKING:
    from trtdx.compare.nouns import Change


class Asked(NamedTuple):
    """What is to be done with a match's tensors before anything else."""

    ours: tuple[Change, ...] = ()
    theirs: tuple[Change, ...] = ()
    join: str = ""  # that a mapping asks for
    rank: int | None = None
    pages: str = ""


def asked_by(changes: tuple[str, ...]) -> Asked:
    """Return what the texts in a mapping ask for."""
    requested = Asked()
    for text in changes:
        word, _, rest = text.partition(" ")
        if word == "reference":
            requested = requested._replace(ours=(*requested.ours, parse_change(rest)))
        elif word in ("sum", "concatenate"):
            requested = requested._replace(join=text)
        elif word == "rank":
            requested = requested._replace(rank=int(rest))
        elif word == "pages":
            requested = requested._replace(pages=rest)
        elif word not in ("columns", "mask", "regroup"):  # done again wherever they are needed
            requested = requested._replace(theirs=(*requested.theirs, parse_change(text)))
    return requested
