"""`trtdx cases search`: hand it words, a log or a case, get what was met before and what helped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.cases.facts import WINDOW, facts_from_report
from trtdx.cases.search import (
    CaseQuery,
    query_from_facts,
    query_from_words,
    rank_together,
    rules_from_report,
    rules_from_words,
    search_cases,
)
from trtdx.errors import CaseError
from trtdx.redact import redact_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.cases.nouns import SearchHit
    from trtdx.cases.store import CaseStore
    from trtdx.diagnose.logs.sources import LogSource
    from trtdx.host import Host
    from trtdx.rule import RuleBook

_CASE_ID = re.compile(r"[0-9a-z]{5,9}")


def search_store(
    host: Host, store: CaseStore | None, load_rules: Callable[[], RuleBook], question: Sequence[str], *, limit: int
) -> list[SearchHit]:
    """Return past cases and rule pages that are like the question, best first.

    Args:
        host: where logs are read.
        store: the past cases; None where nothing was kept yet.
        load_rules: gives the rule book; asked only where it is needed.
        question: words, or paths of logs or cases, or the id of a case in the store.
        limit: how many hits at most.
    """
    if question and all(word == "-" or host.kind(word) != "absent" for word in question):
        return search_logs(host, store, load_rules(), question, limit=limit)
    if store and len(question) == 1 and (query := _query_from_id(store, question[0])):
        return search_cases(store, query, limit=limit)
    text = " ".join(question)
    cases = search_cases(store, query_from_words(text), limit=limit) if store else []
    return rank_together(cases, rules_from_words(text, load_rules()), limit=limit)


def search_logs(
    host: Host, store: CaseStore | None, book: RuleBook, paths: Sequence[str], *, limit: int
) -> list[SearchHit]:
    """Return what is like the problem in logs."""
    from trtdx.diagnose.logs.sources import open_sources
    from trtdx.diagnose.run import diagnose_sources

    windows = [_LogWindow(source) for source in open_sources(host, paths)[0]]
    report = diagnose_sources([window.source for window in windows], book)
    facts = facts_from_report(report, [window.text for window in windows])
    cases = search_cases(store, query_from_facts(facts), limit=limit) if store else []
    return rank_together(cases, rules_from_report(report), limit=limit)


def _query_from_id(store: CaseStore, word: str) -> CaseQuery | None:
    if not _CASE_ID.fullmatch(word):
        return None
    try:
        case = store.find(word)
    except CaseError:
        return None
    return query_from_facts(case.facts, case.id)


class _LogWindow:
    """Keeps the beginning and the end of a log while it is read."""

    def __init__(self, source: LogSource) -> None:
        self._blocks = source.blocks
        self._start, self._end = bytearray(), bytearray()
        self.source = source._replace(blocks=self._watched)

    def _watched(self) -> Iterator[bytes]:
        for block in self._blocks():
            taken = max(0, WINDOW - len(self._start))
            self._start += block[:taken]
            self._end += block[taken:]
            del self._end[:-WINDOW]
            yield block

    @property
    def text(self) -> str:
        """What was kept, cleaned as what goes into the store is."""
        from trtdx.diagnose.logs.lines import clean_blocks

        data = bytes(self._start + self._end)
        return redact_secrets(b"".join(clean_blocks(iter([data]))).decode("utf-8", "replace"))
