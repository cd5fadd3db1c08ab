"""What a source told: its lines, the patterns found in them, and signs of life."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trtdx.knowledge.literals import all_required, compile_pattern, required_texts

if TYPE_CHECKING:
    from trtdx.diagnose.logs.prefixes import PeeledLine
    from trtdx.rule import LogPattern, Rule

_NEGATED_CLASS = re.compile(r"\[\^(?:\\.|[^\]\\])*\]")  # "[^\n]" keeps a pattern inside its line


class LogEvent(NamedTuple):
    """One line, peeled and redacted, with its place."""

    source: str
    line: int
    text: str
    peeled: PeeledLine

    @property
    def where(self) -> str:
        return f"{self.source}:{self.line}"


class RuleMatch(NamedTuple):
    """A rule's pattern found in a line."""

    rule: Rule
    log: LogPattern
    values: dict[str, str | None]
    event: LogEvent
    proof: str = ""  # the words that the pattern fits


class LogRegex:
    """One regular expression to look for: a rule's, or a condition of one."""

    def __init__(self, text: str, rule: Rule | None, log: LogPattern | None) -> None:
        self.text, self.rule, self.log = text, rule, log
        self.is_multiline = r"\n" in _NEGATED_CLASS.sub("", text) or "(?s" in text
        self.required = required_texts(text)
        self._required_sets = all_required(text)
        self._regex: re.Pattern[str] | None = None

    def may_match(self, lower: str) -> bool:
        """Whether a text in lower case holds all the fixed text that a match must hold."""
        return all(any(text in lower for text in texts) for texts in self._required_sets)

    @property
    def regex(self) -> re.Pattern[str]:
        return self._regex or self.compile()

    def compile(self) -> re.Pattern[str]:
        if self._regex is None:  # most patterns never meet their text, so most are never compiled
            self._regex = compile_pattern(self.text)
        return self._regex


class SourceFacts:
    """All that one source told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.matches: list[RuleMatch] = []
        self.counts: Counter[str] = Counter()  # code -> lines
        self.is_sampled = False  # so many lines were hit that not all were looked at: counts are lower bounds
        self.late_patterns: Counter[LogRegex] = Counter()  # pattern -> lines on which it was not tried in time
        self.late_searches = 0  # of the text as a whole that were not done in time
        self.conditions: set[str] = set()
        self.harmless_lines: dict[int, LogPattern] = {}
        self.salient_events: list[LogEvent] = []
        self.last_events: list[LogEvent] = []
        self.memory_events: list[LogEvent] = []  # lines that tell of memory, for the numbers behind an out-of-memory
        self.up_line = self.ready_line = 0
        self.unit = ""  # the service that was up last
        self.is_down = False
        self.ranks: set[int] = set()
        self.bytes_read = 0
        self.lines_read = 0
        self.problem = ""

    @property
    def last_alive_line(self) -> int:
        """Return the last line that proves the service was up; 0 when none does."""
        return self.up_line if self.is_down else max(self.up_line, self.ready_line)
