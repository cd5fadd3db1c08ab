"""Tensors that rounding cannot affect: token ids, positions, masks. They are equal or wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.compare.align.pair_rows import iterate_row_pieces
from trtdx.tensors.dtypes import FLOAT_DTYPES

if TYPE_CHECKING:
    from trtdx.compare.nouns import Array, TensorPair
    from trtdx.compare.sides.side import Side


HIDDEN_SCORE = -1e3  # what a mask adds to hide a key is far below this, whatever it is
MOST_ROWS = 1 << 12
MANY_CHOICES_SHARE = 0.25  # of all tokens: so many near ties there are not


def is_mask(pair: TensorPair) -> bool:
    """Whether a pair is an attention mask, additive or boolean."""
    place = pair.reference.first.place
    kinds = {aligned.first.layout.dtype for aligned in (pair.reference, pair.candidate)}
    named_mask = "mask" in (place.argument or place.tensor or place.path).lower()
    return named_mask or ("bool" in kinds and bool(kinds & FLOAT_DTYPES))


def is_exact(pair: TensorPair) -> bool:
    """Whether two tensors that are not both floating have to be equal: masks, and integers of both."""
    kinds = {aligned.first.layout.dtype in FLOAT_DTYPES for aligned in (pair.reference, pair.candidate)}
    return is_mask(pair) or kinds == {False}


def is_chosen(pair: TensorPair) -> bool:
    """Whether integers depend on rounded numbers: the chosen experts, the most likely token."""
    place = pair.reference.first.place
    fed = (place.argument or place.tensor).lower()
    named_input = any(word in fed for word in ("ids", "position", "mask", "length"))
    embedded = any(word in f"{place.path} {place.op}".lower() for word in ("embed", "wte", "wpe", "rotary"))
    return bool(place.path) and not named_input and not embedded and not is_mask(pair)


def find_unequal_rows(pair: TensorPair, reference: Side, candidate: Side) -> tuple[list[int], int]:
    """Return the rows in which two tensors are not equal, and how many elements are not."""
    import numpy as np

    mask = is_mask(pair)
    rows: list[int] = []
    elements = done = 0
    for reference_rows, candidate_rows in iterate_row_pieces(pair, reference, candidate):
        first, second = (
            (_visible_keys(reference_rows), _visible_keys(candidate_rows)) if mask else (reference_rows, candidate_rows)
        )
        apart = np.asarray(first != second)
        elements += int(apart.sum())
        rows += (done + np.flatnonzero(apart.any(1))).tolist()[: MOST_ROWS - len(rows)]
        done += len(apart)
    return rows, elements


def _visible_keys(array: Array) -> Array:
    """Return which entries of a mask are visible: true, non-zero, or without a large negative number."""
    if array.dtype.kind == "b":
        return array
    return array != 0 if array.dtype.kind in "iu" else array.astype("f4") > HIDDEN_SCORE
