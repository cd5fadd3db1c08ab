"""What statistics tell where the values were not kept: the hash says that bits differ, these say whether more than bits do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.judge.error_model import coarser, rounding
from trtdx.compare.nouns import Judged, Verdict

if TYPE_CHECKING:
    from trtdx.tensors.statistics import Statistics

# Roundings of the largest value; each operation before adds its own, and the largest and least are single elements.
ALLOWED = 64.0
SINGLE = 8.0  # times as much for what one element decides
_SPREAD = ("mean", "std", "p05", "p25", "p50", "p75", "p95")
_SINGLE = ("min", "max", "p01", "p99")
_COUNTS = ("nan", "pos_inf", "neg_inf")


class Apart(NamedTuple):
    """The statistic that two tensors differ in most, as a share of their largest value, over what is allowed."""

    name: str
    share: float
    beyond: float
    text: str


def judged_by_statistics(each: Judged, *, padded: bool = False) -> Judged:
    """Return a verdict on a pair of which only statistics are known; any other verdict as it is.

    Args:
        each: a verdict.
        padded: whether there is padding in it: anything may stand there, and statistics count it.
    """
    if each.basis != "statistics" or each.verdict not in (Verdict.UNKNOWN, Verdict.WRONG):
        return each
    if padded:
        note = "only statistics were kept, and they count padding"
        return each._replace(verdict=Verdict.UNKNOWN, confidence=0.0, note=note)
    first, other = each.pair.reference, each.pair.candidate
    if (
        len(first.records) > 1
        or len(other.records) > 1
        or first.first.layout.shape != other.first.layout.shape
    ):
        return each
    worst = apart(
        first.first.statistics,
        other.first.statistics,
        coarser(first.first.layout.dtype, other.first.layout.dtype),
    )
    expected = worst.share / worst.beyond if worst.beyond and math.isfinite(worst.beyond) else 0.0
    verdict = Verdict.WRONG if worst.beyond > 1 else Verdict.NOISE
    return each._replace(
        observed=worst.share, expected=expected, limit=1.0, verdict=verdict, confidence=0.7, note=worst.text
    )


def apart(ours: Statistics, theirs: Statistics, dtype: str) -> Apart:
    """Return in what two tensors' statistics differ most."""
    for name in _COUNTS:
        if getattr(ours, name) != getattr(theirs, name):
            return Apart(name, math.inf, math.inf, _told(name, ours, theirs))
    largest = max(ours.absmax, theirs.absmax)
    if not largest or math.isnan(largest):
        return Apart("absmax", 0.0, 0.0, "both are zero")
    step = rounding(dtype) * ALLOWED
    gaps = []
    for names, allowed in ((_SPREAD, step), (_SINGLE, step * SINGLE)):
        for name in names:
            share = abs(getattr(ours, name) - getattr(theirs, name)) / largest
            gaps.append(Apart(name, share, share / allowed, _told(name, ours, theirs)))
    norm = abs(ours.l2 - theirs.l2) / max(ours.l2, theirs.l2)
    gaps.append(Apart("l2", norm, norm / step, _told("l2", ours, theirs)))
    return max(gaps, key=lambda gap: gap.beyond)


def _told(name: str, ours: Statistics, theirs: Statistics) -> str:
    """Return both values; `theirs` are the baseline's, which is judged by today's run."""
    return f"{name} {getattr(theirs, name):.6g} -> {getattr(ours, name):.6g}"
