"""From matches to findings: the first cause first, its consequences folded under it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from trtdx.diagnose.line_matches import COUNTED_MATCHES
from trtdx.diagnose.logs.clock import align_clocks, event_time
from trtdx.diagnose.nouns import RuleMatch
from trtdx.diagnose.scope import JobScope, MatchIndex, can_produce, event_distance, scope_from_sources
from trtdx.knowledge.literals import is_vague
from trtdx.knowledge.template import fill_template
from trtdx.model import Evidence, Finding, Fix, Harmless, Severity, Stage, Symptom
from trtdx.rule import LogPattern, Rule, RuleKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trtdx.diagnose.nouns import LogEvent, SourceFacts
    from trtdx.rule import RuleBook

QUIET_LEVELS = ("info", "debug", "trace")
ERROR_LEVELS = ("error", "fatal")
MAX_EVIDENCE = 5
LEAST_CAUSE, SURE_CAUSE = 0.3, 0.45  # what has symptoms at all, and what has them before others
MAX_EVIDENCE_CHARACTERS, VISIBLE_CHARACTERS = (
    600,
    150,
)  # of a line kept as evidence, and of it what a terminal shows
MAX_COMPARISONS = 4000  # lines of a consequence times its possible causes
SETTLES_LINE = 0.99  # a harmless pattern this sure silences the causes that read something into its lines
_STARTUP_STAGES = (Stage.INSTALL, Stage.CONVERT, Stage.BUILD, Stage.LAUNCH)


class _RuleMatches(msgspec.Struct):
    """All matches of one rule, and the finding they make."""

    rule: Rule
    matches: list[RuleMatch]
    severity: Severity
    confidence: float

    @property
    def best_match(self) -> RuleMatch:
        return max(self.matches, key=lambda match: (match.log.confidence, -match.event.line))

    @property
    def first_event(self) -> LogEvent:
        return min((match.event for match in self.matches), key=event_time)

    def sort_key(self) -> tuple[object, ...]:
        tier = 2 if self.confidence >= 0.7 else 1 if self.confidence >= 0.45 else 0
        return (
            -self.severity.badness,
            self.rule.kind is RuleKind.SYMPTOM,
            -tier,
            event_time(self.first_event),
            -self.confidence,
            self.rule.code,
        )


def findings_from(sources: Sequence[SourceFacts], book: RuleBook) -> tuple[list[Finding], list[Harmless]]:
    """Return the causes, best first, with their symptoms, and the known-harmless lines."""
    scope = scope_from_sources(sources)
    valid, harmless = _filter_valid_matches(sources, scope.jobs)
    groups = sorted(_group_by_rule(_drop_rereadings(align_clocks(valid)), sources), key=_RuleMatches.sort_key)
    groups = _demote_rivals(groups)
    alone, folded = _fold_symptoms(groups, scope)
    return [_finding_from_group(group, folded[group.rule.code], len(sources) > 1) for group in alone], harmless


def _filter_valid_matches(
    sources: Sequence[SourceFacts], by_job: dict[str, str]
) -> tuple[list[RuleMatch], list[Harmless]]:
    """Return the matches that hold where they stand, and the harmless ones counted."""
    conditions: defaultdict[str, set[str]] = defaultdict(set)
    for source in sources:
        conditions[by_job[source.name]] |= source.conditions
    valid: list[RuleMatch] = []
    harmless: dict[str, Harmless] = {}
    for source in sources:
        met = conditions[by_job[source.name]]
        explained = {
            line
            for line, log in source.harmless_lines.items()
            if log.confidence >= SETTLES_LINE and _meets_conditions(log, met)
        }
        for match in source.matches:
            if not _is_valid_match(match, met):
                continue
            if match.rule.kind is not RuleKind.HARMLESS:
                valid += [match] if match.event.line not in explained else []
            elif match.rule.code not in harmless:
                harmless[match.rule.code] = _harmless_from_match(match, sources)
    return valid, sorted(harmless.values(), key=lambda line: line.code)


def _drop_rereadings(matches: Sequence[RuleMatch]) -> list[RuleMatch]:
    """Return the matches without symptoms that only say again what a cause says of the same line."""
    explained = {
        _event_position(match.event)
        for match in matches
        if match.rule.kind is RuleKind.CAUSE and match.log.confidence >= SURE_CAUSE
    }
    return [
        match
        for match in matches
        if match.rule.kind is not RuleKind.SYMPTOM or _event_position(match.event) not in explained
    ]


def _harmless_from_match(match: RuleMatch, sources: Sequence[SourceFacts]) -> Harmless:
    code = match.rule.code
    counts = [source.counts[code] for source in sources]
    sampled = any(source.is_sampled for source in sources) or max(counts) >= COUNTED_MATCHES
    message = fill_template(match.log.message, match.values) if match.log.message else None
    return Harmless(code, message or match.rule.front.message, match.event.where, sum(counts), at_least=sampled)


def _is_valid_match(match: RuleMatch, conditions: set[str]) -> bool:
    level = match.event.peeled.level
    if match.log.level:
        fits = level in match.log.level
    elif match.rule.kind is RuleKind.HARMLESS:
        fits = level not in ERROR_LEVELS
    else:
        fits = level not in QUIET_LEVELS and not (level == "warning" and is_vague(match.log.pattern))
    return fits and _meets_conditions(match.log, conditions)


def _meets_conditions(log: LogPattern, conditions: set[str]) -> bool:
    return conditions.issuperset(log.requires) and conditions.isdisjoint(log.unless)


def _group_by_rule(matches: Iterable[RuleMatch], sources: Sequence[SourceFacts]) -> list[_RuleMatches]:
    alive = {source.name: source.last_alive_line for source in sources}
    by_code: defaultdict[str, list[RuleMatch]] = defaultdict(list)
    for match in matches:
        by_code[match.rule.code].append(match)
    return [_rule_matches(group_matches, alive) for group_matches in by_code.values()]


def _rule_matches(matches: list[RuleMatch], alive: dict[str, int]) -> _RuleMatches:
    rule = matches[0].rule
    severity = max((m.log.severity or rule.front.severity for m in matches), key=lambda level: level.badness)
    confidence = max(match.log.confidence for match in matches)
    only_warned = all(m.event.peeled.level == "warning" and "warning" not in m.log.level for m in matches)
    came_up = rule.front.stage in _STARTUP_STAGES and all(m.event.line < alive[m.event.source] for m in matches)
    if (only_warned or came_up) and severity is Severity.ERROR:
        severity = Severity.WARNING
    if came_up:
        confidence *= 0.6
    return _RuleMatches(rule, matches, severity, confidence)


def _demote_rivals(groups: list[_RuleMatches]) -> list[_RuleMatches]:
    """Return the groups with less belief in those that only reread a line a better group explains."""
    explained: set[tuple[str, int]] = set()
    for group in groups:
        if group.rule.kind is not RuleKind.CAUSE:
            continue
        lines = {_event_position(match.event) for match in group.matches}
        if lines <= explained:
            group.confidence *= 0.5
            group.severity = Severity.NOTE  # one cause, one error
        explained |= lines
    return groups


def _event_position(event: LogEvent) -> tuple[str, int]:
    return event.source, event.line


def _fold_symptoms(
    groups: Sequence[_RuleMatches], scope: JobScope
) -> tuple[list[_RuleMatches], defaultdict[str, list[_RuleMatches]]]:
    """Return the groups that stand by themselves, and under the code of each what is folded under it.

    Each line of a consequence goes to the nearest cause that can have produced it, so one symptom may be split among
    causes; lines that no cause explains stay a finding of their own.
    """
    parents: defaultdict[str, set[str]] = defaultdict(set)
    places = {group.rule.code: MatchIndex(group.matches) for group in groups}
    parts: defaultdict[tuple[str, str], list[RuleMatch]] = defaultdict(list)
    for group in groups:
        causes = list(_possible_causes(group, groups))
        code = group.rule.code
        for number, match in enumerate(group.matches):
            # what comes later in a flood goes where the last one went
            if number * len(causes) <= MAX_COMPARISONS:
                code = _choose_cause(match, causes, places, parents, scope)
            parts[code, group.rule.code].append(match)
            if code != group.rule.code:
                parents[group.rule.code].add(code)
    alone = [_with_matches(group, parts[self_key]) for group in groups if (self_key := (group.rule.code,) * 2) in parts]
    folded: defaultdict[str, list[_RuleMatches]] = defaultdict(list)
    standing = {group.rule.code for group in alone}
    for group in groups:
        for (code, symptom), matches in list(parts.items()):
            if symptom == group.rule.code != code:
                for root in _root_codes(code, parents, standing):
                    folded[root].append(_with_matches(group, matches))
    return alone, folded


def _with_matches(group: _RuleMatches, matches: list[RuleMatch]) -> _RuleMatches:
    return msgspec.structs.replace(group, matches=matches)


def _possible_causes(group: _RuleMatches, groups: Sequence[_RuleMatches]) -> Iterable[tuple[int, _RuleMatches]]:
    """Yield what this group may be a consequence of, and how telling that is; 0 is the most."""
    named = group.rule.front.follows
    symptom = group.rule.kind is RuleKind.SYMPTOM
    for place, other in enumerate(groups):
        if other is group:
            continue
        if any(other.rule.is_named(name) for name in named):
            yield 0, other
        elif not can_produce(other.rule, group.rule):
            continue
        elif symptom and other.rule.kind is RuleKind.CAUSE and other.confidence >= LEAST_CAUSE:
            yield 1, other
        elif symptom and other.rule.kind is RuleKind.SYMPTOM and place < groups.index(group):
            yield 2, other


def _choose_cause(
    match: RuleMatch,
    causes: Sequence[tuple[int, _RuleMatches]],
    match_indexes: dict[str, MatchIndex],
    parents: dict[str, set[str]],
    scope: JobScope,
) -> str:
    """Return the code under which this line is folded: its own where nothing can have produced it."""
    best: tuple[object, ...] = ()
    chosen = match.rule.code
    for tier, cause in causes:
        near = [
            event_distance(other.event, match.event)
            for other in match_indexes[cause.rule.code].nearest_matches(match.event.line)
            if scope.is_related(other, match)
        ]
        if not near or _leads_to(cause.rule.code, match.rule.code, parents):
            continue
        rank = (tier, -cause.severity.badness, cause.confidence < SURE_CAUSE, min(near))
        if not best or rank < best:
            best, chosen = rank, cause.rule.code
    return chosen


def _leads_to(code: str, other: str, parents: dict[str, set[str]]) -> bool:
    """Whether one is, over any number of steps, folded under the other; no ring is made."""
    return code == other or any(_leads_to(parent, other, parents) for parent in parents.get(code, ()))


def _root_codes(code: str, parents: dict[str, set[str]], standing: set[str]) -> set[str]:
    """Return the findings under which something is shown whose direct cause may itself be folded."""
    if code in standing:
        return {code}
    return set[str]().union(*(_root_codes(parent, parents, standing) for parent in parents[code]))


def _finding_from_group(group: _RuleMatches, folded: Sequence[_RuleMatches], many_sources: bool) -> Finding:
    match, rule = group.best_match, group.rule
    message = fill_template(match.log.message, match.values) if match.log.message else None
    why = fill_template(match.log.why, match.values) if match.log.why else None
    broke = any(
        other.severity is Severity.ERROR and other.first_event.peeled.level not in ("warning",) for other in folded
    )
    return Finding(
        code=rule.code,
        slug=rule.slug,
        severity=Severity.ERROR if broke and rule.front.severity is Severity.ERROR else group.severity,
        message=message or rule.front.message,
        why=why or rule.why,
        fixes=_fixes_from_match(match),
        verify=rule.front.verify,
        confidence=round(group.confidence, 2),
        where=event_place(group.first_event, many_sources),
        evidence=_evidence_from_group(group),
        symptoms=tuple(
            _symptom_from_group(other) for other in sorted(folded, key=lambda other: event_time(other.first_event))
        ),
    )


def _fixes_from_match(match: RuleMatch) -> tuple[Fix, ...]:
    """Return the pattern's own fixes with the values of this log, then the page's others."""
    pattern_fixes = []
    for fix in match.log.fix:
        text, command = fill_template(fix.text, match.values), fill_template(fix.command or "", match.values)
        if text is None or command is None:
            return match.rule.front.fix
        pattern_fixes.append(msgspec.structs.replace(fix, text=text, command=command or None))
    stages, texts = {fix.stage for fix in pattern_fixes if not fix.holds_for}, {fix.text for fix in pattern_fixes}
    page_fixes = [fix for fix in match.rule.front.fix if fix.stage not in stages and fix.text not in texts]
    return (*pattern_fixes, *page_fixes)


def _evidence_from_group(group: _RuleMatches) -> tuple[Evidence, ...]:
    matches = {match.event.where: match for match in sorted(group.matches, key=lambda match: event_time(match.event))}
    best = group.best_match
    chosen = [best, *(match for match in matches.values() if match.event.where != best.event.where)]
    return tuple(
        Evidence(match.event.where, excerpt_around(match.event.text, match.proof)) for match in chosen[:MAX_EVIDENCE]
    )


def excerpt_around(text: str, proof: str) -> str:
    """Return the part of a long line that a reader must see: how it begins, and the proof."""
    at = text.find(proof.split("\n", 1)[0][:80])
    if at + min(len(proof), 60) <= VISIBLE_CHARACTERS:
        return text[:MAX_EVIDENCE_CHARACTERS]
    return f"{text[:48]} ... {text[at - 24 : at + MAX_EVIDENCE_CHARACTERS - 80]}"


def _symptom_from_group(group: _RuleMatches) -> Symptom:
    match = group.best_match
    message = fill_template(match.log.message, match.values) if match.log.message else None
    return Symptom(group.rule.code, message or group.rule.front.message, group.first_event.where)


def event_place(event: LogEvent, many_sources: bool) -> str:
    rank = event.peeled.rank
    return f"{event.where} (rank {rank})" if rank is not None and (many_sources or rank) else event.where
