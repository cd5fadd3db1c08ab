"""The frontier as a table: a row for each length, a column for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.model import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.memory.ledger.frontier import FrontierPoint
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


def _frontier_cell(point: FrontierPoint) -> str:
    return f"{point.max_batch_size or '-'} {COMPONENT_SHORT_NAMES.get(point.binding, point.binding)}"
