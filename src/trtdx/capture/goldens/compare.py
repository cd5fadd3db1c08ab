"""Whether a test's tensors are still those of its golden, and if not, which was the first to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.capture.goldens.store import Golden, GoldenTensor, StoredValues, Values, sample_elements
from trtdx.tensors.closeness import EXACT, Tolerance, measure_closeness
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    Array = np.ndarray[Any, Any]

SAME, CLOSE, CHANGED, NEW, MISSING = "same", "close", "changed", "new", "missing"
NOW, THEN = "now", "recorded"
_COMPARED_STATISTICS = ("min", "max", "mean", "std")  # these move by no more than the elements do
_COMPARED_COUNTS = (("nan", "NaN"), ("pos_inf", "+Inf"), ("neg_inf", "-Inf"))


class GoldenVerdict(NamedTuple):
    """What became of one tensor."""

    tensor: GoldenTensor
    outcome: str
    lines: tuple[str, ...] = ()


class GoldenComparison(NamedTuple):
    """What became of a test's tensors: those of the golden in their order, then new ones."""

    golden: Golden
    verdicts: list[GoldenVerdict]

    def with_outcome(self, *outcomes: str) -> list[GoldenVerdict]:
        return [verdict for verdict in self.verdicts if verdict.outcome in outcomes]

    @property
    def compared_count(self) -> int:
        return len(self.with_outcome(SAME, CLOSE, CHANGED))

    @property
    def is_fine(self) -> bool:
        """Whether something was compared, and nothing changed or is missing."""
        return bool(self.compared_count) and not self.with_outcome(CHANGED, MISSING)

    def lines(self, now: Golden) -> Iterator[str]:
        """Yield what changed first, by how much, and what was recorded when by what."""
        if not self.golden.tensors:
            yield "the golden of this test has no tensor, so nothing was compared"
            return
        wrong = self.with_outcome(CHANGED, MISSING)
        first, title = wrong[0], wrong[0].tensor.title
        what = "is missing: the golden has it" if first.outcome == MISSING else "changed since it was recorded"
        order = "the only change" if len(wrong) == 1 else f"the first of {len(wrong)} changes"
        yield f"{title} {what} ({order}; {format_count(self.compared_count, 'tensor')} compared)"
        yield from first.lines
        for word, outcome in (("changed", CHANGED), ("missing", MISSING)):
            more = [verdict.tensor.title for verdict in wrong[1:] if verdict.outcome == outcome]
            if more:
                yield f"also {word}: {abbreviate_list(more)}"
        if self.with_outcome(NEW):
            yield f"not in the golden: {abbreviate_list(verdict.tensor.title for verdict in self.with_outcome(NEW))}"
        yield from _provenance_lines(self.golden, now)


def _provenance_lines(then: Golden, now: Golden) -> Iterator[str]:
    yield f"recorded {then.recorded} by {then.made_by} with {then.engine}"
    old = then.versions | {"platform": then.platform, "statistics kernel": then.kernel, "engine": then.engine}
    new = now.versions | {"platform": now.platform, "statistics kernel": now.kernel, "engine": now.engine}
    other = [f"{name} {old[name]} then, {new.get(name, 'none')} now" for name in old if old[name] != new.get(name)]
    if other:
        yield f"what differs since: {'; '.join(other)}"


def compare_with_golden(
    golden: Golden,
    values: Values,
    now: Sequence[GoldenTensor],
    arrays: Mapping[str, Array],
    tolerance: Tolerance,
) -> GoldenComparison:
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
            verdicts.append(GoldenVerdict(then, MISSING))
        else:
            verdicts.append(_judge_tensor(then, tensor, values, arrays.get(tensor.content), tolerance))
    return GoldenComparison(golden, verdicts + [GoldenVerdict(tensor, NEW) for tensor in tensors.values()])


def _judge_tensor(
    then: GoldenTensor, now: GoldenTensor, values: Values, array: Array | None, tolerance: Tolerance
) -> GoldenVerdict:
    layouts = f"{now.layout} now, {then.layout} recorded"
    if now.layout != then.layout:
        return GoldenVerdict(now, CHANGED, (layouts,))
    if now.hash == then.hash:
        return GoldenVerdict(now, SAME)
    stored = values.get(then.content)
    if stored is not None and array is not None and _has_same_elements(stored, then, array):
        shape = then.shape  # equal content may have been met in another shape
        distance = measure_closeness(stored.array().reshape(shape), array.reshape(shape), tolerance)
        return (
            GoldenVerdict(now, CLOSE)
            if distance.is_fine
            else GoldenVerdict(now, CHANGED, (*distance.lines(NOW, THEN), now.layout))
        )
    return _judge_by_sample(then, now, values.get(f"{then.content}~"), array, tolerance)


def _has_same_elements(stored: StoredValues, then: GoldenTensor, array: Array) -> bool:
    return stored.dtype == then.dtype and stored.elements == array.size


def _judge_by_sample(
    then: GoldenTensor,
    now: GoldenTensor,
    stored: StoredValues | None,
    array: Array | None,
    tolerance: Tolerance,
) -> GoldenVerdict:
    """Return the verdict on a tensor of which only statistics and perhaps a sample are there."""
    lines = list(_moved_statistics(then, now, tolerance))
    by = "statistics"
    if stored is not None and array is not None:
        sample = sample_elements(array)
        if _has_same_elements(stored, then, sample):
            by = f"statistics and {format_count(sample.size, 'element')}, drawn evenly"
            distance = measure_closeness(stored.array(), sample, tolerance)
            if not distance.is_fine:
                lines.append(_sample_difference(distance))
    measured = then.min is not None or then.nan or then.pos_inf or then.neg_inf
    if not lines and (not measured or tolerance.for_dtypes(then.dtype) == EXACT):
        lines.append("its content hash is another")
    return GoldenVerdict(now, CHANGED, (*lines, f"judged by {by}", now.layout)) if lines else GoldenVerdict(now, CLOSE)


def _sample_difference(measured: Any) -> str:
    return (
        f"{measured.beyond} of {measured.pairs} drawn elements are beyond rtol {measured.rtol:g}, atol {measured.atol:g}; "
        f"max abs {measured.max_abs:.4g}, max rel {measured.max_rel:.4g}"
    )


def _moved_statistics(then: GoldenTensor, now: GoldenTensor, tolerance: Tolerance) -> Iterator[str]:
    """Yield the statistics that moved by more than elements within the tolerance can move them."""
    for field, name in _COMPARED_COUNTS:
        before, after = getattr(then, field), getattr(now, field)
        if before != after:
            yield f"{name}: {after} now, {before} recorded"
    rtol, atol = tolerance.for_dtypes(then.dtype)
    allowed = atol + rtol * max(abs(then.min or 0.0), abs(then.max or 0.0))
    for field in _COMPARED_STATISTICS:
        before, after = getattr(then, field), getattr(now, field)
        if before is None or after is None:
            if before != after:
                yield f"{field}: {after} now, {before} recorded"
        elif abs(after - before) > allowed * (1 + 1e-9) + 1e-300:
            yield f"{field} {after:.9g} now, {before:.9g} recorded"
