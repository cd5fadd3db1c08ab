"""A rank that the others wait for again and again, in a job that works."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trtdx.run.verdict.mismatch import calls_by_rank, groups_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.run.nouns import Call, RankStory

LEAST_CALLS = 4
LEAST_LAG_S = 0.03
LEAST_TOTAL_S = 0.4
LEAST_SHARE = 0.15  # of the time between the first and the last collective
LEAST_LATE = 0.7  # of the collectives in which anybody was late
PEER_FACTOR = 3.0  # how much later than the next latest rank is late by


class Straggler(NamedTuple):
    """The late rank, how often and how long the others waited for it."""

    rank: int
    late: int
    calls: int
    waited_s: float
    span_s: float


def find_straggler(stories: Sequence[RankStory]) -> Straggler | None:
    for group in groups_of(stories):
        table = calls_by_rank(stories, group)
        if len(table) > 1 and group != "rendezvous" and (straggler := _in_group(table)):
            return straggler
    return None


def _in_group(table: Mapping[int, Mapping[int, Call]]) -> Straggler | None:
    numbers = sorted(set.intersection(*(set(calls) for calls in table.values())))
    late: Counter[int] = Counter()
    waited: Counter[int] = Counter()
    starts = [call.began for calls in table.values() for number, call in calls.items() if number in numbers]
    # The first collective carries the start-up of every rank, which is nobody's habit.
    for number in numbers[1:]:
        entered = sorted((calls[number].began, rank) for rank, calls in table.items())
        lag = entered[-1][0] - entered[-2][0]
        spread = entered[-2][0] - entered[0][0]
        if lag >= LEAST_LAG_S and lag > spread / PEER_FACTOR:
            late[entered[-1][1]] += 1
            waited[entered[-1][1]] += round(lag * 1e6)
    if not late:
        return None
    rank, times = late.most_common(1)[0]
    total, span = waited[rank] / 1e6, max(starts) - min(starts)
    is_habit = times >= LEAST_CALLS and times >= LEAST_LATE * sum(late.values()) and times >= (len(numbers) - 1) / 4
    if not is_habit or total < max(LEAST_TOTAL_S, LEAST_SHARE * span):
        return None
    return Straggler(rank, times, len(numbers) - 1, total, span)
