"""Checks an alignment against the values of a few rows. It confirms or doubts a layout and never chooses one."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from trtdx.capture.store.format import CaptureError
from trtdx.compare.align.pair_rows import rows_of_pair

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.capture.store.reader import Capture
    from trtdx.compare.nouns import AlignedTensor, Array, TensorPair


SAMPLE_ROWS = 16
BAD, GOOD = 0.3, 0.1  # relative distances: more than precision does, and what it may do at some depth
MOST_ORDERS = 24


def pair_value_error(pair: TensorPair, reference: Capture, candidate: Capture) -> float:
    """Return the relative difference of a pair in a few rows; infinite if it cannot be computed."""
    if not pair.has_values:
        return math.inf
    try:
        reference_rows, candidate_rows = rows_of_pair(pair, reference, candidate)
        count = len(pair.tokens) if pair.tokens else min(reference_rows.count, candidate_rows.count)
        some = np.unique(np.linspace(0, count - 1, min(count, SAMPLE_ROWS)).astype(np.int64))
        one = reference_rows.take(pair.tokens.reference[some] if pair.tokens else some).astype(np.float64)
        other = candidate_rows.take(pair.tokens.candidate[some] if pair.tokens else some).astype(np.float64)
    except (ValueError, IndexError, CaptureError):
        return math.inf
    return relative_distance(one, other)


def relative_distance(one: Array, other: Array) -> float:
    if one.shape != other.shape:
        return math.inf
    finite = np.isfinite(one) & np.isfinite(other)
    size = float(np.linalg.norm(one[finite]))
    apart = float(np.linalg.norm((one - other)[finite]))
    return apart / size if size else 0.0 if not apart else math.inf


def other_rank_orders(aligned: AlignedTensor) -> Iterator[tuple[str, AlignedTensor]]:
    """Yield a sharded tensor with its shards in other orders, and the order."""
    if not aligned.join.startswith("concatenate") or len({record.step for record in aligned.records}) > 1:
        return
    ranks = [record.rank for record in aligned.records]
    orders = itertools.permutations(aligned.records)
    for order in itertools.islice(orders, 1, MOST_ORDERS):
        order_text = " ".join(str(record.rank) for record in order)
        yield (
            f"ranks in the order {order_text} instead of {' '.join(map(str, ranks))}",
            aligned._replace(records=order),
        )
