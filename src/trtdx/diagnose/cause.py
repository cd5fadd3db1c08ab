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
        return max(
            self.matches,
            key=lambda match: (match.log.confidence, [-part for part in _position(match.event)[1:]]),
        )

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
    groups = _without_rivals(sorted(_grouped(valid, sources), key=_Group.order))
    parents = {group.rule.code: _parent(group, groups) for group in groups}
    findings = []
    for group in groups:
        if parents[group.rule.code] is not None:
            continue
        folded = [
            other
            for other in groups
            if _root(other.rule.code, parents) == group.rule.code and other is not group
        ]
        findings.append(_finding(group, folded, len(sources) > 1))
    return findings, harmless


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
        explained |= lines
    return groups


def _position(event: Event) -> tuple[str, int]:
    return event.source, event.line


def when(event: Event) -> tuple[str, int, str]:
    """Return what orders events: full timestamps where the layers told them, else how far into its source it is."""
    time = event.peeled.time
    dated = time if re.match(r"\d{4}-", time) else ""
    american = re.match(r"(\d\d)/(\d\d)/(\d{4})-(.*)", time)
    if american:
        dated = f"{american[3]}-{american[1]}-{american[2]} {american[4]}"
    return dated.replace("T", " ") or "~", event.line, event.source


def _parent(group: _Group, groups: Sequence[_Group]) -> str | None:
    """Return the code under which this group is folded, or None when it stands by itself."""
    codes = {other.rule.code for other in groups} | {other.rule.slug for other in groups}
    for name in group.rule.front.follows:
        if name in codes and not group.rule.is_named(name):
            cause = next(other for other in groups if other.rule.is_named(name))
            if not any(
                cause.rule.front.follows and group.rule.is_named(back) for back in cause.rule.front.follows
            ):
                return cause.rule.code
    if group.rule.kind is not Kind.SYMPTOM:
        return None
    first = next(
        (other for other in groups if other.rule.kind is Kind.CAUSE and other.confidence >= 0.3), None
    )
    if first is not None:
        return first.rule.code
    return None if group is groups[0] else groups[0].rule.code


def _root(code: str, parents: dict[str, str | None]) -> str:
    for _ in range(len(parents)):  # bounded: a ring of `follows` ends too
        above = parents.get(code)
        if above is None:
            return code
        code = above
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
