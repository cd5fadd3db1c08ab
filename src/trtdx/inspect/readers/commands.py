"""Command lines of TensorRT-LLM's programs: the program, its flags as options, and what launches it."""

from __future__ import annotations

import posixpath
import re
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.inspect.options import Flag, table
from trtdx.inspect.readers.llm_options import Setting, coerced
from trtdx.inspect.shell import Command, Script, Word, parse_shell

if TYPE_CHECKING:
    from collections.abc import Iterator

TRITON = ("launch_triton_server.py", "tritonserver")  # start a repository; their flags are not in the table
PROGRAMS = ("trtllm-serve", "trtllm-bench", "trtllm-eval", "trtllm-build", *TRITON)
MODULES = {f"tensorrt_llm.commands.{name[7:]}": name for name in PROGRAMS[:4]}
LAUNCHERS = ("mpirun", "mpiexec", "srun", "trtllm-llmapi-launch")
# What may stand before a program that is started; other words only speak of it.
STARTERS = re.compile(
    r"mpirun|mpiexec|srun|env|sudo|nohup|exec|time|timeout|numactl|taskset|nice|setsid|nsys|ncu|python[\d.]*|docker"
    r"|podman|nerdctl|kubectl|enroot|singularity|apptainer|(?:ba|z|da)?sh|trtllm-llmapi-launch|\$|!|if|.*\.sh"
)
# Flags whose value may be named after a program.
NAMING = ("--name", "--container-name", "--hostname", "--label", "-l", "--entrypoint", "--job-name", "-J")
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
OTHER_FLAGS = (
    "disaggregated",
    "disaggregated_mpi_worker",
    "mm_embedding_serve",
    "embeddings",
    "prepare-dataset",
    "visual-gen",
)

BUILD_FACTS = {
    "--max_batch_size": "max_batch_size",
    "--max_input_len": "max_input_len",
    "--max_seq_len": "max_seq_len",
    "--max_decoder_seq_len": "max_seq_len",
    "--max_output_len": "max_output_len",
    "--max_beam_width": "max_beam_width",
    "--max_num_tokens": "max_num_tokens",
    "--opt_num_tokens": "opt_num_tokens",
    "--max_draft_len": "max_draft_len",
    "--max_encoder_input_len": "max_encoder_input_len",
    "--max_prompt_embedding_table_size": "max_prompt_table",
    "--max_multimodal_len": "max_prompt_table",
    "--max_lora_rank": "lora.max_rank",
    "--gather_context_logits": "gather_context_logits",
    "--gather_generation_logits": "gather_generation_logits",
}


class Given(NamedTuple):
    """One flag with its value as it was written."""

    name: str
    value: str | None
    line: int
    is_known: bool


class CommandLine(NamedTuple):
    """A command line taken apart."""

    program: str
    subcommand: str
    arguments: tuple[Word, ...]  # without flags and subcommand
    given: tuple[Given, ...]
    launcher: tuple[str, ...]
    ranks: int | None
    line: int

    @property
    def name(self) -> str:
        return f"{self.program} {self.subcommand}".rstrip()

    def settings(self, place: str) -> Iterator[Setting]:
        """Yield the flags that set an option of the LLM API; a value that only the shell knows is not one."""
        for given in self.given:
            flag = table().flag.get(self.program, {}).get(given.name)
            if flag is not None and flag.option and given.is_known and not lacks_value(given, flag):
                yield Setting(
                    flag.option, _value(flag, given), f"{place_of(place, given.line)}: {given.name}"
                )

    def first(self, option: str) -> Given | None:
        """Return the flag that sets an option, the last one where it is repeated."""
        flags = table().flag.get(self.program, {})
        found = [given for given in self.given if given.name in flags and flags[given.name].option == option]
        return found[-1] if found else None


def lacks_value(given: Given, flag: Flag) -> bool:
    """Return whether a flag that takes a value has none: the words end, or the next flag is taken for it."""
    return flag.type != "flag" and (given.value is None or given.value.startswith("--"))


def place_of(place: str, line: int) -> str:
    return f"{place}:{line}" if place and not place.startswith("--") else place


def _value(flag: Flag, given: Given) -> bool | int | float | str | None:
    if flag.type == "flag":
        return flag.means
    value: bool | int | float | str | None = coerced(flag.type, given.value)
    return value


def command_lines(text: str) -> tuple[list[CommandLine], Script]:
    """Return the command lines of a shell text that start one of the programs, and the text itself."""
    script = parse_shell(text)
    return [line for command in script.commands for line in _lines_of(command)], script


def demand_command(lines: list[CommandLine], script: Script) -> None:
    """Raise where a text that is said to be a command is none: no finding about it would look like praise."""
    if script.unclosed:
        raise InputError(
            f"the command has a quote ({script.unclosed}) that is opened and never closed",
            fix="close it; on a command line put the whole command into the other kind of quotes",
        )
    if not lines:
        raise InputError(
            "the command starts none of the programs that trtdx knows",
            fix=f"give a whole command line (trtllm-serve MODEL --tp_size 2) of one of {', '.join(PROGRAMS)}",
        )


def _lines_of(command: Command) -> Iterator[CommandLine]:
    words = command.words
    begin = _first_real(words)
    at = next((index for index in range(begin, len(words) - 1) if _program(words, index)), None)
    if at != begin and not STARTERS.fullmatch(
        posixpath.basename(words[begin].text if begin < len(words) else "")
    ):
        return
    if at is not None:
        yield _command_line(_program(words, at), words[:at], words[at + 1 :], words[at].line)
        return
    for before, word in pairwise(words):
        if re.fullmatch(r"-\w*c", before.text) and any(name in word.text for name in PROGRAMS):
            yield from _inner_lines(word)


def _inner_lines(word: Word) -> Iterator[CommandLine]:
    """Yield the command lines inside `bash -c "..."`."""
    for command in parse_shell(word.text).commands:
        words = tuple(Word(each.text, word.line + each.line - 1, each.is_known) for each in command.words)
        yield from _lines_of(Command(words, word.line))


def _first_real(words: tuple[Word, ...]) -> int:
    """Return the index of the first word that is no variable assignment."""
    return next(
        (index for index, word in enumerate(words) if not re.match(r"[A-Za-z_]\w*=", word.text)), len(words)
    )


def _program(words: tuple[Word, ...], at: int) -> str:
    name = posixpath.basename(words[at].text)
    if name in PROGRAMS and not (at and words[at - 1].text in NAMING):
        return name
    return MODULES.get(words[at].text, "") if at and words[at - 1].text == "-m" else ""


def _command_line(program: str, before: tuple[Word, ...], after: tuple[Word, ...], line: int) -> CommandLine:
    given, arguments = _flags_of(program, after)
    subcommand = ""
    if arguments and arguments[0].text in SUBCOMMANDS.get(program, ()):
        subcommand = arguments.pop(0).text
    launchers = tuple(name for word in before if (name := posixpath.basename(word.text)) in LAUNCHERS)
    return CommandLine(
        program, subcommand, tuple(arguments), tuple(given), launchers, _ranks(before, after), line
    )


def _flags_of(program: str, words: tuple[Word, ...]) -> tuple[list[Given], list[Word]]:
    given: list[Given] = []
    arguments: list[Word] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.text.startswith("-") or word.text in ("-", "--"):
            arguments.append(word)
            continue
        name, equals, value = word.text.partition("=")
        if equals:
            given.append(Given(name, value, word.line, word.is_known))
            continue
        taken = _values(program, name, words[at:])
        at += len(taken)
        text = " ".join(each.text for each in taken) if taken else None
        given.append(Given(name, text, word.line, all(each.is_known for each in (word, *taken))))
    return given, arguments


def _values(program: str, name: str, rest: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return the words that are a flag's value: for an unknown flag the next word unless it is a flag itself."""
    flag = table().flag.get(program, {}).get(name)
    if not rest or (flag is not None and flag.type == "flag"):
        return ()
    if flag is not None and flag.many:
        end = next((index for index, word in enumerate(rest) if word.text.startswith("-")), len(rest))
        return rest[:end]
    if flag is None and rest[0].text.startswith("-"):
        return ()
    return rest[:1]


COUNT = re.compile(r"(?:-n|-np|--np|--n|--ntasks)(?:=?(\d+))?")


def _ranks(before: tuple[Word, ...], after: tuple[Word, ...]) -> int | None:
    """Return how many processes the launcher starts; None where it does not say so in one plain number."""
    launchers = [posixpath.basename(word.text) for word in before]
    start = next((index for index, name in enumerate(launchers) if name in LAUNCHERS[:3]), None)
    if start is None or any(word.text == ":" for word in (*before, *after)):
        return None
    counts = []
    words = before[start + 1 :]
    for word, following in zip(words, (*words[1:], None), strict=True):
        found = COUNT.fullmatch(word.text)
        if found is None:
            continue
        number = found[1] or (following.text if following else "")
        counts.append(int(number) if number.isdecimal() and len(number) < 7 else None)
    return counts[0] if len(counts) == 1 else None
