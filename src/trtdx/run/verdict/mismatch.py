"""Collectives that do not match between ranks: compared call by call, the minority is to blame."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.run.nouns import Call, RankStory

ORDER, SKIPPED, SHAPE, DTYPE, ARGUMENT = "order", "skipped", "shape", "dtype", "argument"
UNEVEN_ALLOWED = {"all_gather", "gather"}  # some backends take tensors of different sizes
MOST_SOURCE_BYTES = 4 << 20


class CallMismatch(NamedTuple):
    """Ranks that made another call than the rest did at the same place of the order."""

    kind: str
    culprits: tuple[int, ...]
    group: str
    number: int
    wrong: Call
    right: Call
    key: str = ""  # which argument

    @property
    def began(self) -> float:
        return min(self.wrong.began, self.right.began)


def calls_by_rank(stories: Sequence[RankStory], group: str) -> dict[int, dict[int, Call]]:
    """Return each rank's collectives in a group by their number."""
    table: dict[int, dict[int, Call]] = {}
    for story in stories:
        if story.rank is not None:
            calls = {call.number: call for call in story.calls if call.group == group and not call.is_message}
            if calls:
                table[story.rank] = calls
    return table


def groups_of(stories: Sequence[RankStory]) -> list[str]:
    return list(dict.fromkeys(call.group for story in stories for call in story.calls if not call.is_message))


def find_mismatch(stories: Sequence[RankStory]) -> CallMismatch | None:
    """Return the first call, in time, in which ranks do not agree."""
    mismatches = [
        mismatch
        for group in groups_of(stories)
        if group != "rendezvous" and (mismatch := _first_in_group(calls_by_rank(stories, group), group))
    ]
    return min(mismatches, key=lambda mismatch: mismatch.began, default=None)


def _first_in_group(table: Mapping[int, Mapping[int, Call]], group: str) -> CallMismatch | None:
    for number in sorted({number for calls in table.values() for number in calls}):
        calls = {rank: calls[number] for rank, calls in table.items() if number in calls}
        if len(calls) > 1 and (mismatch := _compare(table, calls, group, number)):
            return mismatch
    return None


def canonical_name(call: Call) -> str:
    return "barrier" if call.name == "Barrier" else call.name


def _compare(
    table: Mapping[int, Mapping[int, Call]], calls: Mapping[int, Call], group: str, number: int
) -> CallMismatch | None:
    names = {rank: canonical_name(call) for rank, call in calls.items()}
    if len(set(names.values())) > 1:
        culprits, right = _minority(names, table, number, canonical_name)
        wrong = calls[culprits[0]]
        kind = order_or_skip(table, culprits, calls[right], number)
        return CallMismatch(kind, culprits, group, number, wrong, calls[right])
    for key, kind in (("dtype", DTYPE), ("n", SHAPE), ("root", ARGUMENT), ("op", ARGUMENT)):
        values = {rank: call.data[key] for rank, call in calls.items() if key in call.data}
        if len(set(values.values())) < 2 or (key == "n" and _is_allowed(calls)):
            continue
        culprits, right = _minority(values, table, number, lambda call, key=key: call.data.get(key, ""))
        return CallMismatch(kind, culprits, group, number, calls[culprits[0]], calls[right], key)
    return None


def _is_allowed(calls: Mapping[int, Call]) -> bool:
    return all(call.name in UNEVEN_ALLOWED and call.ended and not call.has_failed for call in calls.values())


def _minority(
    values: Mapping[int, str], table: Mapping[int, Mapping[int, Call]], number: int, read: object
) -> tuple[tuple[int, ...], int]:
    """Return the ranks outside the majority, and one inside it; among equals, those that changed their ways."""
    counts = Counter(values.values())
    (best, votes), *rest = counts.most_common()
    if rest and rest[0][1] == votes:
        best = _habit(values, table, number, read) or best
    culprits = tuple(sorted(rank for rank, value in values.items() if value != best))
    return culprits, min(rank for rank, value in values.items() if value == best)


def _habit(values: Mapping[int, str], table: Mapping[int, Mapping[int, Call]], number: int, read: object) -> str:
    """Return the value that the calls before this one had, where it is among the candidates."""
    assert callable(read)
    earlier = Counter(
        str(read(call)) for rank in values for place, call in table[rank].items() if number - 20 <= place < number
    )
    candidates = [(count, value) for value, count in earlier.items() if value in values.values()]
    return max(candidates)[1] if candidates else ""


def order_or_skip(table: Mapping[int, Mapping[int, Call]], culprits: Sequence[int], right: Call, number: int) -> str:
    """Return whether the culprits left a call out or made it in another order, as far as that can be known."""
    own = table[culprits[0]]
    others = [calls for rank, calls in table.items() if rank not in culprits and number in calls]
    others_next = next((calls[number + 1] for calls in others if number + 1 in calls), None)
    own_next = own.get(number + 1)
    if others_next and canonical_name(others_next) == canonical_name(own[number]):
        is_swapped = own_next is not None and canonical_name(own_next) == canonical_name(right)
        is_same_place = others_next.where == own[number].where
        return ORDER if is_swapped and not is_same_place else SKIPPED
    if any(call.where == own[number].where for calls in others for call in calls.values()):
        return SKIPPED
    return _by_source(own[number], right)


def _by_source(wrong: Call, right: Call) -> str:
    """Return what the program's text says: a call that only some ranks reach is another order, else one was left out."""
    conditions = _rank_conditions(wrong.where)
    if conditions is None:
        return ORDER
    return ORDER if conditions else SKIPPED


def _rank_conditions(where: str) -> list[int] | None:
    """Return the lines of the `if` statements around a line that ask for the rank; None where the text is not there."""
    file, _, line = where.rpartition(":")
    try:
        if not line.isdigit() or Path(file).stat().st_size > MOST_SOURCE_BYTES:
            return None
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    words = _rank_words(tree)
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and _asks_for_rank(node.test, words)
        if node.body[0].lineno <= int(line) <= (node.end_lineno or node.lineno)
    ]


def _rank_words(tree: ast.AST) -> set[str]:
    """Return the names that hold a rank or something worked out from one, such as `is_leader = rank == 0`."""
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and "rank" in ast.unparse(node.value).lower():
            words |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return words


def _asks_for_rank(test: ast.expr, words: set[str]) -> bool:
    return "rank" in ast.unparse(test).lower() or any(
        isinstance(node, ast.Name) and node.id in words for node in ast.walk(test)
    )
