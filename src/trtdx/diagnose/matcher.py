"""All patterns of all rules against a source, in one pass.

Fixed text decides which lines are looked at: text that is long and odd is looked for in every byte by the
scanner; short or common text only near the source's start and end, where failures show and descriptions fit.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from trtdx.diagnose.line_matches import LineMatcher
from trtdx.diagnose.logs.flood_limits import WORK_PER_BYTE, HitRation, WorkBudget
from trtdx.diagnose.logs.lines import LogSegment, decode_text, split_segments
from trtdx.diagnose.logs.read_ahead import read_ahead
from trtdx.diagnose.memory_lines import MEMORY_TEXTS
from trtdx.diagnose.nouns import LogRegex, SourceFacts
from trtdx.diagnose.scan import PythonScanner, TextScanner, count_newlines, make_scanner
from trtdx.knowledge.literals import STRIDE, is_vague

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trtdx.rule import RuleBook

EDGE_BYTES, LEAST_EDGE_BYTES = 48 << 10, 8 << 10
MAX_FULL_SOURCES = 16  # sources that are all looked at as closely as a single one; more share what these would cost

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
        self._redact, self._share = redact, min(1.0, MAX_FULL_SOURCES / max(1, sources))
        self._patterns = list(_patterns_from_book(book))
        owners: defaultdict[str, list[int]] = defaultdict(list)
        weak: defaultdict[str, list[int]] = defaultdict(list)
        for number, pattern in enumerate(self._patterns):
            index = weak if is_vague(pattern.text) else owners
            for text in pattern.required:
                index[text.lower()].append(number)
        quotable = {text.lower() for text in (*SALIENT_TEXTS, *ALIVE_TEXTS, *MEMORY_TEXTS)}
        for text in sorted(quotable):
            (owners if len(text) >= 8 else weak)[text] += []
        self._rare_texts = _TextIndex(owners, quotable, make_scanner)
        self._common_texts = _TextIndex(weak, quotable, PythonScanner)

    def collect_facts(self, name: str, blocks: Iterable[bytes]) -> SourceFacts:
        """Return what the source's bytes tell; the bytes are read once and not kept."""
        reading = self.start_source(name)
        for segment in read_ahead(split_segments(blocks)):
            reading.read_segment(segment)
        return reading.facts

    def start_source(self, name: str) -> SourceReading:
        """Return a reading of a new source, to be given its segments one by one."""
        return SourceReading(name, self._rare_texts, self._common_texts, self._patterns, self._redact, self._share)


class SourceReading:
    """One source on its way through the matcher."""

    def __init__(
        self,
        name: str,
        rare_texts: _TextIndex,
        common_texts: _TextIndex,
        patterns: list[LogRegex],
        redact: Callable[[str], str],
        share: float,
    ) -> None:
        self.facts = SourceFacts(name)
        self._budget = WorkBudget(share)
        self._edge = max(LEAST_EDGE_BYTES, int(EDGE_BYTES * share))
        self._line_matcher = LineMatcher(patterns, redact, self.facts, self._budget)
        self._rare_texts, self._common_texts = rare_texts, common_texts
        self._rare_ration, self._common_ration = (
            rare_texts.make_ration(self._budget),
            common_texts.make_ration(self._budget),
        )
        self._loose_patterns = [number for number, pattern in enumerate(patterns) if not pattern.required]

    def read_segment(self, segment: LogSegment) -> None:
        """Look through the next segment of the source."""
        size = segment.end - segment.start
        self.facts.bytes_read += size
        self._budget.earn(size * WORK_PER_BYTE)
        self._rare_ration.next_segment()
        tail = segment.start + max(0, size - self._edge) // STRIDE * STRIDE if segment.is_last else segment.end
        self._rare_texts.search(segment, segment.start, tail, self._line_matcher, self._rare_ration)
        if segment.is_last:
            self._budget.earn_last()
            self._rare_ration.unmute_all()
            self._rare_texts.search(segment, tail, segment.end, self._line_matcher, self._rare_ration)
        self._read_edges(segment)
        self.facts.is_sampled |= self._rare_ration.passed_over or self._common_ration.passed_over

    def _read_edges(self, segment: LogSegment) -> None:
        for start, end in _edge_ranges(segment, self._edge):
            self._common_texts.search(segment, start, end, self._line_matcher, self._common_ration)
            for match in GLOG_ERROR.finditer(segment.data, start, end):
                self._line_matcher.match_line(segment, *segment.line_at(match.start()), set())
            self._line_matcher.match_loose_conditions(decode_text(segment.data[start:end]), self._loose_patterns)
        if segment.is_last:
            unended = segment.end > 0 and segment.data[segment.end - 1 : segment.end] != b"\n"
            self.facts.lines_read = (
                segment.lines_before + count_newlines(segment.data, segment.start, segment.end) + unended
            )
            self._line_matcher.keep_last_lines(segment)


class _TextIndex:
    """Texts, who needs them, and a scanner over them."""

    def __init__(
        self,
        owners: dict[str, list[int]],
        quotable: set[str],
        make_scanner: Callable[[Sequence[bytes]], TextScanner],
    ) -> None:
        self._owners = list(owners.values())
        self._quotable = {number for number, text in enumerate(owners) if text in quotable}
        self._scanner = make_scanner([text.encode() for text in owners])

    def make_ration(self, budget: WorkBudget) -> HitRation:
        return HitRation(len(self._owners), budget)

    def search(self, segment: LogSegment, start: int, end: int, line_matcher: LineMatcher, ration: HitRation) -> None:
        """Look at the lines between the two offsets that hold one of the texts, as far as they are rationed."""
        begin, stop, met = -1, -1, set[int]()
        for offset, text in self._scanner.find_hits(segment.data, start, end, ration.muted):
            inside = begin <= offset < stop
            if (inside and text in met) or not ration.accepts_hit(text):
                continue
            if not inside:
                self._match_line(segment, begin, stop, line_matcher, met)
                begin, stop = segment.line_at(offset)
                met = set()
            met.add(text)
            if line_matcher.has_enough(self._owners[text], ration.hits[text]):
                ration.mute(text)
        self._match_line(segment, begin, stop, line_matcher, met)

    def _match_line(
        self, segment: LogSegment, begin: int, stop: int, line_matcher: LineMatcher, texts: set[int]
    ) -> None:
        if texts:
            pattern_numbers = {number for text in texts for number in self._owners[text]}
            line_matcher.match_line(
                segment, begin, stop, pattern_numbers, is_salient=not texts.isdisjoint(self._quotable)
            )


def _patterns_from_book(book: RuleBook) -> Iterator[LogRegex]:
    conditions: set[str] = set()
    for rule in book:
        for log in rule.front.log:
            yield LogRegex(log.pattern, rule, log)
            conditions.update(log.requires, log.unless)
    for text in sorted(conditions):
        yield LogRegex(text, None, None)


def _edge_ranges(segment: LogSegment, size: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches near the source's start and end that lie in this segment, without overlap."""
    head = min(segment.end, segment.start + size) if segment.is_first else segment.start
    if segment.is_first:
        yield segment.start, head
    if segment.is_last:
        yield max(head if segment.is_first else 0, segment.end - size), segment.end
