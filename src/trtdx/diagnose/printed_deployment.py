"""What a log prints of its own command lines, release, GPU and formats, judged as `trtdx inspect` judges them.

Some causes stand in no error: a flag that the release does not have, a GPU that cannot compute the model's format. Only a
log that went wrong is asked, and nothing is loaded where it prints none of this.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trtdx.diagnose.unknown import DESCRIPTION_BYTES, UNKNOWN_CODE
from trtdx.knowledge.versions import sm_of_gpu
from trtdx.model import Evidence, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.diagnose.nouns import SourceFacts
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.model import Finding, ReleaseEstimate
    from trtdx.rule import RuleBook

# Pages whose checks need no more than a log can print: unknown flags, kernels for the GPU, formats on the GPU.
COMMAND_CODES = ("DX154", "DX246")
JUDGED_CODES = (*COMMAND_CODES, "DX060", "DX102", "DX325", "DX158")
SAME_CAUSE = {"DX102": ("DX103", "DX325"), "DX325": ("DX102", "DX103"), "DX246": ("DX154",), "DX154": ("DX246",)}
MAX_LINES, MAX_COMMANDS = 400, 3
SURENESS = 0.8  # of what inspect says: a log may quote a command that it did not run
OTHER_CAUSE = 0.7  # from this on another finding is the cause, and this one a remark

_PROGRAM = re.compile(r"\btrtllm-(?:serve|build|bench|eval)\b")
_PROMPT = re.compile(
    r"^(?:\S+@\S+[:~][^#$]{0,80}[#$] |[#$>+]+ |(?:running|executing|command|cmd|run)(?: command)?: )", re.IGNORECASE
)
_GPU = re.compile(
    r"^\|\s+\d+\s+(?:NVIDIA|Tesla|GeForce|Quadro)\b|\bGPU \d+: |\b(?:GPU|device)(?:s|[ _](?:name|model|type))?['\"]?\s*[:=] ",
    re.IGNORECASE,
)
_ALGO = re.compile(
    r"\bquant_algo['\"]?\s*[:=]\s*(?:<QuantAlgo\.\w+: )?['\"]?(?P<algo>[A-Z][A-Z0-9_]+)\b(?![^\n]{0,80}\bor\b)"
)


class _PrintedLine(NamedTuple):
    where: str
    text: str


class _PrintedFacts(NamedTuple):
    """What a log prints of its deployment."""

    commands: list[_PrintedLine]
    gpus: dict[int, _PrintedLine]  # by compute capability
    algos: dict[str, _PrintedLine]


def findings_from_deployment(
    sources: Sequence[SourceFacts],
    short_text: str,
    release: ReleaseEstimate | None,
    findings: Sequence[Finding],
    book: RuleBook,
) -> list[Finding]:
    """Return what is wrong with the command lines, GPU and formats that a log prints; nothing where it went well."""
    went_wrong = any(source.salient_events for source in sources) and not any(s.last_alive_line for s in sources)
    if not went_wrong:
        return []
    stated = release.first if release and release.is_stated else ""
    printed = _collect_printed(sources, short_text)
    is_told = (printed.commands and stated) or (len(printed.gpus) == 1 and (printed.algos or stated))
    if not is_told:
        return []
    known = {finding.code for finding in findings}
    sure = any(finding.confidence >= OTHER_CAUSE for finding in findings)
    return [
        _remark(finding, printed, release if stated else None, is_cause=not sure)
        for finding in _judge_printed(printed, stated, book)
        if not known.intersection((finding.code, *SAME_CAUSE.get(finding.code, ())))
    ]


def add_findings(findings: Sequence[Finding], more: Sequence[Finding]) -> list[Finding]:
    """Return findings with those that were read off the deployment, which come first where nothing else is sure."""
    if not more:
        return list(findings)
    is_cause = any(finding.severity is not Severity.NOTE for finding in more)
    kept = [finding for finding in findings if not (is_cause and finding.code == UNKNOWN_CODE)]
    return [*more, *kept] if is_cause else [*kept, *more]


def _collect_printed(sources: Sequence[SourceFacts], short_text: str) -> _PrintedFacts:
    facts = _PrintedFacts([], {}, {})
    for line in _printed_lines(sources, short_text):
        if _PROGRAM.search(line.text) and " -" in line.text:
            facts.commands.append(line._replace(text=_PROMPT.sub("", line.text.strip())))
        if _GPU.search(line.text) and (sm := sm_of_gpu(line.text)) is not None:
            facts.gpus.setdefault(sm, line)
        if algo := _ALGO.search(line.text):
            facts.algos.setdefault(algo["algo"], line)
    return facts


def _printed_lines(sources: Sequence[SourceFacts], short_text: str) -> Iterator[_PrintedLine]:
    """Yield the lines that may tell: all of a short log, else those that the scan kept."""
    if short_text and len(sources) == 1 and len(short_text) <= DESCRIPTION_BYTES:
        joined = re.sub(r"[ \t]*\\\r?\n[ \t]*", " ", short_text)
        for number, text in enumerate(joined.splitlines()[:MAX_LINES], 1):
            yield _PrintedLine(f"{sources[0].name}:{number}", text)
        return
    for source in sources:
        events = {event.line: event for event in (*source.memory_events[:MAX_LINES], *source.salient_events)}
        yield from (_PrintedLine(event.where, event.peeled.message) for event in events.values())


def _judge_printed(printed: _PrintedFacts, release: str, book: RuleBook) -> list[Finding]:
    from trtdx.inspect.agreements import agreement_table
    from trtdx.inspect.agreements.agreement import judge_findings
    from trtdx.inspect.facts.artifact import Deployment

    rows = tuple(row for row in agreement_table() if row.code in JUDGED_CODES and book.has_rule(row.code))
    return judge_findings(rows, Deployment(tuple(_artifacts(printed, release))), book)


def _artifacts(printed: _PrintedFacts, release: str) -> Iterator[Artifact]:
    from trtdx.host import RecordedHost
    from trtdx.inspect.facts.artifact import Artifact, FactCollector
    from trtdx.inspect.facts.machine import machine_from_flags
    from trtdx.inspect.readers.server.commands import command_lines
    from trtdx.inspect.readers.server.llm_args import command_from_text

    gpu = str(next(iter(printed.gpus))) if len(printed.gpus) == 1 else ""
    if machine := machine_from_flags(runtime=release, gpu=gpu):
        yield machine
    for line in printed.commands[:MAX_COMMANDS] if release else ():
        lines, script = command_lines(line.text)
        if lines and not script.unclosed_quote:
            yield command_from_text(RecordedHost(), line.text, "--command", version=release)
    if len(printed.algos) == 1 and gpu:
        facts = FactCollector()
        facts.put("quant.algo", next(iter(printed.algos)), next(iter(printed.algos.values())).where)
        yield Artifact("hf", "the model", facts.to_dict())


def _remark(finding: Finding, printed: _PrintedFacts, release: ReleaseEstimate | None, *, is_cause: bool) -> Finding:
    """Return a finding with the log's own lines as evidence, less sure than one about what is known to run."""
    about_command = finding.code in COMMAND_CODES
    lines = printed.commands[:MAX_COMMANDS] if about_command else [*printed.gpus.values(), *printed.algos.values()]
    evidence = [Evidence(line.where, line.text.strip()[:600]) for line in lines]
    evidence += [Evidence(release.where, f"the release is {release}")] if release else []
    again = f"trtdx inspect --command {shlex.quote(lines[0].text)} --runtime {release.first if release else ''}"
    return msgspec.structs.replace(
        finding,
        severity=finding.severity if is_cause else Severity.NOTE,
        confidence=round(finding.confidence * SURENESS, 2) if is_cause else 0.4,
        where=lines[0].where,
        evidence=tuple(evidence),
        verify=again.strip() if about_command else finding.verify,
    )
