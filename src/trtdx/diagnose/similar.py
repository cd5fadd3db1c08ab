"""The rules whose words are nearest to a text: what is asked when no pattern fits, or when the input is a description."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.rule import Rule, RuleBook

_STOP = frozenset(
    [
        "a",
        "an",
        "the",
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
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "being",
        "it",
        "its",
        "this",
        "that",
        "these",
        "those",
        "i",
        "we",
        "you",
        "they",
        "my",
        "our",
        "your",
        "their",
        "he",
        "she",
        "do",
        "does",
        "did",
        "done",
        "have",
        "has",
        "had",
        "will",
        "would",
        "can",
        "could",
        "should",
        "may",
        "might",
        "not",
        "no",
        "but",
        "so",
        "than",
        "then",
        "when",
        "while",
        "where",
        "which",
        "who",
        "what",
        "how",
        "why",
        "there",
        "here",
        "also",
        "just",
        "only",
        "very",
        "more",
        "most",
        "some",
        "any",
        "all",
        "each",
        "other",
        "into",
        "out",
        "up",
        "down",
        "over",
        "under",
        "after",
        "before",
        "again",
        "same",
        "one",
        "two",
        "get",
        "gets",
        "got",
        "use",
        "using",
        "used",
        "make",
        "made",
        "file",
        "line",
        "most",
        "recent",
        "call",
        "last",
        "python3",
        "lib",
        "dist",
        "packages",
        "site",
        "usr",
        "local",
        "home",
        "root",
    ]
)
_SUFFIXES = (
    "ization",
    "isation",
    "ations",
    "ation",
    "ingly",
    "ings",
    "ing",
    "ies",
    "edly",
    "ers",
    "ed",
    "es",
    "er",
    "ly",
    "s",
)


def words(text: str) -> list[str]:
    """Return the text's words, split at case and underscores, without endings and filler."""
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text)
    found = re.findall(r"[a-z][a-z0-9]+|\d+[a-z]+", text.lower())
    return [_stem(word) for word in found if word not in _STOP and len(word) < 40]


def _stem(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 4:
            return word[: -len(suffix)]
    return word


class Near(NamedTuple):
    """A rule and how near it is: 0 shares nothing, 1 says the same."""

    rule: Rule
    score: float


class Similar:
    """An index of all rule pages by their words."""

    def __init__(self, book: RuleBook) -> None:
        self._pages = [
            (rule, Counter(words(_page_text(rule))))
            for rule in book
            if rule.kind.value == "cause" and not rule.front.computed
        ]
        self._phrases = [
            (rule, Counter(words(phrase)))
            for rule, _ in self._pages
            for phrase in (*rule.front.described, rule.title, rule.front.message)
        ]
        seen: Counter[str] = Counter()
        for _, page in self._pages:
            seen.update(page.keys())
        self._idf = {word: math.log(1 + len(self._pages) / count) for word, count in seen.items()}

    def nearest(self, text: str, most: int = 3) -> list[Near]:
        """Return the nearest rules, best first."""
        query = Counter(words(text))
        if not query:
            return []
        whole = {rule.code: self._cosine(query, page) for rule, page in self._pages}
        best_phrase: dict[str, float] = {}
        for rule, phrase in self._phrases:
            best_phrase[rule.code] = max(best_phrase.get(rule.code, 0.0), self._cosine(query, phrase))
        scored = (
            Near(rule, 0.6 * best_phrase[rule.code] + 0.4 * whole[rule.code]) for rule, _ in self._pages
        )
        return sorted(
            (near for near in scored if near.score > 0.02), key=lambda near: (-near.score, near.rule.code)
        )[:most]

    def _cosine(self, left: Counter[str], right: Counter[str]) -> float:
        shared = left.keys() & right.keys()
        if not shared:
            return 0.0
        dot = sum(self._weight(word, left) * self._weight(word, right) for word in shared)
        return dot / math.sqrt(self._norm(left) * self._norm(right))

    def _weight(self, word: str, counts: Counter[str]) -> float:
        return (1 + math.log(counts[word])) * self._idf.get(word, 1.0)

    def _norm(self, counts: Counter[str]) -> float:
        return sum(self._weight(word, counts) ** 2 for word in counts) or 1.0


@lru_cache(maxsize=4)
def index_of(book: RuleBook) -> Similar:
    """Return the index of a rule book, made once."""
    return Similar(book)


def _page_text(rule: Rule) -> str:
    front = rule.front
    parts: Iterable[str] = (
        rule.title, front.message, rule.why, front.slug.replace("-", " "), *front.described, *(fix.text for fix in front.fix),
    )  # fmt: skip
    return " ".join(parts)
