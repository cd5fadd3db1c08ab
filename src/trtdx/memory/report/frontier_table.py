"""The frontier as a table: a row for each length, a column for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.memory.ledger.step_bounds import speeds_of
from trtdx.model import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.memory.ledger.frontier import FrontierPoint
    from trtdx.memory.nouns import Setup
    from trtdx.model import Cell


COMPONENT_SHORT_NAMES = {
    "KV cache": "kv", "max_num_tokens": "step", "weights": "weights", "activations and workspace": "act",
    "decoder and sampler buffers": "decoder", "runtime buffers": "runtime", "CUDA graphs": "graphs", "logits": "logits",
    "state kept for each sequence": "state", "NCCL and all-reduce buffers": "comm",
}  # fmt: skip


def frontier_section(points: Sequence[FrontierPoint]) -> Section:
    """Return the frontier as a table: a row for each length, a column for each step."""
    steps = sorted({point.max_num_tokens for point in points})
    lengths = sorted({point.max_seq_len for point in points})
    cells = {(point.max_seq_len, point.max_num_tokens): point for point in points}
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (length, *(_frontier_cell(cells[length, step]) for step in steps)) for length in lengths
    )
    words = sorted({point.binding for point in points})
    legend = ", ".join(
        f"{COMPONENT_SHORT_NAMES.get(word, word)}: {word}"
        for word in words
        if COMPONENT_SHORT_NAMES.get(word, word) != word
    )
    return Section(
        "frontier",
        "the largest max_batch_size, by max_seq_len (down) and max_num_tokens (across)",
        ("max_seq_len", *(str(step) for step in steps)),
        rows,
        note=f"all requests at full length at once; with more, some wait. Behind each: what stands in the way ({legend})",
    )


def speed_section(points: Sequence[FrontierPoint], setup: Setup) -> Section:
    """Return how fast the batches of the frontier can be at best, in steps of the size that was asked for."""
    step = setup.limits.max_num_tokens
    speeds = [(point.max_seq_len, point.speed) for point in points if point.speed and point.max_num_tokens == step]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            length,
            speed.batch,
            _format_band(speed.tpot_ms, speed.likely_tpot_ms),
            _format_band(speed.ttft_ms, speed.likely_ttft_ms),
            _format_band(speed.tokens_per_s, speed.likely_tokens_per_s),
            speed.binding,
        )
        for length, speed in speeds
    )
    columns = ("max_seq_len", "requests", "ms per token", "ms to the first", "tokens/s", "what binds")
    return Section(
        "speed", "how fast that is at best (in brackets: what is likely)", columns, rows, note=_speed_note(setup)
    )


def _speed_note(setup: Setup) -> str:
    if speeds_of(setup) is None:
        name = setup.device.name if setup.device else "this GPU"
        return f"trtdx has no figures of the bandwidth and arithmetic of {name}, so it says nothing about speed"
    return (
        f"steps of {setup.limits.max_num_tokens} tokens; half of each request is its prompt, and where one ends the next "
        f"comes; a request that has to wait for its turn, drafts and the host's own time are not counted"
    )


def _format_band(value: float, likely: tuple[float, float]) -> str:
    low, high = sorted(likely)
    return f"{_format_figure(value)} ({_format_figure(low)}-{_format_figure(high)})"


def _format_figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _frontier_cell(point: FrontierPoint) -> str:
    return f"{point.max_batch_size or '-'} {COMPONENT_SHORT_NAMES.get(point.binding, point.binding)}"
