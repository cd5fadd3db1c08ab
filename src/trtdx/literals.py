"""From a regular expression to the fixed text any match must contain.

The scanner looks for this text in raw bytes, so that a regular expression runs only on the few lines that
can match it. A pattern with alternatives gets one piece of text for each.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

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
STRONG_LENGTH = 8
STRONG_RARITY = 4.0
MAX_LENGTH = 32
MAX_ALTERNATIVES = 24

# Words that stand in so many log lines that text made only of these would stop the scanner everywhere.
COMMON_WORDS = frozenset(
    [
        "error",
        "errors",
        "failed",
        "failure",
        "fail",
        "tensorrt",
        "llm",
        "trt",
        "warning",
        "info",
        "cuda",
        "version",
        "python",
        "torch",
        "memory",
        "runtime",
        "assertion",
        "nvidia",
        "model",
        "models",
        "engine",
        "engines",
        "input",
        "inputs",
        "output",
        "outputs",
        "tensor",
        "tensors",
        "expected",
        "invalid",
        "not",
        "found",
        "file",
        "line",
        "loading",
        "load",
        "loaded",
        "server",
        "request",
        "requests",
        "device",
        "package",
        "packages",
        "runtimeerror",
        "valueerror",
        "module",
        "local",
        "import",
        "exception",
        "process",
        "cannot",
        "could",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "has",
        "have",
        "had",
        "the",
        "a",
        "an",
        "of",
        "to",
        "in",
        "on",
        "at",
        "for",
        "from",
        "with",
        "by",
        "and",
        "or",
        "as",
        "if",
        "no",
        "this",
        "that",
        "it",
        "set",
        "get",
        "using",
        "use",
        "used",
        "will",
        "would",
        "should",
        "must",
        "can",
        "value",
        "values",
        "key",
        "name",
        "type",
        "types",
        "size",
        "shape",
        "data",
        "config",
        "configuration",
        "parameter",
        "parameters",
        "argument",
        "arguments",
        "option",
        "default",
        "max",
        "min",
        "batch",
        "length",
        "token",
        "tokens",
        "cache",
        "kv",
        "block",
        "blocks",
        "attention",
        "layer",
        "layers",
        "weight",
        "weights",
        "gpu",
        "gpus",
        "cpu",
        "rank",
        "ranks",
        "number",
        "than",
        "more",
        "less",
        "greater",
        "between",
        "while",
        "during",
        "when",
        "please",
        "check",
        "see",
        "support",
        "supported",
        "unsupported",
        "does",
        "do",
        "did",
        "into",
        "out",
        "up",
        "down",
        "only",
        "all",
        "any",
        "each",
        "other",
        "same",
        "different",
        "new",
        "old",
        "first",
        "last",
        "build",
        "built",
        "run",
        "running",
        "start",
        "started",
        "create",
        "created",
        "creating",
        "allocate",
        "allocated",
        "allocation",
        "read",
        "write",
        "open",
        "path",
        "directory",
        "library",
        "libraries",
        "function",
        "call",
        "called",
        "node",
        "nodes",
        "host",
        "plugin",
        "precision",
        "dtype",
        "float",
        "half",
        "int",
        "fraction",
        "available",
        "lora",
        "paged",
        "window",
        "string",
        "json",
        "array",
        "object",
        "parsing",
        "parse",
        "got",
        "but",
        "missing",
        "required",
        "unable",
        "try",
        "fraction",
        "usage",
        "peak",
        "free",
        "total",
        "buffer",
        "buffers",
        "context",
    ]
)
COMMON_BIGRAMS = frozenset(
    [
        "th",
        "he",
        "in",
        "er",
        "an",
        "re",
        "on",
        "at",
        "en",
        "nd",
        "ti",
        "es",
        "or",
        "te",
        "of",
        "ed",
        "is",
        "it",
        "al",
        "ar",
        "st",
        "to",
        "nt",
        "ng",
        "se",
        "ha",
        "as",
        "ou",
        "io",
        "le",
        "ve",
        "co",
        "me",
        "de",
        "hi",
        "ri",
        "ro",
        "ic",
        "ne",
        "ea",
        "ra",
        "ce",
        "li",
        "ch",
        "ll",
        "be",
        "ma",
        "si",
        "om",
        "ur",
        "no",
        "ta",
        "lo",
        "or",
        "pe",
        "tr",
        "un",
        "ut",
        "ot",
        "ze",
        "ge",
        "di",
    ]
)


def fold(text: bytes) -> bytes:
    """Return the text as the scanner compares it: bit 5 set, which ignores the case of ASCII letters."""
    return bytes(byte | 0x20 for byte in text)


@lru_cache(maxsize=65536)
def rarity(text: str) -> float:
    """Say how seldom this text is expected in a log; longer and odder is higher."""
    return sum(_word_rarity(word) for word in re.findall(r"[a-z]+|[^a-z]+", text.lower()))


def _word_rarity(word: str) -> float:
    if not word.isalpha():
        return 0.5 * len(word.strip())
    if word in COMMON_WORDS or (len(word) <= 4 and any(common.startswith(word) for common in COMMON_WORDS)):
        return 0.15 * len(word)
    pairs = pairwise(word)
    return 0.5 + sum(0.55 if left + right in COMMON_BIGRAMS else 1.0 for left, right in pairs)


def is_strong(text: str) -> bool:
    """Say whether the text is long and odd enough to be looked for in gigabytes."""
    return len(text) >= STRONG_LENGTH and rarity(text) >= STRONG_RARITY


@lru_cache(maxsize=4096)
def required_texts(pattern: str, flags: int = 0) -> tuple[str, ...]:
    """Return texts of which every match contains at least one; empty when there is no such set."""
    parsed = sre_parse.parse(pattern, flags)
    found = _best(list(parsed))
    return tuple(sorted(found)) if found else ()


def is_vague(pattern: str) -> bool:
    """Say whether the pattern's fixed text is short or common, as in patterns for a user's own words."""
    return not all(map(is_strong, required_texts(pattern)))


def best_window(text: str) -> str:
    """Return the rarest stretch of at most MAX_LENGTH characters."""
    if len(text) <= MAX_LENGTH:
        return text
    starts = range(len(text) - MAX_LENGTH + 1)
    return max((text[start : start + MAX_LENGTH] for start in starts), key=rarity)


def _best(items: Sequence[tuple[Any, Any]]) -> set[str] | None:
    candidates = [texts for texts in _candidates(items) if texts and all(len(t) >= MIN_LENGTH for t in texts)]
    if not candidates:
        return None
    return max(candidates, key=lambda texts: min(rarity(text) for text in texts) - 0.2 * len(texts))


def _candidates(items: Sequence[tuple[Any, Any]]) -> Iterable[set[str]]:
    """Yield sets of texts, each such that a match of the sequence contains one of the set."""
    run = ""
    for op, arg in _flatten(items):
        if op is sre_constants.LITERAL and chr(arg) not in "\r\n" and arg < 128:
            run += chr(arg)
            continue
        if run:
            yield {best_window(run)}
        run = ""
        inner = _inner(op, arg)
        if inner:
            yield inner
    if run:
        yield {best_window(run)}


def _flatten(items: Sequence[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    """Yield the sequence with plain groups opened, so that text on both sides of `(` joins."""
    for op, arg in items:
        if op is sre_constants.SUBPATTERN and not (arg[2] or 0) & re.IGNORECASE:
            yield from _flatten(list(arg[3]))
        else:
            yield op, arg


def _inner(op: Any, arg: Any) -> set[str] | None:
    if op is sre_constants.SUBPATTERN:
        return _best(list(arg[3]))
    if op in (sre_constants.MAX_REPEAT, sre_constants.MIN_REPEAT) and arg[0] >= 1:
        return _best(list(arg[2]))
    if op is not sre_constants.BRANCH:
        return None
    united: set[str] = set()
    for branch in arg[1]:
        best = _best(list(branch))
        if best is None:
            return None
        united |= best
    return united if len(united) <= MAX_ALTERNATIVES else None


def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)
