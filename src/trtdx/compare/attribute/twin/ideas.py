"""Mistakes that only a file shows: what an exporter folded into a constant, and is elsewhere a setting of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.compare.attribute.experiment import Idea
from trtdx.compare.attribute.ideas.norms import norm_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.experiment import Bench


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield a norm whose weight lacks the one that is added to it: exporters add it beforehand."""
    norm_and_input = norm_of(bench)
    if norm_and_input is None or norm_and_input[0].weight is None or norm_and_input[0].plus:
        return
    norm, x = norm_and_input
    less = norm._replace(plus=-1.0).of(x)
    how = "one not added to the weight, which has it in the reference"
    yield Idea("DX979", bench.with_main(less), {"found": "not added"}, how)
