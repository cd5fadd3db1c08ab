"""What a compile's messages mean: findings, by the rules that read logs and by what an inspection would tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.diagnose.run import diagnose, text_source
from trtdx.engines.tensorrt.build.errors import BuildCrashedError, BuildError
from trtdx.engines.tensorrt.build.nouns import ALARMING, ECHO, REASON_CHARS
from trtdx.host import RealHost
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Severity
from trtdx.rule import Harm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.engines.tensorrt.build.nouns import Built, Message
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.model import Finding
    from trtdx.rule import Rule, RuleBook

UNKNOWN = "DX000"
SURE = 0.5  # of an accepted compile nothing is told that is less sure
UNKNOWN_INPUT = "DX936"
SIDES = {"onnx", "profiles", "build-log"}


def findings_from(of: BuildError | Built, book: RuleBook) -> list[Finding]:
    """Return the causes of a failed compile, or what an accepted one was silent about, the surest first."""
    if not isinstance(of, BuildError):
        return _of_accepted(of, book)
    noticed = list(_noticed(of, book))
    if noticed:
        return noticed
    inspected = {finding.code: _refused(finding, of) for finding, _ in reversed(list(_inspected(of, book)))}
    logged = [_merged(finding, inspected.pop(finding.code, None)) for finding in _told(of, book)]
    rest = list(inspected.values())[::-1]
    findings = rest + logged if of.stage == "profile" else logged + rest
    return [finding for finding in findings if finding.code != UNKNOWN] or findings


def _merged(told: Finding, inspected: Finding | None) -> Finding:
    """Return one finding of two with the same code: an inspection knows the place, TensorRT how grave it is."""
    if inspected is None:
        return told
    graver = max(told.severity, inspected.severity, key=lambda severity: severity.badness)
    surer = max(told.confidence, inspected.confidence)
    evidence = (*inspected.evidence, *told.evidence)
    return msgspec.structs.replace(inspected, severity=graver, confidence=surer, evidence=evidence)


def _noticed(error: BuildError, book: RuleBook) -> Iterator[Finding]:
    """Yield what we noticed ourselves and TensorRT did not say."""
    if error.code:
        values = {"path": error.source, "problem": error.problem}
        evidence = (Evidence(error.source, error.message),)
        yield finding_from(book.get(error.code), Violation(evidence, values))


def _of_accepted(built: Built, book: RuleBook) -> list[Finding]:
    """Return what is wrong all the same: silently wrong results, and warnings; a refusal did not happen."""
    inspected = [
        finding
        for finding, rule in _inspected(built, book)
        if rule.front.harm is Harm.SILENT or finding.severity is not Severity.ERROR
    ]
    codes = {finding.code for finding in inspected}
    logged = [finding for finding in _told(built, book) if finding.code not in codes | {UNKNOWN}]
    return inspected + [finding for finding in logged if finding.confidence >= SURE]


def _told(of: BuildError | Built, book: RuleBook) -> tuple[Finding, ...]:
    text = log_of(of)
    return diagnose([text_source(text, f"build log of {of.source}")], book).findings if text.strip() else ()


def log_of(of: BuildError | Built) -> str:
    """Return all that was worth saying, as a log that rules can read."""
    reasons = [] if isinstance(of, BuildError) else [tensor.reason for tensor in of.left_out]
    # What kept a tensor from being marked is told there; the compile went on without it.
    lines = list(lines_of([message for message in of.messages if not _is_reason(message, reasons)]))
    if isinstance(of, BuildCrashedError):
        lines.append(f"[TRT] [E] {of.message}")
    return "\n".join(lines) + "\n"


def _is_reason(message: Message, reasons: Sequence[str]) -> bool:
    text = message.text.strip()[:REASON_CHARS]
    return message.severity == "ERROR" and any(text in reason for reason in reasons)


def lines_of(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the warnings, the errors and what was printed, without the echo of a missing driver."""
    alarming = [
        line
        for entry in messages
        if entry.severity in (*ALARMING, "OUTPUT")
        for line in entry.line.split("\n")
    ]
    telling = [line for line in alarming if not ECHO.search(line)]
    yield from telling or alarming


def _refused(finding: Finding, error: BuildError) -> Finding:
    """Return a finding as grave as it is here: TensorRT would take an unknown input, we do not."""
    if finding.code == UNKNOWN_INPUT and error.stage == "profile":
        return msgspec.structs.replace(finding, severity=Severity.ERROR)
    return finding


def _inspected(of: BuildError | Built, book: RuleBook) -> Iterator[tuple[Finding, Rule]]:
    """Yield what an inspection finds wrong with an ONNX file, or with profiles for the inputs there are."""
    from trtdx.inspect.agreements import table
    from trtdx.inspect.facts.artifact import Deployment
    from trtdx.inspect.profiles.onnx_shapes import with_shapes_checked

    model = _model(of)
    if model is None:
        return
    deployment = with_shapes_checked(RealHost(), Deployment((model, _profiles(of))))
    for row in table():
        if "onnx" in row.sides and SIDES.issuperset(row.sides):
            for violation in row.check(deployment):
                yield finding_from(book.get(row.code), violation), book.get(row.code)


def _model(of: BuildError | Built) -> Artifact | None:
    from trtdx.inspect.facts.artifact import Artifact, Fact
    from trtdx.inspect.readers import read_artifact

    if Path(of.source).is_file():
        artifact = read_artifact(RealHost(), of.source)
        return artifact if artifact.kind == "onnx" else None
    if not of.inputs:
        return None
    dims = {model_input.name: list(model_input.dims) for model_input in of.inputs}
    return Artifact("onnx", of.source, {"onnx.inputs": Fact(dims, f"{of.source}: inputs")})


def _profiles(of: BuildError | Built) -> Artifact:
    from trtdx.formats.tensorrt.nouns import Profile, Range
    from trtdx.inspect.facts.artifact import Artifact

    stated = tuple(
        Profile(number, tuple(Range(name, *shapes) for name, shapes in profile.items()), "given")
        for number, profile in enumerate(of.profiles)
    )
    return Artifact("profiles", "the build", profiles=stated)
