"""A comparison as a report: the verdict, the way down to the first difference, the drift over depth, every tensor."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.compare.nouns import Verdict
from trtdx.model import Report, Section
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.align import Alignment
    from trtdx.compare.locate import Located
    from trtdx.compare.nouns import Judged
    from trtdx.model import Finding

UNEXPLAINED = "DX946"
BEFORE, AFTER = 6, 3  # rows shown around the first wrong tensor
BAR = 24
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+):out$")


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


class ComparisonReport(Report, frozen=True, kw_only=True):
    """What `trtdx compare` answers: a report, and every tensor that was compared."""

    tensors: tuple[TensorRow, ...] = ()
    unmatched: tuple[Lonely, ...] = ()
    segment_runs: int = 0


def tensor_row(each: Judged) -> TensorRow:
    """Return a verdict as a row."""
    first, other, found = each.pair.reference.first, each.pair.candidate.first, each.difference
    more: dict[str, Any] = {}
    if found is not None:
        more = {
            "max_abs": found.sums.max_abs, "max_rel": found.sums.max_rel, "rms": found.rms, "cosine": found.cosine,
            "relative_l2": found.relative_l2, "ulp_p50": found.ulp_p50, "ulp_p99": found.ulp_p99,
            "not_finite": found.not_finite,
        }  # fmt: skip
    return TensorRow(
        tensor=each.pair.name, candidate=other.name, step=each.pair.step, how=each.pair.how,
        dtype=first.layout.dtype, candidate_dtype=other.layout.dtype, shape=list(first.layout.shape),
        verdict=each.verdict.value, observed=each.observed, expected=each.expected, limit=each.limit,
        ratio=each.ratio, confidence=each.confidence, basis=each.basis, tokens=list(each.tokens), note=each.note,
        **more,
    )  # fmt: skip


def way_section(judged: Sequence[Judged], first: Judged | None) -> Section:
    """Return the table down to the first difference: what came just before, the tensor, and what follows."""
    ordered = [each for each in judged if each.verdict is not Verdict.UNKNOWN or each is first]
    at = next(
        (number for number, each in enumerate(ordered) if first is not None and each.pair == first.pair), None
    )
    begin = max(0, (at if at is not None else len(ordered)) - BEFORE)
    shown = ordered[begin : (at + AFTER + 1) if at is not None else None][-(BEFORE + AFTER + 1) :]
    rows = tuple(
        (
            each.pair.step,
            each.pair.name,
            *map(_number, (each.observed, each.expected, each.ratio)),
            each.verdict.value,
        )
        for each in shown
    )
    title = "down to the first difference" if first is not None else "the last tensors"
    return Section("way", title, ("step", "tensor", "observed", "expected", "ratio", "verdict"), rows)


def drift_section(judged: Sequence[Judged]) -> Section:
    """Return the error of what leaves each layer at the first step, beside what the precision explains."""
    rows = []
    for each in judged:
        found = _LAYER.search(each.pair.name)
        if found and each.pair.step == 0:
            rows.append(
                (int(found[1]), _number(each.observed), _number(each.expected), _bar(each.ratio, each.limit))
            )
    return Section(
        "drift",
        "drift over the layers",
        ("layer", "observed", "expected", "ratio over its limit"),
        tuple(rows),
    )


def _bar(ratio: float, limit: float) -> str:
    """Return a bar whose middle is the limit, in decades."""
    if not math.isfinite(ratio):
        return "#" * BAR
    over = ratio / limit if limit else ratio
    filled = round(BAR / 2 + BAR / 6 * math.log10(over)) if over > 0 else 0
    filled = min(BAR, max(0, filled))
    middle = BAR // 2
    return (
        "".join("#" if at < filled else "|" if at == middle else "." for at in range(BAR)) + f" {ratio:.3g}"
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.3g}")


def alignment_section(alignment: Alignment) -> Section:
    """Return what has no counterpart, grouped by reason."""
    counts: dict[tuple[str, str], list[str]] = {}
    for each in alignment.unmatched:
        counts.setdefault((each.side, each.reason), []).append(each.name)
    rows = tuple(
        (side, len(names), reason, listed(dict.fromkeys(names), 2))
        for (side, reason), names in counts.items()
    )
    return Section("unmatched", "not compared", ("side", "tensors", "reason", "such as"), rows[:20])


def verdict_text(located: Located, judged: Sequence[Judged], finding: Finding | None) -> str:
    """Return the verdict in one sentence."""
    counts = {verdict: sum(each.verdict is verdict for each in judged) for verdict in Verdict}
    compared = len(judged) - counts[Verdict.UNKNOWN]
    if located.where is None or finding is None:
        if not compared:
            return "nothing could be compared"
        same = f", {counts[Verdict.SAME]} of them bitwise the same" if counts[Verdict.SAME] else ""
        return (
            f"no difference beyond what the precision explains: {counted(compared, 'tensor')} compared{same}"
        )
    return f"{located.where.tensor} is the first of {counted(compared, 'tensor')} that is really wrong: {finding.message}"
