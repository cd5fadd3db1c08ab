"""Causes in what is computed: operators that should not be there, layers and experts that take more than their like."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trtdx.trace.causes.cause import LEAST_SHARE, TimeCause, longest_spans, render_us
from trtdx.trace.nouns import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.trace.causes.cause import TraceAnalysis
    from trtdx.trace.nouns import Context, RankTimeline

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?|layer)\.(\d+)(?:\.|$)")
CLASS_LAYER = re.compile(r"(?:^|\.)(\w*(?:Layer|Block))_(\d+)(?:\.|$)")
EXPERT = re.compile(r"(?:^|\.)experts\.(\d+)(?:\.|$)")
LEAST_LAYER_SHARE = 0.08
SLOW_LAYER, SKEWED_EXPERT = 1.6, 2.5
LEAST_SAMPLING_SHARE = 0.12
# Operators by what they are a sign of; a share of each is normal, so each has its own bar.
_OPERATOR_CAUSES = (
    ("DX1520", frozenset({"aten::cat", "aten::clone", "aten::index_select", "Concat"}), 0.08),
    ("DX1521", frozenset({"aten::to", "aten::_to_copy", "Cast", "DequantizeLinear"}), 0.10),
    (
        "DX1550",
        frozenset({"Transpose", "aten::contiguous", "Reorder", "ReorderInput", "ReorderOutput", "Reformat"}),
        0.15,
    ),
)
_DEQUANTISE = re.compile(r"(?i)dequant|unpack_?int4|int4_?to_?(?:half|bf16)")


def wasteful_operators(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield copies, conversions and reorderings that take more of the time than they should."""
    for code, operators, least in _OPERATOR_CAUSES:
        yield from _cause_where(
            analysis,
            code,
            lambda context, operators=operators: not context.cause and context.operator in operators,  # type: ignore[misc]
            least,
        )
    yield from _cause_where(
        analysis,
        "DX1576",
        lambda context: context.category is Category.COMPUTE and bool(_DEQUANTISE.search(context.name)),
        LEAST_SHARE,
    )
    yield from _cause_where(
        analysis,
        "DX1525",
        lambda context: context.phase == "sampling" and context.category is Category.COMPUTE and not context.cause,
        LEAST_SAMPLING_SHARE,
    )


def _cause_where(
    analysis: TraceAnalysis, code: str, holds: Callable[[Context], bool], least: float
) -> Iterator[TimeCause]:
    share = analysis.ledger.share(holds)
    if analysis.is_large(share, least):
        evidence = next(filter(None, (longest_spans(timeline, holds) for timeline in analysis.timelines)), ())
        yield TimeCause(code, share, evidence)


def slow_layers(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield the layer that takes much longer than the others of its kind."""
    for timeline in analysis.timelines:
        by_layer, totals = _time_by_part(timeline, _layer_of)
        if not by_layer:
            by_layer, totals = _time_by_part(timeline, _class_layer_of)
        if len(by_layer) < 4:
            continue
        typical = float(np.median(list(by_layer.values())))
        slowest = max(by_layer, key=by_layer.__getitem__)
        share = (totals[slowest] - float(np.median(list(totals.values())))) / timeline.wall
        if by_layer[slowest] > SLOW_LAYER * typical and share >= LEAST_LAYER_SHARE:
            values = {
                "layer": slowest,
                "factor": f"{by_layer[slowest] / typical:.1f}",
                "took": render_us(by_layer[slowest]),
                "typical": render_us(typical),
            }
            evidence = longest_spans(timeline, partial(_is_in_layer, slowest))
            yield TimeCause("DX1523", share, evidence, values, confidence=0.85)
            return


def _is_in_layer(layer: str, context: Context) -> bool:
    return layer in (_layer_of(context), _class_layer_of(context))


def _layer_of(context: Context) -> str | None:
    match = LAYER.search(context.module)
    return context.module[: match.end(1)] if match else None


def _class_layer_of(context: Context) -> str | None:
    """Return the layer by its class, where no annotation names its path."""
    match = CLASS_LAYER.search(context.module)
    return f"{match[1]}_{match[2]}" if match else None


def skewed_experts(analysis: TraceAnalysis) -> Iterator[TimeCause]:
    """Yield an expert that works while the others of its layer have little to do."""
    excess, wall = 0.0, 0.0
    hottest = ""
    for timeline in analysis.timelines:
        by_expert, totals = _time_by_part(timeline, _expert_of)
        layers: dict[str, dict[str, float]] = defaultdict(dict)
        for path, time in by_expert.items():
            layers[path.rpartition(".")[0]][path] = time
        for experts in layers.values():
            mean, top = float(np.mean(list(experts.values()))), max(experts, key=experts.__getitem__)
            if len(experts) > 1 and experts[top] > SKEWED_EXPERT * mean:
                even = float(np.mean([totals[path] for path in experts]))
                excess += sum(max(totals[path] - even, 0.0) for path in experts)
                hottest = hottest or top
        wall += timeline.wall
    share = excess / wall if wall else 0.0
    if analysis.is_large(share, LEAST_SHARE):
        evidence = longest_spans(analysis.timelines[0], lambda context: _expert_of(context) == hottest)
        yield TimeCause("DX1524", share, evidence, {"expert": hottest})


def _expert_of(context: Context) -> str | None:
    match = EXPERT.search(context.module)
    return context.module[: match.end(1)] if match else None


def _time_by_part(
    timeline: RankTimeline, part_of: Callable[[Context], str | None]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the time of each part in the typical step, which a disturbed step does not move, and in all of them."""
    parts = [part_of(context) for context in timeline.contexts]
    names = sorted({part for part in parts if part is not None})
    if not names:
        return {}, {}
    number_of = {name: number for number, name in enumerate(names)}
    of_context = np.array([-1 if part is None else number_of[part] for part in parts])
    part = of_context[timeline.segments.context]
    starts = np.array([step.start for step in timeline.steps] or [timeline.segments.start[0]])
    step = np.clip(np.searchsorted(starts, timeline.segments.start, side="right") - 1, 0, len(starts) - 1)
    kept = part >= 0
    table = np.zeros((len(starts), len(names)))
    np.add.at(table, (step[kept], part[kept]), timeline.segments.duration[kept])
    typical, total = np.median(table, axis=0).tolist(), table.sum(axis=0).tolist()
    return dict(zip(names, typical, strict=True)), dict(zip(names, total, strict=True))
