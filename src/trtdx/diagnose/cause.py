"""From matches to findings: the first cause first, its consequences folded under it."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from trtdx.diagnose.match import Match
from trtdx.literals import is_vague
from trtdx.model import Evidence, Finding, Fix, Harmless, Severity, Stage, Symptom
from trtdx.rule import Kind, Rule
from trtdx.template import filled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtdx.diagnose.match import Event, SourceFacts
    from trtdx.rule import RuleBook

QUIET = ("info", "debug", "trace")
LOUD = ("error", "fatal")
MOST_EVIDENCE = 5
_START_UP = (Stage.INSTALL, Stage.CONVERT, Stage.BUILD, Stage.LAUNCH)


class _Group(msgspec.Struct):
    """All matches of one rule, and the finding they make."""

    rule: Rule
    matches: list[Match]
    severity: Severity
    confidence: float

    @property
    def best(self) -> Match:
        return max(self.matches, key=lambda match: (match.log.confidence, -match.event.line))

    @property
    def first(self) -> Event:
        return min((match.event for match in self.matches), key=when)

    def order(self) -> tuple[object, ...]:
        tier = 2 if self.confidence >= 0.7 else 1 if self.confidence >= 0.45 else 0
        return (
            self.rule.kind is Kind.SYMPTOM,
            -self.severity.badness,
            -tier,
            when(self.first),
            -self.confidence,
            self.rule.code,
        )


def findings_from(sources: Sequence[SourceFacts], book: RuleBook) -> tuple[list[Finding], list[Harmless]]:
    """Return the causes, best first, with their symptoms, and the known-harmless lines."""
    valid, harmless = _judged(sources)
    groups = _without_rivals(sorted(_grouped(_on_one_clock(valid), sources), key=_Group.order))
    parents = _parents(groups)
    folded: defaultdict[str, list[_Group]] = defaultdict(list)
    for group in groups:
        if group.rule.code in parents:
            folded[_root(group.rule.code, parents)].append(group)
    alone = [group for group in groups if group.rule.code not in parents]
    return [_finding(group, folded[group.rule.code], len(sources) > 1) for group in alone], harmless


def _judged(sources: Sequence[SourceFacts]) -> tuple[list[Match], list[Harmless]]:
    """Return the matches that hold where they stand, and the harmless ones counted."""
    conditions = set[str]().union(*(source.conditions for source in sources))
    valid: list[Match] = []
    harmless: dict[str, Harmless] = {}
    for source in sources:
        for match in source.matches:
            if not _holds(match, conditions):
                continue
            if match.rule.kind is not Kind.HARMLESS:
                valid.append(match)
            elif match.rule.code not in harmless:
                count = sum(
                    each.counts[match.rule.code, log.pattern]
                    for each in sources
                    for log in match.rule.front.log
                )
                harmless[match.rule.code] = Harmless(
                    match.rule.code, match.rule.front.message, match.event.where, count
                )
    return valid, sorted(harmless.values(), key=lambda each: each.code)


def _holds(match: Match, conditions: set[str]) -> bool:
    level = match.event.peeled.level
    if match.log.level:
        fits = level in match.log.level
    elif match.rule.kind is Kind.HARMLESS:
        fits = level not in LOUD
    else:
        fits = level not in QUIET and not (level == "warning" and is_vague(match.log.pattern))
    return fits and conditions.issuperset(match.log.requires) and conditions.isdisjoint(match.log.unless)


def _grouped(matches: Iterable[Match], sources: Sequence[SourceFacts]) -> list[_Group]:
    alive = {source.name: source.alive_at for source in sources}
    by_code: defaultdict[str, list[Match]] = defaultdict(list)
    for match in matches:
        by_code[match.rule.code].append(match)
    return [_group(found, alive) for found in by_code.values()]


def _group(matches: list[Match], alive: dict[str, int]) -> _Group:
    rule = matches[0].rule
    severity = max((m.log.severity or rule.front.severity for m in matches), key=lambda each: each.badness)
    confidence = max(match.log.confidence for match in matches)
    only_warned = all(m.event.peeled.level == "warning" and "warning" not in m.log.level for m in matches)
    came_up = rule.front.stage in _START_UP and all(m.event.line < alive[m.event.source] for m in matches)
    if (only_warned or came_up) and severity is Severity.ERROR:
        severity = Severity.WARNING
    if came_up:
        confidence *= 0.6
    return _Group(rule, matches, severity, confidence)


def _without_rivals(groups: list[_Group]) -> list[_Group]:
    """Return the groups with less belief in those that only reread a line a better group explains."""
    explained: set[tuple[str, int]] = set()
    for group in groups:
        lines = {_position(match.event) for match in group.matches}
        if group.rule.kind is Kind.CAUSE and lines <= explained:
            group.confidence *= 0.5
            group.severity = Severity.NOTE  # one cause, one error
        explained |= lines
    return groups


def _position(event: Event) -> tuple[str, int]:
    return event.source, event.line


def when(event: Event) -> tuple[str, int, str]:
    """Return what orders events: the time on the common clock where there is one, then how far into its source it is."""
    return event.peeled.time, event.line, event.source


def _on_one_clock(matches: list[Match]) -> list[Match]:
    """Return the matches with times that can be compared, or without any where a source tells none.

    Loggers with and without dates write into one file; a line without takes the date of the nearest one before it
    that has one, else of the first after it.
    """
    dates: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for match in matches:
        date = _date(match.event.peeled.time)
        dates[match.event.source].update({match.event.line: date} if date else {})
    if not all(dates[match.event.source] for match in matches):
        return [_at(match, "") for match in matches]
    return [_at(match, _nearest(dates[match.event.source], match.event.line)) for match in matches]


def _nearest(dates: dict[int, str], line: int) -> str:
    before = [at for at in dates if at <= line]
    return dates[max(before)] if before else dates[min(dates)]


def _at(match: Match, time: str) -> Match:
    return match._replace(event=match.event._replace(peeled=match.event.peeled._replace(time=time)))


def _date(time: str) -> str:
    """Return a time with a full date in a form that sorts, else nothing."""
    american = re.match(r"(\d\d)/(\d\d)/(\d{4})-(.*)", time)
    if american:
        return f"{american[3]}-{american[1]}-{american[2]} {american[4]}"
    return time.replace("T", " ").replace("/", "-") if re.match(r"\d{4}[-/]", time) else ""


def _parents(groups: Sequence[_Group]) -> dict[str, str]:
    """Return under which code each group is folded; one that stands by itself is not in it, and no ring is made."""
    parents: dict[str, str] = {}
    for group in groups:
        for cause in _possible_causes(group, groups):
            if _root(cause.rule.code, parents) != group.rule.code:
                parents[group.rule.code] = cause.rule.code
                break
    return parents


def _possible_causes(group: _Group, groups: Sequence[_Group]) -> Iterable[_Group]:
    """Yield what this group may be a consequence of, the most telling first."""
    for name in group.rule.front.follows:
        yield from (other for other in groups if other.rule.is_named(name) and other is not group)
    if group.rule.kind is Kind.SYMPTOM:
        yield from (other for other in groups if other.rule.kind is Kind.CAUSE and other.confidence >= 0.3)
        yield from (other for other in groups[:1] if other is not group)


def _root(code: str, parents: dict[str, str]) -> str:
    while code in parents:
        code = parents[code]
    return code


def _finding(group: _Group, folded: Sequence[_Group], many_sources: bool) -> Finding:
    match, rule = group.best, group.rule
    message = filled(match.log.message, match.values) if match.log.message else None
    why = filled(match.log.why, match.values) if match.log.why else None
    broke = any(
        other.severity is Severity.ERROR and other.first.peeled.level not in ("warning",) for other in folded
    )
    return Finding(
        code=rule.code,
        slug=rule.slug,
        severity=Severity.ERROR if broke and rule.front.severity is Severity.ERROR else group.severity,
        message=message or rule.front.message,
        why=why or rule.why,
        fixes=_fixes(match),
        verify=rule.front.verify,
        confidence=round(group.confidence, 2),
        where=place(group.first, many_sources),
        evidence=_evidence(group),
        symptoms=tuple(_symptom(other) for other in sorted(folded, key=lambda other: when(other.first))),
    )


def _fixes(match: Match) -> tuple[Fix, ...]:
    """Return the pattern's own fixes with the values of this log, then the page's others."""
    own = []
    for fix in match.log.fix:
        text, command = filled(fix.text, match.values), filled(fix.command or "", match.values)
        if text is None or command is None:
            return match.rule.front.fix
        own.append(Fix(fix.stage, text, command or None))
    rest = [fix for fix in match.rule.front.fix if fix.text not in {mine.text for mine in own}]
    return (
        tuple(own + rest)
        if not own
        else tuple(own + [fix for fix in rest if fix.stage not in {mine.stage for mine in own}])
    )


def _evidence(group: _Group) -> tuple[Evidence, ...]:
    events = {
        match.event.where: match.event for match in sorted(group.matches, key=lambda match: when(match.event))
    }
    best = group.best.event
    chosen = [best, *(event for event in events.values() if event.where != best.where)]
    return tuple(Evidence(event.where, event.text[:600]) for event in chosen[:MOST_EVIDENCE])


def _symptom(group: _Group) -> Symptom:
    match = group.best
    message = filled(match.log.message, match.values) if match.log.message else None
    return Symptom(group.rule.code, message or group.rule.front.message, group.first.where)


def place(event: Event, many_sources: bool) -> str:
    rank = event.peeled.rank
    return f"{event.where} (rank {rank})" if rank is not None and (many_sources or rank) else event.where
