"""Which lines can have to do with each other: those of one process, one job, or one log."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

from trtdx.memory.log_texts import HOST_MEMORY
from trtdx.model import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trtdx.diagnose.facts import Event, SourceFacts
    from trtdx.rule import Rule

# A name that tells of one rank among several: rank0.log, node-1.out, worker_3/stderr.log, 1.rank.0/stdout, logs/0.log
_RANK_NAME = re.compile(
    r"(?i)(?:rank|node|worker|task|proc|gpu|host)s?[-_.=]?\d+|\d+[-_.](?:rank|node|worker|task)|(?:^|/)\d+(?:\.(?:log|out|err|txt))?(?:$|/)"
)
# What a client sees of a server that failed, whichever service of a deployment it is in.
SEEN_BY_CLIENTS = frozenset(("DX540", "DX541", "DX542", "DX704"))
# What any rank of a job shows when another one fails; other symptoms are those of the process that failed.
_AREAS_OF_A_JOB = ("multigpu", "runtime")
_INSTALLING = (Stage.INSTALL, Stage.CONVERT, Stage.BUILD)
MOST_LINES_AHEAD = 300  # how far before its cause a symptom may stand: ranks write side by side, buffers late


def jobs(sources: Sequence[SourceFacts]) -> dict[str, str]:
    """Return the job that each source belongs to: logs of one folder named by rank are one job's, others are alone."""
    return {source.name: _job(source.name) for source in sources}


def _job(name: str) -> str:
    """Return the name without its numbers where it is that of a rank, else as it is."""
    folder, _, last = name.rpartition("/")
    above, _, middle = folder.rpartition("/")
    if _RANK_NAME.search(last):
        return f"{folder}/{re.sub(r'[0-9]+', '#', last)}"
    return f"{above}/{re.sub(r'[0-9]+', '#', middle)}/{last}" if _RANK_NAME.search(middle) else name


def can_produce(cause: Rule, symptom: Rule) -> bool:
    """Say whether a cause of this kind can have such a consequence at all."""
    if symptom.front.stage is not Stage.INSTALL:
        return True
    return cause.front.stage in _INSTALLING or cause.code in HOST_MEMORY


def is_related(cause: Event, symptom: Event, rule: Rule, jobs_by_source: dict[str, str]) -> bool:
    """Say whether one line can be the cause of another by where and when they were written.

    Args:
        cause: the line of the cause.
        symptom: the line of the consequence.
        rule: what the consequence is.
        jobs_by_source: what `jobs` returned.
    """
    if cause.source == symptom.source:
        near = cause.line <= symptom.line + MOST_LINES_AHEAD
        same_unit = cause.peeled.unit == symptom.peeled.unit or not (
            cause.peeled.unit and symptom.peeled.unit
        )
        return near and (same_unit or rule.code in SEEN_BY_CLIENTS)
    same_job = jobs_by_source[cause.source] == jobs_by_source[symptom.source]
    in_time = (
        not (cause.peeled.time and symptom.peeled.time) or cause.peeled.time[:16] <= symptom.peeled.time[:16]
    )
    return same_job and in_time and rule.front.area in _AREAS_OF_A_JOB


class Places:
    """The lines of one cause, by source, service and rank, so that the nearest to another line are found quickly."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events: defaultdict[tuple[object, ...], list[Event]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event.line):
            self._events[event.source, event.peeled.unit, event.peeled.rank].append(event)
        self._lines = {key: [event.line for event in events] for key, events in self._events.items()}

    def near(self, line: int) -> Iterator[Event]:
        """Yield, of each process that wrote the cause, its last line up to there and its first one after."""
        for key, events in self._events.items():
            at = bisect_right(self._lines[key], line)
            yield from events[max(0, at - 1) : at + 1]


def distance(cause: Event, symptom: Event) -> tuple[bool, bool, bool, int]:
    """Return how far a cause is from its symptom: another source, another rank, after it, lines between them."""
    ranks = (cause.peeled.rank, symptom.peeled.rank)
    other_rank = None not in ranks and ranks[0] != ranks[1]
    if cause.source != symptom.source:
        return True, other_rank, cause.peeled.time > symptom.peeled.time, cause.line
    return False, other_rank, cause.line > symptom.line, abs(cause.line - symptom.line)
