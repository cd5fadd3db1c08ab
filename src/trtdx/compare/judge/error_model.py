"""How large an error precision makes, where nothing can be run again: from types, depth and the tensors around.

One rounding moves a value by a known share of itself. Errors of many roundings add up like a random walk, so they
grow with the root of their number, through the depth of a model too. What a module makes of the error that enters it,
its gain, is about the same in every layer; a mistake is a jump against that.
"""

from __future__ import annotations

import math
import re
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from trtdx.tensors.difference import PRECISION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.nouns import TensorPair

    Kind = tuple[str, tuple[int, ...]]

ROUNDING_RMS = 0.43  # of a unit in the last place's half: the mean over mantissas, measured
OPERATIONS = 4  # roundings between two borders of modules that are captured
PRIOR_GAIN = 3.0  # of a module of which there is no other layer to learn from
WIDE_DTYPE_FACTOR = (
    3.0  # limits are so many times wider for float32 and float64: sums in another order, and mistakes stand out
)
LEAST_LAYERS = 3  # with the same module, before they are believed
# Terms of a sum that one more rounding's error stands for: accumulators are wider or in blocks.
SUM_EVERY = 64
QUANTISED_ERRORS = {
    8: 0.02,
    4: 0.12,
}  # what a linear module's result is off by, relative, by bits of its weights

_NUMBER = re.compile(r"\d+")


class ObservedError(NamedTuple):
    """A pair's measured error: relative, of the whole tensor and of its worst row."""

    pair: TensorPair
    overall: float
    worst_row: float


class ExpectedError(NamedTuple):
    """The expected error, and how much more is still noise."""

    overall: float
    worst_row: float
    limit: float
    basis: str


def dtype_rounding_error(dtype: str) -> float:
    """Return the relative error, root mean square, of one rounding to a type; 0 of integers."""
    bits = PRECISION.get(dtype, (0, 0))[0]
    return ROUNDING_RMS * 2.0**-bits if bits else 0.0


def coarser_dtype(left: str, right: str) -> str:
    """Return which of two types rounds more."""
    return max((left, right), key=dtype_rounding_error)


def tensor_role(name: str) -> str:
    """Return a tensor's name without the number of its layer: the same module in other layers has the same."""
    return _NUMBER.sub("*", name)


def accumulated_error(dtype: str, terms: int) -> float:
    """Return the relative error of a sum of many products, computed in blocks, relative to its usual size."""
    return dtype_rounding_error(dtype) * math.sqrt(1 + terms / SUM_EVERY)


def _coarser_pair_dtype(pair: TensorPair) -> str:
    return coarser_dtype(pair.reference.first.layout.dtype, pair.candidate.first.layout.dtype)


def _layer_kind(pair: TensorPair) -> Kind:
    """Return what pairs of other layers and steps share: an argument may be something else when there is a cache."""
    shape = pair.reference.first.layout.shape
    return tensor_role(pair.name), (*shape[:-2], *shape[-1:])  # all but the tokens


class ErrorModel:
    """Learns from the tensors before what the next one's error should be; what was wrong is not learnt from."""

    def __init__(self, quantised_bits: int = 0) -> None:
        self._quantiser_error = QUANTISED_ERRORS.get(quantised_bits, 0.0)
        self._gains: dict[Kind, list[float]] = {}
        self._worst: dict[Kind, list[float]] = {}
        self._largest_error = 0.0  # the largest honest error so far

    def expected_error(self, pair: TensorPair, entering: Sequence[float]) -> ExpectedError:
        """Return what a pair's error should be.

        Args:
            pair: what is asked about.
            entering: the relative errors of what it was computed from; none where nobody knows.
        """
        before = self._entering_error(pair, entering)
        wide = (
            WIDE_DTYPE_FACTOR
            if dtype_rounding_error(_coarser_pair_dtype(pair)) < dtype_rounding_error("float16")
            and not self._quantiser_error
            else 1.0
        )
        key = _layer_kind(pair)
        gains, worst = self._gains.get(key, []), self._worst.get(key, [])
        if len(gains) >= LEAST_LAYERS:
            gain, spread = median(gains), max(gains) / max(median(gains), 1e-30)
            limit = max(wide * max(2.5, 1.5 * spread), 4.0 if self._quantiser_error else 0.0)
            usual = before * gain
            return ExpectedError(usual, usual * max(worst), limit, "error model, the same in other layers")
        # A quantiser's step is in the result, and not amplified.
        propagated_error = math.sqrt(max(0.0, before**2 - self._quantiser_error**2))
        relative_error = math.hypot(propagated_error * PRIOR_GAIN, self._quantiser_error)
        return ExpectedError(relative_error, relative_error * 4, wide * 4.0, "error model")

    def _entering_error(self, pair: TensorPair, entering: Sequence[float]) -> float:
        dtype = _coarser_pair_dtype(pair)
        shape = pair.reference.first.layout.shape
        rounding_error = accumulated_error(dtype, shape[-1] if shape else 1) * math.sqrt(OPERATIONS)
        entering_error = max(entering, default=self._largest_error)
        return math.sqrt(entering_error**2 + rounding_error**2 + self._quantiser_error**2)

    def learn(self, observed: ObservedError, entering: Sequence[float]) -> None:
        """Take in a pair that was healthy."""
        before = self._entering_error(observed.pair, entering)
        key = _layer_kind(observed.pair)
        if observed.overall > 0:
            self._gains.setdefault(key, []).append(observed.overall / before)
            self._worst.setdefault(key, []).append(max(observed.worst_row / observed.overall, 1.0))
        self._largest_error = max(self._largest_error, observed.overall)
