"""A plan as pictures: what fills each rank, and the frontier with the set-up's own place in it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trtdx.errors import InputError
from trtdx.host import RealHost
from trtdx.memory.nouns import COMPONENTS, GIB
from trtdx.pictures import BarPart, HeatCell, HeatMap, StackedBar, StackedBars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.memory.ledger.frontier import FrontierPoint
    from trtdx.memory.report.plan import MemoryReport

PICTURE_SUFFIXES = (".png", ".svg", ".html")


def draw_ledger(memory: dict[str, Any] | None) -> StackedBars | None:
    """Return a bar a rank, made of what it holds in the order of allocation, below what the GPU has."""
    ranks = (memory or {}).get("ranks") or []
    if not ranks:
        return None
    capacity = max((rank.get("capacity_bytes") or 0 for rank in ranks), default=0) / GIB
    return StackedBars(
        title=f"what fills {'each' if len(ranks) > 1 else 'the'} GPU; the sum lies within the thin line nine times in ten",
        unit="GiB",
        bars=tuple(_rank_bar(rank) for rank in ranks),
        limit=round(capacity, 2),
        limit_name="the GPU has",
    )


def _rank_bar(rank: dict[str, Any]) -> StackedBar:
    components = [(label, rank.get(f"{name}_bytes")) for name, label in COMPONENTS.items()]
    parts = tuple(
        BarPart(label, figure["value"] / GIB) for label, figure in components if figure and figure["value"] > 0
    )
    total = rank["total_bytes"]
    return StackedBar(f"rank {rank['rank']}", parts, total["low"] / GIB, total["high"] / GIB)


def draw_frontier(points: Sequence[FrontierPoint], memory: dict[str, Any] | None) -> HeatMap | None:
    """Return the largest batch by length and step; the cell that the set-up lies in is marked."""
    if not points:
        return None
    steps = sorted({point.max_num_tokens for point in points})
    lengths = sorted({point.max_seq_len for point in points})
    by_place = {(point.max_seq_len, point.max_num_tokens): point for point in points}
    largest = max(point.max_batch_size for point in points)
    limits = ((memory or {}).get("setup") or {}).get("limits") or {}
    own = (limits.get("max_seq_len"), limits.get("max_num_tokens"))
    rows = tuple(
        (f"{length}", tuple(_frontier_cell(by_place[length, step], largest, own) for step in steps))
        for length in lengths
    )
    return HeatMap(
        title="the largest max_batch_size whose requests the cache holds all at once",
        across="max_num_tokens",
        replaces="frontier",
        down="max_seq_len",
        columns=tuple(f"{step}" for step in steps),
        rows=rows,
        note="The framed cell is the set-up that was asked about."
        if any(cell.is_marked for _, cells in rows for cell in cells)
        else "",
    )


def _frontier_cell(point: FrontierPoint, largest: int, own: tuple[int | None, int | None]) -> HeatCell:
    level = math.log2(1 + point.max_batch_size) / math.log2(1 + largest) if largest else 0.0
    detail = f"{point.kv_tokens} tokens of cache; what stands in the way of more: {point.binding}"
    if point.speed:
        detail += f"; at best {point.speed.tpot_ms:.3g} ms per token, {point.speed.tokens_per_s:.0f} tokens/s"
    is_own = (point.max_seq_len, point.max_num_tokens) == own
    return HeatCell(f"{point.max_batch_size}" if point.max_batch_size else "none", level, detail, is_own)


def write_frontier(report: MemoryReport, path: str) -> None:
    """Write the frontier as PNG or SVG, or the whole report as one page that needs nothing else."""
    kind = Path(path).suffix.lower()
    if kind not in PICTURE_SUFFIXES:
        raise InputError(f"--plot {path} is not a picture format", fix="name it .png, .svg or .html")
    title = _describe_setup((report.memory or {})["setup"])
    if kind == ".html":
        from trtdx.redact import redact_report
        from trtdx.render.html import render_html

        RealHost().write(path, render_html(redact_report(report), subject=title).encode())
        return
    from trtdx.render.charts import write_chart

    picture = draw_frontier(report.frontier, report.memory)
    assert picture is not None
    write_chart(replace(picture, title=f"{title}: {picture.title}"), path)


def _describe_setup(setup: dict[str, Any]) -> str:
    world = setup["layout"]["tp"] * setup["layout"]["pp"] * setup["layout"]["cp"]
    return f"{setup['model']} on {f'{world} x ' if world > 1 else ''}{setup['device']['name']}"
