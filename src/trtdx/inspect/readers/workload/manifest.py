"""Files that describe containers: what they start becomes commands, each with what it runs in."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.formats.documents import MAX_YAML_BYTES, UnreadableError, read_file_bytes
from trtdx.formats.yaml_documents import YamlDocument, parse_yaml_stream
from trtdx.inspect.facts.artifact import Artifact, Fact
from trtdx.inspect.readers import ArtifactReader, PathProbe
from trtdx.inspect.readers.server.commands import PROGRAMS, mentions_program
from trtdx.inspect.readers.workload.surroundings import (
    UNKNOWN_VALUE,
    Surroundings,
    command_text,
    inline_shell_script,
    replace_mounted_paths,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.host import Host

YAML_SUFFIXES = (".yaml", ".yml", ".json")
TEMPLATE_LINE = re.compile(r"^[ \t]*\{\{.*\}\}[ \t]*$", re.MULTILINE)
TEMPLATE_VALUE = re.compile(r"\{\{.*?\}\}")
SHELL_SYNTAX = re.compile(r"\$(?:[A-Za-z_]\w*|\{\w+\})|^(?:&&|\|\||[|;<>]|>>|2>&1)$")


class ContainerWorkload(NamedTuple):
    """One container: its name, the words of its command with their lines, and what it runs in."""

    name: str
    words: list[tuple[str, int]]
    surroundings: Surroundings
    place: str


def words_with_lines(document: YamlDocument, path: str, value: Any) -> list[tuple[str, int]]:
    """Return the words of a list in YAML with the line of each; a text alone is one word."""
    items = value if isinstance(value, list) else [] if value is None else [value]
    return [(str(item), document.line_of(f"{path}[{at}]") or 1) for at, item in enumerate(items[:1000])]


def shell_faults(words: list[tuple[str, int]], where: str) -> list[Fact]:
    """Return what a list of words holds that only a shell understands: it is started without one."""
    if not words or inline_shell_script(words) is not None:
        return []
    first = words[0][0]
    if " " in first.strip() and posixpath.basename(first.split()[0]) in PROGRAMS:
        return [Fact(f"{first[:60]!r} is one word, and no program has that name", where)]
    return [
        Fact(f"{word[:60]!r} is passed on as it is: no shell expands it", where)
        for word, _ in words[1:]
        if SHELL_SYNTAX.search(word) and " " not in word
    ][:3]


def artifact_from_workloads(
    host: Host, path: str, workloads: Iterable[ContainerWorkload], version: str, notes: list[str]
) -> Artifact:
    """Return the commands of all containers as one artifact with parts."""
    from trtdx.inspect.readers.server.llm_args import command_from_text

    commands: list[Artifact] = []
    for number, workload in enumerate(workloads, 1):
        if any(command.unit == workload.surroundings.unit for command in commands):
            workload.surroundings.unit += f" ({number})"
        text, workload.surroundings.mounted_folders = replace_mounted_paths(
            host,
            command_text(workload.words, workload.surroundings.environment),
            workload.surroundings.mounts,
        )
        if not mentions_program(text):
            continue
        command = command_from_text(host, text, path, version=version, surroundings=workload.surroundings)
        if command.facts or workload.surroundings.no_shell:
            commands += _command_or_faults(command, workload, path)
    if not commands:
        notes.append("no container in it starts a program of TensorRT-LLM by a command that is written here")
        commands = [Artifact("command", path)]
    first, *rest = commands
    broken = next((note for note in notes if note.startswith("is not YAML")), "")
    if broken and not any("Helm" in note for note in notes):
        first = msgspec.structs.replace(
            first, facts=first.facts | {"unparsed": Fact([f"{path}: {broken.partition('; what')[0]}"], path)}
        )
    parts = [part for command in rest for part in (msgspec.structs.replace(command, parts=()), *command.parts)]
    return msgspec.structs.replace(first, unread=(*first.unread, *notes), parts=(*first.parts, *parts))


def _command_or_faults(command: Artifact, workload: ContainerWorkload, path: str) -> list[Artifact]:
    """Return a command, or what is known of one that is no command because of how it is written."""
    if command.facts:
        return [command]
    from trtdx.inspect.facts.artifact import FactCollector
    from trtdx.inspect.readers.workload.surroundings import put_surroundings_facts

    facts = FactCollector()
    put_surroundings_facts(facts, workload.surroundings, workload.place)
    return [Artifact("command", path, facts.to_dict(), unit=workload.surroundings.unit)]


def read_manifest_documents(host: Host, path: str) -> tuple[list[YamlDocument], list[str]]:
    """Return the documents of a file, and notes: on templates that only Helm can fill, and on where it breaks off."""
    try:
        data = read_file_bytes(host, path, MAX_YAML_BYTES)
    except UnreadableError as err:
        return [], [str(err)]
    notes = []
    text = data.decode("utf-8", "replace")
    if "{{" in text:
        text, count = replace_templates(text)
        notes.append(
            f"is a template: {count} places are only known to Helm; inspect the output of `helm template` for them"
        )
    documents, problem = parse_yaml_stream(text.encode(), path)
    return documents, [*notes, *([f"{problem}; what stands before it was read"] if problem else [])]


def replace_templates(text: str) -> tuple[str, int]:
    """Return YAML in which a place for a template's value is one word, line by line as before."""
    text, lines = TEMPLATE_LINE.subn("", text)
    text, values = TEMPLATE_VALUE.subn(UNKNOWN_VALUE, text)
    return text, lines + values


def is_manifest(host: Host, probe: PathProbe) -> bool:
    """Return whether a file is a Kubernetes manifest or a compose file."""
    if probe.is_directory or not probe.path.lower().endswith(YAML_SUFFIXES):
        return False
    start = probe.start
    is_json = b'"apiVersion"' in start and b'"kind"' in start
    is_kubernetes = re.search(rb"(?m)^apiVersion:", start) and re.search(rb"(?m)^kind:", start)
    is_compose = re.search(rb"(?m)^services:\s*(?:#.*)?$", start)
    return bool(is_json or is_kubernetes or is_compose)


def read_manifest(host: Host, path: str, version: str = "") -> Artifact:
    """Return what the containers of a manifest or compose file start."""
    from trtdx.inspect.readers.workload.compose import compose_workloads
    from trtdx.inspect.readers.workload.kubernetes import KubernetesManifest

    documents, notes = read_manifest_documents(host, path)
    is_template = any("Helm" in note for note in notes)
    if any("services" in document.data and "kind" not in document.data for document in documents):
        workloads = [workload for document in documents for workload in compose_workloads(document)]
        return artifact_from_workloads(host, path, workloads, version, notes)
    workloads = list(KubernetesManifest(documents).workloads())
    for work in workloads if is_template else ():
        work.surroundings.asks_for_gpus = False  # what is not written here may stand in the values
        if work.surroundings.shm is not None and "mounts no memory" in work.surroundings.shm.where:
            work.surroundings.shm = None
    return artifact_from_workloads(host, path, workloads, version, notes)


READER = ArtifactReader(
    "command",
    "a Kubernetes manifest or compose file whose containers start TensorRT-LLM",
    is_manifest,
    read_manifest,
    takes_version=True,
)
