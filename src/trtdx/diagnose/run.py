"""`trtdx diagnose`: hand it a log, get the root cause.

bytes -> lines -> layers -> match -> cause -> Report; `docs/structure.md` follows one log along this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.diagnose.calibrate import calibrated_confidence
from trtdx.diagnose.cause import findings_from
from trtdx.diagnose.evidence import EVIDENCE_BYTES, findings_from_evidence, place_findings
from trtdx.diagnose.logs.sources import LogSource
from trtdx.diagnose.matcher import Matcher
from trtdx.diagnose.printed_deployment import add_findings, findings_from_deployment
from trtdx.diagnose.raised_in import NO_ORIGINS, add_origins, explain_unknown, release_mismatch, trace_origins
from trtdx.diagnose.traceback_end import OUT_OF_STEP_CODE, findings_from_place, findings_from_traceback
from trtdx.diagnose.unknown import (
    DESCRIPTION_BYTES,
    UNKNOWN_CODE,
    ends_unexplained,
    extract_description,
    findings_from_description,
    not_enough_evidence,
    similar_finding,
    unexplained_errors,
)
from trtdx.errors import TrtdxError
from trtdx.knowledge.fix_choice import choose_fixes
from trtdx.model import Finding, Harmless, Report, Severity, Summary, headline_from_findings
from trtdx.redact import make_redactor
from trtdx.rule import RuleKind
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.diagnose.nouns import SourceFacts
    from trtdx.rule import RuleBook

    Refine = Callable[[list[Finding], Sequence[SourceFacts]], list[Finding]]

CAUSE_CONFIDENCE = 0.3  # below this a match alone is not called a cause
SURE_CONFIDENCE = 0.7  # from this on a description's words add nothing


def diagnose_sources(
    sources: Sequence[LogSource],
    book: RuleBook,
    *,
    redact_hosts: bool = False,
    notes: Sequence[str] = (),
    progress: Callable[[str, int], None] = lambda name, size: None,
    refine: Refine | None = None,
) -> Report:
    """Return the report on all sources together.

    Args:
        sources: streams of log text; their order does not matter.
        book: the rules in force.
        redact_hosts: hide host names and addresses too, not only secrets.
        notes: what was passed over before, to be said in the summary.
        progress: called with a source's name and the bytes read of it so far.
        refine: adds to the findings what a room above this one knows, such as the figures of memory.
    """
    redact = make_redactor(hide_hosts=redact_hosts)
    matcher = Matcher(book, redact, sources=len(sources))
    facts: list[SourceFacts] = []
    small = _ShortInput(redact)
    problems = list(notes)
    for source in sorted(sources):
        source_facts, problem = _collect_source_facts(matcher, source, small, progress)
        facts.append(source_facts)
        problems += [problem] if problem else []
    return report_from_facts(facts, book, short_text=small.text, partial=problems, refine=refine)


def report_from_facts(
    facts: Sequence[SourceFacts],
    book: RuleBook,
    *,
    short_text: str = "",
    partial: Sequence[str] = (),
    refine: Refine | None = None,
) -> Report:
    """Return the report on what the sources told; `short_text` is the whole input where it is short."""
    findings, harmless = findings_from(facts, book)
    findings += release_mismatch(facts, book)
    findings = place_findings(findings, findings_from_evidence(facts, short_text, book), book)
    broke_elsewhere = ends_unexplained(facts, {finding.code for finding in findings}) and not any(
        finding.severity is Severity.ERROR for finding in findings
    )  # what warnings tell is not what ended it
    if broke_elsewhere or not _has_confident_finding(findings, SURE_CONFIDENCE):
        words = extract_description(short_text, facts) if len(short_text) <= DESCRIPTION_BYTES else ""
        known_codes = {finding.code for finding in findings}
        findings += [
            finding for finding in findings_from_description(facts, words, book) if finding.code not in known_codes
        ]
        findings += _findings_from_traceback(facts, short_text, findings, book)
        findings.sort(  # stable: the log's own words before a user's
            key=lambda finding: (broke_elsewhere and finding.severity is not Severity.ERROR, -finding.confidence)
        )
        if not _has_confident_finding(findings, CAUSE_CONFIDENCE):
            findings = similar_finding(facts, words, book) + findings
        unsure = [
            finding
            for finding in findings
            if finding.confidence >= CAUSE_CONFIDENCE
            and not (broke_elsewhere and finding.severity is not Severity.ERROR)
        ]
        unknown = not_enough_evidence(facts, words, book, unsure)
        findings = unknown + findings if broke_elsewhere and not unsure else findings + unknown
    else:
        findings += unexplained_errors(facts, book)
    findings = refine(findings, facts) if refine else findings
    origins = trace_origins(facts) if findings else NO_ORIGINS
    findings = add_findings(findings, findings_from_deployment(facts, short_text, origins.release, findings, book))
    first, last = (origins.release.first, origins.release.last) if origins.release else ("", "")
    findings = [choose_fixes(add_origins(finding, origins), first, last) for finding in findings]
    findings = [explain_unknown(finding, book) if finding.code == UNKNOWN_CODE else finding for finding in findings]
    calibrated_findings = [
        msgspec.structs.replace(finding, confidence=calibrated_confidence(finding.confidence)) for finding in findings
    ]
    summary = _summarize_findings(facts, calibrated_findings, harmless, [*partial, *_late_patterns(facts)])
    return Report(msgspec.structs.replace(summary, release=origins.release), tuple(calibrated_findings))


def _findings_from_traceback(
    facts: Sequence[SourceFacts], short_text: str, findings: Sequence[Finding], book: RuleBook
) -> list[Finding]:
    if len(facts) != 1 or any(finding.code == OUT_OF_STEP_CODE for finding in findings):
        return []
    known = {finding.code for finding in findings if book.get(finding.code).kind is not RuleKind.SYMPTOM}
    explained = [match.event.line for match in facts[0].matches if match.rule.code in known]
    skews = findings_from_traceback(short_text, facts[0].name, explained, book)
    return skews or [
        finding
        for finding in findings_from_place(short_text, facts[0].name, explained, book)
        if finding.code not in known
    ]


def _has_confident_finding(findings: Sequence[Finding], min_confidence: float) -> bool:
    return any(finding.confidence >= min_confidence for finding in findings)


def source_from_text(text: str | bytes, name: str = "log") -> LogSource:
    """Return a source that holds this text."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return LogSource(name, lambda: iter([data]))


class _ShortInput:
    """Keeps the input as text while it is short enough to be looked at as a whole."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact, self._parts, self._size = redact, [b""], 0

    def add(self, block: bytes) -> None:
        self._size += len(block)
        if self._size <= EVIDENCE_BYTES:
            self._parts.append(block)

    @property
    def text(self) -> str:
        return self._redact(b"".join(self._parts).decode("utf-8", "replace")) if self._size <= EVIDENCE_BYTES else ""


def _collect_source_facts(
    matcher: Matcher, source: LogSource, short_input: _ShortInput, progress: Callable[[str, int], None]
) -> tuple[SourceFacts, str]:
    """Return what the source told, and what kept it from being read to its end."""
    problem: list[str] = []

    def watched() -> Iterator[bytes]:
        done = 0
        try:
            for block in source.blocks():
                short_input.add(block)
                done += len(block)
                progress(source.name, done)
                yield block
        except (TrtdxError, OSError) as err:
            problem.append(f"{source.name}: {err}")

    return matcher.collect_facts(source.name, watched()), "; ".join(problem)


def _summarize_findings(
    facts: Sequence[SourceFacts],
    findings: Sequence[Finding],
    harmless: Sequence[Harmless],
    partial: Sequence[str],
) -> Summary:
    size, lines = (
        sum(source_facts.bytes_read for source_facts in facts),
        sum(source_facts.lines_read for source_facts in facts),
    )
    return Summary(
        text=_summary_headline(findings, partial),
        inputs=len(facts),
        bytes_read=size,
        lines_read=lines,
        ranks=tuple(sorted(set[int]().union(*(source_facts.ranks for source_facts in facts)))),
        harmless=tuple(harmless),
        partial=tuple(partial),
    )


def _late_patterns(facts: Sequence[SourceFacts]) -> Iterator[str]:
    """Yield which rules were not tried in time, source by source."""
    for source in facts:
        codes = sorted({pattern.rule.code for pattern in source.late_patterns if pattern.rule})
        if source.late_patterns:
            lines = format_count(max(source.late_patterns.values()), "line")
            named = ", ".join(codes[:5]) + (f" and {len(codes) - 5} more" if len(codes) > 5 else "")
            yield f"{source.name}: {named or 'a condition of a rule'} not tried in time on up to {lines} made to be slow to read"
        if source.late_searches:
            yield f"{source.name}: some rules were not tried in time on the text as a whole, which is made to be slow to read"


def _summary_headline(findings: Sequence[Finding], partial: Sequence[str]) -> str:
    if not findings:
        return "no problem found in what could be read" if partial else "no problem found"
    return headline_from_findings(findings)
