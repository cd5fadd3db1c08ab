"""Whether a test's tensors are still those of its golden, and if not, which was the first to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.capture.goldens.store import Golden, GoldenTensor, Stored, Values, sample_of
from trtdx.tensors.closeness import EXACT, Tolerance, closeness
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    Array = np.ndarray[Any, Any]

SAME, CLOSE, CHANGED, NEW, MISSING = "same", "close", "changed", "new", "missing"
NOW, THEN = "now", "recorded"
_JUDGED = ("min", "max", "mean", "std")  # these move by no more than the elements do
_COUNTED = (("nan", "NaN"), ("pos_inf", "+Inf"), ("neg_inf", "-Inf"))


class Verdict(NamedTuple):
    """What became of one tensor."""

    tensor: GoldenTensor
    outcome: str
    told: tuple[str, ...] = ()


class Comparison(NamedTuple):
    """What became of a test's tensors: those of the golden in their order, then new ones."""

    golden: Golden
    verdicts: list[Verdict]

    def of(self, *outcomes: str) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.outcome in outcomes]

    @property
    def compared(self) -> int:
        return len(self.of(SAME, CLOSE, CHANGED))

    @property
    def fine(self) -> bool:
        """Whether something was compared, and nothing changed or is missing."""
        return bool(self.compared) and not self.of(CHANGED, MISSING)

    def lines(self, now: Golden) -> Iterator[str]:
        """Yield what changed first, by how much, and what was recorded when by what."""
        if not self.golden.tensors:
            yield "the golden of this test has no tensor, so nothing was compared"
            return
        wrong = self.of(CHANGED, MISSING)
        first, title = wrong[0], wrong[0].tensor.title
        what = (
            "is missing: the golden has it" if first.outcome == MISSING else "changed since it was recorded"
        )
        order = "the only change" if len(wrong) == 1 else f"the first of {len(wrong)} changes"
        yield f"{title} {what} ({order}; {counted(self.compared, 'tensor')} compared)"
        yield from first.told
        for word, outcome in (("changed", CHANGED), ("missing", MISSING)):
            more = [verdict.tensor.title for verdict in wrong[1:] if verdict.outcome == outcome]
            if more:
                yield f"also {word}: {listed(more)}"
        if self.of(NEW):
            yield f"not in the golden: {listed(verdict.tensor.title for verdict in self.of(NEW))}"
        yield from _provenance(self.golden, now)


def _provenance(then: Golden, now: Golden) -> Iterator[str]:
    yield f"recorded {then.recorded} by {then.made_by} with {then.engine}"
    old = then.versions | {"platform": then.platform, "statistics kernel": then.kernel, "engine": then.engine}
    new = now.versions | {"platform": now.platform, "statistics kernel": now.kernel, "engine": now.engine}
    other = [
        f"{name} {old[name]} then, {new.get(name, 'none')} now" for name in old if old[name] != new.get(name)
    ]
    if other:
        yield f"what differs since: {'; '.join(other)}"


def compare_with_golden(
    golden: Golden,
    values: Values,
    now: Sequence[GoldenTensor],
    arrays: Mapping[str, Array],
    tolerance: Tolerance,
) -> Comparison:
    """Return what became of each tensor of a golden.

    Args:
        golden: what was recorded.
        values: what was kept of values, by content.
        now: what the test saw.
        arrays: its values, by content, as far as they are held.
        tolerance: what the test allows.
    """
    tensors = {tensor.key: tensor for tensor in now}
    verdicts = []
    for then in golden.tensors:
        tensor = tensors.pop(then.key, None)
        if tensor is None:
            verdicts.append(Verdict(then, MISSING))
        else:
            verdicts.append(_judged(then, tensor, values, arrays.get(tensor.content), tolerance))
    return Comparison(golden, verdicts + [Verdict(tensor, NEW) for tensor in tensors.values()])


def _judged(
    then: GoldenTensor, now: GoldenTensor, values: Values, array: Array | None, tolerance: Tolerance
) -> Verdict:
    layouts = f"{now.layout} now, {then.layout} recorded"
    if now.layout != then.layout:
        return Verdict(now, CHANGED, (layouts,))
    if now.hash == then.hash:
        return Verdict(now, SAME)
    stored = values.get(then.content)
    if stored is not None and array is not None and _fits(stored, then, array):
        shape = then.shape  # equal content may have been met in another shape
        distance = closeness(stored.array().reshape(shape), array.reshape(shape), tolerance)
        return (
            Verdict(now, CLOSE)
            if distance.fine
            else Verdict(now, CHANGED, (*distance.lines(NOW, THEN), now.layout))
        )
    return _judged_in_part(then, now, values.get(f"{then.content}~"), array, tolerance)


def _fits(stored: Stored, then: GoldenTensor, array: Array) -> bool:
    return stored.dtype == then.dtype and stored.elements == array.size


def _judged_in_part(
    then: GoldenTensor, now: GoldenTensor, stored: Stored | None, array: Array | None, tolerance: Tolerance
) -> Verdict:
    """Return the verdict on a tensor of which only statistics and perhaps a sample are there."""
    lines = list(_moved(then, now, tolerance))
    by = "statistics"
    if stored is not None and array is not None:
        sample = sample_of(array)
        if _fits(stored, then, sample):
            by = f"statistics and {counted(sample.size, 'element')}, drawn evenly"
            distance = closeness(stored.array(), sample, tolerance)
            if not distance.fine:
                lines.append(_in_sample(distance))
    measured = then.min is not None or then.nan or then.pos_inf or then.neg_inf
    if not lines and (not measured or tolerance.of(then.dtype) == EXACT):
        lines.append("its content hash is another")
    return Verdict(now, CHANGED, (*lines, f"judged by {by}", now.layout)) if lines else Verdict(now, CLOSE)


def _in_sample(found: Any) -> str:
    return (
        f"{found.beyond} of {found.pairs} drawn elements are beyond rtol {found.rtol:g}, atol {found.atol:g}; "
        f"max abs {found.max_abs:.4g}, max rel {found.max_rel:.4g}"
    )


def _moved(then: GoldenTensor, now: GoldenTensor, tolerance: Tolerance) -> Iterator[str]:
    """Yield the statistics that moved by more than elements within the tolerance can move them."""
    for field, name in _COUNTED:
        before, after = getattr(then, field), getattr(now, field)
        if before != after:
            yield f"{name}: {after} now, {before} recorded"
    rtol, atol = tolerance.of(then.dtype)
    allowed = atol + rtol * max(abs(then.min or 0.0), abs(then.max or 0.0))
    for field in _JUDGED:
        before, after = getattr(then, field), getattr(now, field)
        if before is None or after is None:
            if before != after:
                yield f"{field}: {after} now, {before} recorded"
        elif abs(after - before) > allowed * (1 + 1e-9) + 1e-300:
            yield f"{field} {after:.9g} now, {before:.9g} recorded"
