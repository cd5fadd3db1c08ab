"""Writes the user's commands with a change in them, then reads and plans them again before they are advised."""

from __future__ import annotations

import copy
import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from trtdx.errors import TrtdxError
from trtdx.formats.documents import UnreadableError, read_json
from trtdx.formats.yaml_documents import parse_yaml, read_yaml
from trtdx.inspect.facts.artifact import Artifact
from trtdx.inspect.readers.server.command_text import CommandText
from trtdx.inspect.readers.server.commands import command_lines
from trtdx.memory.advice.checkpoint_command import UnwritableError
from trtdx.memory.advice.recipe import Recipe, Written
from trtdx.memory.question.gpu_support import must_be_told
from trtdx.memory.question.scripts import (
    BUILDER,
    INPUTS,
    KNOWN,
    OF_CHECKPOINTS,
    OLD_BUILDER,
    OUTPUTS,
    TEMPLATE,
    own_facts,
)
from trtdx.memory.question.setup import setup_from
from trtdx.memory.question.setup_facts import CONVERTED, STARTED, differences, facts_of, stages_of
from trtdx.model import Stage

if TYPE_CHECKING:
    from trtdx.formats.shell import Script
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Fact
    from trtdx.inspect.readers.server.commands import CommandLine
    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.nouns import Ledger, Setup
    from trtdx.memory.question.setup import Answer, Asked

STAGES = list(Stage)
# Facts that a question may state and that no command of TensorRT-LLM says: they stay flags of trtdx.
ONLY_ASKED = ("option.other_processes", "quant.group_size", "world_size", "logits_dtype", "runtime.backend")
SHORT_NAMES = {"W4A16_AWQ": "AWQ", "W8A16": "INT8", "W4A16": "INT4"}
FORMAT_AT_THE_END = re.compile(r"[-_](?:fp8|nvfp4|fp4|awq|gptq|int4|int8|bf16|fp16)$", re.IGNORECASE)
UNQUANTISED = "BF16_MODEL"  # where the model at hand is quantised already


class Question(NamedTuple):
    """A request, its resolved set-up, and the function that plans it."""

    host: Host
    asked: Asked
    answer: Answer
    planner: Planner


class Advised(NamedTuple):
    """Commands that were read back and planned."""

    commands: tuple[Written, ...]  # from the first stage that has to be gone through again
    whole: str  # all stages, as --command takes them
    setup: Setup
    ledger: Ledger
    verify: str


def advised(question: Question, after: Setup) -> Advised | None:
    """Return the commands that make a set-up of the one that was asked about; None where none does.

    They are read by the code that reads a user's command. Where a default would come out otherwise than it is
    meant, it is written out.
    """
    meant = facts_of(after)
    changes = differences(facts_of(question.answer.setup), meant)
    try:
        recipe, rest = _recipe(question, changes)
        for _ in range(3):
            written = recipe.written()
            again = _asked_again(question, after, written, rest)
            setup = setup_from(question.host, again).setup
            setup = replace(setup, activation=after.activation)
            wrong = differences(facts_of(setup), meant)
            ledger = question.planner(setup)
            if not wrong or (not wrong.keys() & changes.keys() and _does(ledger, question.planner(after))):
                break
            for name, value in wrong.items():
                recipe.put(name, value)
    except (UnwritableError, TrtdxError):
        return None
    if wrong.keys() & changes.keys() or not _is_whole(question, again, rest, setup):
        return None
    stages = stages_of(question.answer.setup, changes)
    if Stage.BUILD in stages and recipe.states_conversion:  # the checkpoint is nobody's yet
        stages |= {Stage.CONVERT}
    commands = _from_first(written, stages, frozenset(recipe.own))
    return Advised(commands, _script(written), setup, ledger, _verify(again))


def _is_whole(question: Question, again: Asked, rest: dict[str, Fact], meant: Setup) -> bool:
    """Return whether the commands say all that matters: what only trtdx can be told must not change the set-up."""
    trtdx_only = {name: fact for name, fact in rest.items() if name in ONLY_ASKED}
    if trtdx_only == rest:
        return True
    alone = replace(again, flags=Artifact("command", "the command line", trtdx_only))
    return not differences(facts_of(setup_from(question.host, alone).setup), facts_of(meant))


def _does(ledger: Ledger, promised: Ledger) -> bool:
    """Return whether a plan is as good as the one that was promised: a limit that follows from others may differ."""
    enough = ledger.kv_tokens.value >= promised.kv_tokens.value
    return enough and ledger.worst.short_bytes <= promised.worst.short_bytes


def _from_first(
    written: list[Written], stages: frozenset[Stage], own: frozenset[Stage]
) -> tuple[Written, ...]:
    """Return the commands that have to be run again, and those that the user gave with them."""
    if not stages:
        return ()
    first = min(map(STAGES.index, stages))
    again = {stage for stage in STAGES[first:] if stage is not Stage.LAUNCH or Stage.LAUNCH in stages}
    return tuple(command for command in written if command.stage in again | own) or tuple(written[-1:])


def _script(written: list[Written]) -> str:
    return " && ".join(command.text for command in written)


def _recipe(question: Question, changes: dict[str, Any]) -> tuple[Recipe, dict[str, Fact]]:
    """Return the commands that the question amounts to with changes, and what only trtdx can be told."""
    setup, request = question.answer.setup, question.asked
    recipe = Recipe(
        backend=setup.running.backend,
        release=setup.running.version,
        model=_served(question),
        dtype=setup.formats.dtype,
    )
    _take_files(recipe, question)
    stated = {name: fact for name, fact in request.flags.facts.items() if name not in ONLY_ASKED}
    rest = {name: fact for name, fact in request.flags.facts.items() if name in ONLY_ASKED}
    for text in request.commands:
        _take_commands(recipe, question.host, text)
    if setup.said.get("tp") == "--gpu":
        recipe.put("tp_size", setup.layout.tp)
    if "dtype" in stated and setup.said.get("weights") == "--dtype":
        recipe.put("quant.algo", setup.formats.weights)
        stated.pop("dtype")
    for name, fact in stated.items():
        if _is_writable(recipe, name, fact.value):
            recipe.put(name, fact.value)
        else:
            rest[name] = fact
    _name_folders(recipe, question, changes)
    for name, value in changes.items():
        rest.pop(name, None)
        recipe.put(name, value)
    if recipe.engine and must_be_told(setup):
        recipe.put("plugin.context_fmha", False)
    if changes.get("runtime.chunked_context") and recipe.engine and not recipe.pages_context:
        recipe.put("plugin.use_paged_context_fmha", True)
    return recipe, rest


def _is_writable(recipe: Recipe, name: str, value: Any) -> bool:
    trial = copy.deepcopy(recipe)
    trial.put(name, value)
    try:
        trial.written()
    except UnwritableError:
        return False
    return True


def _served(question: Question) -> str:
    """Return the model's name on a command line."""
    model = question.answer.model
    if not (question.asked.model or question.asked.commands or question.asked.options):
        return "MODEL"
    name = model.name.removesuffix("/config.json").removesuffix("config.json")
    return "MODEL" if not name or name.endswith(".json") or " " in name else name


def _name_folders(recipe: Recipe, question: Question, changes: dict[str, Any]) -> None:
    """Name what each stage makes: what the user has is not written over."""
    setup, model = question.answer.setup, question.answer.model
    kind = model.artifact.kind
    is_quantised = bool(model.artifact.text("quant.algo") or model.artifact.text("quant.method"))
    stages = stages_of(setup, changes)
    if recipe.engine:
        if kind in ("checkpoint", "engine"):
            _take_artifact(recipe, question, kind, stages)
        if Stage.CONVERT in stages:
            recipe.is_converted = False
            recipe.checkpoint += "" if recipe.checkpoint == "CKPT" else ".new"
        if stages & {Stage.CONVERT, Stage.BUILD} and recipe.built != "ENGINE":
            recipe.built += ".new"
        return
    stated_algo = question.asked.flags.facts.get("quant.algo")
    if stated_algo and model.artifact.text("quant.algo") == setup.formats.weights:
        recipe.put("quant.algo", None)  # it is so already
        stated_algo = None
    form = changes.get("quant.algo") or (setup.formats.weights if stated_algo else None)
    if form:
        recipe.source = _unquantised_name(question.host, recipe.model) if is_quantised else recipe.model
        recipe.model = _quantised_name(question.host, recipe.model, form)


def _take_artifact(recipe: Recipe, question: Question, kind: str, stages: frozenset[Stage]) -> None:
    """Take what a checkpoint or an engine was made with, where it has to be made again."""
    setup, model_path = question.answer.setup, recipe.model
    recipe.source = "MODEL"
    recipe.is_converted = True
    recipe.is_built = kind == "engine" and not stages & {Stage.CONVERT, Stage.BUILD}
    if kind == "checkpoint":
        recipe.checkpoint = model_path
    elif recipe.is_built:
        recipe.built = model_path
    for name, value in facts_of(setup).items():
        is_converted = name in CONVERTED
        if name not in STARTED and (
            (is_converted and Stage.CONVERT in stages) or (not is_converted and kind == "engine")
        ):
            recipe.put(name, value)
    if kind == "engine" and setup.limits.max_input_len:
        recipe.put("max_input_len", setup.limits.max_input_len)


def _quantised_name(host: Host, name: str, form: str) -> str:
    plain = name.rstrip("/")
    if host.kind(plain) == "absent":
        plain = plain.rpartition("/")[2]
    return f"{FORMAT_AT_THE_END.sub('', plain)}-{SHORT_NAMES.get(form, form)}"


def _unquantised_name(host: Host, name: str) -> str:
    """Return the name of a model's unquantised twin, which has to be had from somewhere."""
    is_name = host.kind(name.rstrip("/")) == "absent"
    return _quantised_name(host, name, "BF16") if is_name and name != "MODEL" else UNQUANTISED


def _take_files(recipe: Recipe, question: Question) -> None:
    """Take the options of the files that were named beside the command."""
    for path in question.asked.options:
        try:
            recipe.options |= _read_options(question.host, path)
        except UnreadableError:
            continue
        recipe.options_file = path if len(question.asked.options) == 1 else ""


def _read_options(host: Host, path: str) -> dict[str, Any]:
    return dict((read_json if path.endswith(".json") else read_yaml)(host, path).data)


def _take_commands(recipe: Recipe, host: Host, text: str) -> None:
    """Take the user's commands as they are."""
    lines, script = command_lines(text, KNOWN)
    for line in lines:
        command = CommandText.of(line)
        if line.program in (BUILDER, OLD_BUILDER):
            recipe.own[Stage.BUILD] = command
            recipe.checkpoint = command.value(*INPUTS) or recipe.checkpoint
            recipe.built = command.value(*OUTPUTS) or recipe.built
            recipe.pages_context |= command.value("--use_paged_context_fmha") == "enable"
            recipe.is_converted = not any(other.program in OF_CHECKPOINTS for other in lines)
        elif line.program not in (*OF_CHECKPOINTS, TEMPLATE):
            recipe.own[Stage.LAUNCH] = command
            _take_options(recipe, host, line, script)
        else:
            _take_conversion(recipe, line, command)


def _take_conversion(recipe: Recipe, line: CommandLine, command: CommandText) -> None:
    """Take what a conversion, or Triton's template, states."""
    for name, fact in own_facts(line).items():
        recipe.put(name, fact.value)
    if line.program in OF_CHECKPOINTS:
        recipe.own[Stage.CONVERT] = command
        recipe.source = command.value(*INPUTS) or recipe.source
        recipe.checkpoint = command.value(*OUTPUTS) or recipe.checkpoint


def _take_options(recipe: Recipe, host: Host, line: CommandLine, script: Script) -> None:
    """Take what the command's own file of options says."""
    argument = line.first("config")
    if argument is None or not argument.is_known or not argument.value:
        return
    try:
        if argument.value in script.files:
            recipe.options = dict(parse_yaml(script.files[argument.value][0].encode(), argument.value).data)
        elif host.kind(argument.value) == "file":
            recipe.options, recipe.options_file = _read_options(host, argument.value), argument.value
    except UnreadableError:
        return


def _asked_again(question: Question, after: Setup, written: list[Written], rest: dict[str, Fact]) -> Asked:
    """Return the question of whoever pastes the commands."""
    request, now = question.asked, question.answer.setup.device
    gpu, memory = request.gpu, request.gpu_memory
    if after.device is not None and now is not None and after.device != now:
        gpu, memory = after.device.name, ""
    count, _, name = gpu.rpartition("x") if re.match(r"\d+\s*x", gpu) else ("", "", gpu)
    world = after.layout.world
    if name and (count or world > 1):
        gpu = f"{world}x{name.strip()}"
    model = request.model or ("" if request.dims else question.answer.model.name)
    return replace(
        request,
        model=model,
        options=(),
        commands=(_script(written),),
        flags=Artifact("command", "the command line", rest),
        gpu=gpu,
        gpu_memory=memory,
    )


def _verify(asked: Asked) -> str:
    """Return the command that plans it."""
    words = ["trtdx", "memory", *filter(None, [asked.model])]
    for flag, value in (
        ("--dims", asked.dims),
        ("--gpu", asked.gpu),
        ("--gpu-memory", asked.gpu_memory),
        ("--trtllm-version", asked.version),
    ):
        words += [flag, value] if value else []
    for fact in asked.flags.facts.values():
        words.append(fact.where)
        if fact.value is not True:
            words.append("disable" if fact.value is False else str(fact.value))
    return shlex.join([*words, "--command", asked.commands[0]])
