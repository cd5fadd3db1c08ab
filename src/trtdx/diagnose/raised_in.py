"""Where the lines of a log were raised, and the release they come from: asked of the atlas once the scan is over.

Only lines that the scan kept are looked up: what rules matched, what is worth quoting, and for the release the first
lines that tell of memory and settings. So the cost does not grow with the log.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from packaging.version import Version

from trtdx.diagnose.cause import QUIET_LEVELS
from trtdx.diagnose.scope import scope_from_sources
from trtdx.diagnose.similar_rules import similarity_index
from trtdx.diagnose.unknown import UNKNOWN_CODE
from trtdx.knowledge.atlas import LocatedLine, locate_message, message_atlas
from trtdx.knowledge.release_estimate import PROGRAM_STATES, estimate_release, stated_in_line
from trtdx.knowledge.versions import parse_release
from trtdx.model import Evidence, Finding, MessagePlace, ReleaseEstimate
from trtdx.rule import RuleKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.diagnose.nouns import LogEvent, SourceFacts
    from trtdx.rule import Rule, RuleBook

MISMATCH_CODE = "DX1000"
MAX_LOOKUPS = 24  # of one kind of line in one source
MAX_LOOKUPS_IN_ALL = 160
MAX_SOURCES = 16
MAX_CHARACTERS = 2000  # of a line that may state a release
MAX_PLACES = 2  # shown of one line
MAX_PAGES = 3
MAX_SIMILAR_PAGES = 20
OPEN_PROGRAMS = re.compile(
    r"(?i)tensorrt[_-]?llm|TRT-LLM|nccl|mpi|triton|\.(?:cc|cpp|cu|h|py)\b|error|exception|failed"
)
CONDITION = re.compile(r"Assertion failed: (?P<condition>.+?)(?: \([\w./-]+:\d+\)|$)")
COMPARISON = re.compile(r"[=!<>]=|[<>]|\(\)|->|::|\.\w+\(")
IDENTIFIER = re.compile(r"(?<![\w.\"'])[A-Za-z_]\w*(?:(?:::|\.|->)\w+)*(?![\w(])")


class LogOrigins(NamedTuple):
    """Where lines were raised, by where they stand in a log, and what release they come from."""

    places: dict[str, tuple[MessagePlace, ...]]
    release: ReleaseEstimate | None


NO_ORIGINS = LogOrigins({}, None)


def trace_origins(sources: Sequence[SourceFacts]) -> LogOrigins:
    """Return where the lines that matter were raised, and the release of TensorRT-LLM they come from."""
    worth = (event for source in sources[:MAX_SOURCES] for event in _events_to_locate(source))
    events = {event.where: event for event in islice(worth, MAX_LOOKUPS_IN_ALL)}
    located = _locate_events(list(events.values()))
    stated = [(event.where, event.text) for source in sources for event in _stating_events(source)]
    if not (located or stated):
        return NO_ORIGINS
    release = estimate_release(stated, list(located.values()), message_atlas())
    loud = {
        where: places_to_show(line) for where, line in located.items() if events[where].peeled.level not in QUIET_LEVELS
    }
    return LogOrigins(loud, release)


def places_to_show(line: LocatedLine) -> tuple[MessagePlace, ...]:
    """Return the likeliest places of a line, one of each file."""
    by_path: dict[str, MessagePlace] = {}
    for place in line.places:
        by_path.setdefault(place.path, place)
    return tuple(by_path.values())[:MAX_PLACES]


def _locate_events(events: Sequence[LogEvent]) -> dict[str, LocatedLine]:
    lines = [event for event in events if OPEN_PROGRAMS.search(event.text[:MAX_CHARACTERS])]
    if not lines:
        return {}  # the atlas is not even read
    atlas = message_atlas()
    located = ((event.where, atlas.locate(event.text)) for event in lines)
    return {where: line for where, line in located if line is not None}


def _events_to_locate(source: SourceFacts) -> Iterator[LogEvent]:
    """Yield the lines of a source that are worth a look-up, no shape of line twice."""
    kinds = (
        [match.event for match in source.matches if match.rule.kind is not RuleKind.HARMLESS],
        source.salient_events,
        source.memory_events,
        [match.event for match in source.matches if match.rule.kind is RuleKind.HARMLESS],
    )
    shapes: set[str] = set()
    for events in kinds:
        kept = 0
        for event in events:
            shape = re.sub(r"\d+", "0", event.peeled.message[:MAX_CHARACTERS])
            if shape not in shapes and kept < MAX_LOOKUPS:
                shapes.add(shape)
                kept += 1
                yield event


def _stating_events(source: SourceFacts) -> Iterator[LogEvent]:
    for event in (*source.memory_events, *source.salient_events, *source.last_events):
        if stated_in_line(event.text[:MAX_CHARACTERS])[0]:
            yield event


def add_origins(finding: Finding, origins: LogOrigins) -> Finding:
    """Return a finding whose evidence says where its lines were raised."""
    if not any(evidence.where in origins.places for evidence in finding.evidence):
        return finding
    evidence = tuple(Evidence(line.where, line.text, origins.places.get(line.where, ())) for line in finding.evidence)
    return msgspec.structs.replace(finding, evidence=evidence)


def explain_unknown(finding: Finding, book: RuleBook) -> Finding:
    """Return the finding on a line that no rule knows with what the sources say of that line."""
    places = finding.evidence[0].raised_in if finding.evidence else ()
    if not places:
        return finding
    parts = [f"The line is raised in {places[0]}."]
    names = _condition_names(finding.evidence[0].text)
    parts += [f"Its condition is about {', '.join(names)}."] if names else []
    pages = [
        f"{rule.code} {rule.front.message}"
        for rule in pages_about(places[0], finding.evidence[0].text, book)[:MAX_PAGES]
    ]
    parts += [f"Pages about the same file: {'; '.join(pages)}."] if pages else []
    return msgspec.structs.replace(finding, why=" ".join([*parts, finding.why]).strip())


def _condition_names(line: str) -> list[str]:
    """Return what the condition of a failed check is about; empty if a sentence stands in its place."""
    match = CONDITION.search(line)
    if match is None or not COMPARISON.search(match["condition"]):
        return []
    return list(dict.fromkeys(IDENTIFIER.findall(match["condition"])))[:6]


def pages_about(place: MessagePlace, line: str, book: RuleBook) -> list[Rule]:
    """Return the pages about the file that a line is raised in: those about its function first.

    A page is about the files that it names as its source and those that raise its own examples. Examples are looked
    up only on pages in similar words, because there are thousands of them.
    """
    about = [rule for rule in book if any(name.partition("@")[0] == place.path for name in rule.front.source)]
    functions = {rule.code: place.function for rule in about}
    for near in similarity_index(book).nearest_rules(line, max_rules=MAX_SIMILAR_PAGES):
        for example in near.rule.fires_on[:2]:
            raised = locate_message(example)[:1]
            if raised and raised[0].path == place.path and near.rule.code not in functions:
                about.append(near.rule)
                functions[near.rule.code] = raised[0].function
    return sorted(
        (rule for rule in about if rule.code != UNKNOWN_CODE and not rule.front.retired),
        key=lambda rule: functions[rule.code] != place.function,
    )


class _Member(NamedTuple):
    """A program of a job: a rank, a service, or whoever wrote a log of its own."""

    source: str
    unit: str
    rank: int | None


def release_mismatch(sources: Sequence[SourceFacts], book: RuleBook) -> list[Finding]:
    """Return the finding that programs of one job say they are of different releases."""
    jobs = scope_from_sources(sources).jobs
    members: dict[str, dict[_Member, LogEvent]] = defaultdict(dict)
    for source in sources:
        for event in source.memory_events:
            if stated_in_line(event.text)[1] == PROGRAM_STATES:
                member = _Member(source.name, event.peeled.unit, event.peeled.rank)
                members[jobs[source.name]][member] = event  # the last that it said: it may have been upgraded
    for by_member in members.values():
        events = sorted(
            by_member.values(), key=lambda event: parse_release(stated_in_line(event.text)[0]) or Version("0")
        )
        releases = [stated_in_line(event.text)[0] for event in events]
        if len(set(releases)) > 1:
            return [_mismatch_finding([events[0], events[-1]], [releases[0], releases[-1]], book)]
    return []


def _mismatch_finding(events: Sequence[LogEvent], releases: Sequence[str], book: RuleBook) -> Finding:
    page = book.get(MISMATCH_CODE)
    return Finding(
        code=page.code, slug=page.slug, severity=page.front.severity,
        message=f"programs of one job run TensorRT-LLM {releases[0]} and {releases[1]}",
        why=page.why, fixes=page.front.fix, verify=page.front.verify, confidence=0.8, where=events[0].where,
        evidence=tuple(Evidence(event.where, event.text[:600]) for event in events),
    )  # fmt: skip
