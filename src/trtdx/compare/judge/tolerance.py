"""Tolerances that the user set, applied as they are and shown as such."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.align.pair_rows import iterate_row_pieces
from trtdx.compare.judge.metrics import measure_pair
from trtdx.compare.nouns import JudgedPair, PairVerdict

if TYPE_CHECKING:
    from trtdx.compare.nouns import TensorPair
    from trtdx.compare.sides.side import Side


class Tolerances(NamedTuple):
    """What the user allows: |candidate - reference| <= atol + rtol * |reference| for each element, or of the whole."""

    atol: float | None = None
    rtol: float | None = None
    relative_l2: float | None = None

    @property
    def text(self) -> str:
        parts = [f"{name} {value:g}" for name, value in self._asdict().items() if value is not None]
        return f"tolerance: {', '.join(parts)}"


def judge_by_tolerance(pair: TensorPair, reference: Side, candidate: Side, tolerances: Tolerances) -> JudgedPair:
    """Return whether a pair is within what the user allows."""
    difference = measure_pair(pair, reference, candidate).difference
    observed, expected = 0.0, 1.0
    if tolerances.atol is not None or tolerances.rtol is not None:
        observed = _largest_excess(pair, reference, candidate, tolerances.atol or 0.0, tolerances.rtol or 0.0)
    if tolerances.relative_l2 is not None and difference.relative_l2 > tolerances.relative_l2 * observed:
        observed, expected = difference.relative_l2, tolerances.relative_l2
    wrong = observed > expected or difference.not_finite > 0
    verdict = PairVerdict.WRONG if wrong else PairVerdict.NOISE
    observed = math.inf if difference.not_finite else observed
    return JudgedPair(pair, difference, observed, expected, 1.0, verdict, 1.0, tolerances.text)


def _largest_excess(pair: TensorPair, reference: Side, candidate: Side, atol: float, rtol: float) -> float:
    """Return the largest difference of an element over what is allowed there."""
    import numpy as np

    most = 0.0
    for reference_rows, candidate_rows in iterate_row_pieces(pair, reference, candidate):
        r, c = reference_rows.astype(np.float64), candidate_rows.astype(np.float64)
        with np.errstate(all="ignore"):
            apart, room = np.abs(c - r), atol + rtol * np.abs(r)
            over = np.where(apart > 0, apart / np.where(room > 0, room, 1e-300), 0.0)
        most = max(most, float(np.nanmax(over, initial=0.0)))
    return most
