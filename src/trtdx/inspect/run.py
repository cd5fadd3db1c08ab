"""What is in these artifacts, will they take my requests, and what disagrees with what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.errors import InputError, TrtdxError
from trtdx.inspect.facts.artifact import Artifact, Deployment
from trtdx.model import Report, Section, Summary, headline_from_findings
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.inspect.agreements.agreement import Agreement, Judgement
    from trtdx.inspect.shapes.trace_log import ShapeLog
    from trtdx.rule import RuleBook

VIRTUAL_KINDS = ("machine", "request", "unknown")
REQUEST_TAKERS = ("engine", "llm-args", "command", "triton")
MAX_REFERRED = 8  # artifacts read because another one names them


class InspectQuestion(msgspec.Struct, frozen=True):
    """What is asked about the artifacts."""

    paths: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    machine: Artifact | None = None
    shown_sections: tuple[str, ...] = ()
    compare_with: str = ""
    requests: tuple[Artifact, ...] = ()
    shape_logs: tuple[str, ...] = ()


def inspect_artifacts(host: Host, question: InspectQuestion, book: RuleBook) -> Report:
    """Return overviews, the sections asked for, and what disagrees."""
    from trtdx.inspect.agreements import agreement_table
    from trtdx.inspect.agreements.agreement import judge_deployment
    from trtdx.inspect.shapes.trace_log import read_shape_log

    deployment, notes = collect_deployment(host, question)
    if question.compare_with:
        return _comparison_report(host, deployment, question, book, notes)
    logs = [read_shape_log(host, path) for path in question.shape_logs]
    sections = [_with_placement(section) for section in _report_sections(host, deployment, question, logs)]
    judgement = judge_deployment((*agreement_table(), *map(_shapes_agreement, logs)), deployment, book)
    return Report(_summarize_judgement(deployment, judgement, notes), tuple(judgement.findings), tuple(sections))


def collect_deployment(host: Host, question: InspectQuestion) -> tuple[Deployment, list[str]]:
    """Return the artifacts named, those they refer to, and notes on what could not be looked at."""
    from trtdx.inspect.agreements.lineage import mark_tokenizer_lenders
    from trtdx.inspect.profiles.onnx_shapes import check_deployment_shapes
    from trtdx.inspect.readers import read_artifact
    from trtdx.inspect.readers.server.llm_args import command_from_text

    version = question.machine.text("gpu.runtime") if question.machine else ""
    # named twice is one, by its first name
    paths = {host.real(path): path for path in reversed(question.paths)}
    artifacts = [read_artifact(host, path, version=version) for path in reversed(paths.values())]
    artifacts += [command_from_text(host, text, "--command", version=version) for text in question.commands]
    artifacts = [member for artifact in artifacts for member in (artifact, *artifact.parts)]
    referred, notes = _read_referred(host, artifacts, version)
    named = [_with_locations(host, _with_profiles(artifact)) for artifact in artifacts]
    collected = named + mark_tokenizer_lenders(
        [_with_locations(host, _with_profiles(artifact)) for artifact in referred], named
    )
    collected, machines = _with_machine(collected, question.machine)
    deployment = check_deployment_shapes(host, Deployment((*collected, *machines, *question.requests)))
    notes += [
        note if note.startswith(artifact.path) else f"{artifact.path}: {note}"
        for artifact in deployment.artifacts
        for note in artifact.unread
    ]
    notes = _note_stand_ins(deployment, notes)
    if question.requests and not deployment.first_of(*REQUEST_TAKERS):
        raise InputError(
            "nothing that was given takes requests",
            fix="give the engine directory, or the options or command line of the server",
        )
    return deployment, notes


def _with_machine(artifacts: list[Artifact], named: Artifact | None) -> tuple[list[Artifact], list[Artifact]]:
    """Return the artifacts, and the machine that was named; containers run on it, and its own words count first."""
    if named is None or not any(artifact.kind == "machine" for artifact in artifacts):
        return artifacts, [named] if named else []
    merged = [
        msgspec.structs.replace(artifact, facts=artifact.facts | named.facts)
        if artifact.kind == "machine"
        else artifact
        for artifact in artifacts
    ]
    return merged, []


def _note_stand_ins(deployment: Deployment, notes: list[str]) -> list[str]:
    """Return notes that say what is taken for a model of another machine, where one is."""
    from trtdx.inspect.agreements.serving import served_engine, served_model, serving_artifacts
    from trtdx.inspect.readers.server.named_paths import ABSENT_NOTE

    for server in serving_artifacts(deployment, "llm-args", "command"):
        name = server.text("runtime.model")
        model = served_engine(deployment, server) or served_model(deployment, server)
        if model is not None and name not in server.resolved_paths:
            absent = ABSENT_NOTE.format(path=name, role="model")
            notes = [
                note.replace(absent, f"{name} is not on this machine; {model.path} was taken for it") for note in notes
            ]
    return notes


def _read_referred(host: Host, artifacts: list[Artifact], version: str) -> tuple[list[Artifact], list[str]]:
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
        if len(referred) == MAX_REFERRED:
            return referred, [f"{path}: not looked at; at most {MAX_REFERRED} artifacts that others name are"]
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


def _with_locations(host: Host, artifact: Artifact) -> Artifact:
    """Return an artifact that knows where it really lies, and where the paths it names do."""
    from trtdx.inspect.readers.server.named_paths import resolved_path_names

    real = "" if host.kind(artifact.path) == "absent" else host.real(artifact.path)
    return msgspec.structs.replace(artifact, real_path=real, resolved_paths=resolved_path_names(host, artifact))


def _with_profiles(artifact: Artifact) -> Artifact:
    """Return an engine with the inputs and profiles its build settings imply, unless they were read."""
    if artifact.kind != "engine" or artifact.profiles:
        return artifact
    from trtdx.inspect.profiles.engine_profiles import engine_profiles, engine_tensors

    return msgspec.structs.replace(artifact, tensors=engine_tensors(artifact), profiles=engine_profiles(artifact))


def _report_sections(
    host: Host, deployment: Deployment, question: InspectQuestion, shape_logs: list[ShapeLog]
) -> Iterator[Section]:
    from trtdx.inspect.sections.overview import overview_section
    from trtdx.inspect.sections.provenance import provenance_sections
    from trtdx.inspect.sections.show_sections import sections_to_show
    from trtdx.inspect.shapes.tables import shape_tables

    shown = [artifact for artifact in deployment.artifacts if artifact.kind not in VIRTUAL_KINDS]
    yield from map(overview_section, shown)
    for artifact in shown:
        yield from provenance_sections(host, artifact)
    yield from sections_to_show(host, deployment, list(question.shown_sections))
    yield from _answer_sections(deployment, show_all=not {"shapes", "all"}.isdisjoint(question.shown_sections))
    for log in shape_logs:
        yield from shape_tables(log, deployment.first_of("engine"))


def _comparison_report(
    host: Host, deployment: Deployment, question: InspectQuestion, book: RuleBook, notes: list[str]
) -> Report:
    """Return what differs from another artifact, most consequential first."""
    from trtdx.inspect.readers import read_artifact
    from trtdx.inspect.sections.difference import CODE, difference_section, violation_from_differences
    from trtdx.knowledge.violation import finding_from

    version = question.machine.text("gpu.runtime") if question.machine else ""
    other = _with_profiles(read_artifact(host, question.compare_with, version=version))
    shown = [artifact for artifact in deployment.artifacts if artifact.kind not in VIRTUAL_KINDS]
    compared = shown[: max(1, len(question.paths))]
    sections = [difference_section(artifact, other) for artifact in compared]
    violations = [
        violation_from_differences(*pair) for pair in zip(compared, [other] * len(compared), sections, strict=True)
    ]
    findings = tuple(finding_from(book.get(CODE), violation) for violation in violations if violation is not None)
    text = "; ".join(section.note for section in sections)
    summary = Summary(text, inputs=len(compared) + 1, partial=tuple(notes))
    return Report(summary, findings, tuple(map(_with_placement, sections)))


def _answer_sections(deployment: Deployment, show_all: bool) -> Iterator[Section]:
    """Yield what a request or a machine was given for: does it fit, must it be rebuilt."""
    for engine in deployment.of_kinds("engine"):
        yield from _request_section(engine, deployment, show_all)
        yield from _rebuild_section(engine, deployment.first_of("machine"))


def _request_section(engine: Artifact, deployment: Deployment, show_all: bool) -> Iterator[Section]:
    from trtdx.inspect.requests.request_shapes import shape_section

    requests = list(deployment.of_kinds("request"))
    servers = deployment.of_kinds("triton", "llm-args", "command")
    chunked = any(server.get("runtime.chunked_context") for server in servers)
    if requests:
        yield shape_section(engine, requests, chunked=chunked, show_all=show_all)


def _rebuild_section(engine: Artifact, machine: Artifact | None) -> Iterator[Section]:
    from trtdx.inspect.rebuild.verdict import rebuild_section

    if machine:
        yield rebuild_section(engine, machine)


def _with_placement(section: Section) -> Section:
    """Return a section that stands behind the findings unless it says what was looked at."""
    return msgspec.structs.replace(section, after_findings=section.key != "overview")


def _shapes_agreement(log: ShapeLog) -> Agreement:
    """Return the agreement of a log's shapes with the profiles they ran in, for every deployment."""
    from trtdx.inspect.agreements.agreement import Agreement
    from trtdx.inspect.shapes.findings import CODE, shapes_outside_profile

    return Agreement(CODE, (), lambda deployment: shapes_outside_profile(log, deployment.first_of("engine")))


def _summarize_judgement(deployment: Deployment, judgement: Judgement, notes: list[str]) -> Summary:
    inputs = sum(artifact.kind not in VIRTUAL_KINDS for artifact in deployment.artifacts)
    return Summary(_verdict_text(judgement), inputs=inputs, partial=tuple(notes), unjudged=tuple(judgement.unjudged))


def _verdict_text(judgement: Judgement) -> str:
    if judgement.findings:
        return headline_from_findings(judgement.findings)
    if not judgement.judged_count:
        return "nothing could be judged"
    return f"nothing disagrees ({format_count(judgement.judged_count, 'agreement')} judged)"
