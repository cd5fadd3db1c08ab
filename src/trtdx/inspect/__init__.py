"""What is in these artifacts, will they take my requests, and what disagrees with what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError, TrtdxError
from trtdx.inspect.artifact import Artifact, Deployment
from trtdx.model import Report, Section, Summary, headline
from trtdx.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.model import Finding
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
    deployment, notes = collect(host, question)
    sections = list(_sections(host, deployment, question))
    if question.against:
        text = "; ".join(section.note for section in sections)
        return Report(
            Summary(text, inputs=len(question.paths) + 1, partial=tuple(notes)), (), tuple(sections)
        )
    findings = list(_findings(deployment, book))
    return Report(_summary(deployment, findings, notes), tuple(findings), tuple(sections))


def collect(host: Host, question: Question) -> tuple[Deployment, list[str]]:
    """Return the artifacts named, those they refer to, and notes on what could not be looked at."""
    from trtdx.inspect.onnx_shapes import with_shapes_checked
    from trtdx.inspect.readers import read_artifact
    from trtdx.inspect.readers.llm_args import command_from_text

    version = question.machine.text("gpu.runtime") if question.machine else ""
    artifacts = [read_artifact(host, path, version=version) for path in question.paths]
    artifacts += [command_from_text(host, text, "--command", version=version) for text in question.commands]
    referred, notes = _referred(host, artifacts, version)
    given = [question.machine] if question.machine else []
    found = [_with_profiles(artifact) for artifact in (*artifacts, *referred)]
    deployment = with_shapes_checked(host, Deployment((*found, *given, *question.requests)))
    notes += [f"{each.path}: {note}" for each in deployment.artifacts for note in each.unread]
    if question.requests and not deployment.first(*TAKES_REQUESTS):
        raise InputError(
            "nothing that was given takes requests",
            fix="give the engine directory, or the options or command line of the server",
        )
    return deployment, notes


def _referred(host: Host, artifacts: list[Artifact], version: str) -> tuple[list[Artifact], list[str]]:
    """Return the artifacts that others name: a command its repository, that one its engine and tokenizer."""
    known = {artifact.path.rstrip("/") for artifact in artifacts}
    waiting = [path for artifact in artifacts for path in artifact.refers_to]
    found: list[Artifact] = []
    while waiting:
        path = waiting.pop(0).rstrip("/")
        if path in known or host.kind(path) == "absent":
            continue
        if len(found) == MOST_REFERRED:
            return found, [f"{path}: not looked at; at most {MOST_REFERRED} artifacts that others name are"]
        known.add(path)
        found.append(_read_or_unknown(host, path, version))
        waiting += found[-1].refers_to
    return found, []


def _read_or_unknown(host: Host, path: str, version: str) -> Artifact:
    from trtdx.inspect.readers import read_artifact

    try:
        return read_artifact(host, path, version=version)
    except TrtdxError as err:
        return Artifact("unknown", path, unread=(err.message.splitlines()[0],))


def _with_profiles(artifact: Artifact) -> Artifact:
    """Return an engine with the inputs and profiles its build settings imply, unless they were read."""
    if artifact.kind != "engine" or artifact.profiles:
        return artifact
    from trtdx.inspect.engine_profiles import profiles_of, tensors_of

    return msgspec.structs.replace(artifact, tensors=tensors_of(artifact), profiles=profiles_of(artifact))


def _sections(host: Host, deployment: Deployment, question: Question) -> Iterator[Section]:
    from trtdx.inspect.overview import overview
    from trtdx.inspect.show import sections_from

    shown = [artifact for artifact in deployment.artifacts if artifact.kind not in NOT_ON_DISK]
    if question.against:
        yield from _differences(host, shown, question)
        return
    yield from map(overview, shown)
    yield from sections_from(deployment, list(question.show))
    yield from _answers(deployment, whole=not {"shapes", "all"}.isdisjoint(question.show))
    for path in question.shape_logs:
        yield from _shape_tables(host, path, deployment)


def _differences(host: Host, artifacts: list[Artifact], question: Question) -> Iterator[Section]:
    from trtdx.inspect.against import differences
    from trtdx.inspect.readers import read_artifact

    other = _with_profiles(read_artifact(host, question.against))
    for artifact in artifacts[: len(question.paths)]:
        yield differences(artifact, other)


def _answers(deployment: Deployment, whole: bool) -> Iterator[Section]:
    """Yield what a request or a machine was given for: does it fit, must it be rebuilt."""
    for engine in deployment.of("engine"):
        yield from _fits(engine, deployment, whole)
        yield from _must_be_rebuilt(engine, deployment.first("machine"))


def _fits(engine: Artifact, deployment: Deployment, whole: bool) -> Iterator[Section]:
    from trtdx.inspect.shapes import shape_section

    requests = list(deployment.of("request"))
    servers = deployment.of("triton", "llm-args", "command")
    chunked = any(server.get("runtime.chunked_context") for server in servers)
    if requests:
        yield shape_section(engine, requests, chunked=chunked, whole=whole)


def _must_be_rebuilt(engine: Artifact, machine: Artifact | None) -> Iterator[Section]:
    from trtdx.inspect.rebuild import rebuild_section

    if machine:
        yield rebuild_section(engine, machine)


def _shape_tables(host: Host, path: str, deployment: Deployment) -> Iterator[Section]:
    from trtdx.inspect.shape_log import read_shape_log, shape_tables

    yield from shape_tables(read_shape_log(host, path), deployment.first("engine"))


def _findings(deployment: Deployment, book: RuleBook) -> list[Finding]:
    from trtdx.inspect.agreement import findings_from
    from trtdx.inspect.agreements import table

    return findings_from(table(), deployment, book)


def _summary(deployment: Deployment, findings: list[Finding], notes: list[str]) -> Summary:
    inputs = sum(artifact.kind not in NOT_ON_DISK for artifact in deployment.artifacts)
    return Summary(_verdict(deployment, findings), inputs=inputs, partial=tuple(notes))


def _verdict(deployment: Deployment, findings: list[Finding]) -> str:
    if not findings:
        return f"nothing disagrees ({counted(_concerned(deployment), 'agreement')} about these artifacts)"
    return headline(findings)


def _concerned(deployment: Deployment) -> int:
    """Return how many agreements had at least one of their sides before them."""
    from trtdx.inspect.agreements import table

    kinds = {artifact.kind for artifact in deployment.artifacts}
    return sum(bool(kinds & set(row.sides)) for row in table())
