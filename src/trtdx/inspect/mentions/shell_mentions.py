"""The programs, flags, variables and scripts that a shell text names."""

from __future__ import annotations

import posixpath
import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from trtdx.formats.shell import ShellScript, ShellWord, parse_shell
from trtdx.inspect.mentions.nouns import TRITON_FOLDER, NameMention
from trtdx.inspect.readers.server.commands import NAMING_FLAGS, PROGRAM_BY_MODULE, STARTERS
from trtdx.knowledge.inventory import (
    SAME_PROGRAM,
    TENSORRT_LLM,
    find_flag,
    find_path,
    find_variable,
    list_paths,
    list_tool_flags,
    list_tools,
    tool_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

READ_WHOLE = ("TLLM_", "TRTLLM_", "NCCL_")  # every variable of these is read by sources that the inventory knows
# Variables of other programs, which TensorRT-LLM looks at or sets now and then: that says nothing of who else reads them.
OF_OTHERS = re.compile(
    r"(?:PYTORCH|TORCH|CUDA|OMPI|OMP|UCX|SLURM|RAY|HF|TRANSFORMERS|PMIX?|TRITON|LD|PYTHON|MASTER|LOCAL|WORLD)_"
)
# Whose flags are not all known: polygraphy makes some of computed names, the others were written down by hand.
NOT_WHOLE = ("polygraphy", "docker", "srun", "sbatch")
LAUNCHING = ("mpirun", "srun", "docker")  # what follows their own flags is another program
SUBCOMMANDS_OF_LAUNCHERS = ("run",)
DEFAULT_SUBCOMMAND = {"trtllm-serve": "serve"}
VARIABLE_FLAGS = ("-x", "-e", "--env", "--genv", "-genv")
_ASSIGNED = re.compile(r"(?<![\w${.-])([A-Z][A-Z0-9]*_[A-Z0-9_]+)=")
_EXPORTED = re.compile(
    r"(?:\bexport|\bunset|(?<!\S)-x|(?<!\S)-e|(?<!\S)--env|environ\[['\"]|getenv\(['\"])[ =]?([A-Z][A-Z0-9]*_[A-Z0-9_]+)\b"
)
_SCRIPT = re.compile(
    r"(?<![\w./-])(?:[\w./$~-]*?/)??((?:examples|benchmarks|scripts|triton_backend|all_models|tools)/[\w./-]+?\.(?:py|sh|yaml|yml))\b"
)
_FOLDER = re.compile(r"(?<![\w./-])(?:[\w./$~-]*?/)??(examples/[\w-]+(?:/[\w-]+)*)(?=[\s`'\",;:)]|/?$|/ )")


class ProgramUse(NamedTuple):
    """A program of the inventory in a command, with the words that are its own."""

    program: str
    words: tuple[ShellWord, ...]


@cache
def known_programs() -> frozenset[str]:
    return frozenset({tool.rpartition("/")[2] for tool in list_tools()} | set(SAME_PROGRAM))


def mentions_in_shell(text: str) -> Iterator[NameMention]:
    """Yield every name that a shell text uses and the inventory can judge."""
    script = parse_shell(text)
    for use in program_uses(script):
        yield from _mentions_of_use(use)
    yield from variables_in_code(text)
    yield from scripts_in_text(text)


def program_uses(script: ShellScript) -> Iterator[ProgramUse]:
    """Yield the programs that are started, launchers too; a command that only speaks of one starts none."""
    for command in script.commands:
        yield from _uses_in_words(command.words)


def _uses_in_words(words: Sequence[ShellWord]) -> Iterator[ProgramUse]:
    begin = next((at for at, word in enumerate(words) if not re.match(r"[A-Za-z_]\w*=", word.text)), len(words))
    if begin == len(words):
        return
    first = posixpath.basename(words[begin].text)
    if not (STARTERS.fullmatch(first) or first in known_programs()):
        return
    for before, word in pairwise(words[begin:]):
        if re.fullmatch(r"-\w*c", before.text) and " " in word.text and not first.startswith("python"):
            yield from program_uses(parse_shell(word.text))
    starts = [at for at in range(begin, len(words)) if _starts_program(words, at, begin)]
    for at, end in pairwise([*starts, len(words)]):
        name = words[at].text
        own = tuple(words[at + 1 : end])
        is_launcher = tool_name(name) in LAUNCHING
        yield ProgramUse(PROGRAM_BY_MODULE.get(name, name), own[: _launched_at(own)] if is_launcher else own)


def _launched_at(words: Sequence[ShellWord]) -> int:
    """Return where a launcher's own words end: at the first that is no flag and no value of one."""
    for at, word in enumerate(words):
        before = [other.text for other in words[max(0, at - 2) : at]]
        is_value = any(name.startswith("-") for name in before[-1:]) or before[:1] in (["--mca"], ["-mca"])
        if not (word.text.startswith("-") or is_value or word.text in SUBCOMMANDS_OF_LAUNCHERS):
            return at
    return len(words)


def _starts_program(words: Sequence[ShellWord], at: int, begin: int) -> bool:
    name = posixpath.basename(words[at].text)
    before = words[at - 1].text if at > begin else ""
    if name not in known_programs():
        return before == "-m" and words[at].text in PROGRAM_BY_MODULE
    if before in NAMING_FLAGS or before == "uv":
        return False  # uv's pip takes flags of its own
    return at == begin or bool(STARTERS.fullmatch(posixpath.basename(words[begin].text)))


def _mentions_of_use(use: ProgramUse) -> Iterator[NameMention]:
    flags = list_tool_flags(use.program)
    if not flags or (TRITON_FOLDER in use.program and all(flag.product != TENSORRT_LLM for flag in flags)):
        return  # nobody's, or known only of the repository that it was in before
    tool = tool_name(use.program)
    known = {flag.subcommand for flag in flags if flag.subcommand}
    chosen = [word.text for word in use.words if word.text in known][:2]  # some have subcommands of their own
    if known and not chosen and tool not in DEFAULT_SUBCOMMAND and not any(not flag.subcommand for flag in flags):
        return  # a subcommand that nobody wrote down
    if not use.program.endswith(".py") or "/" not in use.program:  # a script's path is judged as that
        yield NameMention("program", tool, use.program)
    subcommands: Sequence[str | None] = chosen or [DEFAULT_SUBCOMMAND.get(tool)]
    for name, value in _flags_in_words(use.words):
        is_judged = name.startswith("--") or (tool == "mpirun" and len(name) > 2)
        if is_judged and name not in ("--help", "--version") and (tool not in NOT_WHOLE or find_flag(tool, name)):
            having = [one for one in subcommands if find_flag(use.program, name, one)]
            yield NameMention("flag", name, use.program, next(iter(having), subcommands[0]), value)


def _flags_in_words(words: Sequence[ShellWord]) -> Iterator[tuple[str, str | None]]:
    """Yield the flags with their values as far as the text tells them; what follows a bare `--` is not ours."""
    for at, word in enumerate(words):
        if word.text == "--":
            return
        if not re.match(r"--?[A-Za-z][\w.-]*(?:=|$)", word.text) or re.match(r"--(?:\w+_)?X(?:=|$)", word.text):
            continue  # no flag, or one whose name a log is to tell
        name, equals, joined = word.text.partition("=")
        following = words[at + 1] if at + 1 < len(words) else None
        taken = following.text if following and following.is_known and not following.text.startswith("-") else None
        value = joined if equals else taken
        yield name, None if value is None or is_placeholder(value) or not word.is_known else value


def is_placeholder(value: str) -> bool:
    """Return whether a value is one that a reader is to put in: capitals, or `X` for what a log tells."""
    return bool(re.fullmatch(r"[A-Z][A-Z0-9_]*", value)) or "{" in value or "$" in value or "..." in value


def variables_in_code(text: str) -> Iterator[NameMention]:
    """Yield the environment variables that code sets or reads; names that nobody's sources are known to read are not judged."""
    for name in dict.fromkeys([*_ASSIGNED.findall(text), *_EXPORTED.findall(text)]):
        if (find_variable(name) and not OF_OTHERS.match(name)) or name.startswith(READ_WHOLE):
            yield NameMention("variable", name)


def scripts_in_text(text: str) -> Iterator[NameMention]:
    """Yield the scripts of TensorRT-LLM's repository that a text names, and the folders of examples."""
    for path in dict.fromkeys(_SCRIPT.findall(text)):
        if _is_ours(path):
            yield NameMention("path", path)
    for path in dict.fromkeys(_FOLDER.findall(text)):
        if any(name.startswith(f"{path}/") for name in list_paths()):
            yield NameMention("folder", path)


def _is_ours(path: str) -> bool:
    """Return whether a path is of TensorRT-LLM's repository: known, named like a known one, or a script below examples/."""
    if re.search(r"(?:^|/)[A-Z_]+(?:/|$)", path):
        return False  # a reader is to put a part of it in
    flags = list_tool_flags(path)
    if flags and all(flag.product != TENSORRT_LLM for flag in flags):
        return find_path(path) is not None
    return (
        (path.startswith("examples/") and path.endswith(".py"))
        or path in list_paths()
        or tool_name(path) in _script_names()
    )


@cache
def _script_names() -> frozenset[str]:
    return frozenset(map(tool_name, list_paths()))


def distinct_mentions(mentions: Iterable[NameMention]) -> tuple[NameMention, ...]:
    return tuple(dict.fromkeys(mentions))
