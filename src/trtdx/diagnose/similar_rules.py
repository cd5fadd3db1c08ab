"""The rules whose words are nearest to a text: what is asked when no pattern fits, or when the input is a description."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trtdx.rule import RuleKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.rule import Rule, RuleBook

_FILLER = """
a an the of to in on at for from with by and or as if is are was were be been being it its this that these those
i we you they my our your their he she do does did done have has had will would can could should may might not
no but so than then when while where which who what how why there here also just only very more most some any
all each other into out up down over under after before again same one two get gets got use using used make made
file line most recent call last python3 lib dist packages site usr local home root
"""
_STOP = frozenset(_FILLER.split())
_SUFFIXES = (
    "ization", "isation", "ations", "ation", "ingly", "ings", "ing", "ies", "edly", "ers", "ed", "es", "er",
    "ly", "s",
)  # fmt: skip


def stemmed_words(text: str) -> list[str]:
    """Return the text's words, split at case and underscores, without endings and filler."""
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text)
    tokens = re.findall(r"[a-z][a-z0-9]+|\d+[a-z]+", text.lower())
    return [_stem_word(word) for word in tokens if word not in _STOP and len(word) < 40]


def _stem_word(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 4:
            return word[: -len(suffix)]
    return word


class SimilarRule(NamedTuple):
    """A rule and how near it is: 0 shares nothing, 1 says the same."""

    rule: Rule
    score: float


class _WordBag(NamedTuple):
    """The words of one page or phrase, weighted by how rare they are, at length one."""

    code: str
    weights: dict[str, float]


class SimilarityIndex:
    """An index of all rule pages by their words."""

    def __init__(self, book: RuleBook) -> None:
        rules = [rule for rule in book if rule.kind is RuleKind.CAUSE and rule.has_log_wording]
        self._rules = {rule.code: rule for rule in rules}
        pages = {rule.code: Counter(stemmed_words(_page_text(rule))) for rule in rules}
        page_counts = Counter(word for page in pages.values() for word in page)
        self._rareness = {word: math.log(1 + len(pages) / count) for word, count in page_counts.items()}
        self._pages = _index_by_word(_WordBag(code, self._weigh_words(page)) for code, page in pages.items())
        self._phrases = _index_by_word(
            _WordBag(rule.code, self._weigh_words(Counter(stemmed_words(phrase))))
            for rule in rules
            for phrase in (*rule.front.described, rule.title, rule.front.message)
        )

    def nearest_rules(self, text: str, max_rules: int = 3) -> list[SimilarRule]:
        """Return the nearest rules, best first."""
        query = self._weigh_words(Counter(stemmed_words(text)))
        phrases, pages = _cosine_by_rule(query, self._phrases), _cosine_by_rule(query, self._pages)
        scored = [SimilarRule(self._rules[code], 0.6 * phrases.get(code, 0.0) + 0.4 * pages[code]) for code in pages]
        return sorted((near for near in scored if near.score > 0.02), key=lambda near: (-near.score, near.rule.code))[
            :max_rules
        ]

    def _weigh_words(self, counts: Counter[str]) -> dict[str, float]:
        weights = {word: (1 + math.log(count)) * self._rareness.get(word, 1.0) for word, count in counts.items()}
        length = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
        return {word: weight / length for word, weight in weights.items()}


def _index_by_word(bags: Iterable[_WordBag]) -> dict[str, list[tuple[int, str, float]]]:
    """Return, for each word, the bags that hold it: (number of the bag, its rule's code, the word's weight there)."""
    index: defaultdict[str, list[tuple[int, str, float]]] = defaultdict(list)
    for number, bag in enumerate(bags):
        for word, weight in bag.weights.items():
            index[word].append((number, bag.code, weight))
    return index


def _cosine_by_rule(query: dict[str, float], index: dict[str, list[tuple[int, str, float]]]) -> dict[str, float]:
    """Return, for each rule that shares a word with the query, the cosine of its nearest bag."""
    sums: defaultdict[tuple[int, str], float] = defaultdict(float)
    for word, weight in query.items():
        for number, code, other in index.get(word, ()):
            sums[number, code] += weight * other
    best: dict[str, float] = {}
    for (_, code), cosine in sums.items():
        best[code] = max(best.get(code, 0.0), cosine)
    return best


@lru_cache(maxsize=4)
def similarity_index(book: RuleBook) -> SimilarityIndex:
    """Return the index of a rule book, made once."""
    return SimilarityIndex(book)


def _page_text(rule: Rule) -> str:
    front = rule.front
    parts: Iterable[str] = (
        rule.title, front.message, rule.why, front.slug.replace("-", " "), *front.described, *(fix.text for fix in front.fix),
    )  # fmt: skip
    return " ".join(parts)
