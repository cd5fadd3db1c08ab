"""Where one rank leaves the order of collectives that most ranks share, whatever groups these belong to.

Ranks that wait for each other in different groups are all in the wrong by what each group knows. A program runs the
same text on every rank, so the one whose calls left the common order is to blame.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trtdx.run.verdict.mismatch import CallMismatch, canonical_name, order_or_skip

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from trtdx.run.nouns import Call, RankStory

FEWEST_VOTERS = 3


def find_deviation(stories: Sequence[RankStory], suspects: Collection[int]) -> CallMismatch | None:
    """Return the first collective at which one of the suspects left the order of the majority."""
    table = {
        story.rank: calls
        for story in stories
        if story.rank is not None and (calls := {call.place: call for call in story.calls if call.place})
    }
    # Branches for one rank may hold the same call on another line: lines count only where nothing else differs.
    for read in (_kind_of_call, _line_of_call):
        for place in sorted({place for calls in table.values() for place in calls}):
            if culprits := _outvoted(table, place, suspects, read):
                return _mismatch_from(table, place, culprits, read)
    return None


def _kind_of_call(call: Call) -> tuple[str, ...]:
    return canonical_name(call), call.group.partition("[")[0] if "[" in call.group else str(call.group == "world")


def _line_of_call(call: Call) -> tuple[str, ...]:
    return (*_kind_of_call(call), call.where)


def _outvoted(
    table: Mapping[int, Mapping[int, Call]],
    place: int,
    suspects: Collection[int],
    read: Callable[[Call], tuple[str, ...]],
) -> tuple[int, ...]:
    votes = {rank: read(calls[place]) for rank, calls in table.items() if place in calls}
    if len(votes) < FEWEST_VOTERS:
        return ()
    best, count = Counter(votes.values()).most_common(1)[0]
    if count * 2 <= len(votes):
        return ()
    return tuple(sorted(rank for rank, vote in votes.items() if vote != best and rank in suspects))


def _mismatch_from(
    table: Mapping[int, Mapping[int, Call]],
    place: int,
    culprits: tuple[int, ...],
    read: Callable[[Call], tuple[str, ...]],
) -> CallMismatch:
    wrong = table[culprits[0]][place]
    others = [calls[place] for rank, calls in table.items() if rank not in culprits and place in calls]
    best = Counter(map(read, others)).most_common(1)[0][0]
    agreeing = [call for call in others if read(call) == best]
    # Said of the group that the culprit is missing in, where that can be seen.
    right = next(
        (call for call in agreeing if str(culprits[0]) in call.group.strip("]").split("[")[-1].split(",")), agreeing[0]
    )
    kind = order_or_skip(table, culprits, right, place)
    return CallMismatch(kind, culprits, right.group, right.number, wrong, right)
