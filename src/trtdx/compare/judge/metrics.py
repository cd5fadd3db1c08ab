"""How the two tensors of a pair differ: one pass over comparable rows, in pieces, so that memory stays bounded.

A row is a token where tokens are known. Logits are also looked at as what they are for: which token they choose, and
how far the distribution moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.align.pair_rows import iterate_row_pieces
from trtdx.tensors.difference import TensorComparer, TensorDifference
from trtdx.tensors.dtypes import FLOAT_DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.nouns import Array, TensorPair
    from trtdx.compare.sides.side import Side


LOGITS_ENDINGS = ("logits", "lm_head:out", "score:out", "embed_out:out")
TOP_TOKENS = 5
LEAST_VOCABULARY = 16


class LogitsDifference(NamedTuple):
    """How two sets of logits differ in what they are for."""

    rows: int
    top1: float  # share of rows that choose the same token
    topk: float  # share of the reference's TOP tokens that are among the candidate's
    kl_mean: float
    kl_p99: float
    kl_max: float
    gap: float  # of the reference, in nats, at the row that disagrees most surely; 0 where all agree


class PairMeasurement(NamedTuple):
    """How a pair differs: in all, row by row, and as logits if it is such."""

    difference: TensorDifference
    rows: Array  # for each: squared difference, squared reference, elements compared
    width: int  # elements in a row
    logits: LogitsDifference | None = None

    @property
    def row_errors(self) -> Array:
        """The mean squared difference of each row."""
        import numpy as np

        return np.asarray(self.rows[:, 0] / np.maximum(self.rows[:, 2], 1))

    @property
    def row_sizes(self) -> Array:
        """The mean square of each row of the reference."""
        import numpy as np

        return np.asarray(self.rows[:, 1] / np.maximum(self.rows[:, 2], 1))


def measure_pair(pair: TensorPair, reference: Side, candidate: Side, *, logits: bool = False) -> PairMeasurement:
    """Return how the two tensors of a pair differ.

    Args:
        pair: what is to be compared; its records are of the two sides.
        reference: whose values its reference's records are.
        candidate: whose values its candidate's are.
        logits: whether to look at them as logits too, if that is what they are.
    """
    pieces = iterate_row_pieces(pair, reference, candidate)
    comparer: TensorComparer | None = None
    judge = _LogitsComparer() if logits and is_logits(pair) else None
    width = 0
    for reference_rows, candidate_rows in pieces:
        if comparer is None:
            width = reference_rows.shape[-1]
            comparer = TensorComparer(pair.reference.first.layout.elements, row_length=max(width, 1))
        comparer.add(reference_rows, candidate_rows)
        if judge is not None:
            judge.add(reference_rows, candidate_rows)
    comparer = comparer or TensorComparer(0, row_length=1)
    return PairMeasurement(comparer.result(), comparer.rows(), width, judge.result() if judge else None)


def has_same_hash(pair: TensorPair) -> bool:
    """Whether the hashes tell that two tensors are bitwise the same; then no value has to be read."""
    one, other = pair.reference, pair.candidate
    if len(one.records) != 1 or len(other.records) != 1 or one.changes or other.changes:
        return False
    first, second = one.first, other.first
    return (
        first.statistics.hash == second.statistics.hash
        and first.layout.dtype == second.layout.dtype
        and first.layout.shape == second.layout.shape
    )


def is_float_pair(pair: TensorPair) -> bool:
    """Whether both are numbers that precision can blur."""
    return {pair.reference.first.layout.dtype, pair.candidate.first.layout.dtype} <= FLOAT_DTYPES


def is_logits(pair: TensorPair) -> bool:
    """Whether a pair is what the next token is chosen by."""
    shape = pair.reference.first.layout.shape
    named = any(pair.name.endswith(end) for end in LOGITS_ENDINGS)
    return named and len(shape) > 1 and shape[-1] >= LEAST_VOCABULARY and is_float_pair(pair)


class _LogitsComparer:
    """Adds up how logits differ, row by row."""

    def __init__(self) -> None:
        self._same, self._overlap = 0, 0.0
        self._kl: list[Array] = []
        self._gap = 0.0

    def add(self, reference: Array, candidate: Array) -> None:
        for first, second in _row_blocks(reference, candidate):
            self._add_block(first, second)

    def _add_block(self, reference: Array, candidate: Array) -> None:
        import numpy as np

        p, q = _log_softmax(reference), _log_softmax(candidate)
        reference_top, candidate_top = p.argmax(1), q.argmax(1)
        self._same += int((reference_top == candidate_top).sum())
        top = min(TOP_TOKENS, p.shape[1])
        of_p, of_q = (np.argpartition(-log_probabilities, top - 1, 1)[:, :top] for log_probabilities in (p, q))
        self._overlap += float((of_p[:, :, None] == of_q[:, None, :]).any(2).mean(1).sum())
        with np.errstate(all="ignore"):
            self._kl.append(np.maximum(np.where(np.exp(p) > 0, np.exp(p) * (p - q), 0.0).sum(1), 0.0))
        disagreeing = np.flatnonzero(reference_top != candidate_top)
        if disagreeing.size:
            gaps = p[disagreeing, reference_top[disagreeing]] - p[disagreeing, candidate_top[disagreeing]]
            self._gap = max(self._gap, float(np.nan_to_num(gaps).max()))

    def result(self) -> LogitsDifference | None:
        import numpy as np

        kl = np.sort(np.concatenate(self._kl)) if self._kl else np.zeros(0)
        if not kl.size:
            return None
        return LogitsDifference(
            rows=int(kl.size),
            top1=self._same / kl.size,
            topk=self._overlap / kl.size,
            kl_mean=float(kl.mean()),
            kl_p99=float(kl[(99 * (kl.size - 1) + 50) // 100]),
            kl_max=float(kl[-1]),
            gap=self._gap,
        )


def _row_blocks(reference: Array, candidate: Array) -> Iterator[tuple[Array, Array]]:
    """Yield some rows at a time: in double precision logits are eight times as large."""
    together = max(1, (1 << 18) // max(reference.shape[-1], 1))
    for start in range(0, len(reference), together):
        yield reference[start : start + together], candidate[start : start + together]


def _log_softmax(values: Array) -> Array:
    import numpy as np

    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        wide = wide - wide.max(1, keepdims=True)
        return np.asarray(wide - np.log(np.exp(wide).sum(1, keepdims=True)))
