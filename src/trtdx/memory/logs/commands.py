"""Commands for a log's deployment: the settings that it prints, with a change in them, as its release spells them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trtdx.inspect.facts.options import judged_flags
from trtdx.inspect.readers.server.commands import command_lines
from trtdx.knowledge.versions import at_least, parsed
from trtdx.memory.advice.checkpoint_command import UnwritableError
from trtdx.memory.advice.recipe import SERVER, SERVES_SINCE, Recipe
from trtdx.memory.logs.settings import NUMBERS
from trtdx.memory.nouns import LAST_STABLE
from trtdx.memory.question.flags import FLAGS, OFF, ON
from trtdx.memory.question.scripts import BUILDER, TEMPLATE
from trtdx.model import Stage

if TYPE_CHECKING:
    from trtdx.inspect.readers.server.commands import CommandLine
    from trtdx.memory.logs.read import LogMemory
    from trtdx.model import Fix

PLACE = re.compile(r"<([A-Za-z][\w ./-]*)>")  # a shell takes it for a redirection
SERVE = "trtllm-serve MODEL"
BUILD = "trtllm-build --checkpoint_dir CKPT --output_dir ENGINE"
# The settings of a log that its commands have to repeat.
REPEATED = (
    "tp_size", "pp_size", "ep_size", "enable_attention_dp", "max_batch_size", "max_num_tokens", "max_seq_len",
    "max_input_len", "max_beam_width", "kv_cache_dtype", "enable_chunked_prefill",
    "kv_cache_free_gpu_memory_fraction", "gemm_plugin", "context_fmha", "remove_input_padding",
)  # fmt: skip


def is_engine(log: LogMemory) -> bool:
    return log.backend != "pytorch"


def limit_stage(log: LogMemory) -> Stage:
    """Return where limits are set: built into an engine, or given at the start."""
    return Stage.BUILD if is_engine(log) else Stage.SERVE


def command_with(log: LogMemory, stage: Stage, **changes: Any) -> str | None:
    """Return the command of a stage with changes, by the names of the command line; None where there is none."""
    return _command(log, stage, changes, engine=is_engine(log))


def command_of(log: LogMemory, changes: dict[str, Any], *, engine: bool) -> str | None:
    """Return the command that sets limits with changes, for a backend that is known otherwise than by the log."""
    return _command(log, Stage.BUILD if engine else Stage.SERVE, changes, engine=engine)


def _command(log: LogMemory, stage: Stage, changes: dict[str, Any], *, engine: bool) -> str | None:
    version = log.settings.get("version")
    release = version.value if version and parsed(version.value) else LAST_STABLE
    recipe = Recipe(backend="tensorrt" if engine else "pytorch", release=release, model="MODEL")
    recipe.is_converted = True
    recipe.is_built = stage is not Stage.BUILD
    for name in REPEATED:
        value = _stated(log, name)
        if value is not None and name not in changes and not (recipe.is_built and engine):
            recipe.put(FLAGS[name].fact, value)
    for name, value in changes.items():
        recipe.put(FLAGS[name].fact, value)
    try:
        lines = [line.text for line in recipe.written()]
    except UnwritableError:
        return None
    return "\n".join(lines) or None


def pasteable(log: LogMemory, fix: Fix, model: str = "MODEL", *, own: bool = False) -> Fix:
    """Return a fix with words that a shell takes, and without a command that the log's release does not have.

    A page's command gets the settings of the log; those that were made for it have them already.
    """
    if not fix.command:
        return fix
    text = PLACE.sub(lambda found: re.sub(r"\W+", "_", found[1]).upper(), fix.command)
    release = log.settings.get("version")
    lines, _ = command_lines(text, (SERVER, BUILDER, TEMPLATE))
    if not own and len(lines) == 1 and text.startswith(SERVER) and not re.search(r"[;&|#]|\.\.\.", text):
        text = _with_settings(log, lines[0]) or ""
    is_other = log.backend == "pytorch" and any(line.program != SERVER for line in lines)
    is_available = not release or all(_has(line, release.value) for line in lines)
    command = text.replace("MODEL", model) if text and is_available and not is_other else None
    return replace(fix, command=command)


def _with_settings(log: LogMemory, line: CommandLine) -> str | None:
    """Return a page's command for the deployment at hand: its settings, and what the page changes further than they go."""
    changes: dict[str, Any] = {}
    for argument in line.given:
        name = argument.name.lstrip("-").replace("-", "_")
        if name in NUMBERS and name in FLAGS and str(argument.value).isdigit():
            value, now = int(str(argument.value)), log.number(name)
            changes[name] = _further(name, value, now) if now else value
        elif name in FLAGS and argument.value:
            changes[name] = float(argument.value) if FLAGS[name].kind == "float" else argument.value
    same = changes.get("kv_cache_free_gpu_memory_fraction") == log.fraction is not None
    return None if same else command_of(log, changes, engine=False)


def _further(name: str, value: int, now: int) -> int:
    """Return a page's number, or one on its side of what is set: more GPUs, a lower limit."""
    if name.endswith("_size") and name != "max_batch_size":
        return value if value > now else now * 2
    return value if value < now else max(1, now // 2)


def _has(line: CommandLine, release: str) -> bool:
    """Return whether a release has a program, and all the flags it is given."""
    if line.program == SERVER and not at_least(release, SERVES_SINCE):
        return False
    return not any(
        judged_flags(line.program, [argument.name for argument in line.given], release, line.subcommand)
    )


def _stated(log: LogMemory, name: str) -> Any:
    setting = log.settings.get(name)
    if setting is None:
        return None
    text = setting.value.lower()
    if name in NUMBERS:
        value = int(text)
        return (
            None if value == 1 and name.endswith(("_size", "_width")) and name != "max_batch_size" else value
        )
    if name.endswith("fraction"):
        return float(text)
    if FLAGS[name].kind == "switch":
        return True if text in ON else None
    return None if text in (*OFF, "auto") else text
