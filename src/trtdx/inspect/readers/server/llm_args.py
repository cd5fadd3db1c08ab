"""Options of the LLM API (YAML or JSON), and command lines of trtllm-serve, -bench, -eval and -build."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from trtdx.formats.documents import Document, UnreadableError, read_file_bytes, read_json
from trtdx.formats.shell import MAX_TEXT
from trtdx.formats.yaml_documents import parse_yaml, read_yaml
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.facts.config_keys import CONFIG_KEYS
from trtdx.inspect.facts.option_table import CommandFlag, option_table
from trtdx.inspect.facts.options import judge_flags, wrong_choice_reason
from trtdx.inspect.readers import ArtifactReader, PathProbe
from trtdx.inspect.readers.server.commands import (
    PROGRAMS,
    SUBCOMMANDS_WITHOUT_TABLE,
    TRITON_PROGRAMS,
    CommandLine,
    GivenFlag,
    command_lines,
    lacks_value,
    line_place,
    mentions_program,
    require_command,
)
from trtdx.inspect.readers.server.llm_options import (
    MAX_SETTINGS,
    OptionSetting,
    coerce_value,
    put_option_facts,
    put_option_verdicts,
    put_spelled_options,
    settings_from_document,
)
from trtdx.inspect.readers.server.named_paths import (
    PATH_FLAGS,
    NamedPath,
    existing_path,
    model_paths,
    paths_in_facts,
    put_absent_paths,
    put_draft_vocab_size,
)
from trtdx.inspect.readers.server.options_file import (
    LOG_LINE,
    OPTIONS_SUFFIXES,
    TRITON_SECTION,
    is_options_file,
)
from trtdx.inspect.readers.server.precedence import OptionPrecedence
from trtdx.inspect.readers.workload.launcher import surroundings_of_command
from trtdx.inspect.readers.workload.surroundings import (
    machine_from_surroundings,
    put_surroundings_facts,
    replace_mounted_paths,
    running_release,
)

if TYPE_CHECKING:
    from trtdx.formats.shell import ShellScript
    from trtdx.host import Host
    from trtdx.inspect.readers.workload.surroundings import Surroundings

MAX_COMMANDS = 8  # commands of one text that are looked at


def read_llm_args(host: Host, path: str, version: str = "") -> Artifact:
    """Return what a file of options says."""
    facts = FactCollector()
    if version:
        facts.put("runtime.version", version, "--runtime")
    try:
        document = read_json(host, path) if path.lower().endswith(".json") else read_yaml(host, path)
    except UnreadableError as err:
        facts.add("unparsed", f"{path}: {err}", path)
        return Artifact("llm-args", path, facts.to_dict(), unread=(f"{path} {err}",))
    unread = [
        *put_options_document(facts, document, version),
        *put_absent_paths(host, facts, paths_in_facts(facts), path),
    ]
    put_draft_vocab_size(host, facts, path)
    return Artifact("llm-args", path, facts.to_dict(), refers_to=model_paths(host, facts, path), unread=tuple(unread))


def put_options_document(facts: FactCollector, document: Document, version: str) -> tuple[str, ...]:
    """Put all that a file of options says; return what was left out."""
    settings = settings_from_document(document, skip=(TRITON_SECTION,))
    settings_read = settings[:MAX_SETTINGS]
    put_option_facts(facts, settings_read, version)
    put_spelled_options(facts, settings_read)
    put_option_verdicts(facts, settings_read, version, str(facts.get("runtime.backend") or ""))
    facts.put(
        "triton.decoupled",
        document.value_at(f"{TRITON_SECTION}.decoupled"),
        document.place_of(TRITON_SECTION),
    )
    _put_duplicate_keys(facts, document)
    return () if len(settings_read) == len(settings) else (f"more than {MAX_SETTINGS} options; the rest was not read",)


def _put_duplicate_keys(facts: FactCollector, document: Document) -> None:
    for duplicate in getattr(document, "duplicates", ())[:50]:
        facts.add("runtime.duplicate_keys", duplicate.partition(": ")[2], duplicate)


def is_command_file(host: Host, probe: PathProbe) -> bool:
    """Return whether a text starts one of TensorRT-LLM's programs."""
    if probe.is_directory or b"\0" in probe.start or probe.path.lower().endswith(OPTIONS_SUFFIXES):
        return False
    text = probe.start.decode("utf-8", "replace")
    if len(LOG_LINE.findall(text)) > 2:
        return False
    return mentions_program(text) and bool(command_lines(text)[0])


def read_command_file(host: Host, path: str, version: str = "") -> Artifact:
    """Return what the command line in a shell script or a text file asks for."""
    try:
        text = read_file_bytes(host, path, MAX_TEXT).decode("utf-8", "replace")
    except UnreadableError as err:
        return Artifact("command", path, unread=(f"{path} {err}",))
    return command_from_text(host, text, path, version=version)


def command_from_text(
    host: Host, text: str, where: str, *, version: str = "", surroundings: Surroundings | None = None
) -> Artifact:
    """Return what a command line asks for, with the YAML file it names, as a release merges the two.

    What it runs in is given as `around`, or is read from `docker run`, srun and #SBATCH in the text.
    """
    lines, script = command_lines(text)
    if where == "--command":
        require_command(lines, script)
    if not lines:
        programs = ", ".join(PROGRAMS)
        return Artifact("command", where, unread=(f"{where}: starts none of {programs}",))
    order = sorted(range(len(lines)), key=lambda at: lines[at].program == "trtllm-build")
    commands = [_command_at(host, at, text, where, version, surroundings) for at in order[:MAX_COMMANDS]]
    if len(commands) == 1:
        return commands[0]
    commands = [
        _command_in_unit(command, f"line {lines[at].line}") for command, at in zip(commands, order, strict=False)
    ]
    left = [f"line {lines[at].line}: {lines[at].name} was not looked at" for at in order[MAX_COMMANDS:]]
    first, *rest = commands
    parts = [part for command in rest for part in (msgspec.structs.replace(command, parts=()), *command.parts)]
    return msgspec.structs.replace(first, parts=(*first.parts, *parts), unread=(*first.unread, *left))


def _command_in_unit(command: Artifact, line: str) -> Artifact:
    """Return one of several commands of a text, which are not held against each other."""
    unit = f"{command.unit}, {line}" if command.unit else line
    parts = tuple(msgspec.structs.replace(part, unit=unit) for part in command.parts)
    return msgspec.structs.replace(command, unit=unit, parts=parts)


def _command_at(
    host: Host, index: int, text: str, where: str, version: str, surroundings: Surroundings | None
) -> Artifact:
    """Return what one of the command lines of a text asks for, in its container or job."""
    lines, script = command_lines(text)
    line = lines[index]
    if surroundings is None:
        surroundings = surroundings_of_command(line, text, line_place(where, line.line))
        moved, here = replace_mounted_paths(host, text, surroundings.mounts if surroundings else [])
        if surroundings is not None and moved != text:
            surroundings.mounted_folders = here
            return _command_at(host, index, moved, where, version, surroundings)
    if surroundings is not None:
        script = script._replace(files={**surroundings.files, **script.files})
        version = version or running_release(surroundings)
    return command_from_line(host, line, script, where, version=version, text=text, surroundings=surroundings)


def command_from_line(
    host: Host,
    line: CommandLine,
    script: ShellScript,
    where: str,
    *,
    version: str = "",
    text: str = "",
    surroundings: Surroundings | None = None,
) -> Artifact:
    """Return what one command line of a script asks for."""
    reading = _CommandReading(host, where, line, script, version)
    reading.text, reading.surroundings = text, surroundings
    return reading.build_artifact()


class _CommandReading:
    """One command line on its way to an artifact."""

    def __init__(self, host: Host, where: str, line: CommandLine, script: ShellScript, version: str) -> None:
        self._host, self._where, self._line, self._script = host, where, line, script
        self._version = version
        self._facts = FactCollector()
        self._unread: list[str] = []
        self.text = ""
        self.surroundings: Surroundings | None = None

    def build_artifact(self) -> Artifact:
        line, facts = self._line, self._facts
        if self._version:
            image = self.surroundings and (self.surroundings.release or self.surroundings.image)
            facts.put("runtime.version", self._version, image.where if image else "--runtime")
        place = line_place(self._where, line.line)
        facts.put("runtime.command", line.name, place)
        facts.put("runtime.launcher", " ".join(line.launcher) or None, place)
        facts.put("runtime.world_size", line.ranks, place)
        if self.surroundings is not None:
            put_surroundings_facts(facts, self.surroundings, place)
            if line.ranks is None and self.surroundings.tasks is not None:
                facts.put("runtime.world_size", self.surroundings.tasks.value, self.surroundings.tasks.where)
        self._put_flag_facts()
        if line.program == "trtllm-build":
            self._put_build_flags()
        elif line.program in TRITON_PROGRAMS:
            self._put_triton_ranks()
        else:
            self._put_merged_options()
            self._put_missing_paths()
        paths = model_paths(self._host, facts, self._where) + self._paths_of_flags()
        machine = machine_from_surroundings(self.surroundings, facts) if self.surroundings is not None else None
        return Artifact(
            "command",
            self._where,
            facts.to_dict(),
            refers_to=paths,
            unread=tuple(self._unread),
            command_text=" ".join(self.text.split()) if self._where == "--command" else line.as_pasted,
            parts=(machine,) if machine else (),
            unit=self.surroundings.unit if self.surroundings is not None else "",
        )

    def _put_flag_facts(self) -> None:
        """Put each flag as it is spelled, and those the program does not have."""
        places = {given_flag.name: self._flag_place(given_flag) for given_flag in self._line.flags}
        for given_flag in self._line.flags:
            if not given_flag.is_known:
                self._unread.append(
                    f"{self._flag_place(given_flag)}: the value {given_flag.value} is only known to the shell"
                )
                if given_flag.name in (
                    "--host",
                    "--port",
                ):  # that they are given counts, whatever their value
                    self._facts.put(f"option.{given_flag.name}", given_flag.value, self._flag_place(given_flag))
                continue
            flag = option_table().flag.get(self._line.program, {}).get(given_flag.name)
            value = True if given_flag.value is None else coerce_value(flag.type if flag else "str", given_flag.value)
            self._facts.put(f"option.{given_flag.name}", value, self._flag_place(given_flag))
            if flag is not None:
                self._judge_value(given_flag, flag)
        if self._line.subcommand in SUBCOMMANDS_WITHOUT_TABLE or self._line.program in (
            "trtllm-eval",
            *TRITON_PROGRAMS,
        ):
            return  # has flags of its own, which the table does not hold
        for verdict in judge_flags(self._line.program, places, self._version, self._line.subcommand):
            self._facts.add("runtime.unknown_keys", verdict.words, places[verdict.key])

    def _judge_value(self, given_flag: GivenFlag, flag: CommandFlag) -> None:
        """Put a value that a flag lacks, or does not take; the values of options are judged with those of the file."""
        option = option_table().option.get(flag.option)
        if lacks_value(given_flag, flag):
            reason = "needs a value"
        elif option is None or not option.values:
            reason = wrong_choice_reason(flag, given_flag.value, self._version)
        else:
            return
        if reason:
            words = (
                f"{given_flag.name} {given_flag.value or ''}".rstrip() if reason != "needs a value" else given_flag.name
            )
            self._facts.add("runtime.invalid_values", f"{words}: {reason}", self._flag_place(given_flag))

    def _put_missing_paths(self) -> None:
        """Put the paths of the command that are not there; those the text speaks of elsewhere may be made by it."""
        config = self._line.flag_for_option("config")
        named = paths_in_facts(self._facts)
        if config is not None and self._is_on_disk(config):
            named.append(NamedPath(str(config.value), config.name, self._flag_place(config)))
        for named_path in [candidate for candidate in named if self._may_be_written_by_script(candidate.path)]:
            named.remove(named_path)
            self._unread.append(f"{named_path.where}: {named_path.path} is not there yet; the script may write it")
        if self.surroundings is not None and self.surroundings.is_container:
            named = self._paths_on_this_machine(named)
        self._unread += put_absent_paths(self._host, self._facts, named, self._where)
        put_draft_vocab_size(self._host, self._facts, self._where)

    def _paths_on_this_machine(self, named: list[NamedPath]) -> list[NamedPath]:
        """Return the paths that lie on this machine; of the others only those in a mounted folder can be missing."""
        mounted = (
            tuple(f"{folder.rstrip('/')}/" for folder in self.surroundings.mounted_folders) if self.surroundings else ()
        )
        for named_path in named:
            if existing_path(self._host, named_path.path, self._where) is not None:
                continue
            if named_path.path.startswith(mounted or ("\0",)):
                self._facts.add("runtime.paths_missing", f"{named_path.path} ({named_path.role})", named_path.where)
            else:
                self._unread.append(f"{named_path.where}: {named_path.path} lies in the container")
        return [
            named_path for named_path in named if existing_path(self._host, named_path.path, self._where) is not None
        ]

    def _is_on_disk(self, given_flag: GivenFlag) -> bool:
        name = given_flag.value or "-"
        return given_flag.is_known and not name.startswith("-") and name not in self._script.files

    def _may_be_written_by_script(self, path: str) -> bool:
        """Return whether the text speaks of a path outside this command line: what stands there may make it."""
        if existing_path(self._host, path, self._where) is not None:
            return False
        own_words = [
            *(given_flag.value for given_flag in self._line.flags),
            *(word.text for word in self._line.arguments),
        ]
        spoken = re.findall(re.escape(path) + r"(?![\w./-])", self.text)
        return len(spoken) > own_words.count(path)

    def _put_triton_ranks(self) -> None:
        """Put how many ranks Triton is started with; an orchestrator starts the others by itself."""
        for given_flag in self._line.flags:
            if given_flag.name in ("--world_size", "--world-size") and given_flag.is_known:
                self._facts.put(
                    "runtime.world_size", coerce_value("int", given_flag.value), self._flag_place(given_flag)
                )
        if "TRTLLM_ORCHESTRATOR" in self.text:
            self._facts.put("runtime.orchestrated", True, self._where)

    def _put_build_flags(self) -> None:
        for given_flag in self._line.flags:
            name = CONFIG_KEYS.trtllm_build.get(given_flag.name)
            if name and given_flag.is_known:
                kind = "bool" if given_flag.value is None else "int"
                value = True if given_flag.value is None else coerce_value(kind, given_flag.value)
                self._facts.put(name, value, self._flag_place(given_flag))

    def _put_merged_options(self) -> None:
        """Put the options of the command line and its YAML file, each from the side that wins."""
        flags = {setting.key: setting for setting in self._line.settings(self._where)}
        if self._line.arguments and "model" not in flags and self._line.program == "trtllm-serve":
            word = self._line.arguments[0]
            if word.is_known:
                where = f"{line_place(self._where, word.line)}: MODEL"
                flags["model"] = OptionSetting("model", word.text, where)
        document = self._options_document()
        written = {} if document is None else {setting.key: setting for setting in self._settings_of_file(document)}
        put_option_facts(
            self._facts,
            OptionPrecedence(self._facts, self._version).merge_settings(flags, written, document),
            self._version,
        )
        if document is not None:
            put_spelled_options(self._facts, written.values())
            backend = str(self._facts.get("runtime.backend") or "")
            put_option_verdicts(self._facts, list(written.values()), self._version, backend)
            _put_duplicate_keys(self._facts, document)

    def _settings_of_file(self, document: Document) -> list[OptionSetting]:
        settings = settings_from_document(document)
        if len(settings) > MAX_SETTINGS:
            self._unread.append(f"{document.path}: more than {MAX_SETTINGS} options; the rest was not read")
        return settings[:MAX_SETTINGS]

    def _options_document(self) -> Document | None:
        """Return the file of options the command names: from disk, or from the here-document that writes it."""
        config_flag = self._line.flag_for_option("config")
        if config_flag is None or not config_flag.is_known or (config_flag.value or "-").startswith("-"):
            return None
        try:
            return self._read_options(config_flag)
        except UnreadableError as err:
            self._facts.add("unparsed", f"{config_flag.value}: {err}", self._flag_place(config_flag))
        return None

    def _read_options(self, given_flag: GivenFlag) -> Document | None:
        name = str(given_flag.value)
        if name in self._script.files:
            text, line = self._script.files[name]
            document = parse_yaml(text.encode(), self._where)
            document.lines = {key: line + at - 1 for key, at in document.lines.items()}
            return document
        path = existing_path(self._host, name, self._where)
        if path is None:
            return None
        return read_json(self._host, path) if path.endswith(".json") else read_yaml(self._host, path)

    def _flag_place(self, given_flag: GivenFlag) -> str:
        return f"{line_place(self._where, given_flag.line)}: {given_flag.name}"

    def _paths_of_flags(self) -> tuple[str, ...]:
        names = [flag.value for flag in self._line.flags if flag.name in PATH_FLAGS and flag.is_known]
        paths = (existing_path(self._host, name, self._where) for name in names if name)
        return tuple(path for path in paths if path)


READER = ArtifactReader(
    "llm-args",
    "options of the LLM API: a YAML or JSON file for --config (--extra_llm_api_options)",
    is_options_file,
    read_llm_args,
    takes_version=True,
)
COMMAND_READER = ArtifactReader(
    "command",
    "a text or shell script with a trtllm-serve, trtllm-bench, trtllm-eval or trtllm-build command",
    is_command_file,
    read_command_file,
    takes_version=True,
)
