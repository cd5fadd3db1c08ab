"""All patterns of all rules against a source, in one pass.

Fixed text decides which lines are looked at: text that is long and odd is looked for in every byte by the
scanner; short or common text only near the source's start and end, where failures show and descriptions fit.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from trtdx.diagnose.facts import Pattern, SourceFacts
from trtdx.diagnose.flood_limits import WORK_PER_BYTE, Budget, Ration
from trtdx.diagnose.line_matches import Look
from trtdx.diagnose.lines import Segment, segments, text_of
from trtdx.diagnose.memory_lines import MEMORY_TEXTS
from trtdx.diagnose.read_ahead import ahead
from trtdx.diagnose.scan import PythonScanner, Scanner, count_newlines, scanner_for
from trtdx.knowledge.literals import STRIDE, is_vague

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trtdx.rule import RuleBook

EDGE_BYTES, LEAST_EDGE_BYTES = 48 << 10, 8 << 10
MOST_WHOLE = 16  # sources that are all looked at as closely as a single one; more share what these would cost

# What makes a line worth a look when no rule knows it; `look.SALIENT` decides whether it is worth quoting.
SALIENT_TEXTS = (
    "Traceback (most recent", "terminate called", "Segmentation fault", "core dumped", "LLM][ERROR]", "[TRT-LLM] [E]",
    "[TRT-LLM] [F]", "[TRT] [E]", "RuntimeError", "ValueError:", "Exception:", "AssertionError", "NCCL WARN", "ImportError:",
    "error", "fail", "fatal", "killed", "abort", "unable", "denied", "cannot", "invalid", "unsupported", "timed out",
    "critical", "severe", "panic", "exception",
    *(f"[{name} {rank}] [E]" for name in ("RANK", "MPI_Rank") for rank in range(64)),
)  # fmt: skip
GLOG_ERROR = re.compile(rb"(?m)^[EF]\d{4} \d\d:\d\d:")  # has no fixed text
ALIVE_TEXTS = (
    "Uvicorn running on", "Application startup complete", "Started HTTPService", "Started GRPCInferenceService",
    "Total time of building all engines", "| READY", "UNAVAILABLE", "Not loaded",
)  # fmt: skip


class Matcher:
    """Looks for every pattern of a rule book in sources, one after another."""

    def __init__(self, book: RuleBook, redact: Callable[[str], str], *, sources: int = 1) -> None:
        self._redact, self._share = redact, min(1.0, MOST_WHOLE / max(1, sources))
        self._patterns = list(_patterns_of(book))
        owners: defaultdict[str, list[int]] = defaultdict(list)
        weak: defaultdict[str, list[int]] = defaultdict(list)
        for number, pattern in enumerate(self._patterns):
            index = weak if is_vague(pattern.text) else owners
            for text in pattern.required:
                index[text.lower()].append(number)
        quotable = {text.lower() for text in (*SALIENT_TEXTS, *ALIVE_TEXTS, *MEMORY_TEXTS)}
        for text in sorted(quotable):
            (owners if len(text) >= 8 else weak)[text] += []
        self._strong = _Index(owners, quotable, scanner_for)
        self._weak = _Index(weak, quotable, PythonScanner)

    def facts(self, name: str, blocks: Iterable[bytes]) -> SourceFacts:
        """Return what the source's bytes tell; the bytes are read once and not kept."""
        reading = self.start(name)
        for segment in ahead(segments(blocks)):
            reading.take(segment)
        return reading.facts

    def start(self, name: str) -> Reading:
        """Return a reading of a new source, to be given its segments one by one."""
        return Reading(name, self._strong, self._weak, self._patterns, self._redact, self._share)


class Reading:
    """One source on its way through the matcher."""

    def __init__(
        self,
        name: str,
        strong: _Index,
        weak: _Index,
        patterns: list[Pattern],
        redact: Callable[[str], str],
        share: float,
    ) -> None:
        self.facts = SourceFacts(name)
        self._budget = Budget(share)
        self._edge = max(LEAST_EDGE_BYTES, int(EDGE_BYTES * share))
        self._look = Look(patterns, redact, self.facts, self._budget)
        self._strong, self._weak = strong, weak
        self._strong_ration, self._weak_ration = strong.ration(self._budget), weak.ration(self._budget)
        self._loose = [number for number, pattern in enumerate(patterns) if not pattern.required]

    def take(self, segment: Segment) -> None:
        """Look through the next segment of the source."""
        size = segment.end - segment.start
        self.facts.bytes_read += size
        self._budget.earn(size * WORK_PER_BYTE)
        self._strong_ration.next_segment()
        tail = segment.start + max(0, size - self._edge) // STRIDE * STRIDE if segment.last else segment.end
        self._strong.search(segment, segment.start, tail, self._look, self._strong_ration)
        if segment.last:
            self._budget.earn_last()
            self._strong_ration.listen()
            self._strong.search(segment, tail, segment.end, self._look, self._strong_ration)
        self._take_edges(segment)
        self.facts.sampled |= self._strong_ration.passed_over or self._weak_ration.passed_over

    def _take_edges(self, segment: Segment) -> None:
        for start, end in _edges(segment, self._edge):
            self._weak.search(segment, start, end, self._look, self._weak_ration)
            for match in GLOG_ERROR.finditer(segment.data, start, end):
                self._look.at(segment, *segment.line_at(match.start()), set())
            self._look.everywhere(text_of(segment.data[start:end]), self._loose)
        if segment.last:
            unended = segment.end > 0 and segment.data[segment.end - 1 : segment.end] != b"\n"
            self.facts.lines_read = (
                segment.line + count_newlines(segment.data, segment.start, segment.end) + unended
            )
            self._look.last_lines(segment)


class _Index:
    """Texts, who needs them, and a scanner over them."""

    def __init__(
        self, owners: dict[str, list[int]], quotable: set[str], make: Callable[[Sequence[bytes]], Scanner]
    ) -> None:
        self._owners = list(owners.values())
        self._quotable = {number for number, text in enumerate(owners) if text in quotable}
        self._scanner = make([text.encode() for text in owners])

    def ration(self, budget: Budget) -> Ration:
        return Ration(len(self._owners), budget)

    def search(self, segment: Segment, start: int, end: int, look: Look, ration: Ration) -> None:
        """Look at the lines between the two offsets that hold one of the texts, as far as they are rationed."""
        begin, stop, met = -1, -1, set[int]()
        for offset, text in self._scanner.hits(segment.data, start, end, ration.muted):
            inside = begin <= offset < stop
            if (inside and text in met) or not ration.wants(text):
                continue
            if not inside:
                self._look_at(segment, begin, stop, look, met)
                begin, stop = segment.line_at(offset)
                met = set()
            met.add(text)
            if look.has_enough(self._owners[text], ration.hits[text]):
                ration.mute(text)
        self._look_at(segment, begin, stop, look, met)

    def _look_at(self, segment: Segment, begin: int, stop: int, look: Look, met: set[int]) -> None:
        if met:
            pattern_numbers = {number for text in met for number in self._owners[text]}
            look.at(segment, begin, stop, pattern_numbers, salient=not met.isdisjoint(self._quotable))


def _patterns_of(book: RuleBook) -> Iterator[Pattern]:
    conditions: set[str] = set()
    for rule in book:
        for log in rule.front.log:
            yield Pattern(log.pattern, rule, log)
            conditions.update(log.requires, log.unless)
    for text in sorted(conditions):
        yield Pattern(text, None, None)


def _edges(segment: Segment, size: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches near the source's start and end that lie in this segment, without overlap."""
    head = min(segment.end, segment.start + size) if segment.first else segment.start
    if segment.first:
        yield segment.start, head
    if segment.last:
        yield max(head if segment.first else 0, segment.end - size), segment.end
