"""One source's lines, looked at where the scanner met a text: patterns tried, lines worth quoting kept."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trtdx.diagnose.facts import Event, Match, Pattern, SourceFacts
from trtdx.diagnose.lines import Segment, text_of
from trtdx.diagnose.memory_lines import BLOCK_HEAD, BLOCK_LINES, MOST_LINES, tells_memory
from trtdx.diagnose.prefixes import Peeled, peel
from trtdx.diagnose.scan import count_newlines
from trtdx.rule import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trtdx.diagnose.flood_limits import Budget

KEPT_MATCHES = 40  # per pattern and source; more of the same teach nothing
COUNTED_MATCHES = 400
KEPT_SALIENT = 60
LOOKS = 40  # at lines of one shape; what the next ones tell is known
LOOKS_AROUND = 200  # where a pattern spans lines: the same line may have other neighbours
KEPT_SHAPES = 20_000
NEIGHBOURS = 20
NEIGHBOUR_BYTES = 6 << 10  # on either side
LAST_LINES = 5

# What makes a line worth quoting when no rule knows it.
# Words in the name of a file or an option, and counts of zero, say nothing.
SALIENT = re.compile(
    r"(?i)(?<![\w./-])(?<!\b0 )(?<!\bno )(?<!\b0 tests )(?:error(?= ?[:!(,.]|\s*$| (?:in|at|on|of|from|while|when|during|occurred|code|\d))|errors(?= ?:| (?:occurred|in|while|during))|failed|failure|fatal|exception|killed|abort(?:ed)?|cannot|can't|could not|unable to|denied|"
    r"segmentation fault|core dumped|panic|undefined symbol|no such file|not found|timed out|refused|invalid|unsupported|out of memory)\b"
    r"(?![/.]\w|[\w ()/-]{0,30}[:=] *(?:0\b(?!\.?\d)|[Nn]o(?:ne)?$|N/A|\{\}|\[\]))"
)
# Lines that prove the service came up: what was said before them did not stop it. A model that Triton lists as
# READY proves it only where none is UNAVAILABLE.
ALIVE = re.compile(
    r"Uvicorn running on|Application startup complete|Started (?:HTTPService|GRPCInferenceService)|"
    r"Total time of building all engines|(?P<ready>\| +READY +\|)|(?P<down>UNAVAILABLE|Not loaded)"
)

# Counters and times; short numbers such as exit codes and Xids make a line another line.
_LONG_NUMBER = re.compile(r"\d{4,}|\d+(?:[.:]\d+)+|0x[0-9a-f]+")


class _Shape:
    """Lines that differ in long numbers only: how many were looked at, and which patterns they hold."""

    __slots__ = ("looks", "matched", "tried")

    def __init__(self) -> None:
        self.looks = 0
        self.tried: set[int] = set()
        self.matched: set[int] = set()


class _Around(NamedTuple):
    """A line's neighbourhood: the messages as one text, and the lines they were taken from."""

    text: str
    lower: str
    first: int
    clean: Sequence[str]
    peeled: Sequence[Peeled]


class Look:
    """Looks at lines on behalf of one source and notes what they tell."""

    def __init__(
        self, patterns: list[Pattern], redact: Callable[[str], str], facts: SourceFacts, budget: Budget
    ) -> None:
        self._patterns, self._redact, self._facts, self._budget = patterns, redact, facts, budget
        self._found: Counter[int] = Counter()
        self._noted: dict[int, int] = {}  # pattern -> the last line it was counted in
        self._counted: dict[str, int] = {}  # the same of rules
        self._shapes: dict[int, _Shape] = {}
        self._quoted: set[int] = set()
        self._remembered: set[int] = set()
        self._clean = lru_cache(maxsize=512)(self._cleaned)  # neighbouring hits look at the same lines
        self._number = _LineNumber()

    def has_enough(self, owners: Sequence[int], hits: int) -> bool:
        """Whether nobody needs to hear of a text any more."""
        if owners:
            return all(self._found[number] >= COUNTED_MATCHES for number in owners)
        return hits >= COUNTED_MATCHES

    def at(self, segment: Segment, begin: int, stop: int, wanted: set[int], *, salient: bool = True) -> None:
        """Try the wanted patterns on one line, and keep it if it is salient."""
        line = text_of(segment.data[begin:stop])
        shape = self._shape(line)
        around = any(self._patterns[number].many_lines for number in wanted)
        if shape.looks >= (LOOKS_AROUND if around else LOOKS) and wanted <= shape.tried:
            self._budget.spend_on_known_shape()
            self._count_again(shape, self._number.at(segment, begin))
            return
        self._budget.spend_on_line(len(line), len(wanted))
        shape.looks += 1
        shape.tried |= wanted
        peeled = peel(line)
        if peeled.rank is not None:
            self._facts.ranks.add(peeled.rank)
        possible = self._possible(wanted, line, peeled.message)
        if not (possible or salient or peeled.level in ("error", "fatal")):
            return
        event = self._event(segment, begin, line)
        if event.peeled.rank is not None:  # a long line: its rank stands at its beginning
            self._facts.ranks.add(event.peeled.rank)
        if tells_memory(line):
            self._remember(event, segment, begin)
        self._note(event)
        shape.matched.update(self._tried(possible, segment, begin, event))

    def _possible(self, wanted: set[int], line: str, message: str) -> list[int]:
        """Return the patterns still looked for that fit the line as it is written; those over several lines may."""
        lower, possible = line.lower(), []
        for number in sorted(wanted):
            pattern = self._patterns[number]
            if self._found[number] >= COUNTED_MATCHES:
                continue
            if pattern.many_lines or (pattern.may_match(lower) and _fits(pattern, message, line)):
                possible.append(number)
        return possible

    def _event(self, segment: Segment, begin: int, line: str) -> Event:
        clean, peeled = self._clean(line)
        if head := segment.head_of_cut(begin):  # a long line: what wraps it stands at its beginning
            peeled = self._clean(text_of(head))[1]._replace(message=peeled.message)
        return Event(self._facts.name, self._number.at(segment, begin), clean, peeled)

    def _shape(self, line: str) -> _Shape:
        if len(self._shapes) >= KEPT_SHAPES:
            self._shapes.clear()
        return self._shapes.setdefault(hash(_LONG_NUMBER.sub("0", line)), _Shape())

    def _count_again(self, shape: _Shape, line: int) -> None:
        """Count a line that was not looked at, because it is like lines that were."""
        for number in shape.matched:
            if line > self._noted.get(number, 0):
                self._count(number, line)

    def everywhere(self, text: str, loose: Iterable[int]) -> None:
        """Try conditions that have no fixed text."""
        self._facts.conditions.update(
            self._patterns[number].text for number in loose if self._patterns[number].regex.search(text)
        )

    def _cleaned(self, line: str) -> tuple[str, Peeled]:
        clean = self._redact(line.rstrip())
        return clean, peel(clean)

    def _remember(self, event: Event, segment: Segment, begin: int) -> None:
        """Keep a line that tells of memory, and the table that follows some of them."""
        if event.line in self._remembered:
            return
        memory_events = self._facts.memory
        if len(memory_events) >= MOST_LINES:  # how it began and how it ended tell the most
            del memory_events[MOST_LINES // 2]
        self._remembered.add(event.line)
        memory_events.append(event)
        if BLOCK_HEAD in event.text:
            below = segment.data[begin : begin + 4096].split(b"\n")[1 : BLOCK_LINES + 1]
            memory_events += [
                Event(event.source, number, *self._clean(text_of(line)))
                for number, line in enumerate(below, event.line + 1)
                if number not in self._remembered
            ]
            self._remembered.update(range(event.line, event.line + BLOCK_LINES + 1))

    def _note(self, event: Event) -> None:
        """Remember lines worth quoting and signs of life."""
        sign = ALIVE.search(event.text)
        if sign and sign["down"]:
            self._facts.down = True
        elif sign and sign["ready"]:
            self._facts.ready_at, self._facts.unit = event.line, event.peeled.unit
        elif sign:
            self._facts.up_at, self._facts.unit = event.line, event.peeled.unit
        if len(self._facts.salient) >= KEPT_SALIENT or event.peeled.level in ("info", "debug", "trace"):
            return
        if event.line not in self._quoted and (
            event.peeled.level in ("error", "fatal") or SALIENT.search(event.peeled.message)
        ):
            self._quoted.add(event.line)
            self._facts.salient.append(event)

    def _tried(self, wanted: Sequence[int], segment: Segment, begin: int, event: Event) -> Iterable[int]:
        """Yield the patterns that this line holds."""
        around = None
        for number in wanted:
            pattern = self._patterns[number]
            if pattern.many_lines:
                around = around or self._around(segment, begin, event.line)
                if (there := _over_lines(pattern, around, event)) is not None:
                    self._keep(number, *there)
                    yield number
            elif match := _fits(pattern, event.peeled.message, event.text):
                self._keep(number, match, event)
                yield number

    def _around(self, segment: Segment, begin: int, line: int) -> _Around:
        lines, before = _neighbours(segment, begin)
        clean, peeled = zip(*map(self._clean, lines), strict=True)
        text = "\n".join(line_parts.message for line_parts in peeled)
        self._budget.spend_on_line(len(text), 0)
        return _Around(text, text.lower(), line - before, clean, peeled)

    def _keep(self, number: int, found: re.Match[str], event: Event) -> None:
        if event.line <= self._noted.get(number, 0):
            return
        self._count(number, event.line)
        pattern = self._patterns[number]
        if pattern.rule is None or pattern.log is None:
            self._facts.conditions.add(pattern.text)
            self._found[number] = COUNTED_MATCHES
            return
        if pattern.rule.kind is Kind.HARMLESS and (
            pattern.log.level or event.peeled.level not in ("error", "fatal")
        ):
            lines = range(event.line, event.line + found[0].count("\n") + 1)
            self._facts.harmless_lines.update(dict.fromkeys(lines, pattern.log))
        if self._found[number] <= KEPT_MATCHES:
            self._facts.matches.append(Match(pattern.rule, pattern.log, found.groupdict(), event, found[0]))

    def _count(self, number: int, line: int) -> None:
        self._noted[number] = line
        self._found[number] += 1
        rule = self._patterns[number].rule
        # one line, however many wordings fit it
        if rule is not None and line > self._counted.get(rule.code, 0):
            self._counted[rule.code] = line
            self._facts.counts[rule.code] += 1

    def last_lines(self, segment: Segment) -> None:
        """Keep the end of the source, which says what it was doing when it stopped."""
        self._facts.last.clear()
        end = len(segment.data.rstrip())
        while end > 0 and len(self._facts.last) < LAST_LINES:
            begin, _ = segment.line_at(end - 1)
            line = text_of(segment.data[begin:end])
            self._facts.last.insert(0, Event(self._facts.name, segment.number_at(begin), *self._clean(line)))
            end = len(segment.data[:begin].rstrip())


class _LineNumber:
    """The number of the line at an offset, counted on from the offset asked for before."""

    def __init__(self) -> None:
        self._data, self._offset, self._line = b"", 0, 0

    def at(self, segment: Segment, offset: int) -> int:
        if segment.data is not self._data or offset < self._offset:
            self._data, self._line = segment.data, segment.number_at(offset)
        else:
            self._line += count_newlines(segment.data, self._offset, offset)
        self._offset = offset
        return self._line


def _fits(pattern: Pattern, message: str, line: str) -> re.Match[str] | None:
    match = pattern.regex.search(message)
    return match if match or message == line else pattern.regex.search(line)


def _over_lines(pattern: Pattern, around: _Around, event: Event) -> tuple[re.Match[str], Event] | None:
    if not pattern.may_match(around.lower):
        return None
    match = pattern.regex.search(around.text)
    if match is None:
        return None
    at = around.text.count("\n", 0, match.start())
    return match, Event(event.source, around.first + at, around.clean[at], around.peeled[at])


def _neighbours(segment: Segment, begin: int) -> tuple[list[str], int]:
    """Return the lines around the one beginning at an offset, and how many of them come before it."""
    before = segment.data[max(0, begin - NEIGHBOUR_BYTES) : begin].split(b"\n")[-NEIGHBOURS - 1 :]
    after = segment.data[begin : begin + NEIGHBOUR_BYTES].split(b"\n")[: NEIGHBOURS + 1]
    joined = [*before[:-1], before[-1] + after[0], *after[1:]]
    return [text_of(line) for line in joined], len(before) - 1
