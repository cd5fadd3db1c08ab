"""A comparison as a report: the verdict, the way down to the first difference, the drift over depth, every tensor."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.compare.align.name_meanings import tensor_in_words
from trtdx.compare.nouns import PairVerdict
from trtdx.compare.report.portrait_nouns import TensorPortrait
from trtdx.model import Report, Section, Where
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.align.align import Alignment
    from trtdx.compare.locate.first_divergence import FirstDivergence
    from trtdx.compare.nouns import JudgedPair, UnmatchedTensor
    from trtdx.compare.sides.side import Side
    from trtdx.model import Cell, Finding
    from trtdx.pictures import Picture

NO_CAUSE = ("DX925", "DX946")  # nothing could be tried out, or nothing explains it
ROWS_BEFORE, ROWS_AFTER = 5, 3  # rows shown around the first wrong tensor
MOST_NEAREST = 5  # rows shown where nothing is wrong
MOST_LAYERS = 12
MOST_REASONS = 6
MOST_NOTES = 8
BAR_WIDTH = 20
ENOUGH_COVERAGE = 0.5  # of the tensors: with fewer compared, nothing is said of the model
_BAD = (PairVerdict.WRONG, PairVerdict.POISONED)
_LAYER_OUTPUT = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+):out(?:\.0|\[0\]|\.hidden_states)?$")


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


class UnmatchedRow(msgspec.Struct, frozen=True):
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
    def from_verdicts(cls, judged: Sequence[JudgedPair], unmatched: Sequence[UnmatchedTensor]) -> Coverage:
        compared = {result.pair.name for result in judged if result.verdict is not PairVerdict.UNKNOWN}
        lonely = {tensor.name for tensor in unmatched if tensor.side == "reference"}
        return cls(len(compared), len(compared | lonely | {result.pair.name for result in judged}))


class ComparisonReport(Report, frozen=True, kw_only=True):
    """What `trtdx compare` answers: a report, and every tensor that was compared."""

    tensors: tuple[TensorRow, ...] = ()
    unmatched: tuple[UnmatchedRow, ...] = ()
    segment_runs: int = 0
    coverage: Coverage = Coverage()
    portraits: tuple[TensorPortrait, ...] = ()  # of the worst tensors, where a page is to be made

    def pictures(self) -> tuple[Picture, ...]:
        """Return the drift over depth, and over depth and steps where there are several of both; then the worst tensors, folded."""
        from trtdx.compare.report.drift_chart import drift_chart, drift_map
        from trtdx.compare.report.portrait_pictures import draw_portrait_fold, portrait_anchors

        chart, heat_map = drift_chart(self), drift_map(self.tensors, portrait_anchors(self.portraits))
        rows = {(row.tensor, row.step): row for row in self.tensors}
        folds = (
            draw_portrait_fold(portrait, rows.get((portrait.tensor, portrait.step)), number)
            for number, portrait in enumerate(self.portraits)
        )
        return (*((chart,) if chart.curves else ()), *((heat_map,) if heat_map else ()), *folds)

    @property
    def compared(self) -> int:
        """How many tensors were judged."""
        return sum(row.verdict != PairVerdict.UNKNOWN.value for row in self.tensors)

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
    """Return the notes on a comparison; of many notes that say the same of different tensors, the first few."""
    alike: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        alike.setdefault(note.partition(" at step ")[2].partition(": ")[2] or note, []).append(note)
    rows = [f"{some[0]}; so in {len(some) - 1} more" if len(some) > 1 else some[0] for some in alike.values()]
    more = f"and {format_count(len(rows) - MOST_NOTES, 'more note')}" if len(rows) > MOST_NOTES else ""
    return Section("about", "about this comparison", ("",), tuple((row,) for row in rows[:MOST_NOTES]), more)


def tensor_row(judged: JudgedPair) -> TensorRow:
    """Return a verdict as a row."""
    first, other, difference = judged.pair.reference.first, judged.pair.candidate.first, judged.difference
    more: dict[str, Any] = {}
    if difference is not None:
        more = {
            "max_abs": difference.sums.max_abs, "max_rel": difference.sums.max_rel, "rms": difference.rms, "cosine": difference.cosine,
            "relative_l2": difference.relative_l2, "ulp_p50": difference.ulp_p50, "ulp_p99": difference.ulp_p99,
            "not_finite": difference.not_finite,
        }  # fmt: skip
    return TensorRow(
        tensor=judged.pair.name, candidate=other.name, step=judged.pair.step, how=judged.pair.matched_by,
        dtype=first.layout.dtype, candidate_dtype=other.layout.dtype, shape=list(first.layout.shape),
        verdict=judged.verdict.value, observed=judged.observed, expected=judged.expected, limit=judged.limit,
        ratio=judged.ratio, confidence=judged.confidence, basis=judged.basis, tokens=list(judged.tokens), note=judged.note,
        **more,
    )  # fmt: skip


def divergence_section(judged: Sequence[JudgedPair], first: JudgedPair | None) -> Section:
    """Return the table down to the first difference and what follows; where nothing is wrong, what came nearest to it."""
    ordered = [result for result in judged if result.verdict is not PairVerdict.UNKNOWN or result is first]
    columns = ("step", "tensor", "observed", "expected", "ratio", "verdict")
    if first is None:
        noisy = [result for result in ordered if result.verdict is not PairVerdict.SAME]
        nearest = sorted(noisy, key=lambda result: -result.ratio / (result.limit or 1.0))[:MOST_NEAREST]
        return Section("way", "nearest to their limits", columns, tuple(map(_divergence_row, nearest)))
    at = next((number for number, result in enumerate(ordered) if result.pair == first.pair), 0)
    shown = ordered[max(0, at - ROWS_BEFORE) : at + ROWS_AFTER + 1]
    return Section("way", "down to the first difference", columns, tuple(map(_divergence_row, shown)))


def _divergence_row(judged: JudgedPair) -> tuple[Cell, ...]:
    numbers: tuple[float | None, ...] = (judged.observed, judged.expected, judged.ratio)
    cells = (None,) * 3 if judged.verdict is PairVerdict.SAME else tuple(map(_round_number, numbers))
    rank = judged.pair.candidate.first.rank
    name = f"{judged.pair.name} rank {rank}" if rank and not judged.pair.candidate.join else judged.pair.name
    return (judged.pair.step, name, *cells, judged.verdict.value)


def output_layer(tensor: str) -> int | None:
    """Return the layer that a tensor leaves, if it is what leaves a whole layer."""
    match = _LAYER_OUTPUT.search(tensor)
    return int(match[1]) if match else None


def drift_section(judged: Sequence[JudgedPair]) -> Section:
    """Return the error of what leaves each layer at one step, beside what the precision explains.

    It is the first step at which a layer is wrong, or else the first. Of many layers a few are shown, among them
    those around the first that is wrong.
    """
    layers = [(number, result) for result in judged if (number := output_layer(result.pair.name)) is not None]
    bad = next((result.pair.step for _, result in layers if result.verdict in _BAD), None)
    step = bad if bad is not None else min((result.pair.step for _, result in layers), default=0)
    here = [(number, result) for number, result in layers if result.pair.step == step]
    if all(result.verdict is PairVerdict.SAME for _, result in here):
        here = []
    shown = _sample_layers(here)
    rows = tuple((number, *_drift_cells(result)) for number, result in shown)
    title = "drift over the layers" + (f" at step {step}" if step else "")
    note = f"{len(shown)} of {len(here)} layers" if len(shown) < len(here) else ""
    return Section("drift", title, ("layer", "observed", "expected", "ratio; | is its limit"), rows, note)


def _drift_cells(judged: JudgedPair) -> tuple[Cell, ...]:
    if judged.verdict is PairVerdict.SAME:
        return None, None, "same"
    return (
        _round_number(judged.observed),
        _round_number(judged.expected),
        _ratio_bar(judged.ratio, judged.limit),
    )


def _sample_layers(layers: Sequence[tuple[int, JudgedPair]]) -> list[tuple[int, JudgedPair]]:
    """Return few layers of many: spread evenly, and those around the first that is wrong."""
    if len(layers) <= MOST_LAYERS:
        return list(layers)
    bad = next((number for number, (_, result) in enumerate(layers) if result.verdict in _BAD), None)
    around = set() if bad is None else {bad - 1, bad, bad + 1} & set(range(len(layers)))
    spread = MOST_LAYERS - len(around)
    even = {round(number * (len(layers) - 1) / (spread - 1)) for number in range(spread)}
    return [layers[number] for number in sorted(around | even)]


def _ratio_bar(ratio: float, limit: float) -> str:
    """Return a bar whose middle is the limit, in decades."""
    if not math.isfinite(ratio):
        return "#" * BAR_WIDTH
    over = ratio / limit if limit else ratio
    filled = round(BAR_WIDTH / 2 + BAR_WIDTH / 6 * math.log10(over)) if over > 0 else 0
    filled = min(BAR_WIDTH, max(0, filled))
    middle = BAR_WIDTH // 2
    return "".join("|" if at == middle else "#" if at < filled else "." for at in range(BAR_WIDTH)) + f" {ratio:.3g}"


def _round_number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(f"{value:.3g}")


def alignment_section(alignment: Alignment) -> Section:
    """Return what has no counterpart, grouped by reason."""
    counts: dict[tuple[str, str], list[str]] = {}
    for tensor in alignment.unmatched:
        counts.setdefault((tensor.side, tensor.reason), []).append(tensor.name)
    rows = tuple((side, len(names), names[0], reason) for (side, reason), names in counts.items())
    more = len(rows) - MOST_REASONS
    note = f"and for {format_count(more, 'other reason')}; --json has all" if more > 0 else ""
    ordered = sorted(rows, key=lambda row: -row[1])
    columns = ("side", "tensors", "such as", "reason")
    return Section("unmatched", "not compared", columns, tuple(ordered[:MOST_REASONS]), note)


def verdict_text(
    located: FirstDivergence,
    judged: Sequence[JudgedPair],
    finding: Finding | None,
    unmatched: Sequence[UnmatchedTensor] = (),
) -> str:
    """Return the verdict in one sentence."""
    counts = {verdict: sum(one.verdict is verdict for one in judged) for verdict in PairVerdict}
    compared = len(judged) - counts[PairVerdict.UNKNOWN]
    if located.where is None and finding is not None:
        return finding.message
    if located.where is None or finding is None:
        if not compared:
            why = Counter(tensor.reason for tensor in unmatched).most_common(1)
            return f"nothing could be compared: {why[0][0] if why else 'there are no tensors to compare'}"
        share = Coverage.from_verdicts(judged, unmatched)
        if share.compared < ENOUGH_COVERAGE * share.total:
            return f"only {share.compared} of {format_count(share.total, 'tensor')} of the reference could be compared; these do not differ beyond what the precision explains, the others were not seen"
        same = f", {counts[PairVerdict.SAME]} of them bitwise the same" if counts[PairVerdict.SAME] else ""
        return f"no difference beyond what the precision explains: {format_count(compared, 'tensor')} compared{same}"
    where = located.where
    first = f"{tensor_in_words(where.tensor)} at step {where.step} is the first of {format_count(compared, 'tensor')} that is really wrong"
    return f"{first}; why is not known" if finding.code in NO_CAUSE else f"{first}: {finding.message}"
