"""Which lines can have to do with each other: those of one process, one job, or one log."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from trtdx.diagnose.memory_lines import HOST_MEMORY_CODES
from trtdx.model import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trtdx.diagnose.nouns import LogEvent, RuleMatch, SourceFacts
    from trtdx.rule import Rule

# A name that tells of one rank among several: rank0.log, node-1.out, worker_3/stderr.log, 1.rank.0/stdout, logs/0.log
_RANK_NAME = re.compile(
    r"(?i)(?:rank|node|worker|task|proc|gpu|host)s?[-_.=]?\d+|\d+[-_.](?:rank|node|worker|task)|(?:^|/)\d+(?:\.(?:log|out|err|txt))?(?:$|/)"
)
# What a client sees of a server that failed, whichever service of a deployment it is in.
CLIENT_SIDE_CODES = frozenset(("DX540", "DX541", "DX542", "DX704"))
# What any rank of a job shows when another one fails; other symptoms are those of the process that failed.
_JOB_WIDE_AREAS = ("multigpu", "runtime")
_INSTALL_STAGES = (Stage.INSTALL, Stage.CONVERT, Stage.BUILD)
# A server goes on after a request that it refused, a script after a package or a project that it could not have.
_SINGLE_REQUEST_CODES = """
DX126 DX206 DX211 DX213 DX214 DX217 DX218 DX220 DX228 DX233 DX234 DX235 DX236 DX237 DX242 DX243 DX244 DX256 DX258 DX267
DX268 DX269 DX270 DX271 DX272 DX273 DX309 DX310 DX311 DX312 DX315 DX317 DX338 DX614 DX615 DX617 DX619 DX688 DX690 DX691
DX695 DX700
"""
_SINGLE_COMMAND_CODES = """
DX010 DX011 DX012 DX013 DX022 DX044 DX045 DX047 DX048 DX050 DX051 DX052 DX053 DX054 DX055 DX056 DX057 DX058 DX059 DX077
DX079 DX553
"""
_SURVIVABLE_CODES = frozenset((_SINGLE_REQUEST_CODES + _SINGLE_COMMAND_CODES).split())
_NON_FATAL_AREAS = ("performance", "accuracy")  # what is slow or says the wrong thing does not fail of it
MAX_LINES_BEFORE_CAUSE = 300  # how far before its cause a symptom may stand: ranks write side by side, buffers late
SHORTLY_LINES = 50  # lines within which a process may still fail of something that need not have stopped it


class JobScope(NamedTuple):
    """The job that each source belongs to, and the line up to which what it said had stopped nothing."""

    jobs: dict[str, str]
    alive_until: dict[str, tuple[int, str]]  # with the service that was up, where several write into one log

    def is_related(self, cause: RuleMatch, symptom: RuleMatch) -> bool:
        """Whether one line can be the cause of another by where and when they were written."""
        one, other = cause.event, symptom.event
        passing = cause.rule.code in _SURVIVABLE_CODES and symptom.rule.front.stage not in _INSTALL_STAGES
        if one.source == other.source:
            units = one.peeled.unit, other.peeled.unit
            in_time = one.line <= other.line + MAX_LINES_BEFORE_CAUSE and not self._service_survived(one, other)
            soon = not passing or other.line <= one.line + SHORTLY_LINES
            same_unit = units[0] == units[1] or not all(units)
            return in_time and soon and (same_unit or symptom.rule.code in CLIENT_SIDE_CODES)
        times = one.peeled.time[:16], other.peeled.time[:16]
        in_time = not all(times) or times[0] <= times[1]
        same_job = self.jobs[one.source] == self.jobs[other.source]
        return same_job and in_time and not passing and symptom.rule.front.area in _JOB_WIDE_AREAS

    def _service_survived(self, cause: LogEvent, symptom: LogEvent) -> bool:
        """Whether the service came up after the cause and stayed up for a while before the symptom."""
        line, unit = self.alive_until[cause.source]
        same_unit = cause.peeled.unit == symptom.peeled.unit == unit
        return same_unit and cause.line < line and line + SHORTLY_LINES < symptom.line


def scope_from_sources(sources: Sequence[SourceFacts]) -> JobScope:
    """Return the scope: logs of one folder named by rank are one job's, others are alone."""
    return JobScope(
        {source.name: _job_name(source.name) for source in sources},
        {source.name: (source.last_alive_line, source.unit) for source in sources},
    )


def _job_name(name: str) -> str:
    """Return the name without its numbers where it is that of a rank, else as it is."""
    folder, _, last = name.rpartition("/")
    above, _, middle = folder.rpartition("/")
    if _RANK_NAME.search(last):
        return f"{folder}/{re.sub(r'[0-9]+', '#', last)}"
    return f"{above}/{re.sub(r'[0-9]+', '#', middle)}/{last}" if _RANK_NAME.search(middle) else name


def can_produce(cause: Rule, symptom: Rule) -> bool:
    """Whether a cause of this kind can have such a consequence at all."""
    if cause.front.area in _NON_FATAL_AREAS:
        return False
    if symptom.front.stage is not Stage.INSTALL:
        return True
    return cause.front.stage in _INSTALL_STAGES or cause.code in HOST_MEMORY_CODES


class MatchIndex:
    """The lines of one cause, by source, service and rank, so that the nearest to another line are found quickly."""

    def __init__(self, matches: Iterable[RuleMatch]) -> None:
        self._matches: defaultdict[tuple[object, ...], list[RuleMatch]] = defaultdict(list)
        for match in sorted(matches, key=lambda match: match.event.line):
            event = match.event
            self._matches[event.source, event.peeled.unit, event.peeled.rank].append(match)
        self._lines = {key: [match.event.line for match in group] for key, group in self._matches.items()}

    def nearest_matches(self, line: int) -> Iterator[RuleMatch]:
        """Yield, of each process that wrote the cause, its last line up to there and its first one after."""
        for key, matches in self._matches.items():
            at = bisect_right(self._lines[key], line)
            yield from matches[max(0, at - 1) : at + 1]


def event_distance(cause: LogEvent, symptom: LogEvent) -> tuple[bool, bool, bool, int]:
    """Return how far a cause is from its symptom: another source, another rank, after it, lines between them."""
    ranks = (cause.peeled.rank, symptom.peeled.rank)
    other_rank = None not in ranks and ranks[0] != ranks[1]
    if cause.source != symptom.source:
        return True, other_rank, cause.peeled.time > symptom.peeled.time, cause.line
    return False, other_rank, cause.line > symptom.line, abs(cause.line - symptom.line)
