"""What statistics tell where the values were not kept: the hash says that bits differ, these say whether more than bits do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.judge.error_model import coarser_dtype, dtype_rounding_error
from trtdx.compare.nouns import JudgedPair, PairVerdict

if TYPE_CHECKING:
    from trtdx.tensors.statistics import Statistics

# Roundings of the largest value; each operation before adds its own, and the largest and least are single elements.
ALLOWED_ROUNDINGS = 64.0
SINGLE_ELEMENT_FACTOR = 8.0  # times as much for what one element decides
_SPREAD_STATISTICS = ("mean", "std", "p05", "p25", "p50", "p75", "p95")
_SINGLE_STATISTICS = ("min", "max", "p01", "p99")
_COUNT_STATISTICS = ("nan", "pos_inf", "neg_inf")


class StatisticGap(NamedTuple):
    """The statistic that two tensors differ in most, as a share of their largest value, over what is allowed."""

    name: str
    share: float
    excess: float
    text: str


def judge_by_statistics(judged_pair: JudgedPair, *, padded: bool = False) -> JudgedPair:
    """Return a verdict on a pair of which only statistics are known; any other verdict as it is.

    Args:
        judged_pair: a verdict.
        padded: whether there is padding in it: anything may stand there, and statistics count it.
    """
    if judged_pair.basis != "statistics" or judged_pair.verdict not in (
        PairVerdict.UNKNOWN,
        PairVerdict.WRONG,
    ):
        return judged_pair
    if padded:
        note = "only statistics were kept, and they count padding"
        return judged_pair._replace(verdict=PairVerdict.UNKNOWN, confidence=0.0, note=note)
    first, other = judged_pair.pair.reference, judged_pair.pair.candidate
    if len(first.records) > 1 or len(other.records) > 1 or first.first.layout.shape != other.first.layout.shape:
        return judged_pair
    worst = largest_statistic_gap(
        first.first.statistics,
        other.first.statistics,
        coarser_dtype(first.first.layout.dtype, other.first.layout.dtype),
    )
    expected = worst.share / worst.excess if worst.excess and math.isfinite(worst.excess) else 0.0
    verdict = PairVerdict.WRONG if worst.excess > 1 else PairVerdict.NOISE
    return judged_pair._replace(
        observed=worst.share, expected=expected, limit=1.0, verdict=verdict, confidence=0.7, note=worst.text
    )


def largest_statistic_gap(reference: Statistics, candidate: Statistics, dtype: str) -> StatisticGap:
    """Return in what two tensors' statistics differ most."""
    for name in _COUNT_STATISTICS:
        if getattr(reference, name) != getattr(candidate, name):
            return StatisticGap(name, math.inf, math.inf, _render_gap(name, reference, candidate))
    largest = max(reference.absmax, candidate.absmax)
    if not largest or math.isnan(largest):
        return StatisticGap("absmax", 0.0, 0.0, "both are zero")
    step = dtype_rounding_error(dtype) * ALLOWED_ROUNDINGS
    gaps = []
    for names, allowed in ((_SPREAD_STATISTICS, step), (_SINGLE_STATISTICS, step * SINGLE_ELEMENT_FACTOR)):
        for name in names:
            share = abs(getattr(reference, name) - getattr(candidate, name)) / largest
            gaps.append(StatisticGap(name, share, share / allowed, _render_gap(name, reference, candidate)))
    norm = abs(reference.l2 - candidate.l2) / max(reference.l2, candidate.l2)
    gaps.append(StatisticGap("l2", norm, norm / step, _render_gap("l2", reference, candidate)))
    return max(gaps, key=lambda gap: gap.excess)


def _render_gap(name: str, reference: Statistics, candidate: Statistics) -> str:
    """Return both values; `theirs` are the baseline's, which is judged by today's run."""
    return f"{name} {getattr(candidate, name):.6g} -> {getattr(reference, name):.6g}"
