"""Commands for a log's deployment: the settings that it prints, with a change in them, as its release spells them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trtdx.inspect.facts.options import judge_flags
from trtdx.inspect.readers.server.commands import command_lines
from trtdx.knowledge.versions import at_least, parse_release
from trtdx.memory.advice.checkpoint_command import UnwritableError
from trtdx.memory.advice.recipe import SERVE_PROGRAM, SERVES_SINCE, DeploymentRecipe
from trtdx.memory.logs.settings import NUMBER_SETTINGS
from trtdx.memory.nouns import LAST_STABLE_RELEASE
from trtdx.memory.question.flags import MEMORY_FLAGS, SWITCH_OFF_WORDS, SWITCH_ON_WORDS
from trtdx.memory.question.scripts import BUILDER, TEMPLATE
from trtdx.model import Stage

if TYPE_CHECKING:
    from trtdx.inspect.readers.server.commands import CommandLine
    from trtdx.memory.logs.read import LogMemory
    from trtdx.model import Fix

PLACEHOLDER = re.compile(r"<([A-Za-z][\w ./-]*)>")  # a shell takes it for a redirection
SERVE_COMMAND = "trtllm-serve MODEL"
BUILD_COMMAND = "trtllm-build --checkpoint_dir CKPT --output_dir ENGINE"
# The settings of a log that its commands have to repeat.
REPEATED_SETTINGS = (
    "tp_size", "pp_size", "ep_size", "enable_attention_dp", "max_batch_size", "max_num_tokens", "max_seq_len",
    "max_input_len", "max_beam_width", "kv_cache_dtype", "enable_chunked_prefill",
    "kv_cache_free_gpu_memory_fraction", "gemm_plugin", "context_fmha", "remove_input_padding",
)  # fmt: skip


def is_engine_log(log: LogMemory) -> bool:
    return log.backend != "pytorch"


def limit_stage(log: LogMemory) -> Stage:
    """Return where limits are set: built into an engine, or given at the start."""
    return Stage.BUILD if is_engine_log(log) else Stage.SERVE


def command_with(log: LogMemory, stage: Stage, **changes: Any) -> str | None:
    """Return the command of a stage with changes, by the names of the command line; None where there is none."""
    return _write_command(log, stage, changes, engine=is_engine_log(log))


def limits_command(log: LogMemory, changes: dict[str, Any], *, engine: bool) -> str | None:
    """Return the command that sets limits with changes, for a backend that is known otherwise than by the log."""
    return _write_command(log, Stage.BUILD if engine else Stage.SERVE, changes, engine=engine)


def _write_command(log: LogMemory, stage: Stage, changes: dict[str, Any], *, engine: bool) -> str | None:
    version = log.settings.get("version")
    release = version.value if version and parse_release(version.value) else LAST_STABLE_RELEASE
    recipe = DeploymentRecipe(backend="tensorrt" if engine else "pytorch", release=release, model="MODEL")
    recipe.is_converted = True
    recipe.is_built = stage is not Stage.BUILD
    for name in REPEATED_SETTINGS:
        value = _stated_value(log, name)
        if value is not None and name not in changes and not (recipe.is_built and engine):
            recipe.put_fact(MEMORY_FLAGS[name].fact, value)
    for name, value in changes.items():
        recipe.put_fact(MEMORY_FLAGS[name].fact, value)
    try:
        lines = [line.text for line in recipe.write_commands()]
    except UnwritableError:
        return None
    return "\n".join(lines) or None


def make_pasteable(log: LogMemory, fix: Fix, model: str = "MODEL", *, is_own: bool = False) -> Fix:
    """Return a fix with words that a shell takes, and without a command that the log's release does not have.

    A page's command gets the settings of the log; those that were made for it have them already.
    """
    if not fix.command:
        return fix
    text = PLACEHOLDER.sub(lambda match: re.sub(r"\W+", "_", match[1]).upper(), fix.command)
    release = log.settings.get("version")
    lines, _ = command_lines(text, (SERVE_PROGRAM, BUILDER, TEMPLATE))
    if not is_own and len(lines) == 1 and text.startswith(SERVE_PROGRAM) and not re.search(r"[;&|#]|\.\.\.", text):
        text = _page_command_with_settings(log, lines[0]) or ""
    is_other = log.backend == "pytorch" and any(line.program != SERVE_PROGRAM for line in lines)
    is_available = not release or all(_has_program(line, release.value) for line in lines)
    command = text.replace("MODEL", model) if text and is_available and not is_other else None
    return replace(fix, command=command)


def _page_command_with_settings(log: LogMemory, line: CommandLine) -> str | None:
    """Return a page's command for the deployment at hand: its settings, and what the page changes further than they go."""
    changes: dict[str, Any] = {}
    for argument in line.flags:
        name = argument.name.lstrip("-").replace("-", "_")
        if name in NUMBER_SETTINGS and name in MEMORY_FLAGS and str(argument.value).isdigit():
            value, now = int(str(argument.value)), log.number(name)
            changes[name] = _step_further(name, value, now) if now else value
        elif name in MEMORY_FLAGS and argument.value:
            changes[name] = float(argument.value) if MEMORY_FLAGS[name].kind == "float" else argument.value
    same = changes.get("kv_cache_free_gpu_memory_fraction") == log.fraction is not None
    return None if same else limits_command(log, changes, engine=False)


def _step_further(name: str, value: int, now: int) -> int:
    """Return a page's number, or one on its side of what is set: more GPUs, a lower limit."""
    if name.endswith("_size") and name != "max_batch_size":
        return value if value > now else now * 2
    return value if value < now else max(1, now // 2)


def _has_program(line: CommandLine, release: str) -> bool:
    """Return whether a release has a program, and all the flags it is given."""
    if line.program == SERVE_PROGRAM and not at_least(release, SERVES_SINCE):
        return False
    return not any(judge_flags(line.program, [argument.name for argument in line.flags], release, line.subcommand))


def _stated_value(log: LogMemory, name: str) -> Any:
    setting = log.settings.get(name)
    if setting is None:
        return None
    text = setting.value.lower()
    if name in NUMBER_SETTINGS:
        value = int(text)
        return None if value == 1 and name.endswith(("_size", "_width")) and name != "max_batch_size" else value
    if name.endswith("fraction"):
        return float(text)
    if MEMORY_FLAGS[name].kind == "switch":
        return True if text in SWITCH_ON_WORDS else None
    return None if text in (*SWITCH_OFF_WORDS, "auto") else text
