"""A key or value cache that lies in pages, read through its page table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtdx.compare.align.layouts import HEADS_FIRST, TOKENS_FIRST, LayoutFit, transpose_change
from trtdx.compare.nouns import AlignedTensor, TensorPair, TokenRows

if TYPE_CHECKING:
    from trtdx.capture.store.reader import TensorRecord
    from trtdx.compare.align.name_matching import NameMatch
    from trtdx.compare.align.side_tensors import SideTensors
    from trtdx.compare.align.token_positions import TokenMatching
    from trtdx.compare.nouns import Array


TABLES = ("block_tables", "block_table", "page_table", "page_tables", "kv_page_table", "kv_block_table")


def read_page_table(side: SideTensors, step: int, table_name: str = "") -> Array | None:
    """Return which pages hold each sequence: [sequences, pages]."""
    table = side.kept_value(step, *([table_name] if table_name else TABLES))
    return table if table is not None and table.ndim == 2 and table.dtype.kind in "iu" else None


def pair_with_pages(
    tokens: TokenMatching,
    step: int,
    records: tuple[TensorRecord, ...],
    group: tuple[TensorRecord, ...],
    table: Array,
    form: str,
    match: NameMatch,
) -> TensorPair | str:
    """Return a pair of a step's new keys or values and the slots of the pages that hold them.

    Pages are [pages, heads, slots, size] or [pages, slots, heads, size]; heads are those of the reference, or a rank's
    share of them. Where both could be, heads come first, as in TensorRT-LLM.
    """
    shape, reference_shape = group[0].layout.shape, records[0].layout.shape
    if len(shape) != 4 or len(reference_shape) != 4 or form not in (HEADS_FIRST, TOKENS_FIRST):
        return f"pages of shape {list(shape)} against {list(reference_shape)}"
    heads = reference_shape[1 if form == HEADS_FIRST else 2]
    share = heads // len(group) if heads % len(group) == 0 else heads
    first = shape[1] in (heads, share)
    if not first and shape[2] not in (heads, share):
        return f"pages of shape {list(shape)} against {list(reference_shape)}: heads are {heads}"
    slots = shape[2 if first else 1]
    which = tokens.comparable_rows(step)
    if which is None:
        return ""
    rows, keys = which
    page, slot = keys[:, 1] // slots, keys[:, 1] % slots
    if len(keys) and (int(page.max()) >= table.shape[1] or int(keys[:, 0].max()) >= table.shape[0]):
        return f"the page table of shape {list(table.shape)} does not reach position {int(keys[:, 1].max())}"
    numbers = table[keys[:, 0], page].astype(np.int64)
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= shape[0]):
        return f"the page table names page {int(numbers.max())}, and there are {shape[0]}"
    fits = _fit_heads(form == HEADS_FIRST, first)
    sharded = len(group) > 1 and shape[1 if first else 2] * len(group) == heads
    candidate_records = group if sharded else group[:1]
    join = "concatenate -1" if len(candidate_records) > 1 else ""
    where = TokenRows(rows, numbers * slots + slot, keys[:, 0], keys[:, 1])
    reference, candidate = (
        AlignedTensor(records[:1], "", fits.reference_changes),
        AlignedTensor(candidate_records, join, fits.candidate_changes),
    )
    pair = TensorPair(match.name, step, reference, candidate, match.matched_by, fits.token_axis)
    return pair._replace(tokens=where, note="the candidate's are in pages")


def _fit_heads(reference_heads_first: bool, candidate_heads_first: bool) -> LayoutFit:
    if reference_heads_first == candidate_heads_first:
        return LayoutFit((), (), 2 if reference_heads_first else 1)
    turned = (transpose_change(0, 2, 1, 3),)
    return LayoutFit(turned, (), 1) if reference_heads_first else LayoutFit((), turned, 1)
