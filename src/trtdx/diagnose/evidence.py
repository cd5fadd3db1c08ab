"""Causes that no single line shows: a symptom beside a command, a setting, a release or a GPU in the same report.

A page's `[[evidence]]` says which. Known bugs of releases are such evidence: they hold only where the report's release
can have the bug, or where no release is known, and then with less belief.
"""

from __future__ import annotations

import operator
import re
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from trtdx.cpu_limit import TimedSearches
from trtdx.diagnose.cause import ERROR_LEVELS
from trtdx.diagnose.line_matches import SALIENT
from trtdx.diagnose.logs.prefixes import peel_line
from trtdx.diagnose.raised_in import trace_origins
from trtdx.diagnose.unknown import COMPLAINT, is_spoken
from trtdx.knowledge.inventory import product_releases
from trtdx.knowledge.symptom_words import expand_symptom_words, is_complaint
from trtdx.knowledge.versions import parse_release, stated_release, version_table
from trtdx.model import Evidence, Finding, Fix, Severity, Stage, Symptom
from trtdx.rule import RuleKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from trtdx.diagnose.nouns import SourceFacts
    from trtdx.rule import EvidencePattern, Rule, RuleBook

EVIDENCE_BYTES = 32 << 10  # of a report that is looked at as a whole
UNKNOWN_RELEASE, MIN_UNKNOWN = (
    0.85,
    0.55,
)  # what is left of the belief in a bug where nothing tells the release; less is not told
MAX_EVIDENCE_LINES = 4
SURE_EVIDENCE = 0.8  # from this on what only sees the symptom is folded under the cause: one cause, one finding
_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
_NUMBER = r"(?:0\.(?:[5-9]|1\d|2[01])|1\.[0-3])"
_SUFFIX = r"(?:\.?(?:dev\d*|rc\d+|post\d+))*"
_RELEASE = re.compile(
    rf"(?i)(?:(?P<package>[a-z][\w-]{{0,60}})[ =:@>~v`*\"'-]{{0,6}})?(?<![\d.])v?(?P<full>{_NUMBER}\.\d{_SUFFIX})(?![\d.]*\d|%)"
    rf"|(?:tensor ?rt[-_ ]?llm\w*|trt-?llm|version|release)[ =:@v`*\"'(-]{{1,6}}(?P<short>{_NUMBER}{_SUFFIX})(?![\d.]*\d|%)"
)
_IMAGE_TAG = re.compile(r"\b(\d\d\.\d\d)-trtllm-python")
# What other packages number alike; a number behind their name is none of TensorRT-LLM's.
_OTHER_PACKAGE = re.compile(
    r"(?i)modelopt|flashinfer|grammar|torch|mpi|tokenizers|onnx|nixl|ucx|dynamo|accelerate|safetensors|peft|ammo|cuda|nccl|"
    r"driver|python|vllm|sglang|gcc|cmake|polygraphy|numpy|pandas|fastapi|datasets|diffusers|bitsandbytes|container|docker"
)


class WeighedFinding(NamedTuple):
    """A finding made from evidence, and the pages that see only its symptom."""

    finding: Finding
    over: tuple[str, ...]


def findings_from_evidence(sources: Sequence[SourceFacts], text: str, book: RuleBook) -> list[WeighedFinding]:
    """Return the causes that the report as a whole is evidence of, the surest first.

    Args:
        sources: what was read.
        text: the whole input where it is short, else empty.
        book: the rules in force.
    """
    if not text or len(text) > EVIDENCE_BYTES:
        return []
    harmless = sources[0].harmless_lines if len(sources) == 1 else ()
    report, releases = ReportText(text, harmless), _ReleasesOfReport(text, sources)
    weighed = [
        WeighedFinding(_finding_from_evidence(rule, best[1], best[0], report, sources[0].name), best[1].over)
        for rule, best in _best_evidence(report, book, releases)
    ]
    sources[0].late_searches += report.searches.late
    return sorted(weighed, key=lambda cause: -cause.finding.confidence)


def place_findings(findings: Sequence[Finding], weighed: Sequence[WeighedFinding], book: RuleBook) -> list[Finding]:
    """Return all findings with those from evidence where they belong: before what only sees their symptom."""
    placed = list(findings)
    for finding, over in reversed(weighed):
        rival = next((other for other in placed if other.code == finding.code), None)
        if rival is not None:
            if rival.confidence >= finding.confidence:
                continue
            placed.remove(rival)
        generic = [other for other in placed if _is_outdone(other, finding, over, book)]
        rest = [other for other in placed if other not in generic]
        at = next((n for n, other in enumerate(rest) if other.confidence < finding.confidence), len(rest))
        if finding.confidence >= SURE_EVIDENCE:
            placed = [*rest[:at], _fold_under(finding, generic), *rest[at:]]
        else:
            placed = [*rest[:at], finding, *rest[at:], *map(_as_note, generic)]
    return placed


def _is_outdone(other: Finding, finding: Finding, over: Sequence[str], book: RuleBook) -> bool:
    return other.code in over or (
        book.has_rule(other.code)
        and book.get(other.code).kind is RuleKind.SYMPTOM
        and finding.confidence >= 0.6  # a guess from words explains no symptom away
    )


def _fold_under(finding: Finding, generic: Sequence[Finding]) -> Finding:
    """Return the cause with what only saw its symptom, and the symptoms of that, folded under it."""
    symptoms = [
        symptom
        for other in generic
        for symptom in (Symptom(other.code, other.message, str(other.where)), *other.symptoms)
        if symptom.code != finding.code
    ]
    return msgspec.structs.replace(finding, symptoms=(*finding.symptoms, *symptoms))


def _as_note(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, severity=Severity.NOTE, confidence=min(finding.confidence, 0.45))


def _best_evidence(
    report: ReportText, book: RuleBook, releases: _ReleasesOfReport
) -> Iterator[tuple[Rule, tuple[float, EvidencePattern]]]:
    for rule in book:
        fitting = [
            (pattern.confidence * fit, pattern)
            for pattern in rule.front.evidence
            if _is_in_report(pattern, report) and (fit := releases.fit(pattern))
        ]
        if fitting:
            yield rule, max(fitting, key=lambda pair: (pair[0], len(pair[1].all)))


def _is_in_report(pattern: EvidencePattern, report: ReportText) -> bool:
    return (
        any(word in report.lower for word in pattern.mentions)
        and all(_search_part(part, report) for part in pattern.all)
        and not any(report.searches.search(_compile_evidence(part), report.stated) for part in pattern.none)
    )


def _search_part(part: str, report: ReportText) -> re.Match[str] | None:
    text = report.complaints if is_complaint(part) else report.stated
    return report.searches.search(_compile_evidence(part), text)


@cache
def _compile_evidence(pattern: str) -> re.Pattern[str]:
    return re.compile(expand_symptom_words(pattern), re.IGNORECASE | re.MULTILINE)


class _ReleasesOfReport:
    """The releases of TensorRT-LLM that a report names, or that its lines can come from."""

    def __init__(self, text: str, sources: Sequence[SourceFacts]) -> None:
        self._text, self._sources = text, sources

    def fit(self, pattern: EvidencePattern) -> float:
        """Return how far the pattern's bug can be the report's: 0 not at all, 1 where it names a release that has it."""
        if not pattern.releases:
            return 1.0
        if not self._possible:
            return UNKNOWN_RELEASE if pattern.confidence * UNKNOWN_RELEASE >= MIN_UNKNOWN else 0.0
        bounds = _release_bounds(pattern.releases)
        return float(any(_is_within(version, bounds) for one in self._possible if (version := parse_release(one))))

    @property
    def _possible(self) -> tuple[str, ...]:
        if stated := releases_named(self._text):
            return stated
        origin = trace_origins(self._sources).release
        if origin is None:
            return ()
        known = product_releases()
        first, last = parse_release(origin.first), parse_release(origin.last)
        return tuple(one for one in known if first and last and (v := parse_release(one)) and first <= v <= last)


@cache
def _release_bounds(releases: str) -> tuple[tuple[str, Version], ...]:
    return tuple((bound.operator, Version(bound.version)) for bound in SpecifierSet(releases))


def _is_within(version: Version, bounds: Sequence[tuple[str, Version]]) -> bool:
    """Whether a release is within bounds; a pre-release of 1.2 is before 1.2, which `SpecifierSet` does not say."""
    return all(_COMPARISONS[comparison](version, bound) for comparison, bound in bounds)


@cache
def releases_named(text: str) -> tuple[str, ...]:
    """Return the releases of TensorRT-LLM that somebody's words name, in the order of the text."""
    named = [
        stated_release(match["full"] or match["short"])
        for match in _RELEASE.finditer(text)
        if not _OTHER_PACKAGE.search(match["package"] or "")
    ]
    named += [version_table().triton.get(match[1], "") for match in _IMAGE_TAG.finditer(text)]
    return tuple(dict.fromkeys(filter(None, named)))


def _finding_from_evidence(
    rule: Rule, pattern: EvidencePattern, confidence: float, report: ReportText, name: str
) -> Finding:
    front = rule.front
    lines = _lines_of_evidence(pattern, report)
    message = pattern.message or front.message
    return Finding(
        code=rule.code, slug=rule.slug, severity=front.severity,
        message=f"{_bug_words(pattern)}{message}{_fixed_words(pattern)}", why=pattern.why or rule.why,
        fixes=(*_upgrade(pattern), *(pattern.fix or (() if pattern.fixed else front.fix))), verify=front.verify,
        confidence=round(confidence, 2), where=f"{name}:{lines[0][0]}",
        evidence=tuple(Evidence(f"{name}:{number}", line[:600]) for number, line in lines),
    )  # fmt: skip


def _bug_words(pattern: EvidencePattern) -> str:
    return "known bug of TensorRT-LLM: " if pattern.releases else ""


def _fixed_words(pattern: EvidencePattern) -> str:
    if not pattern.releases:
        return ""
    sources = f" ({', '.join(pattern.source)})" if pattern.source else ""
    return f"; fixed in {pattern.fixed}{sources}" if pattern.fixed else f"; no release with a fix is known{sources}"


def _upgrade(pattern: EvidencePattern) -> tuple[Fix, ...]:
    if not pattern.fixed:
        return ()
    command = f"pip install 'tensorrt_llm=={pattern.fixed}'   # or a later release, with the container of that release"
    return (Fix(Stage.INSTALL, f"upgrade to TensorRT-LLM {pattern.fixed} or later and rebuild engines", command),)


def _lines_of_evidence(pattern: EvidencePattern, report: ReportText) -> list[tuple[int, str]]:
    """Return the numbered lines in which the parts stand, in the order of the text."""
    lines = report.whole.split("\n")
    matches = (match for part in pattern.all if (match := _search_part(part, report)))
    numbers = sorted({match.string.count("\n", 0, match.start()) for match in matches})[:MAX_EVIDENCE_LINES]
    return [(number + 1, lines[number].strip()) for number in numbers]


# A short input is two texts: what somebody complains of or a program reports as wrong, and all that is stated. A healthy
# server prints its settings, and these name half of what can go wrong. So a symptom counts only where a person says it,
# or where a line is an error (healthy servers warn a lot); a setting counts only where it is not switched off.
_SWITCHED_OFF = re.compile(
    r"(?i)(?<![\w.\"'])[\w.\"']+\s{0,8}[=:]\s{0,8}(?:none|null|false|\[\]|\{\}|'')(?![\w.])|(?<![\w.])[\w.]*(?:parallel_size|(?:tp|pp|ep|cp)_size)\s{0,8}[=: ]\s{0,8}1\b"
)
_PROGRAM_LINE = re.compile(
    r"(?i)^\s*(?:/|File \"|at /|#\d|\d+ +0x|[$>#] |-{2}|[\w.\"']+ ?[=:](?: |$)(?=\S+$))|\wWarning:|\bWarning:|\.py:\d+|\w=\w.{0,200}\w=\w.{0,200}\w=|it/s\]|\d%\|"
)
_MIN_WORDS = 3


class ReportText:
    """The whole input, and the parts of it that speak of trouble."""

    def __init__(self, text: str, harmless_lines: Collection[int] = ()) -> None:
        self.whole = text
        self._harmless = harmless_lines
        self.lower = text.lower()
        self.searches = TimedSearches()

    @cached_property
    def stated(self) -> str:
        """Return the input without settings that are off; lines keep their numbers."""
        return _SWITCHED_OFF.sub("", self.whole)

    @cached_property
    def complaints(self) -> str:
        """Return the input with an empty line for each that does not speak of trouble; lines keep their numbers."""
        lines = enumerate(self.whole.split("\n"), 1)
        return "\n".join(
            line if number not in self._harmless and _speaks_of_trouble(line) else "" for number, line in lines
        )


def _speaks_of_trouble(line: str) -> bool:
    peeled = peel_line(line)
    if peeled.level != "unknown":
        return peeled.level in ERROR_LEVELS
    if peeled.source:
        return False
    if re.match(r"\s*[\w.]*(?:Error|Exception)\b", line) or (SALIENT.search(line) and not _PROGRAM_LINE.search(line)):
        return True
    return not _PROGRAM_LINE.search(line) and (
        is_spoken(line) or (bool(COMPLAINT.search(line)) and len(line.split()) >= _MIN_WORDS)
    )
