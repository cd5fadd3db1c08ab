"""Options of the LLM API (YAML or JSON), and command lines of trtllm-serve, -bench, -eval and -build."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from trtdx.formats.documents import Document, UnreadableError, read_bytes, read_json
from trtdx.formats.shell import MOST_TEXT
from trtdx.formats.yaml_documents import parse_yaml, read_yaml
from trtdx.inspect.facts.artifact import Artifact, Facts
from trtdx.inspect.facts.config_keys import CONFIG_KEYS
from trtdx.inspect.facts.options import judged_flags, table, wrong_choice
from trtdx.inspect.readers import Found, Reader
from trtdx.inspect.readers.server.commands import (
    OTHER_FLAGS,
    PROGRAMS,
    TRITON,
    CommandLine,
    Given,
    command_lines,
    demand_command,
    lacks_value,
    may_start,
    place_of,
)
from trtdx.inspect.readers.server.llm_options import (
    MOST_SETTINGS,
    Setting,
    coerced,
    put_judgement,
    put_settings,
    put_spelled,
    settings_from,
)
from trtdx.inspect.readers.server.named_paths import (
    PATH_FLAGS,
    Named,
    existing,
    named_in,
    paths_of,
    put_absent,
    put_draft,
)
from trtdx.inspect.readers.server.options_file import LOG_LINE, SUFFIXES, TRITON_SECTION, is_options_file
from trtdx.inspect.readers.server.precedence import Precedence
from trtdx.inspect.readers.workload.launcher import surroundings_of
from trtdx.inspect.readers.workload.surroundings import machine_of, put_surroundings, release_of, with_mounts

if TYPE_CHECKING:
    from trtdx.formats.shell import Script
    from trtdx.host import Host
    from trtdx.inspect.facts.options import Flag
    from trtdx.inspect.readers.workload.surroundings import Surroundings

MOST_LINES = 8  # commands of one text that are looked at


def read_llm_args(host: Host, path: str, version: str = "") -> Artifact:
    """Return what a file of options says."""
    facts = Facts()
    if version:
        facts.put("runtime.version", version, "--runtime")
    try:
        document = read_json(host, path) if path.lower().endswith(".json") else read_yaml(host, path)
    except UnreadableError as err:
        facts.add("unparsed", f"{path}: {err}", path)
        return Artifact("llm-args", path, facts.done(), unread=(f"{path} {err}",))
    unread = [*put_document(facts, document, version), *put_absent(host, facts, named_in(facts), path)]
    put_draft(host, facts, path)
    return Artifact(
        "llm-args", path, facts.done(), refers_to=paths_of(host, facts, path), unread=tuple(unread)
    )


def put_document(facts: Facts, document: Document, version: str) -> tuple[str, ...]:
    """Put all that a file of options says; return what was left out."""
    settings = settings_from(document, skip=(TRITON_SECTION,))
    settings_read = settings[:MOST_SETTINGS]
    put_settings(facts, settings_read, version)
    put_spelled(facts, settings_read)
    put_judgement(facts, settings_read, version, str(facts.get("runtime.backend") or ""))
    facts.put("triton.decoupled", document.at(f"{TRITON_SECTION}.decoupled"), document.where(TRITON_SECTION))
    _put_duplicates(facts, document)
    return (
        ()
        if len(settings_read) == len(settings)
        else (f"more than {MOST_SETTINGS} options; the rest was not read",)
    )


def _put_duplicates(facts: Facts, document: Document) -> None:
    for duplicate in getattr(document, "duplicates", ())[:50]:
        facts.add("runtime.duplicate_keys", duplicate.partition(": ")[2], duplicate)


def is_command_file(host: Host, found: Found) -> bool:
    """Return whether a text starts one of TensorRT-LLM's programs."""
    if found.is_directory or b"\0" in found.start or found.path.lower().endswith(SUFFIXES):
        return False
    text = found.start.decode("utf-8", "replace")
    if len(LOG_LINE.findall(text)) > 2:
        return False
    return may_start(text) and bool(command_lines(text)[0])


def read_command(host: Host, path: str, version: str = "") -> Artifact:
    """Return what the command line in a shell script or a text file asks for."""
    try:
        text = read_bytes(host, path, MOST_TEXT).decode("utf-8", "replace")
    except UnreadableError as err:
        return Artifact("command", path, unread=(f"{path} {err}",))
    return command_from_text(host, text, path, version=version)


def command_from_text(
    host: Host, text: str, where: str, *, version: str = "", around: Surroundings | None = None
) -> Artifact:
    """Return what a command line asks for, with the YAML file it names, as a release merges the two.

    What it runs in is given as `around`, or is read from `docker run`, srun and #SBATCH in the text.
    """
    lines, script = command_lines(text)
    if where == "--command":
        demand_command(lines, script)
    if not lines:
        programs = ", ".join(PROGRAMS)
        return Artifact("command", where, unread=(f"{where}: starts none of {programs}",))
    order = sorted(range(len(lines)), key=lambda at: lines[at].program == "trtllm-build")
    commands = [_command_at(host, at, text, where, version, around) for at in order[:MOST_LINES]]
    if len(commands) == 1:
        return commands[0]
    commands = [
        _in_unit(command, f"line {lines[at].line}") for command, at in zip(commands, order, strict=False)
    ]
    left = [f"line {lines[at].line}: {lines[at].name} was not looked at" for at in order[MOST_LINES:]]
    first, *rest = commands
    parts = [
        part for command in rest for part in (msgspec.structs.replace(command, parts=()), *command.parts)
    ]
    return msgspec.structs.replace(first, parts=(*first.parts, *parts), unread=(*first.unread, *left))


def _in_unit(command: Artifact, line: str) -> Artifact:
    """Return one of several commands of a text, which are not held against each other."""
    unit = f"{command.unit}, {line}" if command.unit else line
    parts = tuple(msgspec.structs.replace(part, unit=unit) for part in command.parts)
    return msgspec.structs.replace(command, unit=unit, parts=parts)


def _command_at(
    host: Host, at: int, text: str, where: str, version: str, around: Surroundings | None
) -> Artifact:
    """Return what one of the command lines of a text asks for, in its container or job."""
    lines, script = command_lines(text)
    line = lines[at]
    if around is None:
        around = surroundings_of(line, text, place_of(where, line.line))
        moved, here = with_mounts(host, text, around.mounts if around else [])
        if around is not None and moved != text:
            around.here = here
            return _command_at(host, at, moved, where, version, around)
    if around is not None:
        script = script._replace(files={**around.files, **script.files})
        version = version or release_of(around)
    return read_line(host, line, script, where, version=version, text=text, around=around)


def read_line(
    host: Host,
    line: CommandLine,
    script: Script,
    where: str,
    *,
    version: str = "",
    text: str = "",
    around: Surroundings | None = None,
) -> Artifact:
    """Return what one command line of a script asks for."""
    reading = _Reading(host, where, line, script, version)
    reading.text, reading.around = text, around
    return reading.artifact()


class _Reading:
    """One command line on its way to an artifact."""

    def __init__(self, host: Host, where: str, line: CommandLine, script: Script, version: str) -> None:
        self._host, self._where, self._line, self._script = host, where, line, script
        self._version = version
        self._facts = Facts()
        self._unread: list[str] = []
        self.text = ""
        self.around: Surroundings | None = None

    def artifact(self) -> Artifact:
        line, facts = self._line, self._facts
        if self._version:
            image = self.around and (self.around.release or self.around.image)
            facts.put("runtime.version", self._version, image.where if image else "--runtime")
        place = place_of(self._where, line.line)
        facts.put("runtime.command", line.name, place)
        facts.put("runtime.launcher", " ".join(line.launcher) or None, place)
        facts.put("runtime.world_size", line.ranks, place)
        if self.around is not None:
            put_surroundings(facts, self.around, place)
            if line.ranks is None and self.around.tasks is not None:
                facts.put("runtime.world_size", self.around.tasks.value, self.around.tasks.where)
        self._put_flags()
        if line.program == "trtllm-build":
            self._put_build_flags()
        elif line.program in TRITON:
            self._put_triton_ranks()
        else:
            self._put_options()
            self._put_paths()
        paths = paths_of(self._host, facts, self._where) + self._named_paths()
        machine = machine_of(self.around, facts) if self.around is not None else None
        return Artifact(
            "command",
            self._where,
            facts.done(),
            refers_to=paths,
            unread=tuple(self._unread),
            spelled=" ".join(self.text.split()) if self._where == "--command" else line.spelled,
            parts=(machine,) if machine else (),
            unit=self.around.unit if self.around is not None else "",
        )

    def _put_flags(self) -> None:
        """Put each flag as it is spelled, and those the program does not have."""
        places = {given_flag.name: self._place(given_flag) for given_flag in self._line.given}
        for given_flag in self._line.given:
            if not given_flag.is_known:
                self._unread.append(
                    f"{self._place(given_flag)}: the value {given_flag.value} is only known to the shell"
                )
                if given_flag.name in (
                    "--host",
                    "--port",
                ):  # that they are given counts, whatever their value
                    self._facts.put(f"option.{given_flag.name}", given_flag.value, self._place(given_flag))
                continue
            flag = table().flag.get(self._line.program, {}).get(given_flag.name)
            value = (
                True if given_flag.value is None else coerced(flag.type if flag else "str", given_flag.value)
            )
            self._facts.put(f"option.{given_flag.name}", value, self._place(given_flag))
            if flag is not None:
                self._judge_value(given_flag, flag)
        if self._line.subcommand in OTHER_FLAGS or self._line.program in ("trtllm-eval", *TRITON):
            return  # has flags of its own, which the table does not hold
        for verdict in judged_flags(self._line.program, places, self._version, self._line.subcommand):
            self._facts.add("runtime.unknown_keys", verdict.words, places[verdict.key])

    def _judge_value(self, given: Given, flag: Flag) -> None:
        """Put a value that a flag lacks, or does not take; the values of options are judged with those of the file."""
        option = table().option.get(flag.option)
        if lacks_value(given, flag):
            reason = "needs a value"
        elif option is None or not option.values:
            reason = wrong_choice(flag, given.value, self._version)
        else:
            return
        if reason:
            words = f"{given.name} {given.value or ''}".rstrip() if reason != "needs a value" else given.name
            self._facts.add("runtime.invalid_values", f"{words}: {reason}", self._place(given))

    def _put_paths(self) -> None:
        """Put the paths of the command that are not there; those the text speaks of elsewhere may be made by it."""
        config = self._line.first("config")
        named = named_in(self._facts)
        if config is not None and self._is_on_disk(config):
            named.append(Named(str(config.value), config.name, self._place(config)))
        for named_path in [candidate for candidate in named if self._is_made(candidate.path)]:
            named.remove(named_path)
            self._unread.append(
                f"{named_path.where}: {named_path.path} is not there yet; the script may write it"
            )
        if self.around is not None and self.around.is_container:
            named = self._outside_container(named)
        self._unread += put_absent(self._host, self._facts, named, self._where)
        put_draft(self._host, self._facts, self._where)

    def _outside_container(self, named: list[Named]) -> list[Named]:
        """Return the paths that lie on this machine; of the others only those in a mounted folder can be missing."""
        mounted = tuple(f"{folder.rstrip('/')}/" for folder in self.around.here) if self.around else ()
        for named_path in named:
            if existing(self._host, named_path.path, self._where) is not None:
                continue
            if named_path.path.startswith(mounted or ("\0",)):
                self._facts.add(
                    "runtime.paths_missing", f"{named_path.path} ({named_path.role})", named_path.where
                )
            else:
                self._unread.append(f"{named_path.where}: {named_path.path} lies in the container")
        return [
            named_path
            for named_path in named
            if existing(self._host, named_path.path, self._where) is not None
        ]

    def _is_on_disk(self, given: Given) -> bool:
        name = given.value or "-"
        return given.is_known and not name.startswith("-") and name not in self._script.files

    def _is_made(self, path: str) -> bool:
        """Return whether the text speaks of a path outside this command line: what stands there may make it."""
        if existing(self._host, path, self._where) is not None:
            return False
        own_words = [
            *(given_flag.value for given_flag in self._line.given),
            *(word.text for word in self._line.arguments),
        ]
        spoken = re.findall(re.escape(path) + r"(?![\w./-])", self.text)
        return len(spoken) > own_words.count(path)

    def _put_triton_ranks(self) -> None:
        """Put how many ranks Triton is started with; an orchestrator starts the others by itself."""
        for given_flag in self._line.given:
            if given_flag.name in ("--world_size", "--world-size") and given_flag.is_known:
                self._facts.put(
                    "runtime.world_size", coerced("int", given_flag.value), self._place(given_flag)
                )
        if "TRTLLM_ORCHESTRATOR" in self.text:
            self._facts.put("runtime.orchestrated", True, self._where)

    def _put_build_flags(self) -> None:
        for given_flag in self._line.given:
            name = CONFIG_KEYS.trtllm_build.get(given_flag.name)
            if name and given_flag.is_known:
                kind = "bool" if given_flag.value is None else "int"
                value = True if given_flag.value is None else coerced(kind, given_flag.value)
                self._facts.put(name, value, self._place(given_flag))

    def _put_options(self) -> None:
        """Put the options of the command line and its YAML file, each from the side that wins."""
        flags = {setting.key: setting for setting in self._line.settings(self._where)}
        if self._line.arguments and "model" not in flags and self._line.program == "trtllm-serve":
            word = self._line.arguments[0]
            if word.is_known:
                where = f"{place_of(self._where, word.line)}: MODEL"
                flags["model"] = Setting("model", word.text, where)
        document = self._document()
        written = {} if document is None else {setting.key: setting for setting in self._written(document)}
        put_settings(
            self._facts,
            Precedence(self._facts, self._version).merged(flags, written, document),
            self._version,
        )
        if document is not None:
            put_spelled(self._facts, written.values())
            backend = str(self._facts.get("runtime.backend") or "")
            put_judgement(self._facts, list(written.values()), self._version, backend)
            _put_duplicates(self._facts, document)

    def _written(self, document: Document) -> list[Setting]:
        settings = settings_from(document)
        if len(settings) > MOST_SETTINGS:
            self._unread.append(f"{document.path}: more than {MOST_SETTINGS} options; the rest was not read")
        return settings[:MOST_SETTINGS]

    def _document(self) -> Document | None:
        """Return the file of options the command names: from disk, or from the here-document that writes it."""
        config_flag = self._line.first("config")
        if config_flag is None or not config_flag.is_known or (config_flag.value or "-").startswith("-"):
            return None
        try:
            return self._read(config_flag)
        except UnreadableError as err:
            self._facts.add("unparsed", f"{config_flag.value}: {err}", self._place(config_flag))
        return None

    def _read(self, given: Given) -> Document | None:
        name = str(given.value)
        if name in self._script.files:
            text, line = self._script.files[name]
            document = parse_yaml(text.encode(), self._where)
            document.lines = {key: line + at - 1 for key, at in document.lines.items()}
            return document
        path = existing(self._host, name, self._where)
        if path is None:
            return None
        return read_json(self._host, path) if path.endswith(".json") else read_yaml(self._host, path)

    def _place(self, given: Given) -> str:
        return f"{place_of(self._where, given.line)}: {given.name}"

    def _named_paths(self) -> tuple[str, ...]:
        names = [
            given_flag.value
            for given_flag in self._line.given
            if given_flag.name in PATH_FLAGS and given_flag.is_known
        ]
        paths = (existing(self._host, name, self._where) for name in names if name)
        return tuple(path for path in paths if path)


READER = Reader(
    "llm-args",
    "options of the LLM API: a YAML or JSON file for --config (--extra_llm_api_options)",
    is_options_file,
    read_llm_args,
    by_version=True,
)
COMMAND_READER = Reader(
    "command",
    "a text or shell script with a trtllm-serve, trtllm-bench, trtllm-eval or trtllm-build command",
    is_command_file,
    read_command,
    by_version=True,
)
