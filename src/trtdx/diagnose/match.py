"""All patterns of all rules against a source, in one pass.

Fixed text decides which lines are looked at: text that is long and odd is looked for in every byte by the
scanner; short or common text only near the source's start and end, where failures show and descriptions fit.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trtdx.diagnose.ahead import ahead
from trtdx.diagnose.layers import Peeled, peel
from trtdx.diagnose.lines import Segment, segments, text_of
from trtdx.diagnose.scan import PythonScanner, Scanner, count_newlines, scanner_for
from trtdx.literals import all_required, compiled, is_vague, required_texts
from trtdx.memory.log_texts import BLOCK_HEAD, BLOCK_LINES, MEMORY_TEXTS, MOST_LINES, tells_memory
from trtdx.rule import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trtdx.rule import LogPattern, Rule, RuleBook

KEPT_MATCHES = 40  # per pattern and source; more of the same teach nothing
COUNTED_MATCHES = 400
KEPT_SALIENT = 60
REJECTIONS = 200  # of one shape of line, after which that shape is not looked at again
KEPT_SHAPES = 50_000
NEIGHBOURS = 20
LAST_LINES = 5
EDGE_BYTES = 48 << 10

# What makes a line worth quoting when no rule knows it.
SALIENT = re.compile(
    r"(?i)\b(?:error|errors|failed|failure|fatal|exception|killed|abort(?:ed)?|cannot|can't|could not|unable to|denied|"
    r"segmentation fault|core dumped|panic|undefined symbol|no such file|not found|timed out|refused|invalid|unsupported|out of memory)\b"
)
SALIENT_TEXTS = (
    "Traceback (most recent", "terminate called", "Segmentation fault", "core dumped", "LLM][ERROR]", "[TRT-LLM] [E]",
    "[TRT-LLM] [F]", "[TRT] [E]", "RuntimeError", "ValueError:", "Exception:", "AssertionError", "NCCL WARN", "ImportError:",
    "error", "fail", "fatal", "killed", "abort", "unable", "denied", "cannot", "invalid", "unsupported", "timed out",
)  # fmt: skip
# Lines that prove the service came up: what was said before them did not stop it. A model that Triton lists as
# READY proves it only where none is UNAVAILABLE.
ALIVE = re.compile(
    r"Uvicorn running on|Application startup complete|Started (?:HTTPService|GRPCInferenceService)|"
    r"Total time of building all engines|(?P<ready>\| +READY +\|)|(?P<down>UNAVAILABLE|Not loaded)"
)
ALIVE_TEXTS = (
    "Uvicorn running on", "Application startup complete", "Started HTTPService", "Started GRPCInferenceService",
    "Total time of building all engines", "| READY", "UNAVAILABLE", "Not loaded",
)  # fmt: skip


# Counters and times; short numbers such as exit codes and Xids make a line another line.
_LONG_NUMBER = re.compile(r"\d{4,}|\d+(?:[.:]\d+)+|0x[0-9a-f]+")


class Event(NamedTuple):
    """One line, peeled and redacted, with its place."""

    source: str
    line: int
    text: str
    peeled: Peeled

    @property
    def where(self) -> str:
        return f"{self.source}:{self.line}"


class Match(NamedTuple):
    """A rule's pattern found in a line."""

    rule: Rule
    log: LogPattern
    values: dict[str, str | None]
    event: Event


class _Pattern:
    """One regular expression to look for: a rule's, or a condition of one."""

    def __init__(self, text: str, rule: Rule | None, log: LogPattern | None) -> None:
        self.text, self.rule, self.log = text, rule, log
        self.many_lines = r"\n" in text or "(?s" in text
        self.required = required_texts(text)
        self._sets = all_required(text)
        self._regex: re.Pattern[str] | None = None

    def may_match(self, lower: str) -> bool:
        """Say whether a line in lower case holds all the fixed text that a match must hold."""
        return all(any(text in lower for text in texts) for texts in self._sets)

    @property
    def regex(self) -> re.Pattern[str]:
        if self._regex is None:  # most patterns never meet their text, so most are never compiled
            self._regex = compiled(self.text)
        return self._regex


class SourceFacts:
    """All that one source told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.matches: list[Match] = []
        self.counts: Counter[tuple[str, str]] = Counter()  # (code, pattern) -> lines
        self.conditions: set[str] = set()
        self.harmless_lines: set[int] = set()
        self.salient: list[Event] = []
        self.last: list[Event] = []
        self.memory: list[Event] = []  # lines that tell of memory, for the numbers behind an out-of-memory
        self.up_at = self.ready_at = 0
        self.down = False
        self.ranks: set[int] = set()
        self.bytes_read = 0
        self.lines_read = 0
        self.problem = ""

    @property
    def alive_at(self) -> int:
        """Return the last line that proves the service was up; 0 when none does."""
        return self.up_at if self.down else max(self.up_at, self.ready_at)


class Matcher:
    """Looks for every pattern of a rule book in sources, one after another."""

    def __init__(self, book: RuleBook, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self._patterns = list(_patterns_of(book))
        owners: defaultdict[str, list[int]] = defaultdict(list)
        weak: defaultdict[str, list[int]] = defaultdict(list)
        for number, pattern in enumerate(self._patterns):
            index = weak if is_vague(pattern.text) else owners
            for text in pattern.required:
                index[text.lower()].append(number)
        for text in (*SALIENT_TEXTS, *ALIVE_TEXTS, *MEMORY_TEXTS):
            (owners if len(text) >= 8 else weak)[text.lower()] += []
        self._strong = _Index(owners, scanner_for)
        self._weak = _Index(weak, PythonScanner)

    def facts(self, name: str, blocks: Iterable[bytes]) -> SourceFacts:
        """Return what the source's bytes tell; the bytes are read once and not kept."""
        reading = self.start(name)
        for segment in ahead(segments(blocks)):
            reading.take(segment)
        return reading.facts

    def start(self, name: str) -> Reading:
        """Return a reading of a new source, to be given its segments one by one."""
        return Reading(name, self._strong, self._weak, self._patterns, self._redact)


class Reading:
    """One source on its way through the matcher."""

    def __init__(
        self, name: str, strong: _Index, weak: _Index, patterns: list[_Pattern], redact: Callable[[str], str]
    ) -> None:
        self.facts = SourceFacts(name)
        self._look = _Look(patterns, redact, self.facts)
        self._indexes = ((strong, strong.unmuted()), (weak, weak.unmuted()))
        self._loose = [number for number, pattern in enumerate(patterns) if not pattern.required]

    def take(self, segment: Segment) -> None:
        """Look through the next segment of the source."""
        self.facts.bytes_read += segment.end - segment.start
        (strong, strong_muted), (weak, weak_muted) = self._indexes
        strong.search(segment, segment.start, segment.end, self._look, strong_muted)
        for start, end in _edges(segment):
            weak.search(segment, start, end, self._look, weak_muted)
            self._look.everywhere(text_of(segment.data[start:end]), self._loose)
        if segment.last:
            unended = segment.end > 0 and segment.data[segment.end - 1 : segment.end] != b"\n"
            self.facts.lines_read = (
                segment.line + count_newlines(segment.data, segment.start, segment.end) + unended
            )
            self._look.last_lines(segment)


class _Index:
    """Texts, who needs them, and a scanner over them."""

    def __init__(self, owners: dict[str, list[int]], make: Callable[[Sequence[bytes]], Scanner]) -> None:
        self._owners = list(owners.values())
        self._scanner = make([text.encode() for text in owners])

    def unmuted(self) -> bytearray:
        return bytearray(len(self._owners))

    def search(self, segment: Segment, start: int, end: int, look: _Look, muted: bytearray) -> None:
        """Look at every line between the two offsets that holds one of the texts."""
        begin, stop, wanted = -1, -1, set[int]()
        for offset, text in self._scanner.hits(segment.data, start, end, muted):
            if not begin <= offset < stop:
                if wanted or begin >= 0:
                    look.at(segment, begin, stop, wanted)
                begin, stop = segment.line_at(offset)
                wanted = set()
            wanted.update(self._owners[text])
            muted[text] = look.has_enough(self._owners[text], text, self)
        if begin >= 0:
            look.at(segment, begin, stop, wanted)


class _Look:
    """Looks at lines on behalf of one source and notes what they tell."""

    def __init__(self, patterns: list[_Pattern], redact: Callable[[str], str], facts: SourceFacts) -> None:
        self._patterns, self._redact, self.facts = patterns, redact, facts
        self._found: Counter[int] = Counter()
        self._plain: Counter[tuple[int, int]] = Counter()
        self._places: set[tuple[int, int]] = set()
        self._rejected: Counter[int] = Counter()
        self._quoted: set[int] = set()
        self._remembered: set[int] = set()
        self._clean = lru_cache(maxsize=512)(self._cleaned)  # neighbouring hits look at the same lines

    def has_enough(self, owners: list[int], text: int, index: _Index) -> bool:
        """Say whether nobody needs to hear of this text any more."""
        if owners:
            return all(self._found[number] >= COUNTED_MATCHES for number in owners)
        self._plain[id(index), text] += 1
        return self._plain[id(index), text] >= COUNTED_MATCHES

    def at(self, segment: Segment, begin: int, stop: int, wanted: set[int]) -> None:
        """Try the wanted patterns on one line, and keep it if it is salient."""
        line = text_of(segment.data[begin:stop])
        shape = hash(_LONG_NUMBER.sub("0", line))
        if self._rejected[shape] >= REJECTIONS:
            return
        if len(self._rejected) >= KEPT_SHAPES:
            self._rejected.clear()
        self._rejected[shape] += 1
        event = self._event(segment, begin, line)
        if event.peeled.rank is not None:
            self.facts.ranks.add(event.peeled.rank)
        if tells_memory(line):
            self._remember(event, segment, begin)
        self._note(event)
        found = [self._try(number, segment, begin, event) for number in sorted(wanted)]
        if any(found):
            self._rejected[shape] -= 1

    def everywhere(self, text: str, loose: Iterable[int]) -> None:
        """Try conditions that have no fixed text."""
        self.facts.conditions.update(
            self._patterns[number].text for number in loose if self._patterns[number].regex.search(text)
        )

    def _event(self, segment: Segment, begin: int, line: str) -> Event:
        clean, peeled = self._clean(line)
        return Event(self.facts.name, segment.number_at(begin), clean, peeled)

    def _cleaned(self, line: str) -> tuple[str, Peeled]:
        clean = self._redact(line.rstrip())
        return clean, peel(clean)

    def _remember(self, event: Event, segment: Segment, begin: int) -> None:
        """Keep a line that tells of memory, and the table that follows some of them."""
        if event.line in self._remembered:
            return
        kept = self.facts.memory
        if len(kept) >= MOST_LINES:  # how it began and how it ended tell the most
            del kept[MOST_LINES // 2]
        self._remembered.add(event.line)
        kept.append(event)
        if BLOCK_HEAD in event.text:
            below = segment.data[begin : begin + 4096].split(b"\n")[1 : BLOCK_LINES + 1]
            kept += [
                Event(event.source, number, *self._clean(text_of(line)))
                for number, line in enumerate(below, event.line + 1)
                if number not in self._remembered
            ]
            self._remembered.update(range(event.line, event.line + BLOCK_LINES + 1))

    def _note(self, event: Event) -> None:
        """Remember lines worth quoting and signs of life."""
        sign = ALIVE.search(event.text)
        if sign and sign["down"]:
            self.facts.down = True
        elif sign and sign["ready"]:
            self.facts.ready_at = event.line
        elif sign:
            self.facts.up_at = event.line
        if len(self.facts.salient) >= KEPT_SALIENT or event.peeled.level in ("info", "debug", "trace"):
            return
        if event.line not in self._quoted and (
            event.peeled.level in ("error", "fatal") or SALIENT.search(event.peeled.message)
        ):
            self._quoted.add(event.line)
            self.facts.salient.append(event)

    def _try(self, number: int, segment: Segment, begin: int, event: Event) -> bool:
        pattern = self._patterns[number]
        if self._found[number] >= COUNTED_MATCHES:
            return True
        if pattern.many_lines:
            found, event = self._over_lines(pattern, segment, begin, event)
        elif pattern.may_match(event.text.lower()):
            found = pattern.regex.search(event.peeled.message) or pattern.regex.search(event.text)
        else:
            return False
        if found is None:
            return False
        if (number, event.line) not in self._places:
            self._places.add((number, event.line))
            self._keep(number, pattern, found, event)
        return True

    def _over_lines(
        self, pattern: _Pattern, segment: Segment, begin: int, event: Event
    ) -> tuple[re.Match[str] | None, Event]:
        lines, first = _neighbours(segment, begin)
        clean, peeled = zip(*map(self._clean, lines), strict=True)
        text = "\n".join(each.message for each in peeled)
        found = pattern.regex.search(text)
        if found is None:
            return None, event
        at = text.count("\n", 0, found.start())
        return found, Event(event.source, first + at, clean[at], peeled[at])

    def _keep(self, number: int, pattern: _Pattern, found: re.Match[str], event: Event) -> None:
        self._found[number] += 1
        if pattern.rule is None or pattern.log is None:
            self.facts.conditions.add(pattern.text)
            self._found[number] = COUNTED_MATCHES
            return
        self.facts.counts[pattern.rule.code, pattern.text] += 1
        if pattern.rule.kind is Kind.HARMLESS:
            self.facts.harmless_lines.add(event.line)
        if self._found[number] <= KEPT_MATCHES:
            self.facts.matches.append(Match(pattern.rule, pattern.log, found.groupdict(), event))

    def last_lines(self, segment: Segment) -> None:
        """Keep the end of the source, which says what it was doing when it stopped."""
        self.facts.last.clear()
        end = len(segment.data.rstrip())
        while end > 0 and len(self.facts.last) < LAST_LINES:
            begin, _ = segment.line_at(end - 1)
            self.facts.last.insert(0, self._event(segment, begin, text_of(segment.data[begin:end])))
            end = len(segment.data[:begin].rstrip())


def _patterns_of(book: RuleBook) -> Iterator[_Pattern]:
    conditions: set[str] = set()
    for rule in book:
        for log in rule.front.log:
            yield _Pattern(log.pattern, rule, log)
            conditions.update(log.requires, log.unless)
    for text in sorted(conditions):
        yield _Pattern(text, None, None)


def _edges(segment: Segment) -> Iterator[tuple[int, int]]:
    """Yield the stretches near the source's start and end that lie in this segment, without overlap."""
    head = min(segment.end, segment.start + EDGE_BYTES) if segment.first else segment.start
    if segment.first:
        yield segment.start, head
    if segment.last:
        yield max(head if segment.first else 0, segment.end - EDGE_BYTES), segment.end


def _neighbours(segment: Segment, begin: int) -> tuple[list[str], int]:
    """Return the lines around the one beginning at an offset, and the number of the first of them."""
    before = segment.data[max(0, begin - 16384) : begin].split(b"\n")[-NEIGHBOURS - 1 :]
    after = segment.data[begin : begin + 16384].split(b"\n")[: NEIGHBOURS + 1]
    joined = [*before[:-1], before[-1] + after[0], *after[1:]]
    return [text_of(line) for line in joined], segment.number_at(begin) - len(before) + 1
