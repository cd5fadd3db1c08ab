"""What is in these artifacts, will they take my requests, and what disagrees with what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError, TrtdxError
from trtdx.inspect.facts.artifact import Artifact, Deployment
from trtdx.model import Report, Section, Summary, headline
from trtdx.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.inspect.agreements.agreement import Agreement, Judgement
    from trtdx.inspect.shapes.trace_log import ShapeLog
    from trtdx.rule import RuleBook

NOT_ON_DISK = ("machine", "request", "unknown")
TAKES_REQUESTS = ("engine", "llm-args", "command", "triton")
MOST_REFERRED = 8  # artifacts read because another one names them


class Question(msgspec.Struct, frozen=True):
    """What is asked about the artifacts."""

    paths: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    machine: Artifact | None = None
    show: tuple[str, ...] = ()
    against: str = ""
    requests: tuple[Artifact, ...] = ()
    shape_logs: tuple[str, ...] = ()


def inspect(host: Host, question: Question, book: RuleBook) -> Report:
    """Return overviews, the sections asked for, and what disagrees."""
    from trtdx.inspect.agreements import table
    from trtdx.inspect.agreements.agreement import judgement_of
    from trtdx.inspect.shapes.trace_log import read_shape_log

    deployment, notes = collect(host, question)
    if question.against:
        return _compared(host, deployment, question, book, notes)
    logs = [read_shape_log(host, path) for path in question.shape_logs]
    sections = [_placed(section) for section in _sections(host, deployment, question, logs)]
    judgement = judgement_of((*table(), *map(_shapes_row, logs)), deployment, book)
    return Report(_summary(deployment, judgement, notes), tuple(judgement.findings), tuple(sections))


def collect(host: Host, question: Question) -> tuple[Deployment, list[str]]:
    """Return the artifacts named, those they refer to, and notes on what could not be looked at."""
    from trtdx.inspect.agreements.lineage import lenders
    from trtdx.inspect.profiles.onnx_shapes import with_shapes_checked
    from trtdx.inspect.readers import read_artifact
    from trtdx.inspect.readers.server.llm_args import command_from_text

    version = question.machine.text("gpu.runtime") if question.machine else ""
    # named twice is one, by its first name
    paths = {host.real(path): path for path in reversed(question.paths)}
    artifacts = [read_artifact(host, path, version=version) for path in reversed(paths.values())]
    artifacts += [command_from_text(host, text, "--command", version=version) for text in question.commands]
    artifacts = [member for artifact in artifacts for member in (artifact, *artifact.parts)]
    referred, notes = _referred(host, artifacts, version)
    named = [_located(host, _with_profiles(artifact)) for artifact in artifacts]
    collected = named + lenders([_located(host, _with_profiles(artifact)) for artifact in referred], named)
    collected, machines = _with_machine(collected, question.machine)
    deployment = with_shapes_checked(host, Deployment((*collected, *machines, *question.requests)))
    notes += [
        note if note.startswith(artifact.path) else f"{artifact.path}: {note}"
        for artifact in deployment.artifacts
        for note in artifact.unread
    ]
    notes = _with_stand_ins(deployment, notes)
    if question.requests and not deployment.first(*TAKES_REQUESTS):
        raise InputError(
            "nothing that was given takes requests",
            fix="give the engine directory, or the options or command line of the server",
        )
    return deployment, notes


def _with_machine(found: list[Artifact], named: Artifact | None) -> tuple[list[Artifact], list[Artifact]]:
    """Return the artifacts, and the machine that was named; containers run on it, and its own words count first."""
    if named is None or not any(artifact.kind == "machine" for artifact in found):
        return found, [named] if named else []
    merged = [
        msgspec.structs.replace(artifact, facts=artifact.facts | named.facts)
        if artifact.kind == "machine"
        else artifact
        for artifact in found
    ]
    return merged, []


def _with_stand_ins(deployment: Deployment, notes: list[str]) -> list[str]:
    """Return notes that say what is taken for a model of another machine, where one is."""
    from trtdx.inspect.agreements.serving import engine_of, model_of, servers
    from trtdx.inspect.readers.server.named_paths import NOT_LOOKED_AT

    for server in servers(deployment, "llm-args", "command"):
        name = server.text("runtime.model")
        model = engine_of(deployment, server) or model_of(deployment, server)
        if model is not None and name not in server.resolved:
            absent = NOT_LOOKED_AT.format(path=name, role="model")
            notes = [
                note.replace(absent, f"{name} is not on this machine; {model.path} was taken for it")
                for note in notes
            ]
    return notes


def _referred(host: Host, artifacts: list[Artifact], version: str) -> tuple[list[Artifact], list[str]]:
    """Return the artifacts that others name: a command its repository, that one its engine and tokenizer."""
    known_paths = {host.real(artifact.path) for artifact in artifacts}
    waiting = [(path, artifact.unit) for artifact in artifacts for path in artifact.refers_to]
    units: dict[str, set[str]] = {}
    for path, unit in waiting:
        units.setdefault(path.rstrip("/"), set()).add(unit)
    referred: list[Artifact] = []
    while waiting:
        path, unit = waiting.pop(0)
        path = path.rstrip("/")
        if host.real(path) in known_paths or host.kind(path) == "absent":
            continue
        if len(referred) == MOST_REFERRED:
            return referred, [
                f"{path}: not looked at; at most {MOST_REFERRED} artifacts that others name are"
            ]
        known_paths.add(host.real(path))
        users = units.get(path, {unit})
        single_unit = unit if len(users) == 1 else ""
        shared = () if single_unit or "" in users else tuple(sorted(users))
        referred.append(
            msgspec.structs.replace(_read_or_unknown(host, path, version), unit=single_unit, shared_by=shared)
        )
        waiting += [(reference, single_unit) for reference in referred[-1].refers_to]
    return referred, []


def _read_or_unknown(host: Host, path: str, version: str) -> Artifact:
    from trtdx.inspect.readers import read_artifact

    try:
        return read_artifact(host, path, version=version)
    except TrtdxError as err:
        return Artifact("unknown", path, unread=(err.message.splitlines()[0],))


def _located(host: Host, artifact: Artifact) -> Artifact:
    """Return an artifact that knows where it really lies, and where the paths it names do."""
    from trtdx.inspect.readers.server.named_paths import resolved_names

    real = "" if host.kind(artifact.path) == "absent" else host.real(artifact.path)
    return msgspec.structs.replace(artifact, real=real, resolved=resolved_names(host, artifact))


def _with_profiles(artifact: Artifact) -> Artifact:
    """Return an engine with the inputs and profiles its build settings imply, unless they were read."""
    if artifact.kind != "engine" or artifact.profiles:
        return artifact
    from trtdx.inspect.profiles.engine_profiles import profiles_of, tensors_of

    return msgspec.structs.replace(artifact, tensors=tensors_of(artifact), profiles=profiles_of(artifact))


def _sections(
    host: Host, deployment: Deployment, question: Question, logs: list[ShapeLog]
) -> Iterator[Section]:
    from trtdx.inspect.sections.overview import overview
    from trtdx.inspect.sections.show import sections_from
    from trtdx.inspect.shapes.tables import shape_tables

    shown = [artifact for artifact in deployment.artifacts if artifact.kind not in NOT_ON_DISK]
    yield from map(overview, shown)
    yield from sections_from(host, deployment, list(question.show))
    yield from _answers(deployment, whole=not {"shapes", "all"}.isdisjoint(question.show))
    for log in logs:
        yield from shape_tables(log, deployment.first("engine"))


def _compared(
    host: Host, deployment: Deployment, question: Question, book: RuleBook, notes: list[str]
) -> Report:
    """Return what differs from another artifact, most consequential first."""
    from trtdx.inspect.readers import read_artifact
    from trtdx.inspect.sections.difference import CODE, differences, violation_from
    from trtdx.knowledge.violation import finding_from

    version = question.machine.text("gpu.runtime") if question.machine else ""
    other = _with_profiles(read_artifact(host, question.against, version=version))
    shown = [artifact for artifact in deployment.artifacts if artifact.kind not in NOT_ON_DISK]
    compared = shown[: max(1, len(question.paths))]
    sections = [differences(artifact, other) for artifact in compared]
    violations = [
        violation_from(*pair) for pair in zip(compared, [other] * len(compared), sections, strict=True)
    ]
    findings = tuple(
        finding_from(book.get(CODE), violation) for violation in violations if violation is not None
    )
    text = "; ".join(section.note for section in sections)
    summary = Summary(text, inputs=len(compared) + 1, partial=tuple(notes))
    return Report(summary, findings, tuple(map(_placed, sections)))


def _answers(deployment: Deployment, whole: bool) -> Iterator[Section]:
    """Yield what a request or a machine was given for: does it fit, must it be rebuilt."""
    for engine in deployment.of("engine"):
        yield from _fits(engine, deployment, whole)
        yield from _must_be_rebuilt(engine, deployment.first("machine"))


def _fits(engine: Artifact, deployment: Deployment, whole: bool) -> Iterator[Section]:
    from trtdx.inspect.requests.request_shapes import shape_section

    requests = list(deployment.of("request"))
    servers = deployment.of("triton", "llm-args", "command")
    chunked = any(server.get("runtime.chunked_context") for server in servers)
    if requests:
        yield shape_section(engine, requests, chunked=chunked, whole=whole)


def _must_be_rebuilt(engine: Artifact, machine: Artifact | None) -> Iterator[Section]:
    from trtdx.inspect.rebuild.verdict import rebuild_section

    if machine:
        yield rebuild_section(engine, machine)


def _placed(section: Section) -> Section:
    """Return a section that stands behind the findings unless it says what was looked at."""
    return msgspec.structs.replace(section, after_findings=section.key != "overview")


def _shapes_row(log: ShapeLog) -> Agreement:
    """Return the agreement of a log's shapes with the profiles they ran in, for every deployment."""
    from trtdx.inspect.agreements.agreement import Agreement
    from trtdx.inspect.shapes.findings import CODE, shapes_in_profile

    return Agreement(CODE, (), lambda deployment: shapes_in_profile(log, deployment.first("engine")))


def _summary(deployment: Deployment, judgement: Judgement, notes: list[str]) -> Summary:
    inputs = sum(artifact.kind not in NOT_ON_DISK for artifact in deployment.artifacts)
    return Summary(
        _verdict(judgement), inputs=inputs, partial=tuple(notes), unjudged=tuple(judgement.unjudged)
    )


def _verdict(judgement: Judgement) -> str:
    if judgement.findings:
        return headline(judgement.findings)
    if not judgement.judged:
        return "nothing could be judged"
    return f"nothing disagrees ({counted(judgement.judged, 'agreement')} judged)"
