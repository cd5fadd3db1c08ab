"""A comparison as a report: the verdict, the way down to the first difference, the drift over depth, every tensor."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.compare.align.names import in_words
from trtdx.compare.nouns import Verdict
from trtdx.model import Report, Section, Where
from trtdx.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.align.align import Alignment
    from trtdx.compare.locate.first_divergence import Located
    from trtdx.compare.nouns import Judged, Unmatched
    from trtdx.compare.sides.side import Side
    from trtdx.model import Cell, Finding

NO_CAUSE = ("DX925", "DX946")  # nothing could be tried out, or nothing explains it
BEFORE, AFTER = 5, 3  # rows shown around the first wrong tensor
NEAREST = 5  # rows shown where nothing is wrong
MOST_LAYERS = 12
MOST_REASONS = 6
MOST_NOTES = 8
BAR = 20
MOSTLY = 0.5  # of the tensors: with fewer compared, nothing is said of the model
_BAD = (Verdict.WRONG, Verdict.POISONED)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+):out(?:\.0|\[0\]|\.hidden_states)?$")


class TensorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One aligned pair: how it differs, what was expected, and the verdict."""

    tensor: str
    candidate: str
    step: int
    how: str
    dtype: str
    candidate_dtype: str
    shape: list[int]
    verdict: str
    observed: float
    expected: float
    limit: float
    ratio: float
    confidence: float
    basis: str
    max_abs: float | None = None
    max_rel: float | None = None
    rms: float | None = None
    relative_l2: float | None = None
    cosine: float | None = None
    ulp_p50: float | None = None
    ulp_p99: float | None = None
    not_finite: int = 0
    tokens: list[int] = []
    note: str = ""


class Lonely(msgspec.Struct, frozen=True):
    """A tensor without a counterpart."""

    side: str
    tensor: str
    step: int
    reason: str


class Coverage(msgspec.Struct, frozen=True):
    """How many of the reference's tensors were compared; steps are not counted."""

    compared: int = 0
    total: int = 0

    @classmethod
    def measured(cls, judged: Sequence[Judged], unmatched: Sequence[Unmatched]) -> Coverage:
        compared = {result.pair.name for result in judged if result.verdict is not Verdict.UNKNOWN}
        lonely = {tensor.name for tensor in unmatched if tensor.side == "reference"}
        return cls(len(compared), len(compared | lonely | {result.pair.name for result in judged}))


class ComparisonReport(Report, frozen=True, kw_only=True):
    """What `trtdx compare` answers: a report, and every tensor that was compared."""

    tensors: tuple[TensorRow, ...] = ()
    unmatched: tuple[Lonely, ...] = ()
    segment_runs: int = 0
    coverage: Coverage = Coverage()

    @property
    def compared(self) -> int:
        """How many tensors were judged."""
        return sum(row.verdict != Verdict.UNKNOWN.value for row in self.tensors)

    @property
    def first(self) -> TensorRow | None:
        """The first tensor that is wrong, if one is; of those that only finer taps showed there is no row."""
        where = self.findings[0].where if self.findings else None
        if isinstance(where, Where):
            rows = (row for row in self.tensors if (row.tensor, row.step) == (where.tensor, where.step))
            return next(rows, None)
        return None


def missing_parts(*sides: Side) -> tuple[str, ...]:
    """Return what is missing of captures that were cut off, and of which."""
    notes = (f"{side.spec.path}: {note}" for side in sides for note in side.capture.partial)
    return tuple(dict.fromkeys(notes))


def about_section(notes: Sequence[str]) -> Section:
    """Return what is to be known about a comparison; of many notes that say the same of other tensors, the first few."""
    alike: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        alike.setdefault(note.partition(" at step ")[2].partition(": ")[2] or note, []).append(note)
    rows = [f"{some[0]}; so in {len(some) - 1} more" if len(some) > 1 else some[0] for some in alike.values()]
    more = f"and {counted(len(rows) - MOST_NOTES, 'more note')}" if len(rows) > MOST_NOTES else ""
    return Section("about", "about this comparison", ("",), tuple((row,) for row in rows[:MOST_NOTES]), more)


def tensor_row(each: Judged) -> TensorRow:
    """Return a verdict as a row."""
    first, other, difference = each.pair.reference.first, each.pair.candidate.first, each.difference
    more: dict[str, Any] = {}
    if difference is not None:
        more = {
            "max_abs": difference.sums.max_abs, "max_rel": difference.sums.max_rel, "rms": difference.rms, "cosine": difference.cosine,
            "relative_l2": difference.relative_l2, "ulp_p50": difference.ulp_p50, "ulp_p99": difference.ulp_p99,
            "not_finite": difference.not_finite,
        }  # fmt: skip
    return TensorRow(
        tensor=each.pair.name, candidate=other.name, step=each.pair.step, how=each.pair.how,
        dtype=first.layout.dtype, candidate_dtype=other.layout.dtype, shape=list(first.layout.shape),
        verdict=each.verdict.value, observed=each.observed, expected=each.expected, limit=each.limit,
        ratio=each.ratio, confidence=each.confidence, basis=each.basis, tokens=list(each.tokens), note=each.note,
        **more,
    )  # fmt: skip


def way_section(judged: Sequence[Judged], first: Judged | None) -> Section:
    """Return the table down to the first difference and what follows; where nothing is wrong, what came nearest to it."""
    ordered = [result for result in judged if result.verdict is not Verdict.UNKNOWN or result is first]
    columns = ("step", "tensor", "observed", "expected", "ratio", "verdict")
    if first is None:
        noisy = [result for result in ordered if result.verdict is not Verdict.SAME]
        nearest = sorted(noisy, key=lambda result: -result.ratio / (result.limit or 1.0))[:NEAREST]
        return Section("way", "nearest to their limits", columns, tuple(map(_way_row, nearest)))
    at = next((number for number, result in enumerate(ordered) if result.pair == first.pair), 0)
    shown = ordered[max(0, at - BEFORE) : at + AFTER + 1]
    return Section("way", "down to the first difference", columns, tuple(map(_way_row, shown)))


def _way_row(each: Judged) -> tuple[Cell, ...]:
    numbers: tuple[float | None, ...] = (each.observed, each.expected, each.ratio)
    cells = (None,) * 3 if each.verdict is Verdict.SAME else tuple(map(_number, numbers))
    rank = each.pair.candidate.first.rank
    name = f"{each.pair.name} rank {rank}" if rank and not each.pair.candidate.join else each.pair.name
    return (each.pair.step, name, *cells, each.verdict.value)


def layer_of_row(tensor: str) -> int | None:
    """Return the layer that a tensor leaves, if it is what leaves a whole layer."""
    match = _LAYER.search(tensor)
    return int(match[1]) if match else None


def drift_section(judged: Sequence[Judged]) -> Section:
    """Return the error of what leaves each layer at one step, beside what the precision explains.

    It is the first step at which a layer is wrong, or else the first. Of many layers a few are shown, among them
    those around the first that is wrong.
    """
    layers = [(number, result) for result in judged if (number := layer_of_row(result.pair.name)) is not None]
    bad = next((result.pair.step for _, result in layers if result.verdict in _BAD), None)
    step = bad if bad is not None else min((result.pair.step for _, result in layers), default=0)
    here = [(number, result) for number, result in layers if result.pair.step == step]
    if all(result.verdict is Verdict.SAME for _, result in here):
        here = []
    shown = _some_layers(here)
    rows = tuple((number, *_drift_cells(result)) for number, result in shown)
    title = "drift over the layers" + (f" at step {step}" if step else "")
    note = f"{len(shown)} of {len(here)} layers" if len(shown) < len(here) else ""
    return Section("drift", title, ("layer", "observed", "expected", "ratio; | is its limit"), rows, note)


def _drift_cells(each: Judged) -> tuple[Cell, ...]:
    if each.verdict is Verdict.SAME:
        return None, None, "same"
    return _number(each.observed), _number(each.expected), _bar(each.ratio, each.limit)


def _some_layers(layers: Sequence[tuple[int, Judged]]) -> list[tuple[int, Judged]]:
    """Return few layers of many: spread evenly, and those around the first that is wrong."""
    if len(layers) <= MOST_LAYERS:
        return list(layers)
    bad = next((number for number, (_, result) in enumerate(layers) if result.verdict in _BAD), None)
    around = set() if bad is None else {bad - 1, bad, bad + 1} & set(range(len(layers)))
    spread = MOST_LAYERS - len(around)
    even = {round(number * (len(layers) - 1) / (spread - 1)) for number in range(spread)}
    return [layers[number] for number in sorted(around | even)]


def _bar(ratio: float, limit: float) -> str:
    """Return a bar whose middle is the limit, in decades."""
    if not math.isfinite(ratio):
        return "#" * BAR
    over = ratio / limit if limit else ratio
    filled = round(BAR / 2 + BAR / 6 * math.log10(over)) if over > 0 else 0
    filled = min(BAR, max(0, filled))
    middle = BAR // 2
    return (
        "".join("|" if at == middle else "#" if at < filled else "." for at in range(BAR)) + f" {ratio:.3g}"
    )


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(f"{value:.3g}")


def alignment_section(alignment: Alignment) -> Section:
    """Return what has no counterpart, grouped by reason."""
    counts: dict[tuple[str, str], list[str]] = {}
    for tensor in alignment.unmatched:
        counts.setdefault((tensor.side, tensor.reason), []).append(tensor.name)
    rows = tuple((side, len(names), names[0], reason) for (side, reason), names in counts.items())
    more = len(rows) - MOST_REASONS
    note = f"and for {counted(more, 'other reason')}; --json has all" if more > 0 else ""
    ordered = sorted(rows, key=lambda row: -row[1])
    columns = ("side", "tensors", "such as", "reason")
    return Section("unmatched", "not compared", columns, tuple(ordered[:MOST_REASONS]), note)


def verdict_text(
    located: Located, judged: Sequence[Judged], finding: Finding | None, unmatched: Sequence[Unmatched] = ()
) -> str:
    """Return the verdict in one sentence."""
    counts = {verdict: sum(one.verdict is verdict for one in judged) for verdict in Verdict}
    compared = len(judged) - counts[Verdict.UNKNOWN]
    if located.where is None and finding is not None:
        return finding.message
    if located.where is None or finding is None:
        if not compared:
            why = Counter(tensor.reason for tensor in unmatched).most_common(1)
            return f"nothing could be compared: {why[0][0] if why else 'there are no tensors to compare'}"
        share = Coverage.measured(judged, unmatched)
        if share.compared < MOSTLY * share.total:
            return f"only {share.compared} of {counted(share.total, 'tensor')} of the reference could be compared; these do not differ beyond what the precision explains, the others were not seen"
        same = f", {counts[Verdict.SAME]} of them bitwise the same" if counts[Verdict.SAME] else ""
        return (
            f"no difference beyond what the precision explains: {counted(compared, 'tensor')} compared{same}"
        )
    where = located.where
    first = f"{in_words(where.tensor)} at step {where.step} is the first of {counted(compared, 'tensor')} that is really wrong"
    return f"{first}; why is not known" if finding.code in NO_CAUSE else f"{first}: {finding.message}"
