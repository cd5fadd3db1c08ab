"""The statistics kernel in NumPy, for installations without a compiler: the same results, more slowly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trtdx.tensors.dtypes import DTYPES, numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    Array = np.ndarray[Any, Any]

BLOCK_ELEMENTS = 1 << 16
MIN_SAMPLE, MAX_SAMPLE = 256, 1024
QUANTILES_PERMILLE = (10, 50, 250, 500, 750, 950, 990)
_BY_CODE = {dtype.code: dtype for dtype in DTYPES.values() if dtype.code >= 0}


class FloatLayout(NamedTuple):
    """Where a floating-point type keeps what: as integers of its size, without the sign."""

    unsigned: str
    normal: int  # the smallest that is not subnormal


FLOAT_LAYOUTS = {
    "float64": FloatLayout("<u8", 1 << 52),
    "float32": FloatLayout("<u4", 1 << 23),
    "float16": FloatLayout("<u2", 1 << 10),
    "bfloat16": FloatLayout("<u2", 1 << 7),
    "float8_e4m3fn": FloatLayout("<u1", 8),
    "float8_e5m2": FloatLayout("<u1", 4),
}


class _Moments:
    """Mean and squared distances from it, block by block, counted from the first value so that nothing cancels."""

    def __init__(self) -> None:
        self.count, self.origin, self.from_origin, self.m2 = 0, 0.0, 0.0, 0.0

    @property
    def mean(self) -> float:
        return self.origin + self.from_origin

    def add(self, values: Array) -> None:
        if not values.size:
            return
        if not self.count:
            self.origin = float(values[0])
        away = values - self.origin
        mean = float(away.mean())
        step, together = mean - self.from_origin, self.count + values.size
        self.from_origin += step * (values.size / together)
        self.m2 += float(np.square(away - mean).sum()) + step * step * self.count * (values.size / together)
        self.count = together


def measure_with_numpy(address: int, count: int, code: int) -> tuple[Any, ...]:
    """Return a row of statistics, in the order of `Statistics`, of what lies at an address."""
    from trtdx.tensors.statistics import view_memory

    dtype = _BY_CODE[code]
    raw = np.frombuffer(view_memory(address, count * dtype.bytes), np.uint8)
    low, high, counts = math.inf, -math.inf, np.zeros(5, np.int64)
    for part in _iter_blocks(raw, dtype.bytes):
        values = decode_floats(part, dtype.name)
        finite = values[np.isfinite(values)]
        low, high = min(low, finite.min(initial=math.inf)), max(high, finite.max(initial=-math.inf))
        counts += _count_specials(part, values, dtype.name)
    absmax = max(abs(low), abs(high))
    quantiles = _sample_quantiles(raw, count, dtype.name, dtype.bytes)
    if low > high:
        return (count, *counts.tolist(), *[math.nan] * 5, 0.0, *quantiles)
    exponent = _scaling_exponent(absmax) if dtype.name == "float64" else 0
    moments = _measure_moments(raw, dtype.name, dtype.bytes, exponent)
    mean = math.ldexp(moments.mean, exponent)
    std = math.ldexp(math.sqrt(moments.m2 / moments.count), exponent)
    l2 = _ldexp_or_inf(math.sqrt(moments.m2 + moments.count * moments.mean**2), exponent)
    return (count, *counts.tolist(), low + 0.0, high + 0.0, mean + 0.0, std, absmax, l2, *quantiles)


def _ldexp_or_inf(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf


def _scaling_exponent(absmax: float) -> int:
    """Return the power of two to divide by before squaring; 0 where squares fit anyway."""
    exponent = math.frexp(absmax)[1] if absmax else 0
    return 0 if abs(exponent) < 400 else max(exponent, -1000)


def _iter_blocks(raw: Array, size: int) -> Iterator[Array]:
    for start in range(0, raw.size, BLOCK_ELEMENTS * size):
        yield raw[start : start + BLOCK_ELEMENTS * size]


def _measure_moments(raw: Array, dtype: str, size: int, exponent: int) -> _Moments:
    moments = _Moments()
    for part in _iter_blocks(raw, size):
        values = decode_floats(part, dtype)
        moments.add(np.ldexp(values[np.isfinite(values)], -exponent))
    return moments


def _count_specials(part: Array, values: Array, dtype: str) -> Array:
    """Return how many are NaN, +Inf, -Inf, zero and subnormal."""
    special = [np.isnan(values).sum(), (values == math.inf).sum(), (values == -math.inf).sum()]
    layout = FLOAT_LAYOUTS.get(dtype)
    if layout is None:
        return np.array([*special, (values == 0).sum(), 0])
    unsigned = np.dtype(layout.unsigned)
    bits = part.view(unsigned) & unsigned.type((1 << (8 * unsigned.itemsize - 1)) - 1)
    zeros = (bits == 0).sum()
    return np.array([*special, zeros, (bits < layout.normal).sum() - zeros])


def sample_indices(count: int) -> Array:
    """Return the sample's indices: one from each of equal stretches, at a place that differs between them."""
    size = count if count <= MIN_SAMPLE else min(max(count // MIN_SAMPLE, MIN_SAMPLE), MAX_SAMPLE)
    if not size:
        return np.zeros(0, np.uint64)
    numbers = np.arange(size + 1, dtype=np.uint64)
    starts = numbers * np.uint64(count) // np.uint64(size)
    turns = (numbers[:-1] * np.uint64(0x9E3779B9)) & np.uint64(0xFFFFFFFF)
    return starts[:-1] + (turns * (starts[1:] - starts[:-1]) >> np.uint64(32))


def _sample_quantiles(raw: Array, count: int, dtype: str, size: int) -> list[float]:
    sample = decode_floats(raw.reshape(count, size)[sample_indices(count)].reshape(-1), dtype)
    ordered = np.sort(sample[np.isfinite(sample)])
    if not ordered.size:
        return [math.nan] * len(QUANTILES_PERMILLE)
    return [float(ordered[(permille * (ordered.size - 1) + 500) // 1000]) + 0.0 for permille in QUANTILES_PERMILLE]


def decode_floats(part: Array, dtype: str) -> Array:
    """Return raw bytes of a type as float64."""
    if dtype == "bool":  # any byte but 0 is true
        return np.asarray(part != 0, np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a value like others here
        return np.asarray(part.view(numpy_dtype(dtype)).astype(np.float64))
