"""Past cases and rule pages that are like a problem, ranked together.

Candidates are taken by their rarest terms (codes, error lines, stacks, release, GPU, model) and words; each is then
judged by what the problem is, and by where it happens. The judgement is the same whichever database holds the store.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeVar

import msgspec

from trtdx.cases.deployment_words import compute_capability, named_gpus, named_models, stated_release
from trtdx.cases.facts import PLACE_KINDS, PROBLEM_KINDS, search_words, term_number, term_texts
from trtdx.cases.nouns import CaseFacts, Recurrence, SearchHit
from trtdx.diagnose.unknown import UNKNOWN_CODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trtdx.cases.nouns import StoredCase
    from trtdx.cases.store import CaseStore
    from trtdx.model import Report
    from trtdx.rule import RuleBook

MAX_ROWS = 40_000  # of the index that one search reads
MAX_CANDIDATES = 400
MAX_WORD_CANDIDATES = 80
MAX_WORD_ROWS = 6_000
MAX_QUERY_WORDS = 40
MAX_QUERY_ERRORS = 8
MAX_RULES = 3
MAX_WORKED = 3
SECONDS_PER_HOUR = 3600.0
KIND_WEIGHTS = {"error": 3.0, "stack": 2.0, "frame": 0.7, "code": 1.5} | dict.fromkeys(PLACE_KINDS, 0.7)
PART_WEIGHTS = {"problem": 0.5, "code": 0.2, "words": 0.3}
PLACE_SHARE = 0.25
LEAST_SCORE = 0.12
RULE_SHARE = 0.6  # a page says what a problem is, a past case also what was done about it here
_CODE = re.compile(r"\b[A-Z]{2,8}\d{3,5}\b")


Key = TypeVar("Key", int, str)


class CaseQuery(msgspec.Struct, frozen=True):
    """What is looked for: what it is about, its words, and the case it comes from where it is one."""

    facts: CaseFacts
    words: tuple[str, ...]
    own_id: str = ""


def query_from_words(text: str) -> CaseQuery:
    """Return the question that a few words ask; codes, releases, GPUs and models among them count as such."""
    codes = tuple(dict.fromkeys(_CODE.findall(text)))
    facts = CaseFacts(codes=codes, release=stated_release(text), gpus=named_gpus(text), models=named_models(text))
    return CaseQuery(facts, tuple(search_words(text)[:MAX_QUERY_WORDS]))


def query_from_facts(facts: CaseFacts, own_id: str = "") -> CaseQuery:
    """Return the question that a log or a case asks."""
    words = search_words(*facts.errors[:MAX_QUERY_ERRORS])[:MAX_QUERY_WORDS]
    return CaseQuery(facts, tuple(words), own_id)


def search_cases(store: CaseStore, query: CaseQuery, *, limit: int) -> list[SearchHit]:
    """Return the past cases that are most like the question, one for each problem on one set-up, best first."""
    judge = _Judge(store, query)
    scored = [(judge.score_case(case), case) for case in judge.candidates() if case.id != query.own_id]
    ranked = sorted(
        ((score, case) for score, case in scored if score >= LEAST_SCORE),
        key=lambda pair: (-round(pair[0], 3), pair[1].resolution is None, -pair[1].created, pair[1].id),
    )
    groups: defaultdict[tuple[object, ...], list[tuple[float, StoredCase]]] = defaultdict(list)
    for score, case in ranked:
        groups[case.group, case.facts.release, case.facts.gpus, case.facts.models].append((score, case))
    best = list(groups.values())[:limit]
    counts = recurrences(store, [members[0][1].group for members in best])
    return [_hit_from_group(members, counts) for members in best]


def _hit_from_group(members: Sequence[tuple[float, StoredCase]], counts: Mapping[int, Recurrence]) -> SearchHit:
    score, case = members[0]
    return SearchHit(
        id=case.id,
        score=round(score, 3),
        codes=case.facts.codes,
        resolution=case.resolution,
        title=case.title,
        created=case.created,
        recurrence=counts.get(case.group),
        same=tuple(other.id for _, other in members[1:20]),
    )


def recurrences(store: CaseStore, groups: Sequence[int]) -> dict[int, Recurrence]:
    """Return, for each problem, how often it came back, how long it took, and what worked."""
    rows: defaultdict[int, list[tuple[float, float | None, str]]] = defaultdict(list)
    for group, created, resolved_at, fix in store.cases_of_groups(groups):
        rows[int(group)].append((created, resolved_at, fix))
    return {group: _recurrence(members) for group, members in rows.items()}


def _recurrence(members: Sequence[tuple[float, float | None, str]]) -> Recurrence:
    times = [max(0.0, resolved - created) for created, resolved, _ in members if resolved is not None]
    fixes = Counter(fix for _, resolved, fix in members if resolved is not None and fix)
    return Recurrence(
        count=len(members),
        resolved=len(times),
        mean_hours=round(sum(times) / len(times) / SECONDS_PER_HOUR, 2) if times else None,
        worked=tuple(fixes.most_common(MAX_WORKED)),
    )


class _Judge:
    """How like the question a case is; what is rare in the store says more."""

    def __init__(self, store: CaseStore, query: CaseQuery) -> None:
        self._store, self._query = store, query
        self._total = store.count_cases()
        self._terms = {
            (kind, text): term_number(kind, text) for kind, texts in term_texts(query.facts).items() for text in texts
        }
        self._counts = store.count_terms(list(self._terms.values()))
        self._word_counts = store.database.count_words(query.words) if query.words else {}
        self._problem = {
            (kind, text): KIND_WEIGHTS[kind] * self._rareness(self._counts.get(number, 0))
            for (kind, text), number in self._terms.items()
            if kind in PROBLEM_KINDS
        }
        self._problem_sum = sum(self._problem.values())
        self._rare = self._rareness(2)  # a term that the question has not is taken as rare
        self._capabilities = _compute_capabilities(query.facts)
        self._words = {word: self._rareness(self._word_counts.get(word, 0)) for word in query.words}
        self._case_words: dict[int, str] = {}

    def candidates(self) -> list[StoredCase]:
        """Return the cases worth a closer look."""
        numbers = self._store.cases_with_terms(self._term_weights(), MAX_CANDIDATES)
        words = self._rare_words()
        if words:
            numbers += self._store.database.cases_with_words(words, MAX_WORD_CANDIDATES)
        numbers = list(dict.fromkeys(numbers))
        if self._word_counts and numbers:
            self._case_words = self._store.database.words_of_cases(numbers)
        return self._store.cases_by_number(numbers)

    def _term_weights(self) -> dict[int, float]:
        """Return the terms to look up with their weights: the rarest, as many as can be read in time."""
        weights = {
            number: KIND_WEIGHTS[kind] * self._rareness(self._counts.get(number, 0))
            for (kind, _), number in self._terms.items()
        }
        return dict(_affordable(weights, self._counts, MAX_ROWS))

    def _rare_words(self) -> list[str]:
        return [
            word for word, _ in _affordable(dict.fromkeys(self._word_counts, 1.0), self._word_counts, MAX_WORD_ROWS)
        ]

    def _rareness(self, count: int) -> float:
        return math.log(1 + (self._total + 1) / (count + 1))

    def score_case(self, case: StoredCase) -> float:
        """Return how like the question a case is: 0 nothing shared, 1 the same."""
        facts = self._query.facts
        parts: dict[str, float] = {}
        if self._problem:
            parts["problem"] = self._problem_likeness(case)
        if facts.codes:
            parts["code"] = _code_likeness(facts.codes, case.facts.codes)
        if self._query.words:
            parts["words"] = self._word_coverage(case)
        if not parts:
            return PLACE_SHARE * _place_likeness(facts, case.facts, self._capabilities)
        total = sum(PART_WEIGHTS[name] for name in parts)
        likeness = sum(PART_WEIGHTS[name] * value for name, value in parts.items()) / total
        place = _place_likeness(facts, case.facts, self._capabilities)
        return likeness * (1 - PLACE_SHARE + PLACE_SHARE * place)

    def _problem_likeness(self, case: StoredCase) -> float:
        """Return the share of error lines and stacks that the two have in common, weighed by rareness."""
        shared = total = 0.0
        for kind, texts in _problem_texts(case.facts):
            for text in texts:
                weight = self._problem.get((kind, text))
                shared += weight or 0.0
                total += KIND_WEIGHTS[kind] * self._rare if weight is None else weight
        return 2 * shared / (self._problem_sum + total or 1.0)

    def _word_coverage(self, case: StoredCase) -> float:
        """Return the share of the question's words, weighed by rareness, that the case has."""
        words = set(self._case_words.get(case.number, "").split())
        covered = sum(weight for word, weight in self._words.items() if word in words)
        return covered / (sum(self._words.values()) or 1.0)


def _problem_texts(facts: CaseFacts) -> Iterable[tuple[str, Sequence[str]]]:
    yield "error", facts.errors
    yield "frame", facts.frames
    if len(facts.frames) > 1:
        yield "stack", ("|".join(facts.frames[:3]),)


def _affordable(weights: Mapping[Key, float], counts: Mapping[Key, int], budget: int) -> Iterable[tuple[Key, float]]:
    """Yield the rarest keys whose rows fit the budget; at least one."""
    rows = 0
    for key in sorted((key for key in weights if counts.get(key)), key=lambda key: counts[key]):
        if rows and rows + counts[key] > budget:
            return
        rows += counts[key]
        yield key, weights[key]


def _code_likeness(codes: Sequence[str], others: Sequence[str]) -> float:
    """Return whether two cases have the same cause; to be unknown both is little in common."""
    if not others:
        return 0.0
    if codes[0] == others[0]:
        return 0.3 if codes[0] == UNKNOWN_CODE else 1.0
    if codes[0] in others or others[0] in codes:
        return 0.6
    return 0.3 if set(codes) & set(others) - {UNKNOWN_CODE} else 0.0


def _compute_capabilities(facts: CaseFacts) -> set[int]:
    return {sm for gpu in facts.gpus if (sm := compute_capability(gpu))}


def _place_likeness(facts: CaseFacts, other: CaseFacts, capabilities: set[int]) -> float:
    """Return how like two set-ups are; what one of them does not tell counts half."""
    return (
        _release_likeness(facts.release, other.release)
        + _gpu_likeness(facts, other, capabilities)
        + _model_likeness(facts.models, other.models)
    ) / 3


def _release_likeness(release: str, other: str) -> float:
    if not release or not other:
        return 0.5
    if release == other:
        return 1.0
    return 0.4 if release.split(".")[:2] == other.split(".")[:2] else 0.0


def _gpu_likeness(facts: CaseFacts, other: CaseFacts, capabilities: set[int]) -> float:
    if not facts.gpus or not other.gpus:
        return 0.5
    if set(facts.gpus) & set(other.gpus):
        return 1.0
    return 0.4 if capabilities & _compute_capabilities(other) else 0.0


def _model_likeness(models: Sequence[str], others: Sequence[str]) -> float:
    if not models or not others:
        return 0.5
    if set(models[:-1]) & set(others[:-1]) or (models == others):
        return 1.0
    return 0.4 if models[-1] == others[-1] else 0.0


def rules_from_report(report: Report) -> list[SearchHit]:
    """Return the rule pages that a diagnosis names, scored as past cases are."""
    return [
        SearchHit(
            id=finding.code,
            score=round(RULE_SHARE * finding.confidence, 3),
            codes=(finding.code,),
            resolution=None,
            kind="rule",
            title=finding.message,
        )
        for finding in report.findings[:MAX_RULES]
        if finding.code != UNKNOWN_CODE
    ]


def rules_from_words(text: str, book: RuleBook) -> list[SearchHit]:
    """Return the rule pages whose words are nearest to the text, scored as past cases are."""
    from trtdx.diagnose.similar_rules import similarity_index

    named = [book.get(code) for code in _CODE.findall(text) if book.has_rule(code)]
    near = [(rule, 1.0) for rule in named]
    near += [(similar.rule, min(1.0, similar.score)) for similar in similarity_index(book).nearest_rules(text)]
    hits = {
        rule.code: SearchHit(
            id=rule.code, score=round(RULE_SHARE * score, 3), codes=(rule.code,), resolution=None, kind="rule", title=rule.title
        )
        for rule, score in reversed(near)
    }  # fmt: skip
    return list(hits.values())


def rank_together(*kinds: Sequence[SearchHit], limit: int) -> list[SearchHit]:
    """Return all hits, best first."""
    hits = [hit for kind in kinds for hit in kind]
    return sorted(hits, key=lambda hit: (-hit.score, hit.kind != "case"))[:limit]
