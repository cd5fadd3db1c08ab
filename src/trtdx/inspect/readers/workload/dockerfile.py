"""Dockerfiles: the base image, what is installed on it, and the command it starts."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from trtdx.formats.documents import UnreadableError, read_bytes
from trtdx.inspect.facts.artifact import Artifact, Fact
from trtdx.inspect.readers import Found, Reader
from trtdx.inspect.readers.server.named_paths import kind_of
from trtdx.inspect.readers.workload.file import Workload, artifact_from, shell_faults
from trtdx.inspect.readers.workload.surroundings import Mount, Surroundings, whole_number
from trtdx.knowledge.versions import stated_release

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

MOST_BYTES = 1 << 20
INSTALLED = re.compile(r"\btensorrt[_-]llm(?:\[[\w,]+\])?==(\d[\w.]*)")
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?")


class Instruction(NamedTuple):
    """One instruction with its continuation lines joined."""

    name: str
    text: str
    line: int


def is_dockerfile(host: Host, found: Found) -> bool:
    """Return whether a file is a Dockerfile: by its name, or by its first instruction."""
    if found.is_directory or b"\0" in found.start:
        return False
    name = posixpath.basename(found.path).lower()
    named = name.startswith(("dockerfile", "containerfile")) or name.endswith(
        (".dockerfile", ".containerfile")
    )
    starts = re.match(rb"(?is)\s*(?:#[^\n]*\n\s*|ARG [^\n]*\n\s*)*FROM \S", found.start)
    return bool(starts) and (named or bool(re.search(rb"(?m)^(?:CMD|ENTRYPOINT|RUN) ", found.start)))


def instructions(text: str) -> Iterator[Instruction]:
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
        yield Instruction(name.upper(), rest.strip(), start)
        parts = []


class _Stage:
    """What the instructions of the last stage add up to."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.around = Surroundings(system="Dockerfile", unit="image")
        self.arguments: dict[str, str] = {}
        self.entrypoint: Instruction | None = None
        self.command: Instruction | None = None
        self.stages: dict[str, Fact | None] = {}
        self.folder = "/"  # that relative paths lie in

    def take(self, each: Instruction) -> None:
        where = f"{self.path}:{each.line}: {each.name}"
        if each.name == "FROM":
            self._begin(each, where)
        elif each.name in ("ARG", "ENV"):
            self._assign(each, where)
        elif each.name == "WORKDIR":
            self.folder = posixpath.join(self.folder, self.filled(each.text))
        elif each.name in ("COPY", "ADD"):
            self._copy(each)
        elif each.name == "EXPOSE":
            ports = [whole_number(word.partition("/")[0]) for word in self.filled(each.text).split()]
            self.around.ports, self.around.ports_at = [port for port in ports if port], where
        elif each.name == "ENTRYPOINT":
            self.entrypoint, self.command = each, None
        elif each.name == "CMD":
            self.command = each
        elif each.name == "RUN" and (installed := INSTALLED.search(each.text)):
            self.around.release = Fact(stated_release(installed[1]) or installed[1], where)

    def _begin(self, each: Instruction, where: str) -> None:
        words = [word for word in self.filled(each.text).split() if not word.startswith("--")]
        base = self.stages.get(words[0]) if words else None
        self.around.image = base or (Fact(words[0], where) if words else None)
        self.around.release = None if base is None else self.around.release
        self.entrypoint = self.command = None
        if len(words) > 2 and words[1].upper() == "AS":
            self.stages[words[2]] = self.around.image

    def _copy(self, each: Instruction) -> None:
        """Take what is copied from beside the Dockerfile for a mount of it."""
        words = _listed(each) or each.text.replace("\\\n", " ").split()
        if any(word.startswith("--from") for word in words):
            return
        *sources, target = [self.filled(word) for word in words if not word.startswith("--")] or [""]
        place = posixpath.join(self.folder, target)
        for source in sources:
            is_inside = target.endswith("/") or target in (".", "./") or len(sources) > 1
            inside = posixpath.join(place, posixpath.basename(source)) if is_inside else place
            beside = posixpath.join(posixpath.dirname(self.path) or ".", source)
            self.around.mounts.append(Mount(posixpath.normpath(inside), beside))

    def _assign(self, each: Instruction, where: str) -> None:
        try:
            words = shlex.split(each.text.replace("\\\n", " "))
        except ValueError:
            return
        if each.name == "ENV" and len(words) == 2 and "=" not in words[0]:
            words = ["=".join(words)]
        for word in words:
            name, equals, value = word.partition("=")
            if equals:
                self.arguments[name] = self.filled(value)
            if equals and each.name == "ENV":
                self.around.environment[name] = Fact(self.arguments[name], where)

    def filled(self, text: str) -> str:
        return VARIABLE.sub(
            lambda match: self.arguments.get(match[1]) or (match[0] if match[2] is None else match[2]), text
        )

    def workload(self) -> Workload:
        """Return what the image starts: ENTRYPOINT with CMD as its arguments, or CMD alone."""
        words = [
            word
            for instruction in (self.entrypoint, self.command)
            if instruction
            for word in _words(instruction)
        ]
        first = self.entrypoint or self.command
        where = f"{self.path}:{first.line}: {first.name}" if first else self.path
        if self.entrypoint and self.command and _listed(self.entrypoint) is None:
            fault = "CMD is dropped: ENTRYPOINT is written as a text, which is given to a shell without it"
            self.around.no_shell.append(Fact(fault, f"{self.path}:{self.command.line}: CMD"))
            words = _words(self.entrypoint)
        self.around.no_shell += shell_faults(words, where)
        return Workload("image", words, self.around, where)


def _listed(each: Instruction) -> list[str] | None:
    """Return the words of an instruction that is written as a JSON list; None where it is shell text."""
    try:
        value = json.loads(each.text.replace("\\\n", " "))
    except (ValueError, RecursionError):
        return None
    return [str(item) for item in value[:1000]] if isinstance(value, list) else None


def _words(each: Instruction) -> list[tuple[str, int]]:
    listed = _listed(each)
    words = ["sh", "-c", each.text] if listed is None else listed
    return [(word, each.line) for word in words]


def read_dockerfile(host: Host, path: str, version: str = "") -> Artifact:
    """Return what an image starts, in the release that is in it."""
    try:
        text = read_bytes(host, path, MOST_BYTES).decode("utf-8", "replace")
    except UnreadableError as err:
        return Artifact("command", path, unread=(f"{path} {err}",))
    stage = _Stage(path)
    for instruction in instructions(text):
        stage.take(instruction)
    # A folder may get more files by RUN, so that what is absent here need not be absent there.
    stage.around.mounts = [mount for mount in stage.around.mounts if kind_of(host, mount.source) == "file"]
    return artifact_from(host, path, [stage.workload()], version, [])


READER = Reader(
    "command", "a Dockerfile whose image starts TensorRT-LLM", is_dockerfile, read_dockerfile, by_version=True
)
