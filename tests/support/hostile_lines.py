"""Lines on which a regular expression works longest: made from its own parts, repeated, and never quite fitting."""

from __future__ import annotations

import random
import re
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import sre_constants as constants
    import sre_parse

REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT, getattr(constants, "POSSESSIVE_REPEAT", None))
CATEGORY_SAMPLES = {"DIGIT": "1", "SPACE": " ", "WORD": "a", "NOT_DIGIT": "a", "NOT_SPACE": "a", "NOT_WORD": "-"}
CANDIDATES = "a1 -.:/=_,'\"()[]A\n"


def sample_of(items, rng, repeat=1):
    """Return a text that a parsed sequence fits, repeats taken a few times."""
    return "".join(_sample_of_part(op, arg, rng, repeat) for op, arg in items)


def _sample_of_part(op, arg, rng, repeat):
    if op is constants.LITERAL:
        return chr(arg)
    if op is constants.ANY:
        return rng.choice("a 1")
    if op is constants.NOT_LITERAL:
        return "a" if arg != ord("a") else "b"
    if op is constants.IN:
        return _sample_of_class(arg)
    if op is constants.BRANCH:
        return sample_of(rng.choice(arg[1]), rng, repeat)
    if op is constants.SUBPATTERN:
        return sample_of(arg[3], rng, repeat)
    if op in REPEATS:
        low, high, inner = arg
        return "".join(sample_of(inner, rng, repeat) for _ in range(max(low, min(int(high), repeat))))
    if op is getattr(constants, "ATOMIC_GROUP", None):
        return sample_of(arg, rng, repeat)
    return ""


def _sample_of_class(parts):
    expression = [(constants.IN, parts)]
    for candidate in CANDIDATES:
        if _fits(expression, candidate):
            return candidate
    for op, arg in parts:
        if op is constants.LITERAL:
            return chr(arg)
        if op is constants.RANGE:
            return chr(arg[0])
    return "a"


def _fits(expression, character):
    parts = expression[0][1]
    negated = parts and parts[0][0] is constants.NEGATE
    fits = any(_part_fits(op, arg, character) for op, arg in parts)
    return fits != negated


def _part_fits(op, arg, character):
    if op is constants.LITERAL:
        return ord(character) == arg
    if op is constants.RANGE:
        return arg[0] <= ord(character) <= arg[1]
    if op is constants.CATEGORY:
        name = str(arg).removeprefix("CATEGORY_")
        classes = {
            "DIGIT": r"\d",
            "SPACE": r"\s",
            "WORD": r"\w",
            "NOT_DIGIT": r"\D",
            "NOT_SPACE": r"\S",
            "NOT_WORD": r"\W",
        }
        return bool(re.match(classes[name], character))
    return False


def _walk(items, before=()):
    """Yield (what comes before it, the repeated part) for each repeat that can go on for long."""
    done = list(before)
    for op, arg in items:
        if op in REPEATS:
            if int(arg[1]) >= 12:
                yield list(done), arg[2]
            yield from _walk(arg[2], done)
        elif op is constants.SUBPATTERN:
            yield from _walk(arg[3], done)
        elif op is constants.BRANCH:
            for branch in arg[1]:
                yield from _walk(branch, done)
        done.append((op, arg))


def hostile_lines(pattern, seed, size):
    """Yield lines of about `size` characters against one pattern."""
    rng = random.Random(f"{seed}:{pattern}")
    parsed = list(sre_parse.parse(pattern))
    whole = sample_of(parsed, rng)
    literals = "".join(chr(arg) for op, arg in _flat(parsed) if op is constants.LITERAL)
    yield _fill(whole[: max(1, len(whole) - 1)], size)
    yield _fill(literals or "a", size)
    for before, inner in _walk(parsed):
        prefix = sample_of(before, rng)
        unit = sample_of(inner, rng) or "a"
        yield (prefix + _fill(unit, size))[:size] + "\x01"
        yield _fill(prefix + unit, size) + "\x01"
        yield prefix + _fill(rng.choice(" a1.") + unit, size // 2) + _fill(whole[:-1] or "a", size // 2)
    for _ in range(2):
        cuts = sorted(rng.sample(range(len(whole) + 1), min(2, len(whole) + 1)))
        yield _fill(whole[cuts[0] : cuts[-1]] or whole or "a", size) + whole[: len(whole) // 2]


def _flat(items):
    for op, arg in items:
        if op is constants.SUBPATTERN:
            yield from _flat(arg[3])
        else:
            yield op, arg


def _fill(unit, size):
    return (unit * (size // max(1, len(unit)) + 1))[:size]
