"""Portraits of tensors as pictures: the values of both sides as histograms, and where in the tensor they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.pictures import BLUE, ORANGE, Chart, Curve, HeatCell, HeatMap, PictureFold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.report.comparison_report import TensorRow
    from trtdx.compare.report.portrait_nouns import TensorPortrait, ValueSummary


def portrait_anchors(portraits: Sequence[TensorPortrait]) -> dict[tuple[str, int], str]:
    """Return where a page shows each portrait, by tensor and step."""
    return {(portrait.tensor, portrait.step): _anchor(number) for number, portrait in enumerate(portraits)}


def _anchor(number: int) -> str:
    return f"tensor-{number + 1}"


def draw_portrait_fold(portrait: TensorPortrait, row: TensorRow | None, number: int) -> PictureFold:
    """Return a tensor in words and pictures; `row` is what was judged of it."""
    verdict = f": {row.verdict}" if row else ""
    lines = [_summary_words("reference", portrait.reference), _summary_words("candidate", portrait.candidate)]
    if row:
        allowed = row.expected * row.limit
        lines.insert(0, f"relative error {row.observed:.3g}, allowed {allowed:.3g}; shape {row.shape}")
    return PictureFold(
        title=f"{portrait.tensor} at step {portrait.step}{verdict}",
        anchor=_anchor(number),
        lines=(*lines, *((portrait.note,) if portrait.note else ())),
        pictures=(_histogram(portrait), _pattern_map(portrait)),
    )


def _summary_words(side: str, values: ValueSummary) -> str:
    lost = f", {values.not_finite} not finite" if values.not_finite else ""
    span = f"{values.smallest:.4g} to {values.largest:.4g}, mean {values.mean:.4g}, standard deviation {values.std:.4g}"
    return f"{side}: {span}{lost}"


def _histogram(portrait: TensorPortrait) -> Chart:
    middles = [(low + high) / 2 for low, high in zip(portrait.edges, portrait.edges[1:], strict=False)]
    sides = (
        ("reference", portrait.reference_counts, BLUE, "-"),
        ("candidate", portrait.candidate_counts, ORANGE, "--"),
    )
    return Chart(
        title="how often which values occur",
        x="value",
        y="count",
        curves=tuple(Curve(name, middles, counts, color, line) for name, counts, color, line in sides),
    )


def _pattern_map(portrait: TensorPortrait) -> HeatMap:
    strongest = max((value for row in portrait.pattern for value in row), default=0.0)
    return HeatMap(
        title=f"where it differs: {portrait.down} by {portrait.across}",
        is_alarming=True,
        across=portrait.across,
        down=portrait.down,
        columns=tuple(portrait.columns),
        rows=tuple(
            (name, tuple(_pattern_cell(value, strongest) for value in values))
            for name, values in zip(portrait.rows, portrait.pattern, strict=False)
        ),
        note="Error of each part over the size of a typical part of the reference.",
    )


def _pattern_cell(value: float, strongest: float) -> HeatCell:
    if value < 0:
        return HeatCell("not finite", 1.0, is_marked=True)
    return HeatCell(f"{value:.2g}", value / strongest if strongest > 0 else 0.0)
