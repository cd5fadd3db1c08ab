"""The commands that make a deployment, stage by stage: the user's own, or those a question amounts to.

Every setting in force is in them, spelled as the backend and the release take it. What no program can be told is
refused, so that nobody is advised to run it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from trtdx.inspect.facts.option_table import option_table
from trtdx.inspect.facts.options import is_known_in
from trtdx.inspect.readers.server.command_text import CommandEditor
from trtdx.inspect.readers.server.llm_options import FACT_BY_OPTION
from trtdx.knowledge.versions import at_least, parse_release
from trtdx.memory.advice.checkpoint_command import UnwritableError, checkpoint_command
from trtdx.memory.model.format_names import WEIGHT_FORMATS, weight_format_from_word
from trtdx.memory.question.flags import MEMORY_FLAGS
from trtdx.memory.question.scripts import (
    BUILDER,
    FLAG_ALIASES,
    INPUT_FLAGS,
    OLD_BUILDER,
    OUTPUT_FLAGS,
    TEMPLATE,
)
from trtdx.memory.question.setup_facts import CONVERT_FACTS, GRAPHS_FACT, LAUNCH_FACTS, TRTLLM_BUILD_SINCE
from trtdx.model import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVE_PROGRAM, TRITON_PROGRAM = "trtllm-serve", "launch_triton_server.py"
OPTIONS_FILE = "trtdx.yaml"
PATH_FLAGS = (*INPUT_FLAGS, *OUTPUT_FLAGS, "--use_weight_only", "--enable_fp8")
TRITON_REPOSITORY = "MODEL_REPOSITORY"
SERVES_SINCE, CONFIG_SINCE = "0.15.0", "1.2.0"  # trtllm-serve; --config, before that --extra_llm_api_options
# Flags of trtllm-serve that came after it did (commands/serve.py at 0.15.0 to 0.19.0).
LATER_FLAGS = {
    "--backend": "0.17.0", **dict.fromkeys(("--ep_size", "--gpus_per_node", "--extra_llm_api_options"), "0.19.0"),
}  # fmt: skip
OPTION_OF_FACT = {fact: key for key, fact in reversed(FACT_BY_OPTION.items())} | {
    "dtype": "dtype",
    "option.disable_kv_cache_reuse": "",
    "runtime.draft_model": "speculative_config.speculative_model_dir",
}
SERVED_FACTS = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width", "tp_size", "pp_size")
TRITON_NAMES = {
    "runtime.free_gpu_memory_fraction": "kv_cache_free_gpu_mem_fraction",
    "runtime.max_tokens_in_cache": "max_tokens_in_paged_kv_cache",
    "runtime.chunked_context": "enable_chunked_context",
}
# What examples/llama/build.py had from 0.5.0 to 0.7.1, and what it calls what trtllm-build calls otherwise.
OLD_BUILD_NAMES = {
    "plugin.gemm_plugin": "--use_gemm_plugin",
    "plugin.gpt_attention_plugin": "--use_gpt_attention_plugin",
    "plugin.context_fmha": "--enable_context_fmha",
}
OLD_FLAGS = frozenset({
    *OLD_BUILD_NAMES.values(), "--dtype", "--tp_size", "--pp_size", "--max_batch_size", "--max_beam_width", "--max_input_len",
    "--max_output_len", "--max_num_tokens", "--paged_kv_cache", "--remove_input_padding", "--tokens_per_block",
    "--use_parallel_embedding", "--int8_kv_cache", "--fp8_kv_cache",
})  # fmt: skip
WEIGHT_ONLY = ("--use_weight_only", "--weight_only_precision")


class StageCommand(NamedTuple):
    """One command, and the stage it belongs to."""

    stage: Stage
    text: str

    def __str__(self) -> str:
        return f"{self.stage.value}: {self.text}"


class DeploymentRecipe:
    """The commands of one deployment, to be changed and written."""

    def __init__(self, *, backend: str, release: str, model: str, dtype: str = "") -> None:
        self.engine, self.release, self.model, self.dtype = backend == "tensorrt", release, model, dtype
        self.source = model  # what is converted or quantised
        self.user_commands: dict[Stage, CommandEditor] = {}  # commands that the user gave
        self.options: dict[str, Any] = {}  # what the file of options says
        self.options_file = ""  # the user's, while it is what `options` says
        self.checkpoint, self.engine_folder = "CKPT", "ENGINE"
        self.is_built = self.is_converted = False  # by files the user has
        self.pages_context = at_least(release, "0.19.0")  # by itself
        self._facts: dict[str, Any] = {}

    def put_fact(self, fact: str, value: Any) -> None:
        """Say a thing; None takes back what was said of it."""
        self._facts[fact] = value

    def write_commands(self) -> list[StageCommand]:
        """Return every command, in the order they are run.

        Raises:
            UnwritableError: if there is no way to say a thing.
        """
        return [*self._convert_commands(), *self._build_commands(), *self._launch_commands()]

    def _facts_among(self, facts: tuple[str, ...]) -> dict[str, Any]:
        return {name: value for name, value in self._facts.items() if name in facts}

    # What weights are converted with

    def _convert_commands(self) -> Iterator[StageCommand]:
        if self.engine and (
            self.is_converted or self.builds_at_start or not at_least(self.release, TRTLLM_BUILD_SINCE)
        ):
            return
        stated = self._facts_among(CONVERT_FACTS if self.engine else ("quant.algo", "runtime.kv_cache_dtype"))
        if not self.engine and not stated.get("quant.algo"):
            return
        command = checkpoint_command(
            stated, self.release, self.source, self._served_checkpoint, self.dtype, engine=self.engine
        )
        user_command = self.user_commands.get(Stage.CONVERT)
        if user_command is not None:
            command.adopt_flags(
                user_command,
                lambda name: not fact_of_flag(user_command.program, name) and name not in PATH_FLAGS,
            )
        yield StageCommand(Stage.CONVERT, str(command))

    @property
    def states_conversion(self) -> bool:
        """Whether an engine's checkpoint is yet to be made, and other than a plain conversion makes it."""
        is_stated = any(self._facts.get(name) not in (None, False, 1) for name in CONVERT_FACTS)
        return is_stated and any(self._convert_commands()) and Stage.CONVERT not in self.user_commands

    @property
    def _served_checkpoint(self) -> str:
        return self.checkpoint if self.engine else self.model

    # What is built into an engine

    def _build_commands(self) -> Iterator[StageCommand]:
        if not self.engine or self.is_built or self.builds_at_start:
            return
        is_old = not at_least(self.release, TRTLLM_BUILD_SINCE)
        command = self.user_commands.get(Stage.BUILD) or CommandEditor(OLD_BUILDER if is_old else BUILDER)
        command.set_flag(*(("--model_dir", self.source) if is_old else ("--checkpoint_dir", self.checkpoint)))
        command.set_flag("--output_dir", self.engine_folder)
        stated = {name: value for name, value in self._facts.items() if is_old or name not in CONVERT_FACTS}
        stated = {name: value for name, value in stated.items() if name not in LAUNCH_FACTS}
        if is_old and {"tp_size", "pp_size"} & stated.keys():  # build.py asserts that they make up the world
            command.set_flag("--world_size", (stated.get("tp_size") or 1) * (stated.get("pp_size") or 1))
        prompt = int(command.flag_value("--max_input_len") or 0)
        for name, value in self._length_limits(stated, prompt).items():
            _put_build_flag(command, name, value, self.release, self.dtype)
        yield StageCommand(Stage.BUILD, ("python3 " if is_old else "") + str(command))

    def _length_limits(self, stated: dict[str, Any], prompt: int) -> dict[str, Any]:
        """Return the limits as a release has them: before 0.11 prompt and answer had one each."""
        length = stated.get("max_seq_len")
        if length is None or at_least(self.release, "0.11.0"):
            return stated
        prompt = stated.get("max_input_len") or prompt or length // 2
        if prompt >= length:
            raise UnwritableError(f"max_seq_len {length} leaves no room beside max_input_len {prompt}")
        rest = {name: value for name, value in stated.items() if name != "max_seq_len"}
        return rest | {"max_input_len": prompt, "max_output_len": length - prompt}

    # What is said when it is started

    @property
    def builds_at_start(self) -> bool:
        """Whether the engine is built when the server starts: one was given a model, and nothing was built."""
        launch = self.user_commands.get(Stage.LAUNCH)
        is_server = launch is not None and launch.program not in (TRITON_PROGRAM, "tritonserver")
        return self.engine and is_server and Stage.BUILD not in self.user_commands and not self.is_built

    def _launch_commands(self) -> Iterator[StageCommand]:
        of_engine = self.engine and not self.builds_at_start
        stated = self._facts_among((*LAUNCH_FACTS, *SERVED_FACTS)) if of_engine else dict(self._facts)
        if of_engine and not (self._facts_among(LAUNCH_FACTS) or Stage.LAUNCH in self.user_commands):
            return
        if of_engine and self._runs_on_triton(stated):
            yield from self._triton_commands(stated)
            return
        if not self.engine:
            stated.pop("quant.algo", None)
        command = self.user_commands.get(Stage.LAUNCH) or self._server_command()
        if command.program == SERVE_PROGRAM:
            command.set_argument(self.engine_folder if of_engine else self.model)
        elif not self.engine:
            command.set_flag("--model", self.model)
        options = dict(self.options)
        for name, value in stated.items():
            if not self._put_flag(command, name, value):
                _put_option(options, name, value, self.release)
        yield StageCommand(Stage.LAUNCH, self._with_options(command, options))

    def _server_command(self) -> CommandEditor:
        command = CommandEditor(SERVE_PROGRAM, self.engine_folder if self.engine else self.model)
        if self.engine:
            command.set_flag("--tokenizer", self.source)
            if at_least(self.release, "1.0.0"):  # "tensorrt" since 1.1
                command.set_flag("--backend", "tensorrt" if at_least(self.release, "1.1.0") else "trt")
        elif not at_least(self.release, "1.0.0"):
            self._require_flag("--backend")
            command.set_flag("--backend", "pytorch")
        return command

    def _require_flag(self, flag: str) -> None:
        if not at_least(self.release, LATER_FLAGS.get(flag, SERVES_SINCE)):
            raise UnwritableError(f"trtllm-serve {self.release} has no {flag}")

    def _put_flag(self, command: CommandEditor, fact: str, value: Any) -> bool:
        """Say a thing by a flag of the program; return whether it has one for it."""

        def is_meant(name: str) -> bool:
            return fact_of_flag(command.program, name) == fact

        key = OPTION_OF_FACT.get(fact, fact.removeprefix("option."))
        name = flag_for_option(command.program, key, self.release)
        flag = option_table().flag[command.program][name] if name else None
        if value is None or flag is None or (flag.type == "flag" and flag.means != value):
            command.drop_flags(is_meant)
            return flag is not None and value is False and key not in self.options
        if command.program == SERVE_PROGRAM:
            self._require_flag(name)
        command.set_flag(name, None if flag.type == "flag" else _render_flag_value(value), is_meant)
        return True

    def _with_options(self, command: CommandEditor, options: dict[str, Any]) -> str:
        """Return the command with its file of options, which is written first where it is not the user's own."""
        name = "--config" if at_least(self.release, CONFIG_SINCE) else "--extra_llm_api_options"
        command.drop_flags(lambda flag: flag in ("--config", "--extra_llm_api_options"))
        if not options:
            return str(command)
        if command.program == SERVE_PROGRAM:
            self._require_flag("--extra_llm_api_options")
        if self.options_file and options == self.options:
            command.set_flag(name, self.options_file)
            return str(command)
        command.set_flag(name, OPTIONS_FILE)
        text = yaml.safe_dump(options, default_flow_style=True, sort_keys=False, width=10**6).strip()
        quoted = re.sub(r'(["$`\\\\])', r"\\\1", text)
        return f'echo "{quoted}" > {OPTIONS_FILE} && {command}'

    def _runs_on_triton(self, stated: dict[str, Any]) -> bool:
        user_command = self.user_commands.get(Stage.LAUNCH)
        if user_command is not None:
            return user_command.program in (TRITON_PROGRAM, "tritonserver")
        chunks = stated.get("runtime.chunked_context") and not at_least(self.release, "0.19.0")
        return bool(chunks) or not at_least(self.release, SERVES_SINCE)

    def _triton_commands(self, stated: dict[str, Any]) -> Iterator[StageCommand]:
        values = {TRITON_NAMES[name]: value for name, value in stated.items() if name in TRITON_NAMES}
        unknown = [name for name in stated if name in LAUNCH_FACTS and name not in TRITON_NAMES and stated[name]]
        if unknown:
            raise UnwritableError(f"the template of config.pbtxt has no {unknown[0]}")
        words = ",".join(f"{name}:{_render_flag_value(value)}" for name, value in values.items() if value is not None)
        if words:
            file = f"{TRITON_REPOSITORY}/tensorrt_llm/config.pbtxt"
            yield StageCommand(Stage.LAUNCH, f"python3 tools/{TEMPLATE} -i {file} {words}")
        ranks = (self._facts.get("tp_size") or 1) * (self._facts.get("pp_size") or 1)
        command = self.user_commands.get(Stage.LAUNCH) or CommandEditor(TRITON_PROGRAM)
        if command.program == TRITON_PROGRAM:
            command.set_flag("--world_size", ranks)
            if not command.flag_value("--model_repo"):
                command.set_flag("--model_repo", TRITON_REPOSITORY)
        yield StageCommand(
            Stage.LAUNCH, str(command) if Stage.LAUNCH in self.user_commands else f"python3 scripts/{command}"
        )


def _render_flag_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def fact_of_flag(program: str, name: str) -> str:
    """Return the fact that a flag of a program states."""
    flag = option_table().flag.get(program, {}).get(name)
    if flag is not None and flag.option:
        return FACT_BY_OPTION.get(flag.option, f"option.{flag.option}")
    plain = name.lstrip("-").replace("-", "_")
    meaning = MEMORY_FLAGS.get(FLAG_ALIASES.get(plain, plain))
    return meaning.fact if meaning else ""


@cache
def flag_for_option(program: str, key: str, release: str) -> str:
    """Return the flag of a program for an option, the one that most releases have; "" if there is none."""
    flags = {
        name: flag
        for name, flag in option_table().flag.get(program, {}).items()
        if flag.option == key and is_known_in(flag, parse_release(release), option_table().releases)
    }
    return min(flags, key=lambda name: (flags[name].since, len(name)), default="")


def option_spelling(key: str, release: str) -> str:
    """Return a key of the LLM API as a release spells it: some had other names."""
    options = option_table()
    here = parse_release(release)
    option = options.option.get(key)
    if option is not None and is_known_in(option, here, options.releases):
        return key
    older = [name for name, new in options.renamed.items() if new.to == key and name in options.option]
    name = next((name for name in older if is_known_in(options.option[name], here, options.releases)), "")
    if not name:
        raise UnwritableError(f"the LLM API of {release} has no {key}")
    return name


def _put_option(options: dict[str, Any], fact: str, value: Any, release: str) -> None:
    """Say a thing in the file of options; None takes it back."""
    key = OPTION_OF_FACT.get(fact, fact.removeprefix("option."))
    if fact == GRAPHS_FACT:
        key = option_spelling("cuda_graph_config", release)
        value = {True: {}, False: None}[bool(value)] if key == "cuda_graph_config" else value
        _set_option(options, key, value)
        return
    if value is None:
        _remove_option(options, fact)
        return
    if not key:
        raise UnwritableError(f"no option says {fact}")
    _set_option(options, option_spelling(key, release), value)


def _set_option(options: dict[str, Any], key: str, value: Any) -> None:
    section, _, leaf = key.rpartition(".")
    if section:
        inner = options.get(section)
        options[section] = {**(inner if isinstance(inner, dict) else {}), leaf: value}
    else:
        options[leaf] = value


def _remove_option(options: dict[str, Any], fact: str) -> None:
    for key in [key for key, name in FACT_BY_OPTION.items() if name == fact] or [fact.removeprefix("option.")]:
        section, _, leaf = key.rpartition(".")
        if isinstance(options.get(section), dict):
            options[section] = {name: value for name, value in options[section].items() if name != leaf}
        elif not section:
            options.pop(leaf, None)


def _put_build_flag(command: CommandEditor, fact: str, value: Any, release: str, dtype: str) -> None:
    """Say a thing by a flag of trtllm-build, or of build.py before it."""

    def is_meant(name: str) -> bool:
        return fact_of_flag(BUILDER, name) == fact

    if fact == "max_num_tokens" and value is not None and int(command.flag_value("--opt_num_tokens") or 0) > value:
        command.drop_flags(lambda name: name == "--opt_num_tokens")
    if value is None:
        command.drop_flags(is_meant)
        return
    if fact == "plugin.paged_kv_cache" and at_least(release, "0.13.0"):
        command.set_flag("--kv_cache_type", "paged" if value else "continuous", is_meant)
        return
    if fact.endswith("_plugin") and value is True:
        value = "auto" if at_least(release, "0.12.0") else dtype or "float16"
    if command.program == OLD_BUILDER:
        command.drop_flags(is_meant)
        _put_old_build_flag(command, fact, value, release)
        return
    name = _build_flag_name(fact)
    flag = option_table().flag[BUILDER].get(name)
    if flag is None or not is_known_in(flag, parse_release(release), option_table().build_releases):
        raise UnwritableError(f"trtllm-build {release} has no {name}")
    if flag.type == "flag":
        command.drop_flags(is_meant)
        if value:
            command.set_flag(name)
        return
    command.set_flag(name, {True: "enable", False: "disable"}[value] if isinstance(value, bool) else value, is_meant)


def _put_old_build_flag(command: CommandEditor, fact: str, value: Any, release: str) -> None:
    """Say a thing to build.py, whose switches have no value."""
    name = OLD_BUILD_NAMES.get(fact, _build_flag_name(fact))
    if fact == "quant.algo":
        _put_weight_only(command, value)
    elif value is not False and name not in OLD_FLAGS:
        raise UnwritableError(f"build.py of {release} has no {name}")
    elif value is not False:
        command.set_flag(name, None if value is True else value)


def _put_weight_only(command: CommandEditor, value: Any) -> None:
    """Say a format to build.py; the others need files that another script makes first."""
    form = WEIGHT_FORMATS[weight_format_from_word(str(value))].qformat
    if form not in ("int8_wo", "int4_wo"):
        raise UnwritableError(f"build.py makes no {value} of a model by itself")
    command.drop_flags(lambda name: name in WEIGHT_ONLY)
    command.set_flag(WEIGHT_ONLY[0])
    command.set_flag(WEIGHT_ONLY[1], form.partition("_")[0])


def _build_flag_name(fact: str) -> str:
    names = [name for name, meaning in MEMORY_FLAGS.items() if meaning.fact == fact]
    build_names = [name for name in names if f"--{name}" in option_table().flag[BUILDER]]
    return f"--{(build_names or names or [re.sub(r'^.*[.]', '', fact)])[0]}"
