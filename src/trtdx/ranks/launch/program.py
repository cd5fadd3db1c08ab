"""What kind of program is started: one that spawns its own workers, or one that is itself a rank."""

from __future__ import annotations

import posixpath
from enum import Enum
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.ranks.launch.nouns import LaunchPart
from trtdx.ranks.launchers import launcher_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.ranks.mapping import ParallelSizes


class ProgramKind(str, Enum):
    """How a program comes by its ranks."""

    SPAWNS = "spawns its own workers"  # the LLM API: trtllm-serve, trtllm-bench, trtllm-eval, scripts
    RANKS = "is started once for each rank"  # runners of engines, tritonserver, programs of one's own with MPI


TOOLS = ("trtllm-serve", "trtllm-bench", "trtllm-eval")
ENGINE_FLAGS = ("--engine_dir", "--engine-dir")
RANK_PROGRAMS = (
    "tritonserver",
    "gptManagerBenchmark",
    "gptSessionBenchmark",
    "executorExampleAdvanced",
    "all_reduce_perf",
)
SERVER = "trtllm-serve"
DEFAULT_PORT = 8000


def program_name(command: Sequence[str]) -> str:
    """Return the program of a command, past variables and env."""
    words = [word for word in command if "=" not in word.partition("/")[0] and posixpath.basename(word) != "env"]
    return posixpath.basename(words[0]) if words else ""


def classify_program(command: Sequence[str]) -> ProgramKind:
    """Return how a command comes by its ranks.

    Raises:
        InputError: it is empty, or begins with a launcher.
    """
    if not command:
        raise InputError("name the command to be launched", fix="trtdx ranks launch --tp 4 -- trtllm-serve MODEL")
    name = program_name(command)
    if name == "trtllm-llmapi-launch" or launcher_kind([name]) != "other":
        raise InputError(
            f"the command begins with a launcher, {name}", fix="leave it away: which one is right here is the question"
        )
    flags = {word.partition("=")[0] for word in command}
    if name in TOOLS:
        return ProgramKind.SPAWNS
    if name in RANK_PROGRAMS or flags & set(ENGINE_FLAGS):
        return ProgramKind.RANKS
    return ProgramKind.SPAWNS


# A tool's names of the parallel sizes; those of its subcommands are looked up in the inventory.
SIZE_FLAGS = {
    "tp": ("--tp_size", "--tp", "--tensor_parallel_size"),
    "pp": ("--pp_size", "--pp", "--pipeline_parallel_size"),
    "cp": ("--cp_size", "--cp", "--context_parallel_size"),
    "ep": ("--ep_size", "--ep", "--moe_expert_parallel_size"),
}


def size_flags_to_add(command: Sequence[str], sizes: ParallelSizes, runtime: str) -> list[LaunchPart]:
    """Return the flags with which a tool is told the parallel sizes that its command leaves out."""
    name = program_name(command)
    if name not in TOOLS:
        return []
    stated = {word.partition("=")[0].replace("-", "_") for word in command}
    parts = []
    for size_name, size in (("tp", sizes.tp), ("pp", sizes.pp), ("cp", sizes.cp), ("ep", sizes.ep)):
        spellings = SIZE_FLAGS[size_name]
        if size < 2 or any(flag.replace("-", "_") in stated for flag in spellings):
            continue
        flag = next((flag for flag in spellings if has_flag(command, flag, runtime)), "")
        if flag:
            parts.append(
                LaunchPart((flag, str(size)), f"the program itself must know how the model is cut ({size_name} {size})")
            )
    return parts


def has_flag(command: Sequence[str], flag: str, runtime: str) -> bool:
    """Whether a tool of a release has a flag, in the subcommand that is used."""
    from trtdx.knowledge.inventory import era_of_release, find_flag, nearest_release, product_releases

    release = nearest_release(runtime) if runtime else product_releases()[-1]
    entries = find_flag(program_name(command), flag)
    words = [word for word in command if not word.startswith("-")]
    used = set(words[1:3]) | {"serve", ""}
    return any(era_of_release(entry, release) is not None for entry in entries if entry.subcommand in used)


def unstated_sizes(command: Sequence[str], sizes: ParallelSizes) -> str:
    """Return what a script of one's own has to be told in its source, or nothing."""
    if program_name(command) in TOOLS or sizes.world < 2:
        return ""
    named = (
        ("tensor_parallel_size", sizes.tp),
        ("pipeline_parallel_size", sizes.pp),
        ("context_parallel_size", sizes.cp),
    )
    words = ", ".join(f"{name}={size}" for name, size in named if size > 1)
    return f'the script has to pass {words} to LLM(...), inside `if __name__ == "__main__":`'


def server_port(command: Sequence[str]) -> int:
    """Return the port a server of the command listens on; 0 where it is none."""
    if program_name(command) != SERVER:
        return 0
    for flag, value in zip(command, [*command[1:], ""], strict=True):
        name, _, attached = flag.partition("=")
        if name == "--port" and (attached or value).isdigit():
            return int(attached or value)
    return DEFAULT_PORT


def server_host_to_add(command: Sequence[str]) -> list[LaunchPart]:
    """Return the address a server in a container must listen on to be reached from outside."""
    if program_name(command) != SERVER or any(word.partition("=")[0] == "--host" for word in command):
        return []
    return [
        LaunchPart(
            ("--host", "0.0.0.0"), "by default trtllm-serve listens on localhost, which a published port does not reach"
        )
    ]
