"""The two tensors of a pair as rows that can be compared, piece by piece: tokens where they are known, no padding.

Values stay mapped; only the rows of a piece are ever copied, and what was read is let go again. So the largest captures
are compared in little memory.
"""

from __future__ import annotations

import math
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.capture.store.reader import Capture
    from trtdx.compare.nouns import AlignedTensor, Array, TensorPair
    from trtdx.compare.sides.side import Side


PIECE_ELEMENTS = 1 << 20  # elements at a time
RELEASE_BYTES = 32 << 20  # bytes read of one side, after which their memory is let go


class TokenPosition(NamedTuple):
    """Which token a row is of."""

    sequence: int
    position: int


def iterate_row_pieces(pair: TensorPair, reference: Side, candidate: Side) -> Iterator[tuple[Array, Array]]:
    """Yield both tensors of a pair in pieces of whole rows: arrays [rows, columns] of the same shape.

    Raises:
        CaptureError: the values of one were not kept.
    """
    reference_rows, candidate_rows = rows_of_pair(pair, reference.capture, candidate.capture)
    count = reference_rows.count if pair.tokens is None else len(pair.tokens)
    together, done = max(1, PIECE_ELEMENTS // max(reference_rows.columns, 1)), 0
    for start in range(0, count, together):
        span = slice(start, min(start + together, count))
        if pair.tokens is None:
            first, second = reference_rows.span(span), candidate_rows.span(span)
        else:
            first, second = (
                reference_rows.take(pair.tokens.reference[span]),
                candidate_rows.take(pair.tokens.candidate[span]),
            )
        yield first, second
        done += first.nbytes + second.nbytes
        if done >= RELEASE_BYTES:
            reference_rows.release_memory()
            candidate_rows.release_memory()
            done = 0
    reference_rows.release_memory()
    candidate_rows.release_memory()


def rows_of_pair(pair: TensorPair, reference: Capture, candidate: Capture) -> tuple[AlignedRows, AlignedRows]:
    """Return both tensors of a pair as rows, of the same length where no tokens say which row is which."""
    reference_rows = AlignedRows(pair.reference, reference, pair.token_axis)
    candidate_rows = AlignedRows(pair.candidate, candidate, pair.token_axis)
    if pair.tokens is None and pair.token_axis is None:
        candidate_rows.reshape(reference_rows.columns)
    return reference_rows, candidate_rows


def row_tokens(pair: TensorPair) -> list[TokenPosition]:
    """Return the token of each row, its position counted without padding; empty if tokens are not known."""
    if pair.tokens is None:
        return []
    both = zip(pair.tokens.sequence.tolist(), pair.tokens.position.tolist(), strict=True)
    return [TokenPosition(*token) for token in both]


class _ShardRows(NamedTuple):
    """One record of a step, as rows: [sequences, tokens, ...] where it has tokens, else [rows, columns]."""

    array: Array
    tokens: bool

    @property
    def rows(self) -> int:
        return math.prod(self.array.shape[: 2 if self.tokens else 1])

    def span(self, begin: int, end: int) -> Array:
        """Return rows that follow each other, copied only where they do not lie so."""
        if not self.tokens:
            return self.array[begin:end]
        length = self.array.shape[1]
        row = begin // length
        if (end - 1) // length == row:
            return self.array[row, begin - row * length : end - row * length].reshape(end - begin, -1)
        return self.take(np.arange(begin, end))

    def take(self, rows: Array) -> Array:
        if not self.tokens:
            return self.array[rows]
        length = self.array.shape[1]
        some: Array = self.array[rows // length, rows % length]
        return some.reshape(len(rows), -1)


class AlignedRows:
    """One side of a pair as rows."""

    def __init__(self, aligned: AlignedTensor, capture: Capture, axis: int | None) -> None:
        self._aligned, self._capture = aligned, capture
        apart = aligned.join == "tokens"  # ranks whose rows follow each other
        self._steps = [
            [_shard_rows(aligned, capture.values(record), axis) for record in group]
            for _, group in groupby(aligned.records, key=lambda record: (record.step, apart and record.rank))
        ]
        if aligned.join.startswith("concatenate") and axis is None:
            self._steps = [[_concatenate_shards(shards, aligned.join)] for shards in self._steps]
        self._starts = [0, *accumulate(shards[0].rows for shards in self._steps)]
        self.count = self._starts[-1]

    @property
    def columns(self) -> int:
        return int(self.span(slice(0, 1)).shape[-1]) if self.count else 0

    def reshape(self, columns: int) -> None:
        """Divide a tensor without tokens into rows of another length."""
        if len(self._steps) == 1 and len(self._steps[0]) == 1 and columns and self.columns != columns:
            array = self._steps[0][0].array.reshape(-1, columns)
            self._steps, self._starts, self.count = [[_ShardRows(array, False)]], [0, len(array)], len(array)

    def span(self, span: slice) -> Array:
        for begin, end, shards in zip(self._starts[:-1], self._starts[1:], self._steps, strict=True):
            if begin <= span.start and span.stop <= end:
                return self._join_shards([shard.span(span.start - begin, span.stop - begin) for shard in shards])
        return self.take(np.arange(span.start, span.stop))

    def take(self, rows: Array) -> Array:
        """Return some rows, in their order."""
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (len(rows) < 3 or (np.diff(rows) == 1).all()):
            for begin, end in zip(self._starts[:-1], self._starts[1:], strict=True):
                if begin <= rows[0] and rows[-1] < end:
                    return self.span(slice(int(rows[0]), int(rows[-1]) + 1))
        if len(self._steps) == 1:
            return self._join_shards([shard.take(rows) for shard in self._steps[0]])
        which = np.searchsorted(self._starts, rows, side="right") - 1
        result: Array | None = None
        for number, shards in enumerate(self._steps):
            here = np.flatnonzero(which == number)
            if not here.size:
                continue
            part = self._join_shards([shard.take(rows[here] - self._starts[number]) for shard in shards])
            if result is None:
                result = np.empty((len(rows), part.shape[1]), part.dtype)
            result[here] = part
        return np.zeros((0, 1)) if result is None else result

    def release_memory(self) -> None:
        for record in self._aligned.records:
            self._capture.forget(record)

    def _join_shards(self, parts: list[Array]) -> Array:
        if len(parts) == 1:
            array = parts[0]
        elif self._aligned.join == "sum":
            array = np.sum([part.astype(np.float64) for part in parts], 0)
        else:
            array = np.concatenate(parts, 1)
        for change in self._aligned.joined_changes:
            array = change.apply(array)
        return array


def _shard_rows(aligned: AlignedTensor, array: Array, axis: int | None) -> _ShardRows:
    for change in aligned.changes:
        array = change.apply(array)
    if axis is None:
        if aligned.join.startswith("concatenate"):
            return _ShardRows(array, False)  # joined along its own axis first
        return _ShardRows(_as_rows(array), False)
    return _ShardRows(array[None] if axis == 0 else np.moveaxis(array, axis, 1), True)


def _concatenate_shards(shards: list[_ShardRows], join: str) -> _ShardRows:
    """Return shards without tokens as one: weights and the like, of which one is at hand at a time."""
    array = np.concatenate([shard.array for shard in shards], int(join.split()[1]))
    return _ShardRows(_as_rows(array), False)


def _as_rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
