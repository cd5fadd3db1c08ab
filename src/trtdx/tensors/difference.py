"""How far two tensors are apart: one pass over both, in pieces if need be, in double precision.

A pair of which one is NaN or infinite is counted and left out of all sums. Relative errors are against the
reference; where that is zero there is none, and the pairs that differ there are counted. ULP are units in the last
place of the reference in the coarser of the two types, over a sample of at most 1024 pairs.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import InputError
from trtdx.tensors.dtypes import FLOAT_DTYPES, find_dtype
from trtdx.tensors.statistics import TensorSource, kernel_in_use, source_from_array, view_memory

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

try:
    from trtdx import _stats
except ImportError:  # installed without a compiler
    _stats = None  # type: ignore[assignment]

SUMS_STRUCT = struct.Struct("<10Q9d")  # `Pairs` in _stats_core.h
GROUP_PAIRS = 1 << 16  # pairs that the NumPy version looks at together
PRECISION = {  # bits of the significand, exponent of the smallest normal number
    "float64": (53, -1022), "float32": (24, -126), "float16": (11, -14), "bfloat16": (8, -126),
    "float8_e4m3fn": (4, -6), "float8_e5m2": (3, -14),
}  # fmt: skip


class DifferenceSums(NamedTuple):
    """What is added up while pairs pass by; `d` is candidate minus reference."""

    pairs: int = 0
    compared: int = 0  # pairs of finite values
    differing: int = 0
    from_zero: int = 0  # differing where the reference is zero
    nan_reference: int = 0  # NaN in the reference only
    nan_candidate: int = 0
    nan_both: int = 0
    inf_differing: int = 0  # an infinity against a finite value or the other infinity
    inf_equal: int = 0
    worst_at: int = 0  # index of the largest difference, counted over all pairs
    max_abs: float = 0.0
    max_rel: float = 0.0
    dd: float = 0.0
    rr: float = 0.0
    cc: float = 0.0
    rc: float = 0.0
    d: float = 0.0
    abs_d: float = 0.0
    block_max: float = 0.0  # the kernel's own


class TensorDifference(NamedTuple):
    """How two tensors differ; of no finite pairs, errors are NaN."""

    sums: DifferenceSums
    rms: float
    mean_abs: float
    bias: float
    relative_l2: float  # |candidate - reference| / |reference|
    cosine: float
    ulp_p50: float
    ulp_p99: float
    ulp_max: float  # of the sample

    @property
    def not_finite(self) -> int:
        """How many pairs disagree about being NaN or infinite."""
        return self.sums.nan_reference + self.sums.nan_candidate + self.sums.inf_differing


class TensorComparer:
    """Adds up the differences of two tensors that are given piece by piece."""

    def __init__(self, count: int, *, row_length: int = 0) -> None:
        """Start comparing.

        Args:
            count: pairs there will be in all.
            row_length: pairs in a row (a token's, say) to be judged by itself; each piece has whole rows.
        """
        self._count, self._row_length = count, row_length
        self._state = bytearray(SUMS_STRUCT.size)
        self._rows: list[bytes] = []
        self._ulps: list[Array] = []

    @property
    def sums(self) -> DifferenceSums:
        return DifferenceSums(*SUMS_STRUCT.unpack(self._state))

    def add(self, reference: Any, candidate: Any) -> None:
        """Add the next piece: arrays, or where their elements lie."""
        first, second = _as_source(reference), _as_source(candidate)
        length = self._row_length or max(first.elements, 1)
        if first.elements != second.elements or first.elements % length:
            raise InputError(
                f"{first.elements} values cannot be compared with {second.elements} in rows of {length}",
                fix="give pieces of equal size and of whole rows",
            )
        self._sample_ulps(first, second)
        rows = _compare_sources(self._state, first, second, length)
        if self._row_length:
            self._rows.append(rows)

    def rows(self) -> Array:
        """Return a line for each row: sum of d squared, of the reference squared, pairs compared."""
        import numpy as np

        return np.frombuffer(b"".join(self._rows), "<f8").reshape(-1, 3)

    def result(self) -> TensorDifference:
        sums = self.sums
        if not sums.compared:
            return TensorDifference(sums, *[math.nan] * 8)
        scale = math.sqrt(sums.rr * sums.cc)
        return TensorDifference(
            sums,
            rms=math.sqrt(sums.dd / sums.compared),
            mean_abs=sums.abs_d / sums.compared,
            bias=sums.d / sums.compared,
            relative_l2=math.sqrt(sums.dd / sums.rr) if sums.rr else math.inf if sums.dd else 0.0,
            cosine=sums.rc / scale if scale else 1.0 if not sums.dd else 0.0,
            **self._ulp_quantiles(),
        )

    def _sample_ulps(self, reference: TensorSource, candidate: TensorSource) -> None:
        from trtdx.tensors.statistics_numpy import sample_indices

        done = self.sums.pairs
        places = sample_indices(self._count)
        inside = places[(places >= done) & (places < done + reference.elements)] - done
        if inside.size and {reference.dtype, candidate.dtype} <= FLOAT_DTYPES:
            kind = min(reference.dtype, candidate.dtype, key=lambda name: PRECISION[name][0])
            self._ulps.append(
                _ulp_distances(_pick_elements(reference, inside), _pick_elements(candidate, inside), kind)
            )

    def _ulp_quantiles(self) -> dict[str, float]:
        import numpy as np

        ulps = np.sort(np.concatenate(self._ulps)) if self._ulps else np.zeros(0)
        if not ulps.size:
            return {"ulp_p50": math.nan, "ulp_p99": math.nan, "ulp_max": math.nan}
        middle, high = ((percent * (ulps.size - 1) + 50) // 100 for percent in (50, 99))
        return {"ulp_p50": float(ulps[middle]), "ulp_p99": float(ulps[high]), "ulp_max": float(ulps[-1])}


def measure_difference(reference: Any, candidate: Any, *, row_length: int = 0) -> TensorDifference:
    """Return how a candidate differs from a reference of as many elements."""
    first, second = _as_source(reference), _as_source(candidate)
    comparer = TensorComparer(first.elements, row_length=row_length)
    comparer.add(first, second)
    return comparer.result()


def _as_source(tensor: Any) -> TensorSource:
    return tensor if isinstance(tensor, TensorSource) else source_from_array(tensor)


def _source_floats(source: TensorSource) -> Array:
    import numpy as np

    from trtdx.tensors.statistics_numpy import decode_floats

    return decode_floats(np.frombuffer(view_memory(source.address, source.bytes), np.uint8), source.dtype)


def _pick_elements(source: TensorSource, places: Array) -> Array:
    import numpy as np

    from trtdx.tensors.statistics_numpy import decode_floats

    elements = np.frombuffer(view_memory(source.address, source.bytes), f"u{source.bytes // source.elements}")
    picked = elements.take(places.astype(np.int64))  # whole elements: half the time of picking their bytes
    return decode_floats(picked.view(np.uint8), source.dtype)


def _ulp_distances(reference: Array, candidate: Array, dtype: str) -> Array:
    import numpy as np

    finite = np.isfinite(reference) & np.isfinite(candidate)
    bits, smallest = PRECISION[dtype]
    exponents = np.frexp(reference[finite])[1] - 1
    exponents[reference[finite] == 0] = smallest
    with np.errstate(over="ignore"):
        apart = np.abs(candidate[finite] - reference[finite])
        ulps: Array = np.ldexp(apart, bits - 1 - np.maximum(exponents, smallest))
    return ulps


def _compare_sources(state: bytearray, reference: TensorSource, candidate: TensorSource, length: int) -> bytes:
    codes = find_dtype(reference.dtype).code, find_dtype(candidate.dtype).code
    if min(codes) < 0:
        raise InputError(f"{reference.dtype} and {candidate.dtype} values cannot be compared")
    if kernel_in_use() == "numpy":
        return _compare_numpy(state, reference, candidate, length)
    return _stats.compare(state, reference.address, codes[0], candidate.address, codes[1], reference.elements, length)


def _compare_numpy(state: bytearray, reference: TensorSource, candidate: TensorSource, length: int) -> bytes:
    import numpy as np

    sums = DifferenceSums(*SUMS_STRUCT.unpack(state))
    r, c = _source_floats(reference).reshape(-1, length), _source_floats(candidate).reshape(-1, length)
    together = max(1, GROUP_PAIRS // length)
    rows = [np.zeros((0, 3))]
    for start in range(0, len(r), together):
        sums, some = _add_pairs(sums, r[start : start + together], c[start : start + together])
        rows.append(some)
    SUMS_STRUCT.pack_into(state, 0, *sums)
    return np.concatenate(rows).tobytes()


def _add_pairs(sums: DifferenceSums, r: Array, c: Array) -> tuple[DifferenceSums, Array]:
    import numpy as np

    nan_r, nan_c = np.isnan(r), np.isnan(c)
    finite = np.isfinite(r) & np.isfinite(c)
    infinite = ~finite & ~nan_r & ~nan_c
    inf_equal = int((infinite & (r == c)).sum())
    r0, c0 = np.where(finite, r, 0.0), np.where(finite, c, 0.0)
    with np.errstate(all="ignore"):
        d = c0 - r0
        size = np.abs(d)
        relative = np.where(r0 != 0, size / np.abs(r0), 0.0)
        rows = np.stack([(d * d).sum(1), (r0 * r0).sum(1), finite.sum(1)], 1)
        cc, rc = float((c0 * c0).sum()), float((r0 * c0).sum())
    top = float(size.max(initial=0.0))
    return DifferenceSums(
        pairs=sums.pairs + r.size,
        compared=sums.compared + int(finite.sum()),
        differing=sums.differing + int((d != 0).sum()),
        from_zero=sums.from_zero + int(((d != 0) & (r0 == 0)).sum()),
        nan_reference=sums.nan_reference + int((nan_r & ~nan_c).sum()),
        nan_candidate=sums.nan_candidate + int((nan_c & ~nan_r).sum()),
        nan_both=sums.nan_both + int((nan_r & nan_c).sum()),
        inf_differing=sums.inf_differing + int(infinite.sum()) - inf_equal,
        inf_equal=sums.inf_equal + inf_equal,
        worst_at=sums.pairs + int(size.argmax()) if top > sums.max_abs else sums.worst_at,
        max_abs=max(sums.max_abs, top),
        max_rel=max(sums.max_rel, float(relative.max(initial=0.0))),
        dd=sums.dd + float(rows[:, 0].sum()),
        rr=sums.rr + float(rows[:, 1].sum()),
        cc=sums.cc + cc,
        rc=sums.rc + rc,
        d=sums.d + float(d.sum()),
        abs_d=sums.abs_d + float(size.sum()),
    ), rows
