"""One source's lines, looked at where the scanner met a text: patterns tried, lines worth quoting kept."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trtdx.cpu_limit import CpuLimit, OutOfTimeError
from trtdx.diagnose.logs.lines import LogSegment, decode_text
from trtdx.diagnose.logs.prefixes import PeeledLine, peel_line
from trtdx.diagnose.memory_lines import BLOCK_HEAD, BLOCK_LINES, MAX_MEMORY_LINES, mentions_memory
from trtdx.diagnose.nouns import LogEvent, LogRegex, RuleMatch, SourceFacts
from trtdx.diagnose.scan import count_newlines
from trtdx.rule import RuleKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeVar

    from trtdx.diagnose.logs.flood_limits import WorkBudget

    _Found = TypeVar("_Found")

KEPT_MATCHES = 40  # per pattern and source; more of the same teach nothing
COUNTED_MATCHES = 400
KEPT_SALIENT = 60
MAX_LOOKS = 40  # at lines of one shape; what the next ones tell is known
MAX_MULTILINE_LOOKS = 200  # where a pattern spans lines: the same line may have other neighbours
KEPT_SHAPES = 20_000
NEIGHBOUR_LINES = 20
NEIGHBOUR_BYTES = 6 << 10  # on either side
LAST_LINES = 5
PATTERN_SECONDS = (
    0.015  # of processor time for the patterns of one line, and then half of that for those after a slow one
)
MAX_LATE_LINES = 20  # that a pattern may have worked too long on before it is given up in this source

# What makes a line worth quoting when no rule knows it.
# Words in the name of a file or an option, and counts of zero, say nothing.
SALIENT = re.compile(
    r"(?i)(?<![\w./-])(?<!\b0 )(?<!\bno )(?<!\b0 tests )(?<!\bignore any )(?:error(?= ?[:!(,.]|\s*$| (?:in|at|on|of|from|while|when|during|occurred|code|\d))|errors(?= ?:| (?:occurred|in|while|during))|failed|failure|fatal|exception|killed|abort(?:ed)?|cannot|can't|could not|unable to|denied|"
    r"segmentation fault|core dumped|panic|undefined symbol|no such file|not found|timed out|refused|invalid|unsupported|out of memory)\b"
    r"(?![/.]\w|[\w ()/-]{0,30}[:=] *(?:0\b(?!\.?\d)|[Nn]o(?:ne)?$|N/A|\{\}|\[\]))"
)
# Lines that prove the service came up: what was said before them did not stop it. A model that Triton lists as
# READY proves it only where none is UNAVAILABLE.
ALIVE = re.compile(
    r"Uvicorn running on|Application startup complete|Started (?:HTTPService|GRPCInferenceService)|"
    r"Total time of building all engines|(?P<ready>\| +READY +\|)|(?P<down>UNAVAILABLE|Not loaded)"
)

# How a traceback ends; what announced it says whether it mattered ("[I] Fallback to ...: Traceback (most recent ...").
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception)\b")
TRACEBACK = b"Traceback (most recent call last)"

# Counters and times; short numbers such as exit codes and Xids make a line another line.
_LONG_NUMBER = re.compile(r"\d{4,}|\d+(?:[.:]\d+)+|0x[0-9a-f]+")


class _LineShape:
    """Lines that differ in long numbers only: how many were looked at, and which patterns they hold."""

    __slots__ = ("looks", "matched", "tried")

    def __init__(self) -> None:
        self.looks = 0
        self.tried: set[int] = set()
        self.matched: set[int] = set()


class _Neighbourhood(NamedTuple):
    """A line's neighbourhood: the messages as one text, and the lines they were taken from."""

    text: str
    lower: str
    first_line: int
    clean_lines: Sequence[str]
    peeled: Sequence[PeeledLine]


class LineMatcher:
    """Looks at lines on behalf of one source and notes what they tell."""

    def __init__(
        self, patterns: list[LogRegex], redact: Callable[[str], str], facts: SourceFacts, budget: WorkBudget
    ) -> None:
        self._patterns, self._redact, self._facts, self._budget = patterns, redact, facts, budget
        self._match_counts: Counter[int] = Counter()
        self._last_pattern_line: dict[int, int] = {}  # pattern -> the last line it was counted in
        self._last_rule_line: dict[str, int] = {}  # the same of rules
        self._shapes: dict[int, _LineShape] = {}
        self._salient_lines: set[int] = set()
        self._memory_lines: set[int] = set()
        self._clean = lru_cache(maxsize=512)(self._redact_and_peel)  # neighbouring hits look at the same lines
        self._number = _LineNumberCache()

    def has_enough(self, owners: Sequence[int], hits: int) -> bool:
        """Whether nobody needs to hear of a text any more."""
        if owners:
            return all(self._match_counts[number] >= COUNTED_MATCHES for number in owners)
        return hits >= COUNTED_MATCHES

    def match_line(
        self,
        segment: LogSegment,
        begin: int,
        stop: int,
        pattern_numbers: set[int],
        *,
        is_salient: bool = True,
    ) -> None:
        """Try the wanted patterns on one line, and keep it if it is salient."""
        line = decode_text(segment.data[begin:stop])
        shape = self._shape_of_line(line)
        around = any(self._patterns[number].is_multiline for number in pattern_numbers)
        if shape.looks >= (MAX_MULTILINE_LOOKS if around else MAX_LOOKS) and pattern_numbers <= shape.tried:
            self._budget.spend_on_known_shape()
            self._count_known_shape(shape, self._number.number_at(segment, begin))
            return
        self._budget.spend_on_line(len(line), len(pattern_numbers))
        shape.looks += 1
        shape.tried |= pattern_numbers
        peeled = peel_line(line)
        if peeled.rank is not None:
            self._facts.ranks.add(peeled.rank)
        possible = self._possible_patterns(pattern_numbers, line, peeled.message)
        if not (possible or is_salient or peeled.level in ("error", "fatal")):
            return
        event = self._event_at(segment, begin, line)
        if event.peeled.rank is not None:  # a long line: its rank stands at its beginning
            self._facts.ranks.add(event.peeled.rank)
        if mentions_memory(line):
            self._keep_memory_line(event, segment, begin)
        self._note_event(event)
        shape.matched.update(self._match_patterns(possible, segment, begin, event))

    def _possible_patterns(self, pattern_numbers: set[int], line: str, message: str) -> list[int]:
        """Return the patterns still looked for that fit the line as it is written; those over several lines may."""
        lower = line.lower()
        open_numbers = [number for number in sorted(pattern_numbers) if self._match_counts[number] < COUNTED_MATCHES]
        multiline = [number for number in open_numbers if self._patterns[number].is_multiline]
        matches = self._search_in_time(
            [number for number in open_numbers if number not in multiline and self._patterns[number].may_match(lower)],
            lambda pattern: _search_pattern(pattern, message, line),
        )
        return sorted([*multiline, *(number for number, _ in matches)])

    def _search_in_time(
        self, numbers: Sequence[int], search: Callable[[LogRegex], _Found | None]
    ) -> list[tuple[int, _Found]]:
        """Return what a search finds with each pattern; one that works too long is passed over and noted."""
        late = self._facts.late_patterns
        queue = iter([(n, self._patterns[n]) for n in numbers if late[self._patterns[n]] < MAX_LATE_LINES])
        results: list[tuple[int, _Found]] = []
        for number in numbers:
            self._patterns[number].compile()  # which would count as its search
        for seconds in (PATTERN_SECONDS, PATTERN_SECONDS / 2):
            pattern = None
            try:
                with CpuLimit(seconds):
                    for number, pattern in queue:
                        if (match := search(pattern)) is not None:
                            results.append((number, match))
                break
            except OutOfTimeError:
                self._budget.spend_on_slow_pattern()
                late.update([pattern] if pattern else [])
        late.update(pattern for _, pattern in queue)  # not tried at all
        return results

    def _event_at(self, segment: LogSegment, begin: int, line: str) -> LogEvent:
        clean, peeled = self._clean(line)
        if head := segment.head_of_cut(begin):  # a long line: what wraps it stands at its beginning
            peeled = self._clean(decode_text(head))[1]._replace(message=peeled.message)
        elif EXCEPTION.match(line):
            peeled = peeled._replace(level=_level_of_traceback(segment, begin) or peeled.level)
        return LogEvent(self._facts.name, self._number.number_at(segment, begin), clean, peeled)

    def _shape_of_line(self, line: str) -> _LineShape:
        if len(self._shapes) >= KEPT_SHAPES:
            self._shapes.clear()
        return self._shapes.setdefault(hash(_LONG_NUMBER.sub("0", line)), _LineShape())

    def _count_known_shape(self, shape: _LineShape, line: int) -> None:
        """Count a line that was not looked at, because it is like lines that were."""
        for number in shape.matched:
            if line > self._last_pattern_line.get(number, 0):
                self._count_match(number, line)

    def match_loose_conditions(self, text: str, loose: Iterable[int]) -> None:
        """Try conditions that have no fixed text."""
        self._facts.conditions.update(
            self._patterns[number].text
            for number, _ in self._search_in_time(list(loose), lambda pattern: pattern.regex.search(text))
        )

    def _redact_and_peel(self, line: str) -> tuple[str, PeeledLine]:
        clean = self._redact(line.rstrip())
        return clean, peel_line(clean)

    def _keep_memory_line(self, event: LogEvent, segment: LogSegment, begin: int) -> None:
        """Keep a line that tells of memory, and the table that follows some of them."""
        if event.line in self._memory_lines:
            return
        memory_events = self._facts.memory_events
        if len(memory_events) >= MAX_MEMORY_LINES:  # how it began and how it ended tell the most
            del memory_events[MAX_MEMORY_LINES // 2]
        self._memory_lines.add(event.line)
        memory_events.append(event)
        if BLOCK_HEAD in event.text:
            below = segment.data[begin : begin + 4096].split(b"\n")[1 : BLOCK_LINES + 1]
            memory_events += [
                LogEvent(event.source, number, *self._clean(decode_text(line)))
                for number, line in enumerate(below, event.line + 1)
                if number not in self._memory_lines
            ]
            self._memory_lines.update(range(event.line, event.line + BLOCK_LINES + 1))

    def _note_event(self, event: LogEvent) -> None:
        """Remember lines worth quoting and signs of life."""
        sign = ALIVE.search(event.text)
        if sign and sign["down"]:
            self._facts.is_down = True
        elif sign and sign["ready"]:
            self._facts.ready_line, self._facts.unit = event.line, event.peeled.unit
        elif sign:
            self._facts.up_line, self._facts.unit = event.line, event.peeled.unit
        if len(self._facts.salient_events) >= KEPT_SALIENT or event.peeled.level in (
            "info",
            "debug",
            "trace",
        ):
            return
        if event.line not in self._salient_lines and (
            event.peeled.level in ("error", "fatal") or SALIENT.search(event.peeled.message)
        ):
            self._salient_lines.add(event.line)
            self._facts.salient_events.append(event)

    def _match_patterns(
        self, pattern_numbers: Sequence[int], segment: LogSegment, begin: int, event: LogEvent
    ) -> Iterable[int]:
        """Yield the patterns that this line holds."""
        needs_neighbours = any(self._patterns[number].is_multiline for number in pattern_numbers)
        around = self._neighbourhood(segment, begin, event.line) if needs_neighbours else None

        def search(pattern: LogRegex) -> tuple[re.Match[str], LogEvent] | None:
            if pattern.is_multiline:
                return _search_multiline(pattern, around, event) if around else None
            match = _search_pattern(pattern, event.peeled.message, event.text)
            return (match, event) if match else None

        fitting = [n for n in pattern_numbers if around is None or self._fits_neighbours(n, around)]
        for number, match in self._search_in_time(fitting, search):
            self._keep_match(number, *match)
            yield number

    def _fits_neighbours(self, number: int, around: _Neighbourhood) -> bool:
        pattern = self._patterns[number]
        return not pattern.is_multiline or pattern.may_match(around.lower)

    def _neighbourhood(self, segment: LogSegment, begin: int, line: int) -> _Neighbourhood:
        lines, before = _neighbour_lines(segment, begin)
        clean, peeled = zip(*map(self._clean, lines), strict=True)
        text = "\n".join(line_parts.message for line_parts in peeled)
        self._budget.spend_on_line(len(text), 0)
        return _Neighbourhood(text, text.lower(), line - before, clean, peeled)

    def _keep_match(self, number: int, match: re.Match[str], event: LogEvent) -> None:
        if event.line <= self._last_pattern_line.get(number, 0):
            return
        self._count_match(number, event.line)
        pattern = self._patterns[number]
        if pattern.rule is None or pattern.log is None:
            self._facts.conditions.add(pattern.text)
            self._match_counts[number] = COUNTED_MATCHES
            return
        if pattern.rule.kind is RuleKind.HARMLESS and (
            pattern.log.level or event.peeled.level not in ("error", "fatal")
        ):
            lines = range(event.line, event.line + match[0].count("\n") + 1)
            self._facts.harmless_lines.update(dict.fromkeys(lines, pattern.log))
        if self._match_counts[number] <= KEPT_MATCHES:
            self._facts.matches.append(RuleMatch(pattern.rule, pattern.log, match.groupdict(), event, match[0]))

    def _count_match(self, number: int, line: int) -> None:
        self._last_pattern_line[number] = line
        self._match_counts[number] += 1
        rule = self._patterns[number].rule
        # one line, however many wordings fit it
        if rule is not None and line > self._last_rule_line.get(rule.code, 0):
            self._last_rule_line[rule.code] = line
            self._facts.counts[rule.code] += 1

    def keep_last_lines(self, segment: LogSegment) -> None:
        """Keep the end of the source, which says what it was doing when it stopped."""
        self._facts.last_events.clear()
        end = len(segment.data.rstrip())
        while end > 0 and len(self._facts.last_events) < LAST_LINES:
            begin, _ = segment.line_at(end - 1)
            line = decode_text(segment.data[begin:end])
            self._facts.last_events.insert(0, LogEvent(self._facts.name, segment.number_at(begin), *self._clean(line)))
            end = len(segment.data[:begin].rstrip())


class _LineNumberCache:
    """The number of the line at an offset, counted on from the offset asked for before."""

    def __init__(self) -> None:
        self._data, self._offset, self._line = b"", 0, 0

    def number_at(self, segment: LogSegment, offset: int) -> int:
        if segment.data is not self._data or offset < self._offset:
            self._data, self._line = segment.data, segment.number_at(offset)
        else:
            self._line += count_newlines(segment.data, self._offset, offset)
        self._offset = offset
        return self._line


def _level_of_traceback(segment: LogSegment, begin: int) -> str:
    """Return the level at which the traceback that ends in this line was announced, where that is a quiet one."""
    first = max(0, begin - NEIGHBOUR_BYTES)
    at = segment.data.rfind(TRACEBACK, first, begin)
    if at < 0:
        return ""
    head = segment.data[segment.data.rfind(b"\n", 0, at) + 1 : at]
    between = segment.data[at:begin].split(b"\n")[1:-1]
    level = peel_line(decode_text(head)).level
    is_whole = all(line[:1] in (b" ", b"\t") or not line.strip() for line in between)
    return level if is_whole and level in ("info", "debug", "trace") else ""


def _search_pattern(pattern: LogRegex, message: str, line: str) -> re.Match[str] | None:
    match = pattern.regex.search(message)
    return match if match or message == line else pattern.regex.search(line)


def _search_multiline(
    pattern: LogRegex, neighbourhood: _Neighbourhood, event: LogEvent
) -> tuple[re.Match[str], LogEvent] | None:
    match = pattern.regex.search(neighbourhood.text)
    if match is None:
        return None
    at = neighbourhood.text.count("\n", 0, match.start())
    return match, LogEvent(
        event.source, neighbourhood.first_line + at, neighbourhood.clean_lines[at], neighbourhood.peeled[at]
    )


def _neighbour_lines(segment: LogSegment, begin: int) -> tuple[list[str], int]:
    """Return the lines around the one beginning at an offset, and how many of them come before it."""
    before = segment.data[max(0, begin - NEIGHBOUR_BYTES) : begin].split(b"\n")[-NEIGHBOUR_LINES - 1 :]
    after = segment.data[begin : begin + NEIGHBOUR_BYTES].split(b"\n")[: NEIGHBOUR_LINES + 1]
    joined = [*before[:-1], before[-1] + after[0], *after[1:]]
    return [decode_text(line) for line in joined], len(before) - 1
