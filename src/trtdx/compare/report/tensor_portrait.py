"""Portraits of the worst tensors: small enough for a case or a page, enough to see how a tensor is wrong.

A whole head that is off, one token, a band of channels: the picture of the difference tells what a single number cannot.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.align.pair_rows import iterate_row_pieces, row_tokens
from trtdx.compare.nouns import PairVerdict
from trtdx.compare.report.comparison_report import output_layer
from trtdx.compare.report.portrait_nouns import TensorPortrait, ValueSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.nouns import Array, JudgedPair, TensorPair
    from trtdx.compare.sides.side import Side

MOST_PORTRAITS = 24
MOST_ELEMENTS = 1 << 22  # of one tensor; the rest of a larger one is not looked at
BINS = 32
MOST_TOKENS, MOST_CHANNELS = 24, 16
_BAD = (PairVerdict.WRONG, PairVerdict.POISONED)


class ColumnGroups(NamedTuple):
    """Columns of a tensor that stand together in a pattern."""

    across: str
    names: list[str]
    starts: list[int]


def draw_portraits(judged: Sequence[JudgedPair], reference: Side, candidate: Side) -> tuple[TensorPortrait, ...]:
    """Return portraits of the worst tensors whose values were kept: the wrong ones first, then what came nearest to it."""
    worst = sorted((result for result in judged if _can_be_drawn(result)), key=_worst_first)
    portraits = (draw_portrait(result.pair, reference, candidate) for result in worst[:MOST_PORTRAITS])
    return tuple(portrait for portrait in portraits if portrait is not None)


def _can_be_drawn(judged: JudgedPair) -> bool:
    return judged.difference is not None and judged.verdict is not PairVerdict.SAME and judged.pair.has_values


def _worst_first(judged: JudgedPair) -> tuple[int, int, float]:
    """Order by verdict; what leaves a layer, which the map shows, stands before what is inside."""
    order = (PairVerdict.WRONG, PairVerdict.POISONED).index(judged.verdict) if judged.verdict in _BAD else 2
    return order, output_layer(judged.pair.name) is None, -judged.ratio / (judged.limit or 1.0)


def draw_portrait(pair: TensorPair, reference: Side, candidate: Side) -> TensorPortrait | None:
    """Return the portrait of a pair; None where it holds nothing."""
    import numpy as np

    pieces, elements = [], 0
    for reference_rows, candidate_rows in iterate_row_pieces(pair, reference, candidate):
        pieces.append((reference_rows.astype(np.float64), candidate_rows.astype(np.float64)))
        elements += reference_rows.size
        if elements >= MOST_ELEMENTS:
            break
    if not elements:
        return None
    first, second = (np.concatenate(side) for side in zip(*pieces, strict=True))
    edges, counts = _count_values(first, second)
    tokens = row_tokens(pair)[: len(first)]
    rows = _group_rows(len(first), [f"{token.sequence}:{token.position}" for token in tokens])
    columns = _group_columns(first.shape[1], pair.reference.first.layout.shape)
    is_cut = elements < math.prod(pair.reference.first.layout.shape)
    return TensorPortrait(
        tensor=pair.name,
        step=pair.step,
        reference=_summarize(first),
        candidate=_summarize(second),
        edges=edges,
        reference_counts=counts[0],
        candidate_counts=counts[1],
        pattern=_measure_pattern(first, second, rows.starts, columns.starts),
        down="sequence:token" if tokens else "row",
        rows=rows.names,
        across=columns.across,
        columns=columns.names,
        note=f"of the first {len(first)} rows" if is_cut and not tokens else "",
    )


def _summarize(values: Array) -> ValueSummary:
    import numpy as np

    finite = values[np.isfinite(values)]
    if not finite.size:
        return ValueSummary(0.0, 0.0, 0.0, 0.0, int(values.size))
    low, high, mean, std = (float(number) for number in (finite.min(), finite.max(), finite.mean(), finite.std()))
    return ValueSummary(low, high, mean, std, int(values.size - finite.size))


def _count_values(*sides: Array) -> tuple[list[float], list[list[int]]]:
    """Return the borders of bins that hold both sides, and how many values of each lie in them."""
    import numpy as np

    finite = [side[np.isfinite(side)] for side in sides]
    low = min((float(side.min()) for side in finite if side.size), default=0.0)
    high = max((float(side.max()) for side in finite if side.size), default=1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    return edges.tolist(), [np.histogram(side, edges)[0].tolist() for side in finite]


def _group_rows(count: int, names: Sequence[str]) -> ColumnGroups:
    starts = _even_starts(count, MOST_TOKENS)
    labels = names or [f"{number}" for number in range(count)]
    return ColumnGroups("", _span_names(starts, count, labels), starts)


def _group_columns(count: int, shape: Sequence[int]) -> ColumnGroups:
    """Return the heads of a tensor that has an axis for them, else even groups of channels."""
    heads = next((size for size in shape[1:-1] if size > 1 and size * shape[-1] == count), 0) if len(shape) > 3 else 0
    if 1 < heads <= 2 * MOST_CHANNELS:
        starts = list(range(0, count, count // heads))
        return ColumnGroups("head", [f"{head}" for head in range(heads)], starts)
    starts = _even_starts(count, MOST_CHANNELS)
    return ColumnGroups("channels", _span_names(starts, count, [f"{number}" for number in range(count)]), starts)


def _even_starts(count: int, most: int) -> list[int]:
    return list(range(0, count, max(1, math.ceil(count / most))))


def _span_names(starts: Sequence[int], count: int, labels: Sequence[str]) -> list[str]:
    ends = [*starts[1:], count]
    return [
        labels[start] if end - start == 1 else f"{labels[start]}–{labels[end - 1]}"  # noqa: RUF001  a range
        for start, end in zip(starts, ends, strict=True)
    ]


def _measure_pattern(first: Array, second: Array, rows: Sequence[int], columns: Sequence[int]) -> list[list[float]]:
    """Return the root of the squared difference over that of the reference's typical group; what is not finite is -1."""
    import numpy as np

    with np.errstate(all="ignore"):
        squares = np.add.reduceat(np.add.reduceat((second - first) ** 2, rows, 0), columns, 1)
        sizes = np.add.reduceat(np.add.reduceat(first**2, rows, 0), columns, 1)
        errors = np.sqrt(squares / (np.nanmean(np.where(np.isfinite(sizes), sizes, np.nan)) or 1.0))
    return [[float(f"{value:.3g}") if math.isfinite(value) else -1.0 for value in row] for row in errors.tolist()]
