"""Dockerfiles: the base image, what is installed on it, and the command it starts."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from trtdx.formats.documents import UnreadableError, read_file_bytes
from trtdx.inspect.facts.artifact import Artifact, Fact
from trtdx.inspect.readers import ArtifactReader, PathProbe
from trtdx.inspect.readers.server.named_paths import path_kind
from trtdx.inspect.readers.workload.manifest import ContainerWorkload, artifact_from_workloads, shell_faults
from trtdx.inspect.readers.workload.surroundings import HostMount, Surroundings, parse_small_integer
from trtdx.knowledge.versions import stated_release

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

MAX_DOCKERFILE_BYTES = 1 << 20
INSTALLED_RELEASE = re.compile(r"\btensorrt[_-]llm(?:\[[\w,]+\])?==(\d[\w.]*)")
DOCKERFILE_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?")


class DockerInstruction(NamedTuple):
    """One instruction with its continuation lines joined."""

    name: str
    text: str
    line: int


def is_dockerfile(host: Host, probe: PathProbe) -> bool:
    """Return whether a file is a Dockerfile: by its name, or by its first instruction."""
    if probe.is_directory or b"\0" in probe.start:
        return False
    name = posixpath.basename(probe.path).lower()
    named = name.startswith(("dockerfile", "containerfile")) or name.endswith((".dockerfile", ".containerfile"))
    starts = re.match(rb"(?is)\s*(?:#[^\n]*\n\s*|ARG [^\n]*\n\s*)*FROM \S", probe.start)
    return bool(starts) and (named or bool(re.search(rb"(?m)^(?:CMD|ENTRYPOINT|RUN) ", probe.start)))


def parse_instructions(text: str) -> Iterator[DockerInstruction]:
    """Yield the instructions; continuation lines keep their line breaks, so that lines can be told."""
    parts: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not parts and (not line.strip() or line.lstrip().startswith("#")):
            continue
        start = start if parts else number
        parts.append(line)
        if line.rstrip().endswith("\\") or (len(parts) > 1 and line.lstrip().startswith("#")):
            continue
        name, _, rest = "\n".join(parts).lstrip().partition(" ")
        yield DockerInstruction(name.upper(), rest.strip(), start)
        parts = []


class _BuildStage:
    """What the instructions of the last stage add up to."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.surroundings = Surroundings(system="Dockerfile", unit="image")
        self.arguments: dict[str, str] = {}
        self.entrypoint: DockerInstruction | None = None
        self.command: DockerInstruction | None = None
        self.stages: dict[str, Fact | None] = {}
        self.folder = "/"  # that relative paths lie in

    def take_instruction(self, instruction: DockerInstruction) -> None:
        where = f"{self.path}:{instruction.line}: {instruction.name}"
        if instruction.name == "FROM":
            self._begin_stage(instruction, where)
        elif instruction.name in ("ARG", "ENV"):
            self._assign_variables(instruction, where)
        elif instruction.name == "WORKDIR":
            self.folder = posixpath.join(self.folder, self.fill_variables(instruction.text))
        elif instruction.name in ("COPY", "ADD"):
            self._copy_files(instruction)
        elif instruction.name == "EXPOSE":
            ports = [
                parse_small_integer(word.partition("/")[0]) for word in self.fill_variables(instruction.text).split()
            ]
            self.surroundings.ports, self.surroundings.ports_place = [port for port in ports if port], where
        elif instruction.name == "ENTRYPOINT":
            self.entrypoint, self.command = instruction, None
        elif instruction.name == "CMD":
            self.command = instruction
        elif instruction.name == "RUN" and (installed := INSTALLED_RELEASE.search(instruction.text)):
            self.surroundings.release = Fact(stated_release(installed[1]) or installed[1], where)

    def _begin_stage(self, instruction: DockerInstruction, where: str) -> None:
        words = [word for word in self.fill_variables(instruction.text).split() if not word.startswith("--")]
        base = self.stages.get(words[0]) if words else None
        self.surroundings.image = base or (Fact(words[0], where) if words else None)
        self.surroundings.release = None if base is None else self.surroundings.release
        self.entrypoint = self.command = None
        if len(words) > 2 and words[1].upper() == "AS":
            self.stages[words[2]] = self.surroundings.image

    def _copy_files(self, instruction: DockerInstruction) -> None:
        """Take what is copied from beside the Dockerfile for a mount of it."""
        words = _exec_form_words(instruction) or instruction.text.replace("\\\n", " ").split()
        if any(word.startswith("--from") for word in words):
            return
        *sources, target = [self.fill_variables(word) for word in words if not word.startswith("--")] or [""]
        place = posixpath.join(self.folder, target)
        for source in sources:
            is_inside = target.endswith("/") or target in (".", "./") or len(sources) > 1
            inside = posixpath.join(place, posixpath.basename(source)) if is_inside else place
            beside = posixpath.join(posixpath.dirname(self.path) or ".", source)
            self.surroundings.mounts.append(HostMount(posixpath.normpath(inside), beside))

    def _assign_variables(self, instruction: DockerInstruction, where: str) -> None:
        try:
            words = shlex.split(instruction.text.replace("\\\n", " "))
        except ValueError:
            return
        if instruction.name == "ENV" and len(words) == 2 and "=" not in words[0]:
            words = ["=".join(words)]
        for word in words:
            name, equals, value = word.partition("=")
            if equals:
                self.arguments[name] = self.fill_variables(value)
            if equals and instruction.name == "ENV":
                self.surroundings.environment[name] = Fact(self.arguments[name], where)

    def fill_variables(self, text: str) -> str:
        return DOCKERFILE_VARIABLE.sub(
            lambda match: self.arguments.get(match[1]) or (match[0] if match[2] is None else match[2]), text
        )

    def workload(self) -> ContainerWorkload:
        """Return what the image starts: ENTRYPOINT with CMD as its arguments, or CMD alone."""
        words = [
            word
            for instruction in (self.entrypoint, self.command)
            if instruction
            for word in _instruction_words(instruction)
        ]
        first = self.entrypoint or self.command
        where = f"{self.path}:{first.line}: {first.name}" if first else self.path
        if self.entrypoint and self.command and _exec_form_words(self.entrypoint) is None:
            fault = "CMD is dropped: ENTRYPOINT is written as a text, which is given to a shell without it"
            self.surroundings.no_shell.append(Fact(fault, f"{self.path}:{self.command.line}: CMD"))
            words = _instruction_words(self.entrypoint)
        self.surroundings.no_shell += shell_faults(words, where)
        return ContainerWorkload("image", words, self.surroundings, where)


def _exec_form_words(instruction: DockerInstruction) -> list[str] | None:
    """Return the words of an instruction that is written as a JSON list; None where it is shell text."""
    try:
        value = json.loads(instruction.text.replace("\\\n", " "))
    except (ValueError, RecursionError):
        return None
    return [str(item) for item in value[:1000]] if isinstance(value, list) else None


def _instruction_words(instruction: DockerInstruction) -> list[tuple[str, int]]:
    listed = _exec_form_words(instruction)
    words = ["sh", "-c", instruction.text] if listed is None else listed
    return [(word, instruction.line) for word in words]


def read_dockerfile(host: Host, path: str, version: str = "") -> Artifact:
    """Return what an image starts, in the release that is in it."""
    try:
        text = read_file_bytes(host, path, MAX_DOCKERFILE_BYTES).decode("utf-8", "replace")
    except UnreadableError as err:
        return Artifact("command", path, unread=(f"{path} {err}",))
    stage = _BuildStage(path)
    for instruction in parse_instructions(text):
        stage.take_instruction(instruction)
    # A folder may get more files by RUN, so that what is absent here need not be absent there.
    stage.surroundings.mounts = [
        mount for mount in stage.surroundings.mounts if path_kind(host, mount.source) == "file"
    ]
    return artifact_from_workloads(host, path, [stage.workload()], version, [])


READER = ArtifactReader(
    "command",
    "a Dockerfile whose image starts TensorRT-LLM",
    is_dockerfile,
    read_dockerfile,
    takes_version=True,
)
