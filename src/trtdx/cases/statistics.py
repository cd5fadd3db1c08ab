"""How a team fares: how many cases, how long they take, and what comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.cases.nouns import Recurrence
from trtdx.cases.search import SECONDS_PER_HOUR, recurrences

if TYPE_CHECKING:
    from trtdx.cases.store import CaseStore

MAX_RECURRING = 10


class RecurringProblem(msgspec.Struct, frozen=True):
    """A problem that came back, with its newest case."""

    code: str
    title: str
    newest: str
    recurrence: Recurrence


class StoreStatistics(msgspec.Struct, frozen=True):
    """The store in numbers."""

    cases: int
    resolved: int
    mean_hours: float | None
    tools: dict[str, int]
    severities: dict[str, int]
    recurring: tuple[RecurringProblem, ...]


def collect_statistics(store: CaseStore) -> StoreStatistics:
    """Return the store in numbers."""
    cases, resolved, mean_s = store.resolution_times()
    return StoreStatistics(
        cases=cases,
        resolved=resolved,
        mean_hours=None if mean_s is None else round(max(0.0, mean_s) / SECONDS_PER_HOUR, 2),
        tools=store.count_by("tool"),
        severities=store.count_by("severity"),
        recurring=_recurring_problems(store),
    )


def _recurring_problems(store: CaseStore) -> tuple[RecurringProblem, ...]:
    groups = store.largest_groups(MAX_RECURRING)
    counts = recurrences(store, [group for group, _, _ in groups])
    newest = {case.group: case for case in store.cases_by_number([number for _, _, number in groups])}
    return tuple(
        RecurringProblem((*newest[group].facts.codes, "")[0], newest[group].title, newest[group].id, counts[group])
        for group, _, _ in groups
    )
