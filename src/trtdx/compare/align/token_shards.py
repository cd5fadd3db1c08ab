"""Ranks that hold some of the tokens each, as with sequence parallelism: their rows follow each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtdx.compare.align.layouts import (
    FLAT,
    PACKED,
    TOKENS_FIRST,
    TOKENS_HELD,
    features_per_token,
    fit_tokens,
    token_forms,
)
from trtdx.compare.nouns import AlignedTensor, TensorPair, TokenRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.capture.store.reader import TensorRecord
    from trtdx.compare.align.name_matching import NameMatch
    from trtdx.compare.align.token_positions import TokenMatching
    from trtdx.compare.nouns import Array


BY_TOKENS = "tokens"  # how such ranks are joined
_AXES = {1: (TOKENS_FIRST,), 0: (FLAT, PACKED)}


def pair_token_shards(
    match: NameMatch,
    tokens: TokenMatching,
    step: int,
    reference: tuple[TensorRecord, ...],
    candidate: tuple[TensorRecord, ...],
    reference_form: str,
) -> TensorPair | None:
    """Return the pair of a tensor and its token shards on several ranks; None if the shards do not make it whole."""
    same_step = tokens.rows(step)
    shapes = [record.layout.shape for record in candidate]
    if isinstance(same_step, str) or len(same_step[0]) != 1 or len(candidate) < 2:
        return None
    feds = tokens.reference[step], tokens.candidate[same_step[0][0]]
    for axis, possible in _AXES.items():
        joined_shape = _joined_shape(shapes, axis)
        fitting = token_forms(joined_shape, feds[1]) if joined_shape else []
        form = next((form for form in fitting if form in possible), "")
        if not form or features_per_token(reference[0].layout.shape, reference_form) != features_per_token(
            joined_shape, form
        ):
            continue
        rows = tokens.rows(step, TOKENS_HELD.get(reference_form, ""), TOKENS_HELD.get(form, ""))
        if isinstance(rows, str):
            continue
        token_fit = fit_tokens(reference[0].layout.shape, joined_shape, reference_form, form, feds)
        at = _shard_row_order([shape[axis] for shape in shapes], joined_shape[0] if axis else 1)
        where = TokenRows(rows[1].reference, at[rows[1].candidate], rows[1].sequence, rows[1].position)
        whole, sharded = (
            AlignedTensor(reference[:1], "", token_fit.reference_changes),
            AlignedTensor(candidate, BY_TOKENS, token_fit.candidate_changes),
        )
        pair = TensorPair(match.name, step, whole, sharded, match.matched_by, token_fit.token_axis)
        return pair._replace(tokens=where, note="each rank holds some of the tokens")
    return None


def _joined_shape(shapes: Sequence[tuple[int, ...]], axis: int) -> tuple[int, ...]:
    """Return the shape of shards put together along an axis; () where the others differ."""
    first = shapes[0]
    if len(first) <= axis or any(
        (*shape[:axis], *shape[axis + 1 :]) != (*first[:axis], *first[axis + 1 :]) for shape in shapes
    ):
        return ()
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def _shard_row_order(lengths: Sequence[int], sequences: int) -> Array:
    """Return where each row of [sequences, tokens] is among the rows of shards that follow each other."""
    row_order = np.zeros((sequences, sum(lengths)), np.int64)
    begin = 0
    for length in lengths:
        rows = begin * sequences + np.arange(sequences * length).reshape(sequences, length)
        row_order[:, begin : begin + length] = rows
        begin += length
    return row_order.ravel()
