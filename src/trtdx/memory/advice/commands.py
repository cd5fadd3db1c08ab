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
from trtdx.inspect.readers.server.command_text import CommandEditor
from trtdx.inspect.readers.server.commands import command_lines
from trtdx.memory.advice.checkpoint_command import UnwritableError
from trtdx.memory.advice.recipe import DeploymentRecipe, StageCommand
from trtdx.memory.question.gpu_support import must_disable_fused_attention
from trtdx.memory.question.scripts import (
    BUILDER,
    CHECKPOINT_PROGRAMS,
    INPUT_FLAGS,
    KNOWN_PROGRAMS,
    OLD_BUILDER,
    OUTPUT_FLAGS,
    TEMPLATE,
    facts_from_command,
)
from trtdx.memory.question.setup import resolve_setup
from trtdx.memory.question.setup_facts import (
    CONVERT_FACTS,
    LAUNCH_FACTS,
    differing_facts,
    facts_from_setup,
    stages_to_rerun,
)
from trtdx.model import Stage

if TYPE_CHECKING:
    from trtdx.formats.shell import ShellScript
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Fact
    from trtdx.inspect.readers.server.commands import CommandLine
    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.nouns import MemoryLedger, Setup
    from trtdx.memory.question.setup import MemoryRequest, ResolvedSetup

STAGES = list(Stage)
# Facts that a question may state and that no command of TensorRT-LLM says: they stay flags of trtdx.
TRTDX_ONLY_FACTS = (
    "option.other_processes",
    "quant.group_size",
    "world_size",
    "logits_dtype",
    "runtime.backend",
)
FORMAT_SHORT_NAMES = {"W4A16_AWQ": "AWQ", "W8A16": "INT8", "W4A16": "INT4"}
FORMAT_SUFFIX = re.compile(r"[-_](?:fp8|nvfp4|fp4|awq|gptq|int4|int8|bf16|fp16)$", re.IGNORECASE)
UNQUANTISED_MODEL = "BF16_MODEL"  # where the model at hand is quantised already


class MemoryQuestion(NamedTuple):
    """A request, its resolved set-up, and the function that plans it."""

    host: Host
    request: MemoryRequest
    resolved: ResolvedSetup
    planner: Planner


class AdvisedCommands(NamedTuple):
    """Commands that were read back and planned."""

    commands: tuple[StageCommand, ...]  # from the first stage that has to be gone through again
    script: str  # all stages, as --command takes them
    setup: Setup
    ledger: MemoryLedger
    verify: str


def write_commands(question: MemoryQuestion, after: Setup) -> AdvisedCommands | None:
    """Return the commands that make a set-up of the one that was asked about; None where none does.

    They are read by the code that reads a user's command. Where a default would come out otherwise than it is
    meant, it is written out.
    """
    changes = differing_facts(question.resolved.setup, after)
    try:
        recipe, rest = _recipe_with_changes(question, changes)
        for _ in range(3):
            written = recipe.write_commands()
            again = _request_with_commands(question, after, written, rest)
            setup = resolve_setup(question.host, again).setup
            setup = replace(setup, activation=after.activation)
            wrong = differing_facts(setup, after)
            ledger = question.planner(setup)
            if not wrong or (not wrong.keys() & changes.keys() and _is_as_good(ledger, question.planner(after))):
                break
            for name, value in wrong.items():
                recipe.put_fact(name, value)
    except (UnwritableError, TrtdxError):
        return None
    if wrong.keys() & changes.keys() or not _says_everything(question, again, rest, setup):
        return None
    stages = stages_to_rerun(question.resolved.setup, changes)
    if Stage.BUILD in stages and recipe.states_conversion:  # the checkpoint is nobody's yet
        stages |= {Stage.CONVERT}
    commands = _commands_to_rerun(written, stages, frozenset(recipe.user_commands))
    return AdvisedCommands(commands, _join_commands(written), setup, ledger, _verify_command(again))


def _says_everything(question: MemoryQuestion, again: MemoryRequest, rest: dict[str, Fact], meant: Setup) -> bool:
    """Return whether the commands say all that matters: what only trtdx can be told must not change the set-up."""
    trtdx_only = {name: fact for name, fact in rest.items() if name in TRTDX_ONLY_FACTS}
    if trtdx_only == rest:
        return True
    alone = replace(again, flags=Artifact("command", "the command line", trtdx_only))
    return not differing_facts(resolve_setup(question.host, alone).setup, meant)


def _is_as_good(ledger: MemoryLedger, promised: MemoryLedger) -> bool:
    """Return whether a plan is as good as the one that was promised: a limit that follows from others may differ."""
    enough = ledger.kv_tokens.value >= promised.kv_tokens.value
    return enough and ledger.tightest_rank.short_bytes <= promised.tightest_rank.short_bytes


def _commands_to_rerun(
    written: list[StageCommand], stages: frozenset[Stage], user_stages: frozenset[Stage]
) -> tuple[StageCommand, ...]:
    """Return the commands that have to be run again, and those that the user gave with them."""
    if not stages:
        return ()
    first = min(map(STAGES.index, stages))
    again = {stage for stage in STAGES[first:] if stage is not Stage.LAUNCH or Stage.LAUNCH in stages}
    return tuple(command for command in written if command.stage in again | user_stages) or tuple(written[-1:])


def _join_commands(written: list[StageCommand]) -> str:
    return " && ".join(command.text for command in written)


def _recipe_with_changes(question: MemoryQuestion, changes: dict[str, Any]) -> tuple[DeploymentRecipe, dict[str, Fact]]:
    """Return the commands that the question amounts to with changes, and what only trtdx can be told."""
    setup, request = question.resolved.setup, question.request
    recipe = DeploymentRecipe(
        backend=setup.running.backend,
        release=setup.running.version,
        model=_served_model(question),
        dtype=setup.formats.dtype,
    )
    _take_files(recipe, question)
    stated = {name: fact for name, fact in request.flags.facts.items() if name not in TRTDX_ONLY_FACTS}
    rest = {name: fact for name, fact in request.flags.facts.items() if name in TRTDX_ONLY_FACTS}
    for text in request.commands:
        _take_commands(recipe, question.host, text)
    if setup.said.get("tp") == "--gpu":
        recipe.put_fact("tp_size", setup.layout.tp)
    if "dtype" in stated and setup.said.get("weights") == "--dtype":
        recipe.put_fact("quant.algo", setup.formats.weights)
        stated.pop("dtype")
    for name, fact in stated.items():
        if _is_writable(recipe, name, fact.value):
            recipe.put_fact(name, fact.value)
        else:
            rest[name] = fact
    _name_output_folders(recipe, question, changes)
    for name, value in changes.items():
        rest.pop(name, None)
        recipe.put_fact(name, value)
    if recipe.engine and must_disable_fused_attention(setup):
        recipe.put_fact("plugin.context_fmha", False)
    if changes.get("runtime.chunked_context") and recipe.engine and not recipe.pages_context:
        recipe.put_fact("plugin.use_paged_context_fmha", True)
    return recipe, rest


def _is_writable(recipe: DeploymentRecipe, name: str, value: Any) -> bool:
    trial = copy.deepcopy(recipe)
    trial.put_fact(name, value)
    try:
        trial.write_commands()
    except UnwritableError:
        return False
    return True


def _served_model(question: MemoryQuestion) -> str:
    """Return the model's name on a command line."""
    model = question.resolved.model
    if not (question.request.model or question.request.commands or question.request.options):
        return "MODEL"
    name = model.name.removesuffix("/config.json").removesuffix("config.json")
    return "MODEL" if not name or name.endswith(".json") or " " in name else name


def _name_output_folders(recipe: DeploymentRecipe, question: MemoryQuestion, changes: dict[str, Any]) -> None:
    """Name what each stage makes: what the user has is not written over."""
    setup, model = question.resolved.setup, question.resolved.model
    kind = model.artifact.kind
    is_quantised = bool(model.artifact.text("quant.algo") or model.artifact.text("quant.method"))
    stages = stages_to_rerun(setup, changes)
    if recipe.engine:
        if kind in ("checkpoint", "engine"):
            _take_artifact(recipe, question, kind, stages)
        if Stage.CONVERT in stages:
            recipe.is_converted = False
            recipe.checkpoint += "" if recipe.checkpoint == "CKPT" else ".new"
        if stages & {Stage.CONVERT, Stage.BUILD} and recipe.engine_folder != "ENGINE":
            recipe.engine_folder += ".new"
        return
    stated_algo = question.request.flags.facts.get("quant.algo")
    if stated_algo and model.artifact.text("quant.algo") == setup.formats.weights:
        recipe.put_fact("quant.algo", None)  # it is so already
        stated_algo = None
    form = changes.get("quant.algo") or (setup.formats.weights if stated_algo else None)
    if form:
        recipe.source = _unquantised_name(question.host, recipe.model) if is_quantised else recipe.model
        recipe.model = _quantised_name(question.host, recipe.model, form)


def _take_artifact(recipe: DeploymentRecipe, question: MemoryQuestion, kind: str, stages: frozenset[Stage]) -> None:
    """Take what a checkpoint or an engine was made with, where it has to be made again."""
    setup, model_path = question.resolved.setup, recipe.model
    recipe.source = "MODEL"
    recipe.is_converted = True
    recipe.is_built = kind == "engine" and not stages & {Stage.CONVERT, Stage.BUILD}
    if kind == "checkpoint":
        recipe.checkpoint = model_path
    elif recipe.is_built:
        recipe.engine_folder = model_path
    for name, value in facts_from_setup(setup).items():
        is_converted = name in CONVERT_FACTS
        if name not in LAUNCH_FACTS and (
            (is_converted and Stage.CONVERT in stages) or (not is_converted and kind == "engine")
        ):
            recipe.put_fact(name, value)
    if kind == "engine" and setup.limits.max_input_len:
        recipe.put_fact("max_input_len", setup.limits.max_input_len)


def _quantised_name(host: Host, name: str, form: str) -> str:
    plain = name.rstrip("/")
    if host.kind(plain) == "absent":
        plain = plain.rpartition("/")[2]
    return f"{FORMAT_SUFFIX.sub('', plain)}-{FORMAT_SHORT_NAMES.get(form, form)}"


def _unquantised_name(host: Host, name: str) -> str:
    """Return the name of a model's unquantised twin, which has to be had from somewhere."""
    is_name = host.kind(name.rstrip("/")) == "absent"
    return _quantised_name(host, name, "BF16") if is_name and name != "MODEL" else UNQUANTISED_MODEL


def _take_files(recipe: DeploymentRecipe, question: MemoryQuestion) -> None:
    """Take the options of the files that were named beside the command."""
    for path in question.request.options:
        try:
            recipe.options |= _read_options(question.host, path)
        except UnreadableError:
            continue
        recipe.options_file = path if len(question.request.options) == 1 else ""


def _read_options(host: Host, path: str) -> dict[str, Any]:
    return dict((read_json if path.endswith(".json") else read_yaml)(host, path).data)


def _take_commands(recipe: DeploymentRecipe, host: Host, text: str) -> None:
    """Take the user's commands as they are."""
    lines, script = command_lines(text, KNOWN_PROGRAMS)
    for line in lines:
        command = CommandEditor.from_line(line)
        if line.program in (BUILDER, OLD_BUILDER):
            recipe.user_commands[Stage.BUILD] = command
            recipe.checkpoint = command.flag_value(*INPUT_FLAGS) or recipe.checkpoint
            recipe.engine_folder = command.flag_value(*OUTPUT_FLAGS) or recipe.engine_folder
            recipe.pages_context |= command.flag_value("--use_paged_context_fmha") == "enable"
            recipe.is_converted = not any(other.program in CHECKPOINT_PROGRAMS for other in lines)
        elif line.program not in (*CHECKPOINT_PROGRAMS, TEMPLATE):
            recipe.user_commands[Stage.LAUNCH] = command
            _take_options(recipe, host, line, script)
        else:
            _take_conversion(recipe, line, command)


def _take_conversion(recipe: DeploymentRecipe, line: CommandLine, command: CommandEditor) -> None:
    """Take what a conversion, or Triton's template, states."""
    for name, fact in facts_from_command(line).items():
        recipe.put_fact(name, fact.value)
    if line.program in CHECKPOINT_PROGRAMS:
        recipe.user_commands[Stage.CONVERT] = command
        recipe.source = command.flag_value(*INPUT_FLAGS) or recipe.source
        recipe.checkpoint = command.flag_value(*OUTPUT_FLAGS) or recipe.checkpoint


def _take_options(recipe: DeploymentRecipe, host: Host, line: CommandLine, script: ShellScript) -> None:
    """Take what the command's own file of options says."""
    argument = line.flag_for_option("config")
    if argument is None or not argument.is_known or not argument.value:
        return
    try:
        if argument.value in script.files:
            recipe.options = dict(parse_yaml(script.files[argument.value][0].encode(), argument.value).data)
        elif host.kind(argument.value) == "file":
            recipe.options, recipe.options_file = _read_options(host, argument.value), argument.value
    except UnreadableError:
        return


def _request_with_commands(
    question: MemoryQuestion, after: Setup, written: list[StageCommand], rest: dict[str, Fact]
) -> MemoryRequest:
    """Return the question of whoever pastes the commands."""
    request, now = question.request, question.resolved.setup.device
    gpu, memory = request.gpu, request.gpu_memory
    if after.device is not None and now is not None and after.device != now:
        gpu, memory = after.device.name, ""
    count, _, name = gpu.rpartition("x") if re.match(r"\d+\s*x", gpu) else ("", "", gpu)
    world = after.layout.world
    if name and (count or world > 1):
        gpu = f"{world}x{name.strip()}"
    model = request.model or ("" if request.dims else question.resolved.model.name)
    return replace(
        request,
        model=model,
        options=(),
        commands=(_join_commands(written),),
        flags=Artifact("command", "the command line", rest),
        gpu=gpu,
        gpu_memory=memory,
    )


def _verify_command(request: MemoryRequest) -> str:
    """Return the command that plans it."""
    words = ["trtdx", "memory", *filter(None, [request.model])]
    for flag, value in (
        ("--dims", request.dims),
        ("--gpu", request.gpu),
        ("--gpu-memory", request.gpu_memory),
        ("--trtllm-version", request.version),
    ):
        words += [flag, value] if value else []
    for fact in request.flags.facts.values():
        words.append(fact.where)
        if fact.value is not True:
            words.append("disable" if fact.value is False else str(fact.value))
    return shlex.join([*words, "--command", request.commands[0]])
