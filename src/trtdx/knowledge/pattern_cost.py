"""Whether a regular expression can take for ever: repeats of repeats that can share out the same text in many ways.

`(?:a+)+` tries every way to cut a run of a's before it gives up: twice the work for each character more. Such a pattern
is refused. What merely grows with a power of a line's length is bounded by the window and the time that a pattern has.
"""

from __future__ import annotations

import string
import sys
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):  # as in `literals.py`
    from re import _constants as sre_constants  # type: ignore[attr-defined]
    from re import _parser as sre_parse  # type: ignore[attr-defined]
else:
    import sre_constants
    import sre_parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Items = Sequence[tuple[Any, Any]]

LONG_REPEAT = 24  # times; what repeats less often is written out by its author
_ALPHABET = frozenset(string.printable + "é")
_CATEGORIES = {
    sre_constants.CATEGORY_DIGIT: frozenset(string.digits),
    sre_constants.CATEGORY_SPACE: frozenset(string.whitespace),
    sre_constants.CATEGORY_WORD: frozenset(string.ascii_letters + string.digits + "_é"),
}
_CATEGORIES |= {
    sre_constants.CATEGORY_NOT_DIGIT: _ALPHABET - _CATEGORIES[sre_constants.CATEGORY_DIGIT],
    sre_constants.CATEGORY_NOT_SPACE: _ALPHABET - _CATEGORIES[sre_constants.CATEGORY_SPACE],
    sre_constants.CATEGORY_NOT_WORD: _ALPHABET - _CATEGORIES[sre_constants.CATEGORY_WORD],
}
_REPEATS = (sre_constants.MAX_REPEAT, sre_constants.MIN_REPEAT)  # possessive ones give nothing back


@cache
def exponential_part(pattern: str) -> str:
    """Return in words what makes a pattern's work double with each character; empty where nothing does."""
    return next(_exponential_parts(list(sre_parse.parse(pattern))), "")


def _exponential_parts(items: Items) -> Iterator[str]:
    for op, arg in items:
        if op in _REPEATS and arg[1] >= LONG_REPEAT:
            body = list(arg[2])
            if _repeats_without_border(body):
                yield "a repeat of a repeat with nothing fixed between, such as (?:a+)+"
            if _has_like_branches(body):
                yield "a repeat of alternatives that fit the same character, such as (?:a|a)+"
        for inner in _inner_sequences(op, arg):
            yield from _exponential_parts(inner)


def _inner_sequences(op: Any, arg: Any) -> list[Items]:
    if op in _REPEATS:
        return [list(arg[2])]
    if op is sre_constants.SUBPATTERN:
        return [list(arg[3])]
    if op is sre_constants.BRANCH:
        return [list(branch) for branch in arg[1]]
    if op in (sre_constants.ASSERT, sre_constants.ASSERT_NOT):
        return [list(arg[1])]
    return []


def _repeats_without_border(body: Items) -> bool:
    """Whether a body holds a long repeat of characters, and nothing that must come between two of them is another."""
    parts = list(_open_groups(body))
    for number, (op, arg) in enumerate(parts):
        if op is sre_constants.BRANCH and any(_repeats_without_border(list(branch)) for branch in arg[1]):
            return True
        if op not in _REPEATS or arg[1] < LONG_REPEAT:
            continue
        repeated = _characters(list(arg[2]))
        others = parts[:number] + parts[number + 1 :]
        if not any(_is_needed(other) and not (_characters([other]) & repeated) for other in others):
            return True
    return False


def _has_like_branches(body: Items) -> bool:
    parts = list(_open_groups(body))
    if len(parts) != 1 or parts[0][0] is not sre_constants.BRANCH:
        return False
    single = [_characters(list(branch)) for branch in parts[0][1][1] if _can_be_one_character(list(branch))]
    return any(left & right for left, right in combinations(single, 2))


def _can_be_one_character(items: Items) -> bool:
    needed = [item for item in _open_groups(items) if _is_needed(item)]
    return len(needed) <= 1 and all(op in (*_REPEATS, *_SINGLES) for op, _ in needed)


_SINGLES = (sre_constants.LITERAL, sre_constants.NOT_LITERAL, sre_constants.ANY, sre_constants.IN)


def _open_groups(items: Items) -> Iterator[tuple[Any, Any]]:
    for op, arg in items:
        if op is sre_constants.SUBPATTERN:
            yield from _open_groups(list(arg[3]))
        else:
            yield op, arg


def _is_needed(item: tuple[Any, Any]) -> bool:
    op, arg = item
    if op in (sre_constants.AT, sre_constants.ASSERT, sre_constants.ASSERT_NOT):
        return False
    if op is sre_constants.BRANCH:
        return all(any(map(_is_needed, branch)) for branch in arg[1])
    return op not in _REPEATS or (arg[0] > 0 and any(map(_is_needed, arg[2])))


def _characters(items: Items) -> frozenset[str]:
    """Return the characters that a sequence can hold, all of them together."""
    return frozenset[str]().union(*(_characters_of_part(op, arg) for op, arg in items))


def _characters_of_part(op: Any, arg: Any) -> frozenset[str]:
    if op is sre_constants.LITERAL:
        return frozenset((chr(arg), chr(arg).swapcase()))
    if op is sre_constants.NOT_LITERAL:
        return _ALPHABET - {chr(arg)}
    if op is sre_constants.ANY:
        return _ALPHABET - {"\n"}
    if op is sre_constants.IN:
        return _characters_of_class(arg)
    return frozenset[str]().union(*(_characters(inner) for inner in _inner_sequences(op, arg)))


def _characters_of_class(parts: Items) -> frozenset[str]:
    members: set[str] = set()
    for op, arg in parts:
        if op is sre_constants.LITERAL:
            members.add(chr(arg))
        elif op is sre_constants.RANGE:
            members |= {letter for letter in _ALPHABET if arg[0] <= ord(letter) <= arg[1]}
        elif op is sre_constants.CATEGORY:
            members |= _CATEGORIES[arg]
    is_negated = bool(parts) and parts[0][0] is sre_constants.NEGATE
    return _ALPHABET - members if is_negated else frozenset(members)
