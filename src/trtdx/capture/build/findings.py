"""What a compile's messages mean: findings, by the rules that read logs and by what an inspection would tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.diagnose.run import diagnose_sources, source_from_text
from trtdx.engines.tensorrt.build.errors import BuildCrashedError, BuildError
from trtdx.engines.tensorrt.build.nouns import ALARMING_SEVERITIES, NO_DRIVER_ECHO, REASON_CHARS
from trtdx.host import RealHost
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.model import Evidence, Severity
from trtdx.rule import RuleHarm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.engines.tensorrt.build.nouns import BuildMessage, BuiltPlan
    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.model import Finding
    from trtdx.rule import Rule, RuleBook

UNKNOWN = "DX000"
MIN_CONFIDENCE = 0.5  # of an accepted compile nothing is told that is less sure
UNKNOWN_INPUT = "DX936"
INSPECTED_SIDES = {"onnx", "profiles", "build-log"}


def findings_from_build(build: BuildError | BuiltPlan, book: RuleBook) -> list[Finding]:
    """Return the causes of a failed compile, or what an accepted one was silent about, the surest first."""
    if not isinstance(build, BuildError):
        return _findings_of_accepted(build, book)
    noticed = list(_findings_noticed(build, book))
    if noticed:
        return noticed
    inspected = {
        finding.code: _as_refused(finding, build)
        for finding, _ in reversed(list(_findings_from_inspection(build, book)))
    }
    logged = [
        _merge_findings(finding, inspected.pop(finding.code, None)) for finding in _findings_from_log(build, book)
    ]
    rest = list(inspected.values())[::-1]
    findings = rest + logged if build.stage == "profile" else logged + rest
    return [finding for finding in findings if finding.code != UNKNOWN] or findings


def _merge_findings(logged: Finding, inspected: Finding | None) -> Finding:
    """Return one finding of two with the same code: an inspection knows the place, TensorRT how grave it is."""
    if inspected is None:
        return logged
    graver = max(logged.severity, inspected.severity, key=lambda severity: severity.badness)
    surer = max(logged.confidence, inspected.confidence)
    evidence = (*inspected.evidence, *logged.evidence)
    return msgspec.structs.replace(inspected, severity=graver, confidence=surer, evidence=evidence)


def _findings_noticed(error: BuildError, book: RuleBook) -> Iterator[Finding]:
    """Yield what we noticed ourselves and TensorRT did not say."""
    if error.code:
        values = {"path": error.source, "problem": error.problem}
        evidence = (Evidence(error.source, error.message),)
        yield finding_from(book.get(error.code), Violation(evidence, values))


def _findings_of_accepted(built: BuiltPlan, book: RuleBook) -> list[Finding]:
    """Return what is wrong all the same: silently wrong results, and warnings; a refusal did not happen."""
    inspected = [
        finding
        for finding, rule in _findings_from_inspection(built, book)
        if rule.front.harm is RuleHarm.SILENT or finding.severity is not Severity.ERROR
    ]
    codes = {finding.code for finding in inspected}
    logged = [finding for finding in _findings_from_log(built, book) if finding.code not in codes | {UNKNOWN}]
    return inspected + [finding for finding in logged if finding.confidence >= MIN_CONFIDENCE]


def _findings_from_log(build: BuildError | BuiltPlan, book: RuleBook) -> tuple[Finding, ...]:
    text = render_build_log(build)
    return (
        diagnose_sources([source_from_text(text, f"build log of {build.source}")], book).findings
        if text.strip()
        else ()
    )


def render_build_log(build: BuildError | BuiltPlan) -> str:
    """Return all that was worth saying, as a log that rules can read."""
    reasons = [] if isinstance(build, BuildError) else [tensor.reason for tensor in build.left_out]
    # What kept a tensor from being marked is told there; the compile went on without it.
    lines = list(alarming_lines([message for message in build.messages if not _is_reason(message, reasons)]))
    if isinstance(build, BuildCrashedError):
        lines.append(f"[TRT] [E] {build.message}")
    return "\n".join(lines) + "\n"


def _is_reason(message: BuildMessage, reasons: Sequence[str]) -> bool:
    text = message.text.strip()[:REASON_CHARS]
    return message.severity == "ERROR" and any(text in reason for reason in reasons)


def alarming_lines(messages: Sequence[BuildMessage]) -> Iterator[str]:
    """Yield the warnings, the errors and what was printed, without the echo of a missing driver."""
    alarming = [
        line
        for entry in messages
        if entry.severity in (*ALARMING_SEVERITIES, "OUTPUT")
        for line in entry.line.split("\n")
    ]
    telling = [line for line in alarming if not NO_DRIVER_ECHO.search(line)]
    yield from telling or alarming


def _as_refused(finding: Finding, error: BuildError) -> Finding:
    """Return a finding as grave as it is here: TensorRT would take an unknown input, we do not."""
    if finding.code == UNKNOWN_INPUT and error.stage == "profile":
        return msgspec.structs.replace(finding, severity=Severity.ERROR)
    return finding


def _findings_from_inspection(build: BuildError | BuiltPlan, book: RuleBook) -> Iterator[tuple[Finding, Rule]]:
    """Yield what an inspection finds wrong with an ONNX file, or with profiles for the inputs there are."""
    from trtdx.inspect.agreements import agreement_table
    from trtdx.inspect.facts.artifact import Deployment
    from trtdx.inspect.profiles.onnx_shapes import check_deployment_shapes

    model = _model_artifact(build)
    if model is None:
        return
    deployment = check_deployment_shapes(RealHost(), Deployment((model, _profiles_artifact(build))))
    for row in agreement_table():
        if "onnx" in row.sides and INSPECTED_SIDES.issuperset(row.sides):
            for violation in row.check(deployment):
                yield finding_from(book.get(row.code), violation), book.get(row.code)


def _model_artifact(build: BuildError | BuiltPlan) -> Artifact | None:
    from trtdx.inspect.facts.artifact import Artifact, Fact
    from trtdx.inspect.readers import read_artifact

    if Path(build.source).is_file():
        artifact = read_artifact(RealHost(), build.source)
        return artifact if artifact.kind == "onnx" else None
    if not build.inputs:
        return None
    dims = {model_input.name: list(model_input.dims) for model_input in build.inputs}
    return Artifact("onnx", build.source, {"onnx.inputs": Fact(dims, f"{build.source}: inputs")})


def _profiles_artifact(build: BuildError | BuiltPlan) -> Artifact:
    from trtdx.formats.tensorrt.nouns import OptimizationProfile, ShapeRange
    from trtdx.inspect.facts.artifact import Artifact

    stated = tuple(
        OptimizationProfile(number, tuple(ShapeRange(name, *shapes) for name, shapes in profile.items()), "given")
        for number, profile in enumerate(build.profiles)
    )
    return Artifact("profiles", "the build", profiles=stated)
