"""Command lines of TensorRT-LLM's programs: the program, its flags as options, and what launches it."""

from __future__ import annotations

import posixpath
import re
import shlex
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.formats.shell import ShellCommand, ShellScript, ShellWord, parse_shell
from trtdx.inspect.facts.option_table import CommandFlag, option_table
from trtdx.inspect.readers.server.llm_options import OptionSetting, coerce_value

if TYPE_CHECKING:
    from collections.abc import Iterator

TRITON_PROGRAMS = (
    "launch_triton_server.py",
    "tritonserver",
)  # start a repository; their flags are not in the table
PROGRAMS = ("trtllm-serve", "trtllm-bench", "trtllm-eval", "trtllm-build", *TRITON_PROGRAMS)
PROGRAM_BY_MODULE = {f"tensorrt_llm.commands.{name[7:]}": name for name in PROGRAMS[:4]}
ENGINE_FLAGS = ("--engine_dir", "--engine-dir", "--engine_path", "--decoder_engine_dir")
LAUNCHERS = ("mpirun", "mpiexec", "srun", "torchrun", "trtllm-llmapi-launch")
# What may stand before a program that is started; other words only speak of it.
STARTERS = re.compile(
    r"mpirun|mpiexec|srun|torchrun|env|sudo|nohup|exec|time|timeout|numactl|taskset|nice|setsid|nsys|ncu|python[\d.]*|docker"
    r"|podman|nerdctl|kubectl|enroot|singularity|apptainer|tini|dumb-init|catatonit|gosu|su-exec|stdbuf|ionice|chrt"
    r"|uv|poetry|conda|micromamba|(?:ba|z|da)?sh|trtllm-llmapi-launch|\$|!|if|.*\.sh|tmux|screen|su|runuser|eval|script"
    r"|unbuffer|bindpcie"
)
TEXT_STARTERS = ("tmux", "screen", "eval")  # take a whole command line as one word, without -c
# Flags whose value may be named after a program.
NAMING_FLAGS = (
    "--name",
    "--container-name",
    "--hostname",
    "--label",
    "-l",
    "--entrypoint",
    "--job-name",
    "-J",
)
SUBCOMMANDS = {
    "trtllm-serve": (
        "serve",
        "disaggregated",
        "disaggregated_mpi_worker",
        "mm_embedding_serve",
        "embeddings",
    ),
    "trtllm-bench": ("throughput", "latency", "build", "prepare-dataset", "visual-gen"),
}
# Subcommands with flags of their own, which the table does not hold.
SUBCOMMANDS_WITHOUT_TABLE = (*SUBCOMMANDS["trtllm-serve"][1:], "prepare-dataset", "visual-gen")


class GivenFlag(NamedTuple):
    """One flag with its value as it was written."""

    name: str
    value: str | None
    line: int
    is_known: bool


class CommandLine(NamedTuple):
    """A command line taken apart."""

    program: str
    subcommand: str
    arguments: tuple[ShellWord, ...]  # without flags and subcommand
    flags: tuple[GivenFlag, ...]
    launcher: tuple[str, ...]
    ranks: int | None
    line: int
    before: tuple[ShellWord, ...] = ()  # what stands in front of the program: launchers, docker run, assignments
    after: tuple[ShellWord, ...] = ()  # and behind it, as it stands
    program_word: str = ""  # the program as it is written

    @property
    def name(self) -> str:
        return f"{self.program} {self.subcommand}".rstrip()

    @property
    def as_pasted(self) -> str:
        """Return the command line alone, ready to be pasted: no redirections, and none of its neighbours."""
        words = (*self.before, ShellWord(self.program_word, self.line), *self.after)
        return " ".join(map(quoted_word, words))

    def settings(self, place: str) -> Iterator[OptionSetting]:
        """Yield the flags that set an option of the LLM API; a value that only the shell knows is not one."""
        for flag_use in self.flags:
            flag = option_table().flag.get(self.program, {}).get(flag_use.name)
            if flag is not None and flag.option and flag_use.is_known and not lacks_value(flag_use, flag):
                yield OptionSetting(
                    flag.option,
                    _flag_value(flag, flag_use),
                    f"{line_place(place, flag_use.line)}: {flag_use.name}",
                )

    def flag_for_option(self, option: str) -> GivenFlag | None:
        """Return the flag that sets an option, the last one where it is repeated."""
        flags = option_table().flag.get(self.program, {})
        matching = [
            flag_use for flag_use in self.flags if flag_use.name in flags and flags[flag_use.name].option == option
        ]
        return matching[-1] if matching else None


def lacks_value(given_flag: GivenFlag, flag: CommandFlag) -> bool:
    """Return whether a flag that takes a value has none: the words end, or the next flag is taken for it."""
    return flag.type != "flag" and (given_flag.value is None or given_flag.value.startswith("--"))


def line_place(place: str, line: int) -> str:
    return f"{place}:{line}" if place and not place.startswith("--") else place


def _flag_value(flag: CommandFlag, given_flag: GivenFlag) -> bool | int | float | str | None:
    if flag.type == "flag":
        return flag.means
    value: bool | int | float | str | None = coerce_value(flag.type, given_flag.value)
    return value


def command_lines(text: str, programs: tuple[str, ...] = PROGRAMS) -> tuple[list[CommandLine], ShellScript]:
    """Return the command lines of a shell text or a systemd unit that start one of the programs, and the text."""
    if re.search(r"(?m)^\[Service\]\s*$", text):
        text = re.sub(r"(?m)^Environment=", "export ", re.sub(r"(?m)^ExecStart\w*=[-@:+!]*", "", text))
    script = parse_shell(text)
    return [line for command in script.commands for line in _command_lines_in(command, programs)], script


def require_command(lines: list[CommandLine], script: ShellScript) -> None:
    """Raise where a text that is said to be a command is none: no finding about it would look like praise."""
    if script.unclosed_quote:
        raise InputError(
            f"the command has a quote ({script.unclosed_quote}) that is opened and never closed",
            fix="close it; on a command line put the whole command into the other kind of quotes",
        )
    if not lines:
        raise InputError(
            "the command starts none of the programs that trtdx knows",
            fix=f"give a whole command line (trtllm-serve MODEL --tp_size 2) of one of {', '.join(PROGRAMS)}",
        )


def _command_lines_in(command: ShellCommand, programs: tuple[str, ...]) -> Iterator[CommandLine]:
    words = command.words
    begin = _first_command_word(words)
    at = next((index for index in range(begin, len(words) - 1) if _program_at(words, index, programs)), None)
    launched = bool(STARTERS.fullmatch(posixpath.basename(words[begin].text if begin < len(words) else "")))
    if at != begin and not launched and _engine_program_index(words, begin) != begin:
        return
    if at is None:
        at = _engine_program_index(words, begin)
    if at is not None:
        name = _program_at(words, at, programs) or posixpath.basename(words[at].text)
        line = _command_line(name, words[:at], words[at + 1 :], words[at].line)
        yield line._replace(program_word=words[at].text)
        return
    for number, (before, word) in enumerate(pairwise(words)):
        is_text = re.fullmatch(r"-\w*c", before.text) or (
            posixpath.basename(words[begin].text) in TEXT_STARTERS and " " in word.text
        )
        if is_text and (mentions_program(word.text) or any(name in word.text for name in programs)):
            yield from _nested_command_lines(word, words[: number + 1], programs)


def mentions_program(text: str) -> bool:
    """Return whether a text speaks of a program that is looked at: of ours, or one that is given an engine."""
    return any(name in text for name in (*PROGRAMS, *ENGINE_FLAGS)) or any(name in text for name in PROGRAM_BY_MODULE)


def _engine_program_index(words: tuple[ShellWord, ...], begin: int) -> int | None:
    """Return where the script or binary stands that is given an engine: run.py, gptManagerBenchmark, one's own."""
    flag = next((at for at, word in enumerate(words) if word.text.partition("=")[0] in ENGINE_FLAGS), None)
    if flag is None:
        return None
    scripts = [at for at in range(begin, flag) if words[at].text.endswith(".py")]
    binaries = [at for at in range(begin, flag) if posixpath.basename(words[at].text).startswith("gpt")]
    return next(iter([*scripts, *binaries]), None)


def _nested_command_lines(
    word: ShellWord, outer: tuple[ShellWord, ...], programs: tuple[str, ...]
) -> Iterator[CommandLine]:
    """Yield the command lines inside `srun bash -c "..."`, with what launches the shell."""
    for command in parse_shell(word.text).commands:
        words = tuple(ShellWord(inner.text, word.line + inner.line - 1, inner.is_known) for inner in command.words)
        for line in _command_lines_in(ShellCommand(words, word.line), programs):
            yield line._replace(
                before=(*outer, *line.before),
                launcher=(*_launcher_names(outer), *line.launcher),
                ranks=_launched_ranks(outer, ()) if line.ranks is None else line.ranks,
            )


def _first_command_word(words: tuple[ShellWord, ...]) -> int:
    """Return the index of the first word that is no variable assignment."""
    return next((index for index, word in enumerate(words) if not re.match(r"[A-Za-z_]\w*=", word.text)), len(words))


def _program_at(words: tuple[ShellWord, ...], index: int, programs: tuple[str, ...]) -> str:
    name = posixpath.basename(words[index].text)
    if name in programs and not (index and words[index - 1].text in NAMING_FLAGS):
        return name
    return PROGRAM_BY_MODULE.get(words[index].text, "") if index and words[index - 1].text == "-m" else ""


def _command_line(program: str, before: tuple[ShellWord, ...], after: tuple[ShellWord, ...], line: int) -> CommandLine:
    flags, arguments = _split_flags(program, after)
    subcommand = ""
    if arguments and arguments[0].text in SUBCOMMANDS.get(program, ()):
        subcommand = arguments.pop(0).text
    ranks = _launched_ranks(before, after)
    return CommandLine(
        program,
        subcommand,
        tuple(arguments),
        tuple(flags),
        _launcher_names(before),
        ranks,
        line,
        before,
        after,
    )


def _launcher_names(words: tuple[ShellWord, ...]) -> tuple[str, ...]:
    return tuple(name for word in words if (name := posixpath.basename(word.text)) in LAUNCHERS)


def _split_flags(program: str, words: tuple[ShellWord, ...]) -> tuple[list[GivenFlag], list[ShellWord]]:
    flags: list[GivenFlag] = []
    arguments: list[ShellWord] = []
    for name, (word, *values) in flag_groups(program, words):
        if not name:
            arguments.append(word)
            continue
        _, equals, joined = word.text.partition("=")
        text = joined if equals else " ".join(value.text for value in values) if values else None
        flags.append(GivenFlag(name, text, word.line, all(part.is_known for part in (word, *values))))
    return flags, arguments


def flag_groups(program: str, words: tuple[ShellWord, ...]) -> Iterator[tuple[str, tuple[ShellWord, ...]]]:
    """Yield each flag's name with its word and those of its value; an argument's name is empty."""
    start = 0
    while start < len(words):
        word = words[start]
        name, equals, _ = word.text.partition("=")
        if not word.text.startswith("-") or word.text in ("-", "--"):
            name, equals = "", "="
        end = start + 1 + (0 if equals else len(flag_value_words(program, name, words[start + 1 :])))
        yield name, words[start:end]
        start = end


def quoted_word(word: ShellWord) -> str:
    """Return a word as a shell takes it; one that only the shell knows keeps its spelling."""
    return shlex.quote(word.text) if word.is_known else word.text


def flag_value_words(program: str, name: str, rest: tuple[ShellWord, ...]) -> tuple[ShellWord, ...]:
    """Return the words that are a flag's value: for an unknown flag the next word unless it is a flag itself."""
    flag = option_table().flag.get(program, {}).get(name)
    if not rest or (flag is not None and flag.type == "flag"):
        return ()
    if flag is not None and flag.many:
        end = next((index for index, word in enumerate(rest) if word.text.startswith("-")), len(rest))
        return rest[:end]
    if flag is None and rest[0].text.startswith("-"):
        return ()
    return rest[:1]


RANK_COUNT_FLAG = re.compile(r"(?:-n|-np|--np|--n|--ntasks|--nproc[_-]per[_-]node)(?:=?(\d+))?")


def _launched_ranks(before: tuple[ShellWord, ...], after: tuple[ShellWord, ...]) -> int | None:
    """Return how many processes the launcher starts; None where it does not say so in one plain number."""
    launchers = [posixpath.basename(word.text) for word in before]
    start = next((index for index, name in enumerate(launchers) if name in LAUNCHERS[:4]), None)
    if start is None or any(word.text == ":" for word in (*before, *after)):
        return None
    counts = []
    words = before[start + 1 :]
    for word, following in zip(words, (*words[1:], None), strict=True):
        count_flag = RANK_COUNT_FLAG.fullmatch(word.text)
        if count_flag is None:
            continue
        number = count_flag[1] or (following.text if following else "")
        counts.append(int(number) if number.isdecimal() and len(number) < 7 else None)
    return counts[0] if len(counts) == 1 else None
