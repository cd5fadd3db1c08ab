"""From a regular expression to the fixed text any match must contain.

The scanner looks for this text in raw bytes, so that a regular expression runs only on the few lines that
can match it. A pattern with alternatives gets one piece of text for each.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The parser of `re` has no public name; these two are the ones it had since 3.11 and before.
if sys.version_info >= (3, 11):
    from re import _constants as sre_constants  # type: ignore[attr-defined]
    from re import _parser as sre_parse  # type: ignore[attr-defined]
else:
    import sre_constants
    import sre_parse

MIN_LENGTH = 3
# How the scanner of `_kernel.c` looks at a text: PIECE bytes at each of STRIDE neighbouring places in a WINDOW.
PIECE, STRIDE, WINDOW = 5, 4, 8
MET_SELDOM, EVERYWHERE = 3, 1_000_000  # healthy lines
_ANY_DIGIT = bytes.maketrans(b"123456789", b"000000000")
MAX_LENGTH = 32
MAX_ALTERNATIVES = 24


class Memo(msgspec.Struct):
    """What was worked out about patterns and texts; saved beside the parsed rules, since it takes most of a start."""

    texts: dict[str, tuple[str, ...]] = {}
    windows: dict[str, tuple[int, int]] = {}
    sets: dict[str, tuple[tuple[str, ...], ...]] = {}


_memo = Memo()


def export_literal_cache() -> Memo:
    return _memo


def import_literal_cache(known: Memo) -> None:
    """Take over what an earlier process worked out."""
    _memo.texts.update(known.texts)
    _memo.windows.update(known.windows)
    _memo.sets.update(known.sets)


def fold_case(text: bytes) -> bytes:
    """Return the text as the scanner compares it: bit 5 set, which ignores the case of ASCII letters."""
    return bytes(byte | 0x20 for byte in text)


@cache
def healthy_pieces() -> Counter[bytes]:
    """Return each run of PIECE bytes in the lines healthy deployments print, and in how many of them it stands."""
    lines = resources.files("trtdx").joinpath("data/healthy.txt").read_bytes().splitlines()
    return Counter(piece for line in lines for piece in set(_split_pieces(line)))


def _split_pieces(text: bytes) -> list[bytes]:
    plain = fold_case(text.translate(_ANY_DIGIT))
    return [plain[at : at + PIECE] for at in range(len(plain) - PIECE + 1)]


def text_commonness(text: str) -> int:
    """Say in how many healthy lines the rarest window of the text would stop a scan."""
    return rarest_window(text)[1]


def rarest_window(text: str) -> tuple[int, int]:
    """Return where the WINDOW bytes begin that are least expected in healthy lines, and in how many they are met.

    A text shorter than a window counts as met everywhere.
    """
    if text not in _memo.windows:
        healthy = healthy_pieces()
        met = [healthy[piece] for piece in _split_pieces(text.encode())]
        places = range(len(met) - STRIDE + 1)
        least = min(places, key=lambda at: sum(met[at : at + STRIDE]), default=-1)
        _memo.windows[text] = (0, EVERYWHERE) if least < 0 else (least, sum(met[least : least + STRIDE]))
    return _memo.windows[text]


def is_strong(text: str) -> bool:
    """Say whether the text is long and odd enough to be looked for in gigabytes."""
    return text_commonness(text) <= MET_SELDOM


def required_texts(pattern: str) -> tuple[str, ...]:
    """Return texts of which every match contains at least one; empty when there is no such set."""
    if pattern not in _memo.texts:
        texts = _best_literals(list(sre_parse.parse(pattern)))
        _memo.texts[pattern] = tuple(sorted({text.lower() for text in texts})) if texts else ()
    return _memo.texts[pattern]


def all_required(pattern: str) -> tuple[tuple[str, ...], ...]:
    """Return sets of texts such that every match contains one of each: a cheap look before an expensive one."""
    if pattern not in _memo.sets:
        alternatives = {
            tuple(sorted({text.lower() for text in texts})) for texts in _usable_texts(list(sre_parse.parse(pattern)))
        }
        _memo.sets[pattern] = tuple(sorted(alternatives))
    return _memo.sets[pattern]


def is_vague(pattern: str) -> bool:
    """Say whether the pattern's fixed text is short or common, as in patterns for a user's own words."""
    return not all(map(is_strong, required_texts(pattern)))


def best_window(text: str) -> str:
    """Return the rarest stretch of at most MAX_LENGTH characters."""
    if len(text) <= MAX_LENGTH:
        return text
    starts = range(len(text) - MAX_LENGTH + 1)
    return min((text[start : start + MAX_LENGTH] for start in starts), key=text_commonness)


def _best_literals(items: Sequence[tuple[Any, Any]]) -> set[str] | None:
    return min(
        _usable_texts(items),
        key=lambda texts: (max(map(text_commonness, texts)), len(texts), -min(map(len, texts))),
        default=None,
    )


def _usable_texts(items: Sequence[tuple[Any, Any]]) -> list[set[str]]:
    return [texts for texts in _candidate_texts(items) if texts and all(len(text) >= MIN_LENGTH for text in texts)]


def _candidate_texts(items: Sequence[tuple[Any, Any]]) -> Iterable[set[str]]:
    """Yield sets of texts, each such that a match of the sequence contains one of the set."""
    run = ""
    for op, arg in _flatten_groups(items):
        if op is sre_constants.LITERAL and chr(arg) not in "\r\n" and arg < 128:
            run += chr(arg)
            continue
        if run:
            yield {best_window(run)}
            if op is sre_constants.BRANCH:  # the parser takes the common start of alternatives out of them
                yield {best_window(run + _leading_text(branch)) for branch in arg[1]}
        run = ""
        inner = _texts_in_group(op, arg)
        if inner:
            yield inner
    if run:
        yield {best_window(run)}


def _leading_text(items: Sequence[tuple[Any, Any]]) -> str:
    """Return the literal text a sequence begins with."""
    text = ""
    for op, arg in _flatten_groups(items):
        if op is not sre_constants.LITERAL or arg >= 128 or chr(arg) in "\r\n":
            break
        text += chr(arg)
    return text


def _flatten_groups(items: Sequence[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    """Yield the sequence with plain groups opened, so that text on both sides of `(` joins."""
    for op, arg in items:
        if op is sre_constants.SUBPATTERN and not (arg[2] or 0) & re.IGNORECASE:
            yield from _flatten_groups(list(arg[3]))
        else:
            yield op, arg


def _texts_in_group(op: Any, arg: Any) -> set[str] | None:
    if op is sre_constants.SUBPATTERN:
        return _best_literals(list(arg[3]))
    if op in (sre_constants.MAX_REPEAT, sre_constants.MIN_REPEAT) and arg[0] >= 1:
        return _best_literals(list(arg[2]))
    if op is not sre_constants.BRANCH:
        return None
    united: set[str] = set()
    for branch in arg[1]:
        best = _best_literals(list(branch))
        if best is None:
            return None
        united |= best
    return united if len(united) <= MAX_ALTERNATIVES else None


def compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)
