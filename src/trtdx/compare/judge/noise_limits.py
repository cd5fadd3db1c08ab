"""Whether an error is more than expected, of the whole tensor and of each row: ratios, and limits that honest runs keep."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.judge.error_model import rounding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.judge.metrics import Measured
    from trtdx.compare.nouns import Array


QUIET = 0.25  # of the usual level: a row that was quieter by luck is expected to be as loud as this
MOST_TOKENS = 16  # named
UNIFORM = 1.15  # times the same module's error in other layers is still the same
LEANS = 0.5  # times the expected error, and it is no rounding


class Limits(NamedTuple):
    """How many times what is expected is still honest, of whole tensors and of rows, before chance is allowed for."""

    whole: float
    row: float
    floor: float = 1.0  # roundings of the result itself that are always expected


# Both sides on one engine, module by module the same: an honest run differs by chance alone. Measured: 1.19 and 1.51.
LOCAL_ALIKE = Limits(1.2, 1.35)
# Another engine rounds at other places: in bfloat16 a decomposed activation has twice the error of a fused one.
LOCAL_OTHER = Limits(2.2, 2.8, 1.5)
LOCAL_WIDE = Limits(8.0, 12.0, 3.0)  # float32 and float64: sums in another order, other approximations of exp
GLOBAL_ALIKE = Limits(1.3, 1.6)
GLOBAL_OTHER = Limits(2.5, 3.2, 1.5)
GLOBAL_WIDE = Limits(10.0, 16.0, 3.0)
# Roundings that an operation in float32 may always have: as many as the wide limits let it.
AMID_QUANTISED = 13.0


class Weighed(NamedTuple):
    """An error beside what is expected: of the whole tensor or of its worst row, whichever is further beyond."""

    observed: float
    expected: float
    limit: float
    beyond: float  # ratio over limit: more than 1 is wrong
    rows: tuple[int, ...]  # that are beyond their limit, worst first; none where all are alike
    spread: float  # share of the rows that are beyond
    whole: float = 0.0  # observed over expected, of the whole tensor
    error: float = 0.0  # of the whole tensor, relative to its size
    lean: float = 0.0  # how much of the error leans with or against the values, over what is expected

    @property
    def wrong(self) -> bool:
        return self.beyond > 1


def limits_for(dtype: str, *, local: bool, alike: bool, ranks: int = 1) -> Limits:
    """Return the limits for a candidate's type, on the same engine or another, on one rank or several."""
    if dtype in ("float32", "float64"):  # the same code too: a batch of another size sums in another order
        return LOCAL_WIDE if local else GLOBAL_WIDE
    if alike:
        return LOCAL_ALIKE if local else GLOBAL_ALIKE
    limits = LOCAL_OTHER if local else GLOBAL_OTHER
    more = max(1.0, math.sqrt(ranks / 4))  # each rank's part is rounded, and each sum of them
    return Limits(limits.whole * more, limits.row * more, limits.floor)


def is_rounding_elsewhere(weighed: Weighed, peers: Sequence[float]) -> bool:
    """Whether an error that is somewhat large is the same in other layers and leans nowhere: then code rounds more often.

    Args:
        weighed: beyond the limits for the same code.
        peers: the same ratio of the same module in other layers.
    """
    if not peers or weighed.lean > LEANS:
        return False
    return weighed.whole <= UNIFORM * median(peers)


def weigh(
    candidate: Measured,
    honest: Sequence[Measured],
    dtype: str,
    limits: Limits,
    *,
    chance: float,
    absolute: float = 0.0,
) -> Weighed:
    """Return a candidate's error from the truth beside that of honest runs.

    Args:
        candidate: measured against the truth.
        honest: measured against the same.
        dtype: the candidate's type: its rounding of the result is always expected.
        limits: what is honest.
        chance: how much a small sample may differ: 4 where elements err by themselves, more where together.
        absolute: an error of each element that is expected whatever its size.
    """
    import numpy as np

    errors, sizes, counts = candidate.errors, candidate.sizes, candidate.rows[:, 2]
    if not errors.size or not counts.sum():
        return Weighed(0.0, 0.0, limits.whole, 0.0, (), 0.0)
    expected = np.zeros_like(errors)
    for measured in honest:
        if len(measured.errors) == len(expected):
            expected = np.maximum(expected, measured.errors)
    with np.errstate(all="ignore"):
        shares = np.where(sizes > 0, expected / sizes, 0.0)
    expected = np.maximum(expected, QUIET * float(np.median(shares)) * sizes)
    expected = np.maximum(expected, (limits.floor * rounding(dtype)) ** 2 * sizes + absolute**2)
    tensor_error = _whole(errors, sizes, expected, counts, limits, chance)
    row_error = _rows(errors, sizes, expected, candidate.width, limits, chance)
    chosen = (
        row_error
        if row_error.beyond > tensor_error.beyond
        else tensor_error._replace(rows=row_error.rows, spread=row_error.spread)
    )
    return chosen._replace(
        error=tensor_error.observed,
        whole=_over(tensor_error.observed, tensor_error.expected),
        lean=_lean(candidate, honest, tensor_error.expected),
    )


def _lean(candidate: Measured, honest: Sequence[Measured], expected: float) -> float:
    """Return how far an error leans beyond those of honest runs: rounding does not, but what scales values does."""
    slopes = [_slope(measured) for measured in (candidate, *honest)]
    away = min((abs(slopes[0] - slope) for slope in slopes[1:]), default=abs(slopes[0]))
    return away / expected if expected else 0.0


def _slope(measured: Measured) -> float:
    sums = measured.difference.sums
    return (sums.rc - sums.rr) / sums.rr if sums.rr else 0.0


def _whole(
    errors: Array, sizes: Array, expected: Array, counts: Array, limits: Limits, chance: float
) -> Weighed:
    total = float((sizes * counts).sum()) or 1.0
    observed = math.sqrt(float((errors * counts).sum()) / total)
    usual = math.sqrt(float((expected * counts).sum()) / total)
    limit = limits.whole + chance / math.sqrt(float(counts.sum()))
    return Weighed(observed, usual, limit, _over(observed, usual) / limit, (), 0.0)


def _rows(errors: Array, sizes: Array, expected: Array, width: int, limits: Limits, chance: float) -> Weighed:
    import numpy as np

    limit = limits.row + chance / math.sqrt(max(width, 1))
    with np.errstate(all="ignore"):
        ratios = np.where(
            expected > 0,
            np.sqrt(errors / np.where(expected > 0, expected, 1.0)),
            np.where(errors > 0, np.inf, 0.0),
        )
    worst_row = int(ratios.argmax())
    size = math.sqrt(float(sizes[worst_row])) or 1.0
    wrong = np.flatnonzero(ratios > limit)
    worst = tuple(int(row) for row in wrong[np.argsort(-ratios[wrong], kind="stable")][:MOST_TOKENS])
    observed, usual = math.sqrt(float(errors[worst_row])) / size, math.sqrt(float(expected[worst_row])) / size
    return Weighed(observed, usual, limit, float(ratios[worst_row]) / limit, worst, len(wrong) / len(ratios))


def _over(observed: float, expected: float) -> float:
    return observed / expected if expected else math.inf if observed else 0.0
