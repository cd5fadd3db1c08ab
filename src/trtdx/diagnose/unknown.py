"""When no rule fits: say so, quote the first error, say what to collect, and name the nearest causes as guesses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from trtdx.cpu_limit import TimedSearches
from trtdx.diagnose.cause import ERROR_LEVELS, QUIET_LEVELS, event_place
from trtdx.diagnose.line_matches import EXCEPTION
from trtdx.diagnose.logs.clock import event_time
from trtdx.diagnose.logs.prefixes import peel_line
from trtdx.diagnose.similar_rules import SimilarRule, similarity_index
from trtdx.model import Evidence, Finding, Fix, Severity, Stage
from trtdx.rule import RuleKind
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trtdx.diagnose.nouns import LogEvent, SourceFacts
    from trtdx.rule import Rule, RuleBook

UNKNOWN_CODE = "DX000"
DESCRIPTION_BYTES = 8192
MAX_DESCRIPTION_LINES = 30
MAX_TITLE_LINES = 4  # a title and a few lines of facts; what is longer is a description only if it is sentences
MIN_SPOKEN_SHARE = 0.5
MIN_COMPLAINT_SCORE = 0.30  # a complaint this near to a page's words is answered with that page
MIN_PLAIN_SCORE = 0.5
# Words a person's sentence has and a program's line mostly lacks.
FUNCTION_WORDS = re.compile(
    r"(?i)\b(?:is|are|was|the|a|an|with|when|after|before|for|to|in|on|of|and|but|than|from|by|it|my|i|we|this|that|while|"
    r"does|do|has|have|how|why|if|as|at|between|using|via|during|gets?|can)\b"
)
COMPLAINT = re.compile(
    r"(?i)\b(?:errors?|fail\w*|slow\w*|low\w*|wrong|bad|garbage|gibberish|hang\w*|hung|stuck|crash\w*|not|n't|no|never|missing|"
    r"differ\w*|diverg\w*|oom|leak\w*|deadlock\w*|repeat\w*|empty|incorrect\w*|mismatch\w*|cannot|duplicat\w*|unexpected\w*|"
    r"drops?|worse|poor|problem|issue|bug|broken|why|without|only|instead|truncated|extra|too|inconsistent|random|nan|high\w*|"
    r"increas\w*|exceed\w*|killed|timeouts?|invalid|unable|lost|corrupt\w*|degrad\w*|large\w*)\b"
)
MIN_GUESS_SCORE = 0.08
LINES_GONE_ON = 8  # lines that a program prints after a remark that did not stop it
SEPARATE_LINES = 3  # lines between an error and the nearest explained one, from which on it is told by itself
MAX_DESCRIBED_CAUSES = 3

# How a program that went on and finished ends: what it complained of in passing did not stop it.
ENDED_WELL = re.compile(
    r"(?i)\b(?:success(?:ful(?:ly)?)?|succeeded|done|finished|completed?|passed|installed|built target|has been written|"
    r"(?:files )?(?:have been )?written to|processing triggers|100%)(?![\w-])"
)

# How a person speaks between the lines of a log; "I am process 0 of 2" is what a first MPI program says.
FIRST_PERSON = re.compile(
    r"(?i)\b(?:i(?! am (?:process|rank|task|worker)\b)|i'm|we(?! (?:strongly |do not )?(?:recommend|suggest|expect))|my|our|how|why|does ?n[o']t work|expected (?:behavio|result|output)\w*)\b|\?\s*\)?$"
)

# What to collect next, by what the log is about. The first that fits is the first asked for.
COLLECT_NEXT = (
    (r"NCCL|nccl|all_?reduce|P2P|ibv_|infiniband", Stage.LAUNCH, "run again with NCCL's own log", "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH YOUR_COMMAND 2>&1 | tee nccl.log"),
    (r"CUDA|cuda|cublas|illegal memory|device-side", Stage.SERVE, "run again with synchronous launches, so that the error shows where it happens", "CUDA_LAUNCH_BLOCKING=1 TLLM_LOG_LEVEL=DEBUG YOUR_COMMAND 2>&1 | tee sync.log"),
    (r"mpirun|MPI|PMI|srun|slurm|orte|prte", Stage.LAUNCH, "run again with the launcher's own log, one file a rank", "mpirun --output-filename ranks --mca plm_base_verbose 5 -n RANKS YOUR_COMMAND"),
    (r"pip|uv |wheel|cmake|nvcc|undefined symbol|ImportError|No module named", Stage.INSTALL, "show what is installed and which library does not resolve", "pip list --format=freeze; nvidia-smi; ldd $(python3 -c 'import importlib.util as u; print(u.find_spec(\"tensorrt_llm\").submodule_search_locations[0])')/libs/libtensorrt_llm.so | grep -i 'not found'"),
    (r"\[TRT\]|onnx|ONNX|trtexec|builder|tactic", Stage.BUILD, "build again with the verbose log", "trtllm-build --log_level verbose YOUR_ARGUMENTS 2>&1 | tee build.log"),
    (r"triton|Triton|model_repository|config\.pbtxt", Stage.SERVE, "start Triton with its verbose log", "tritonserver --log-verbose=1 --model-repository REPO 2>&1 | tee triton.log"),
)  # fmt: skip
DEFAULT_COLLECT = (
    Stage.SERVE,
    "run again with the full log",
    "TLLM_LOG_LEVEL=DEBUG PYTHONFAULTHANDLER=1 YOUR_COMMAND 2>&1 | tee full.log",
)


def extract_description(text: str, sources: Sequence[SourceFacts]) -> str:
    """Return what of a short input may be somebody's own words and not a program's; mostly all of it or nothing.

    Args:
        text: the whole input where it is short enough to hold a description, else empty.
        sources: what was read.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > MAX_DESCRIPTION_LINES:
        return ""
    peeled = [peel_line(line) for line in lines]
    spoken = sum(map(is_spoken, lines))
    if (
        not any(line_parts.source or line_parts.level in QUIET_LEVELS for line_parts in peeled)
        and not any(s.harmless_lines for s in sources)
        and (len(lines) <= MAX_TITLE_LINES or spoken >= MIN_SPOKEN_SHARE * len(lines))
    ):
        return text
    unlabelled = [
        line
        for line, line_parts in zip(lines, peeled, strict=True)
        if not line_parts.source and line_parts.level == "unknown"
    ]
    return "\n".join(line for line in unlabelled if FIRST_PERSON.search(line) and is_spoken(line))


def findings_from_description(sources: Sequence[SourceFacts], description: str, book: RuleBook) -> list[Finding]:
    """Return the causes that a description in somebody's own words speaks of, best first."""
    if not description:
        return []
    searches = TimedSearches()
    likeness = {near.rule.code: near.score for near in similarity_index(book).nearest_rules(description, max_rules=8)}
    by_code = {
        rule.code: SimilarRule(rule, words.confidence + 0.2 * likeness.get(rule.code, 0.0))
        for rule in book
        for words in rule.front.told[::-1]
        if words.matches_description(description, searches.search)
    }
    sources[0].late_searches += searches.late
    best = sorted(by_code.values(), key=lambda near: (-near.score, near.rule.code))[:MAX_DESCRIBED_CAUSES]
    return [_finding_from_rule(near, sources, description) for near in best]


def similar_finding(sources: Sequence[SourceFacts], description: str, book: RuleBook) -> list[Finding]:
    """Return the one cause whose words are so near to a description that it is an answer."""
    if not is_spoken(description) or any(peel_line(line).level in ERROR_LEVELS for line in description.splitlines()):
        return []  # a program's error that no pattern knows is not answered by its words
    bar = MIN_COMPLAINT_SCORE if COMPLAINT.search(description) else MIN_PLAIN_SCORE
    near = [
        candidate
        for candidate in similarity_index(book).nearest_rules(description, max_rules=1)
        if candidate.score >= bar
    ]
    return [
        _finding_from_rule(SimilarRule(candidate.rule, min(0.6, 0.2 + candidate.score)), sources, description)
        for candidate in near
    ]


def not_enough_evidence(
    sources: Sequence[SourceFacts], description: str, book: RuleBook, unsure: Sequence[Finding]
) -> list[Finding]:
    """Return the finding that says what is missing for a cause; nothing at all for a healthy log.

    Beside findings that are unsure it is a note that names what else is near.
    """
    events = sorted(
        (event for s in sources for event in s.salient_events if _is_worth_quoting(event, s, _ended_well(s))),
        key=event_time,
    )
    loud = [event for event in events if event.peeled.level in ERROR_LEVELS]
    described = description if is_spoken(description) else ""
    if not (events or described):
        return []
    known_codes = {finding.code for finding in unsure}
    near = similarity_index(book).nearest_rules(described or _query_from_events(loud or events), max_rules=6)
    guesses = [
        candidate for candidate in near if candidate.score >= MIN_GUESS_SCORE and candidate.rule.code not in known_codes
    ][:3]
    if not guesses and (unsure or not (loud or described)):
        return []
    missing = _not_enough_finding(loud or events, guesses, sources, described, book.get(UNKNOWN_CODE))
    if not unsure:
        return [missing]
    message = "what was found is not certain; nearest to the same words are also the causes named here"
    return [msgspec.structs.replace(missing, severity=Severity.NOTE, message=message, why=_render_guesses(guesses))]


def ends_unexplained(sources: Sequence[SourceFacts], known_codes: Collection[str]) -> bool:
    """Whether a source ends in a Python exception that no finding is about."""
    return any(
        EXCEPTION.match(event.text)
        and event.line not in source.harmless_lines
        and not _is_known(event, source, known_codes)
        for source in sources
        for event in source.last_events[-1:]
        if event.line > source.last_alive_line and event.peeled.level not in QUIET_LEVELS
    )


def _is_known(event: LogEvent, source: SourceFacts, known_codes: Collection[str]) -> bool:
    return any(match.event.line == event.line and match.rule.code in known_codes for match in source.matches)


def unexplained_errors(sources: Sequence[SourceFacts], book: RuleBook) -> list[Finding]:
    """Return a note on errors that no rule knows and that stand apart from all that rules explain."""
    events = sorted((event for source in sources for event in _unexplained_events(source)), key=event_time)
    if not events:
        return []
    page, others = book.get(UNKNOWN_CODE), len({event.peeled.message for event in events}) - 1
    more = f" (and {format_count(others, 'other line')})" if others else ""
    return [
        Finding(
            code=page.code, slug=page.slug, severity=Severity.NOTE,
            message=f"this error is not explained by the findings above: {events[0].peeled.message[:200]}{more}",
            why="", fixes=(), verify="", confidence=0.15, where=event_place(events[0], len(sources) > 1),
            evidence=tuple(Evidence(event.where, event.text[:600]) for event in events[:3]),
        )
    ]  # fmt: skip


def _unexplained_events(source: SourceFacts) -> list[LogEvent]:
    known_events = [match.event for match in source.matches if match.rule.kind is not RuleKind.HARMLESS]
    ended_well = _ended_well(source)
    return [
        event
        for event in source.salient_events
        if event.peeled.level in ERROR_LEVELS
        and _is_worth_quoting(event, source, ended_well)
        and not any(_is_beside(event, other) or event.peeled.message in other.text for other in known_events)
    ]


def _is_beside(event: LogEvent, other: LogEvent) -> bool:
    return event.peeled.unit == other.peeled.unit and abs(event.line - other.line) <= SEPARATE_LINES


def _is_worth_quoting(event: LogEvent, source: SourceFacts, ended_well: bool) -> bool:
    return (
        event.line > source.last_alive_line
        and event.line not in source.harmless_lines
        and (
            event.peeled.level in ERROR_LEVELS
            or (event.peeled.level == "unknown" and not ended_well and not _was_passed_over(event, source))
        )
    )


def _was_passed_over(event: LogEvent, source: SourceFacts) -> bool:
    """Whether the program went on and was still reporting in peace when its log ends, long after this line."""
    last = source.last_events[-1:]
    return (
        bool(last)
        and last[0].line - event.line >= LINES_GONE_ON
        and all(other.peeled.level in QUIET_LEVELS for other in source.last_events[-2:])
    )


def _ended_well(source: SourceFacts) -> bool:
    """Whether the source's last line tells of success, or one shortly before does and nothing salient came after."""
    salient = {event.line for event in source.salient_events}
    for event in reversed(source.last_events):
        if event.line in salient:
            return False
        if ENDED_WELL.search(event.text):
            return True
    return False


def is_spoken(text: str) -> bool:
    """Whether the text reads like a sentence or a title and not like a program's line."""
    spoken = len(FUNCTION_WORDS.findall(text)) + 0.5 * bool(COMPLAINT.search(text))
    return spoken >= 1.5 and len(re.findall(r"[A-Za-z]{2,}", text)) >= 4


def _query_from_events(events: Sequence[LogEvent]) -> str:
    return "\n".join(event.peeled.message for event in events[:8])


def _finding_from_rule(near: SimilarRule, sources: Sequence[SourceFacts], text: str) -> Finding:
    front = near.rule.front
    return Finding(
        code=near.rule.code, slug=near.rule.slug, severity=front.severity, message=front.message, why=near.rule.why,
        fixes=front.fix, verify=front.verify, confidence=round(min(0.7, near.score), 2),
        where=f"{sources[0].name}:1", evidence=(Evidence(f"{sources[0].name}:1", _first_line(text)),),
    )  # fmt: skip


def _not_enough_finding(
    events: Sequence[LogEvent],
    guesses: Sequence[SimilarRule],
    sources: Sequence[SourceFacts],
    text: str,
    page: Rule,
) -> Finding:
    quoted = events[0].peeled.message if events else _first_line(text)
    why = f"{page.why} {_render_guesses(guesses)}".strip()
    loud = any(event.peeled.level in ERROR_LEVELS for event in events)
    return Finding(
        code=page.code, slug=page.slug, severity=Severity.ERROR if loud else Severity.WARNING,
        message=f"not enough evidence for a cause; the first salient line is: {quoted[:300]}",
        why=why, fixes=tuple(_next_steps(events, text)), verify=page.front.verify,
        confidence=0.15, where=event_place(events[0], len(sources) > 1) if events else f"{sources[0].name}:1",
        evidence=tuple(Evidence(event.where, event.text[:600]) for event in events[:5]),
    )  # fmt: skip


def _render_guesses(guesses: Sequence[SimilarRule]) -> str:
    named = "; ".join(f"{near.rule.code} {near.rule.front.message}" for near in guesses)
    return f"Nearest known causes, as guesses by similar words only: {named}." if guesses else ""


def _next_steps(events: Sequence[LogEvent], text: str) -> list[Fix]:
    about = "\n".join(event.text for event in events[:20]) or text
    fitting = [
        Fix(stage, words, command) for pattern, stage, words, command in COLLECT_NEXT if re.search(pattern, about)
    ]
    return (fitting or [Fix(*DEFAULT_COLLECT)])[:2]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:600]
