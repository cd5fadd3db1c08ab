"""A key or value cache that lies in pages, read through its page table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtdx.compare.align.layouts import HEADS_FIRST, TOKENS_FIRST, Fit, transpose
from trtdx.compare.nouns import Aligned, Pair, TokenRows

if TYPE_CHECKING:
    from trtdx.capture.store.reader import Record
    from trtdx.compare.align.matching import Match
    from trtdx.compare.align.positions import Matching
    from trtdx.compare.align.side_tensors import Reading
    from trtdx.compare.nouns import Array


TABLES = ("block_tables", "block_table", "page_table", "page_tables", "kv_page_table", "kv_block_table")


def table_at(reading: Reading, step: int, named: str = "") -> Array | None:
    """Return which pages hold each sequence: [sequences, pages]."""
    table = reading.value(step, *([named] if named else TABLES))
    return table if table is not None and table.ndim == 2 and table.dtype.kind in "iu" else None


def page_rows(
    tokens: Matching,
    step: int,
    records: tuple[Record, ...],
    group: tuple[Record, ...],
    table: Array,
    form: str,
    match: Match,
) -> Pair | str:
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
    which = tokens.keys(step)
    if which is None:
        return ""
    rows, keys = which
    page, slot = keys[:, 1] // slots, keys[:, 1] % slots
    if len(keys) and (int(page.max()) >= table.shape[1] or int(keys[:, 0].max()) >= table.shape[0]):
        return f"the page table of shape {list(table.shape)} does not reach position {int(keys[:, 1].max())}"
    numbers = table[keys[:, 0], page].astype(np.int64)
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= shape[0]):
        return f"the page table names page {int(numbers.max())}, and there are {shape[0]}"
    fits = _together(form == HEADS_FIRST, first)
    sharded = len(group) > 1 and shape[1 if first else 2] * len(group) == heads
    candidate_records = group if sharded else group[:1]
    join = "concatenate -1" if len(candidate_records) > 1 else ""
    where = TokenRows(rows, numbers * slots + slot, keys[:, 0], keys[:, 1])
    reference, candidate = Aligned(records[:1], "", fits.ours), Aligned(candidate_records, join, fits.theirs)
    pair = Pair(match.name, step, reference, candidate, match.how, fits.axis)
    return pair._replace(tokens=where, note="the candidate's are in pages")


def _together(our_heads_first: bool, their_heads_first: bool) -> Fit:
    if our_heads_first == their_heads_first:
        return Fit((), (), 2 if our_heads_first else 1)
    turned = (transpose(0, 2, 1, 3),)
    return Fit(turned, (), 1) if our_heads_first else Fit((), turned, 1)
