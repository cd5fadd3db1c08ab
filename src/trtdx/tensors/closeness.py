"""Whether two tensors are close, and in words where and how far they are not.

An element is close where |candidate - reference| <= atol + rtol * |reference|. NaN is close to NaN, and an infinity
to the same infinity. Without tolerances of the caller's, the coarser of the two types decides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    Array = np.ndarray[Any, Any]

# The usual ones of torch.testing, and half a unit in the last place of 8 bit types; the coarsest type first.
DEFAULT_TOLERANCES = {
    "float8_e8m0fnu": (0.5, 0.0), "float8_e5m2": (0.125, 2.0**-17), "float8_e4m3fn": (0.0625, 2.0**-10),
    "bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5), "float32": (1.3e-6, 1e-5), "complex64": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7), "complex128": (1e-7, 1e-7),
}  # fmt: skip
EXACT = (0.0, 0.0)


class Tolerance(NamedTuple):
    """What the caller allows; what is None is left to the types."""

    rtol: float | None = None
    atol: float | None = None

    def for_dtypes(self, *dtypes: str) -> tuple[float, float]:
        """Return the tolerances for tensors of these types."""
        usual = next((both for name, both in DEFAULT_TOLERANCES.items() if name in dtypes), EXACT)
        return (usual[0] if self.rtol is None else self.rtol, usual[1] if self.atol is None else self.atol)


class Closeness(NamedTuple):
    """How close two tensors of one shape are."""

    pairs: int
    beyond: int  # elements further apart than allowed
    differing: int
    rtol: float
    atol: float
    worst_at: tuple[int, ...]
    candidate: complex  # at the worst place
    reference: complex
    max_abs: float  # of the finite pairs
    max_rel: float
    nan_candidate: int  # NaN in the candidate only
    nan_reference: int
    inf_differing: int

    @property
    def is_fine(self) -> bool:
        return not self.beyond

    def lines(self, here: str, there: str) -> Iterator[str]:
        """Yield in words how far they are apart; `here` and `there` say which is which."""
        beyond = f"beyond rtol {self.rtol:g}, atol {self.atol:g}" if self.rtol or self.atol else "not equal"
        yield f"{self.beyond} of {format_count(self.pairs, 'element')} {'is' if self.beyond == 1 else 'are'} {beyond}"
        apart = abs(self.candidate - self.reference)
        where = f"worst at {list(self.worst_at)}: {format_number(self.candidate)} {here}, {format_number(self.reference)} {there}"
        yield where + (f", {apart:.4g} apart" if math.isfinite(apart) else "")
        yield f"max abs {self.max_abs:.4g}, max rel {self.max_rel:.4g}, {self.differing} not equal"
        if self.nan_candidate or self.nan_reference or self.inf_differing:
            yield (
                f"NaN: {self.nan_candidate} only {here}, {self.nan_reference} only {there}; "
                f"Inf: {self.inf_differing} differ"
            )


def format_number(value: complex) -> str:
    """Return a value so that it can be told from its neighbours."""
    if isinstance(value, complex):
        return f"{value:.9g}"
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.9g}"


def measure_closeness(reference: Array, candidate: Array, tolerance: Tolerance) -> Closeness:
    """Return how close a candidate is to a reference of the same shape."""
    import numpy as np

    rtol, atol = tolerance.for_dtypes(reference.dtype.name, candidate.dtype.name)
    r, c = _as_double(reference), _as_double(candidate)
    with np.errstate(all="ignore"):
        apart = np.abs(c - r)
        same = (r == c) | (np.isnan(r) & np.isnan(c))
        if reference.dtype.kind in "iu" and candidate.dtype.kind in "iu":
            same = np.asarray(reference == candidate)  # beyond 2**53 doubles do not tell
        allowed = atol + rtol * np.abs(r)
        beyond = ~same & ~((apart <= allowed) & np.isfinite(r)) | (~same & (allowed == 0))
        finite = np.isfinite(r) & np.isfinite(c)
        relative = np.where(finite & (r != 0), apart / np.abs(r), 0.0)
        excess = np.where(beyond, np.where(np.isfinite(apart), apart / np.maximum(allowed, 1e-300), np.inf), -1)
    at = int(excess.argmax()) if excess.size else 0
    nan_r, nan_c = np.isnan(r), np.isnan(c)
    return Closeness(
        pairs=r.size,
        beyond=int(beyond.sum()),
        differing=int((~same).sum()),
        rtol=rtol,
        atol=atol,
        worst_at=tuple(int(index) for index in np.unravel_index(at, r.shape)) if r.size else (),
        candidate=c.reshape(-1)[at].item() if r.size else 0.0,
        reference=r.reshape(-1)[at].item() if r.size else 0.0,
        max_abs=float(np.where(finite, apart, 0.0).max(initial=0.0)),
        max_rel=float(relative.max(initial=0.0)),
        nan_candidate=int((nan_c & ~nan_r).sum()),
        nan_reference=int((nan_r & ~nan_c).sum()),
        inf_differing=int((~finite & ~nan_r & ~nan_c & ~same).sum()),
    )


def _as_double(array: Array) -> Array:
    """Return values in double precision."""
    import numpy as np

    with np.errstate(invalid="ignore"):  # a signalling NaN is a value like others
        return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
