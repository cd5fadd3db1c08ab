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

    from trtdx.compare.nouns import Pair

    Kind = tuple[str, tuple[int, ...]]

ROUNDING_RMS = 0.43  # of a unit in the last place's half: the mean over mantissas, measured
OPERATIONS = 4  # roundings between two borders of modules that are captured
PRIOR_GAIN = 3.0  # of a module of which there is no other layer to learn from
WIDE = 3.0  # limits are so many times wider for float32 and float64: sums in another order, and mistakes stand out
LEAST_LAYERS = 3  # with the same module, before they are believed
# Terms of a sum that one more rounding's error stands for: accumulators are wider or in blocks.
SUM_EVERY = 64
QUANTISED = {8: 0.02, 4: 0.12}  # what a linear module's result is off by, relative, by bits of its weights

_NUMBER = re.compile(r"\d+")


class Seen(NamedTuple):
    """A pair's error as it was met: relative, of the whole tensor and of its worst row."""

    pair: Pair
    whole: float
    worst: float


class Expected(NamedTuple):
    """What the error should be, and how much more is still honest."""

    whole: float
    worst: float
    limit: float
    basis: str


def rounding(dtype: str) -> float:
    """Return the relative error, root mean square, of one rounding to a type; 0 of integers."""
    bits = PRECISION.get(dtype, (0, 0))[0]
    return ROUNDING_RMS * 2.0**-bits if bits else 0.0


def coarser(one: str, other: str) -> str:
    """Return which of two types rounds more."""
    return max((one, other), key=rounding)


def role(name: str) -> str:
    """Return a tensor's name without the number of its layer: the same module in other layers has the same."""
    return _NUMBER.sub("*", name)


def accumulated(dtype: str, terms: int) -> float:
    """Return the relative error of a sum of many products, computed in blocks, relative to its usual size."""
    return rounding(dtype) * math.sqrt(1 + terms / SUM_EVERY)


def _dtype(pair: Pair) -> str:
    return coarser(pair.reference.first.layout.dtype, pair.candidate.first.layout.dtype)


def _kind(pair: Pair) -> Kind:
    """Return what pairs of other layers and steps share: an argument may be something else when there is a cache."""
    shape = pair.reference.first.layout.shape
    return role(pair.name), (*shape[:-2], *shape[-1:])  # all but the tokens


class ErrorModel:
    """Learns from the tensors before what the next one's error should be; what was wrong is not learnt from."""

    def __init__(self, quantised_bits: int = 0) -> None:
        self._step = QUANTISED.get(quantised_bits, 0.0)
        self._gains: dict[Kind, list[float]] = {}
        self._worst: dict[Kind, list[float]] = {}
        self._level = 0.0  # the largest honest error so far

    def expected(self, pair: Pair, entering: Sequence[float]) -> Expected:
        """Return what a pair's error should be.

        Args:
            pair: what is asked about.
            entering: the relative errors of what it was computed from; none where nobody knows.
        """
        before = self._entering(pair, entering)
        wide = WIDE if rounding(_dtype(pair)) < rounding("float16") and not self._step else 1.0
        key = _kind(pair)
        gains, worst = self._gains.get(key, []), self._worst.get(key, [])
        if len(gains) >= LEAST_LAYERS:
            gain, spread = median(gains), max(gains) / max(median(gains), 1e-30)
            limit = max(wide * max(2.5, 1.5 * spread), 4.0 if self._step else 0.0)
            usual = before * gain
            return Expected(usual, usual * max(worst), limit, "error model, the same in other layers")
        # A quantiser's step is in the result, and not amplified.
        propagated_error = math.sqrt(max(0.0, before**2 - self._step**2))
        relative_error = math.hypot(propagated_error * PRIOR_GAIN, self._step)
        return Expected(relative_error, relative_error * 4, wide * 4.0, "error model")

    def _entering(self, pair: Pair, entering: Sequence[float]) -> float:
        dtype = _dtype(pair)
        shape = pair.reference.first.layout.shape
        rounding_error = accumulated(dtype, shape[-1] if shape else 1) * math.sqrt(OPERATIONS)
        entering_error = max(entering, default=self._level)
        return math.sqrt(entering_error**2 + rounding_error**2 + self._step**2)

    def learn(self, seen: Seen, entering: Sequence[float]) -> None:
        """Take in a pair that was healthy."""
        before = self._entering(seen.pair, entering)
        key = _kind(seen.pair)
        if seen.whole > 0:
            self._gains.setdefault(key, []).append(seen.whole / before)
            self._worst.setdefault(key, []).append(max(seen.worst / seen.whole, 1.0))
        self._level = max(self._level, seen.whole)
