"""Whether an error is more than expected, of the whole tensor and of each row: ratios, and limits that honest runs keep."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.judge.error_model import dtype_rounding_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.judge.metrics import PairMeasurement
    from trtdx.compare.nouns import Array


QUIET_SHARE = 0.25  # of the usual level: a row that was quieter by luck is expected to be as loud as this
MOST_TOKENS = 16  # named
UNIFORM_FACTOR = 1.15  # times the same module's error in other layers is still the same
LEAN_LIMIT = 0.5  # times the expected error, and it is no rounding


class NoiseLimits(NamedTuple):
    """How many times the expected error is still noise, of whole tensors and of rows, before chance is allowed for."""

    tensor: float
    row: float
    floor: float = 1.0  # roundings of the result itself that are always expected


# Both sides on one engine, module by module the same: an honest run differs by chance alone. Measured: 1.19 and 1.51.
LOCAL_ALIKE = NoiseLimits(1.2, 1.35)
# Another engine rounds at other places: in bfloat16 a decomposed activation has twice the error of a fused one.
LOCAL_OTHER = NoiseLimits(2.2, 2.8, 1.5)
LOCAL_WIDE = NoiseLimits(8.0, 12.0, 3.0)  # float32 and float64: sums in another order, other approximations of exp
GLOBAL_ALIKE = NoiseLimits(1.3, 1.6)
GLOBAL_OTHER = NoiseLimits(2.5, 3.2, 1.5)
GLOBAL_WIDE = NoiseLimits(10.0, 16.0, 3.0)
# Roundings that an operation in float32 may always have: as many as the wide limits let it.
AMID_QUANTISED_FLOOR = 13.0


class WeighedError(NamedTuple):
    """An error beside what is expected: of the whole tensor or of its worst row, whichever is further beyond."""

    observed: float
    expected: float
    limit: float
    excess: float  # ratio over limit: more than 1 is wrong
    rows: tuple[int, ...]  # that are beyond their limit, worst first; none where all are alike
    wrong_share: float  # share of the rows that are beyond
    tensor_ratio: float = 0.0  # observed over expected, of the whole tensor
    tensor_error: float = 0.0  # of the whole tensor, relative to its size
    lean: float = 0.0  # how much of the error leans with or against the values, over what is expected

    @property
    def is_wrong(self) -> bool:
        return self.excess > 1


def limits_for(dtype: str, *, local: bool, alike: bool, ranks: int = 1) -> NoiseLimits:
    """Return the limits for a candidate's type, on the same engine or another, on one rank or several."""
    if dtype in ("float32", "float64"):  # the same code too: a batch of another size sums in another order
        return LOCAL_WIDE if local else GLOBAL_WIDE
    if alike:
        return LOCAL_ALIKE if local else GLOBAL_ALIKE
    limits = LOCAL_OTHER if local else GLOBAL_OTHER
    more = max(1.0, math.sqrt(ranks / 4))  # each rank's part is rounded, and each sum of them
    return NoiseLimits(limits.tensor * more, limits.row * more, limits.floor)


def is_rounding_elsewhere(weighed: WeighedError, peers: Sequence[float]) -> bool:
    """Whether a moderate error is the same in other layers and unbiased: then the code merely rounds more often.

    Args:
        weighed: beyond the limits for the same code.
        peers: the same ratio of the same module in other layers.
    """
    if not peers or weighed.lean > LEAN_LIMIT:
        return False
    return weighed.tensor_ratio <= UNIFORM_FACTOR * median(peers)


def weigh_error(
    candidate: PairMeasurement,
    honest: Sequence[PairMeasurement],
    dtype: str,
    limits: NoiseLimits,
    *,
    chance: float,
    absolute: float = 0.0,
) -> WeighedError:
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

    errors, sizes, counts = candidate.row_errors, candidate.row_sizes, candidate.rows[:, 2]
    if not errors.size or not counts.sum():
        return WeighedError(0.0, 0.0, limits.tensor, 0.0, (), 0.0)
    expected = np.zeros_like(errors)
    for measured in honest:
        if len(measured.row_errors) == len(expected):
            expected = np.maximum(expected, measured.row_errors)
    with np.errstate(all="ignore"):
        shares = np.where(sizes > 0, expected / sizes, 0.0)
    expected = np.maximum(expected, QUIET_SHARE * float(np.median(shares)) * sizes)
    expected = np.maximum(expected, (limits.floor * dtype_rounding_error(dtype)) ** 2 * sizes + absolute**2)
    tensor_error = _weigh_tensor(errors, sizes, expected, counts, limits, chance)
    row_error = _weigh_rows(errors, sizes, expected, candidate.width, limits, chance)
    chosen = (
        row_error
        if row_error.excess > tensor_error.excess
        else tensor_error._replace(rows=row_error.rows, wrong_share=row_error.wrong_share)
    )
    return chosen._replace(
        tensor_error=tensor_error.observed,
        tensor_ratio=_error_ratio(tensor_error.observed, tensor_error.expected),
        lean=_error_lean(candidate, honest, tensor_error.expected),
    )


def _error_lean(candidate: PairMeasurement, honest: Sequence[PairMeasurement], expected: float) -> float:
    """Return how far an error leans beyond those of honest runs: rounding does not, but what scales values does."""
    slopes = [_error_slope(measured) for measured in (candidate, *honest)]
    away = min((abs(slopes[0] - slope) for slope in slopes[1:]), default=abs(slopes[0]))
    return away / expected if expected else 0.0


def _error_slope(measured: PairMeasurement) -> float:
    sums = measured.difference.sums
    return (sums.rc - sums.rr) / sums.rr if sums.rr else 0.0


def _weigh_tensor(
    errors: Array, sizes: Array, expected: Array, counts: Array, limits: NoiseLimits, chance: float
) -> WeighedError:
    total = float((sizes * counts).sum()) or 1.0
    observed = math.sqrt(float((errors * counts).sum()) / total)
    usual = math.sqrt(float((expected * counts).sum()) / total)
    limit = limits.tensor + chance / math.sqrt(float(counts.sum()))
    return WeighedError(observed, usual, limit, _error_ratio(observed, usual) / limit, (), 0.0)


def _weigh_rows(
    errors: Array, sizes: Array, expected: Array, width: int, limits: NoiseLimits, chance: float
) -> WeighedError:
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
    return WeighedError(observed, usual, limit, float(ratios[worst_row]) / limit, worst, len(wrong) / len(ratios))


def _error_ratio(observed: float, expected: float) -> float:
    return observed / expected if expected else math.inf if observed else 0.0
