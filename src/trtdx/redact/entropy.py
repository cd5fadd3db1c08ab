"""The last net: words that look drawn by chance, as tokens without a known form do.

A word is taken for one when it changes between upper case, lower case and digits far more often than names,
paths, kernels and mangled symbols do, and holds little that could be a word. `tests/redact/test_corpus.py` states how
many words of healthy logs it takes for one.
"""

from __future__ import annotations

import re
from itertools import pairwise

_WORD = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{20,128}={0,2}(?![A-Za-z0-9+/_-])")
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F]+(?:-[0-9a-fA-F]+)*")
_SYMBOL = re.compile(
    r"_?_Z[A-Z0-9]|.*(?:sm\d\d|gemm|kernel|fp16|bf16|fp8|int8|x86_64|linux|cuda|cp3\d|conv|tile)", re.IGNORECASE
)
_NAME_PART = re.compile(r"[A-Z]?[a-z]{3,}|[a-z]{4,}")
CHANGING_SHARE = 0.35  # of neighbouring characters that change class; two thirds do in base62 drawn by chance
NAMED_SHARE = 0.42  # of characters in runs that can be words: Llama, Causal, proj
LEAST_LOWER = 24
LEAST_PART = 14


def redact_random_words(text: str, mark: str) -> str:
    """Return the text without words that look drawn by chance."""
    return _WORD.sub(lambda match: mark if looks_random(match[0]) else match[0], text)


def looks_random(word: str) -> bool:
    """Whether a word of 20 to 128 characters looks drawn by chance."""
    body = word.rstrip("=")
    if _HEX.fullmatch(body) or _SYMBOL.match(body):
        return False
    longest = max(re.split(r"[+/_-]", body), key=len)  # base64 has few separators, names have many
    return len(longest) >= LEAST_PART and not _HEX.fullmatch(longest) and _part_looks_random(longest)


def _part_looks_random(part: str) -> bool:
    kinds = [_kind(character) for character in part]
    if set(kinds) != {"upper", "lower", "digit"} and (set(kinds) != {"lower", "digit"} or len(part) < LEAST_LOWER):
        return False
    changes = sum(left != right for left, right in pairwise(kinds))
    named = sum(len(name) for name in _NAME_PART.findall(part))
    return changes >= CHANGING_SHARE * (len(part) - 1) and named <= NAMED_SHARE * len(part)


def _kind(character: str) -> str:
    if character.isdigit():
        return "digit"
    return "upper" if character.isupper() else "lower"
