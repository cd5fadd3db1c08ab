"""Tensors of several ranks made one: shards side by side, partial sums added, copies compared with each other.

What a rank holds is told by widths and by what its module is: a projection whose input is divided among ranks holds a
partial sum before the ranks exchange it, any other tensor of full width is a copy. Shards stand in the order of their
ranks; where the values fit only another order, that is said and not done.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.capture.store.reader import TensorRecord


class ShardJoin(NamedTuple):
    """How the records of several ranks are one tensor."""

    indices: tuple[int, ...]  # of the records
    join: str = ""
    columns: int = 0  # to be kept of what is joined; 0: all


class RankContents(NamedTuple):
    """What the ranks of one side hold of a tensor."""

    widths: tuple[int, ...]  # numbers of a token, on each rank
    hashes: tuple[str, ...]

    @property
    def are_copies(self) -> bool:
        return len(set(self.hashes)) == 1


def rank_contents(records: Sequence[TensorRecord], widths: Sequence[int]) -> RankContents:
    return RankContents(tuple(widths), tuple(record.statistics.hash for record in records))


def plan_join(ranks: RankContents, width: int, *, partial: bool, trims: bool) -> ShardJoin | None:
    """Return how the ranks' shards join into a tensor of this width; None if they do not.

    Each rank may hold a `partial` sum. What is wider is padded where it `trims`: a vocabulary.
    """
    widths, total, everything = ranks.widths, sum(ranks.widths), tuple(range(len(ranks.widths)))
    if set(widths) == {width}:
        if len(widths) > 1 and partial and not ranks.are_copies:
            return ShardJoin(everything, "sum")
        return ShardJoin((usual_rank(ranks.hashes),))
    if total == width:
        return ShardJoin(everything, "concatenate -1")
    distinct = width // widths[0] if set(widths) == {widths[0]} and widths[0] else 0
    if distinct and width % widths[0] == 0 and len(widths) % distinct == 0:  # heads of which several ranks have one
        return ShardJoin(everything[:: len(widths) // distinct], "concatenate -1")
    if trims and total > width and (len(widths) == 1 or widths[0] < width):
        return ShardJoin(everything, "concatenate -1" if len(widths) > 1 else "", columns=width)
    return None


def usual_rank(hashes: Sequence[str]) -> int:
    """Return the first rank of the largest group of ranks that hold the same content."""
    return hashes.index(Counter(hashes).most_common(1)[0][0])


def plan_joins(
    reference: RankContents, candidate: RankContents, *, partial: bool, trims: bool
) -> tuple[ShardJoin, ShardJoin] | None:
    """Return how the shards of each side join into tensors of the same width."""
    full = [reference.widths[0], sum(reference.widths), candidate.widths[0], sum(candidate.widths)]
    if len(reference.widths) > 1 and not reference.are_copies and not partial:
        full = [full[1], full[0], *full[2:]]
    for width in dict.fromkeys(full):
        both = (
            plan_join(reference, width, partial=partial, trims=trims),
            plan_join(candidate, width, partial=partial, trims=trims),
        )
        if both[0] is not None and both[1] is not None:
            return both[0], both[1]
    return None


def odd_ranks(records: Sequence[TensorRecord]) -> list[TensorRecord]:
    """Return one record for each distinct content that differs from the majority's."""
    hashes = [record.statistics.hash for record in records]
    usual = hashes[usual_rank(hashes)]
    odd: dict[str, TensorRecord] = {}
    for record in records:
        if record.statistics.hash != usual:
            odd.setdefault(record.statistics.hash, record)
    return list(odd.values())


def shard_axis(whole_shape: tuple[int, ...], shard_shapes: Sequence[tuple[int, ...]]) -> int | None:
    """Return the axis along which the shards of a weight (a tensor without tokens) concatenate."""
    if any(len(shape) != len(whole_shape) for shape in shard_shapes):
        return None
    for axis, size in enumerate(whole_shape):
        rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in (whole_shape, *shard_shapes)}
        if len(rest) == 1 and sum(shape[axis] for shape in shard_shapes) == size:
            return axis
    return None
