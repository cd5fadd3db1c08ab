"""Reads shell text of several stages (convert or quantise, build, serve) as layers of settings.

Serve flags override build flags, and these override flags of the conversion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.readers.server.commands import PROGRAMS, command_lines, require_command
from trtdx.inspect.readers.server.llm_args import command_from_line
from trtdx.memory.question.flags import MEMORY_FLAGS, put_flag_fact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.shell import ShellScript
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Fact
    from trtdx.inspect.readers.server.commands import CommandLine

BUILDER, CONVERTER, QUANTISER, EXPORTER = (
    "trtllm-build",
    "convert_checkpoint.py",
    "quantize.py",
    "hf_ptq.py",  # of ModelOpt: a quantised Hugging Face checkpoint
)
OLD_BUILDER, TEMPLATE = "build.py", "fill_template.py"  # before 0.8; and Triton's config.pbtxt
CHECKPOINT_PROGRAMS = (CONVERTER, QUANTISER, EXPORTER)
KNOWN_PROGRAMS = (*PROGRAMS, *CHECKPOINT_PROGRAMS, OLD_BUILDER, TEMPLATE)
INPUT_FLAGS = ("--model_dir", "--hf_model_dir", "--pyt_ckpt_path", "--checkpoint_dir")
OUTPUT_FLAGS = ("--output_dir", "--export_path")
# What these programs call what `trtdx memory` knows under another name.
FLAG_ALIASES = {
    "use_gemm_plugin": "gemm_plugin", "use_gpt_attention_plugin": "gpt_attention_plugin",
    "enable_context_fmha": "context_fmha", "kv_cache_qformat": "kv_cache_dtype",
}  # fmt: skip
FORMAT_ALIASES = {"int4_gptq": "gptq", "int8_gptq": "W8A16_GPTQ"}


def layers_from_script(host: Host, text: str, version: str) -> tuple[Artifact, ...]:
    """Return the settings of each command in a text, the last stage first."""
    lines, script = command_lines(text, KNOWN_PROGRAMS)
    require_command(lines, script)
    source_of_output = {output: source for line in lines for output, source in _output_sources(line)}
    started = sorted(lines, key=_stage_order)
    layers = [_read_command_layer(host, line, script, text, version, source_of_output) for line in started[::-1]]
    if not any(line.program in (BUILDER, OLD_BUILDER) for line in lines):
        return tuple(layers)
    return tuple(_with_engine_backend(layer) for layer in layers)


def _with_engine_backend(layer: Artifact) -> Artifact:
    """Return a layer of a text that builds an engine: what is served after that is the engine."""
    facts = FactCollector()
    facts.put("runtime.backend", "tensorrt", f"--command: {BUILDER}")
    return replace(layer, facts=facts.to_dict() | layer.facts)


def _stage_order(line: CommandLine) -> int:
    return 0 if line.program in CHECKPOINT_PROGRAMS else 1 if line.program in (BUILDER, OLD_BUILDER) else 2


def _output_sources(line: CommandLine) -> Iterator[tuple[str, str]]:
    """Yield a command's output folder with its input folder."""
    source, output = _argument_value(line, INPUT_FLAGS), _argument_value(line, OUTPUT_FLAGS)
    if source and output:
        yield output, source


def _argument_value(line: CommandLine, names: tuple[str, ...]) -> str:
    values = (argument.value for argument in line.flags if argument.name in names and argument.is_known)
    return next((value for value in values if value), "")


def _read_command_layer(
    host: Host,
    line: CommandLine,
    script: ShellScript,
    text: str,
    version: str,
    source_of_output: dict[str, str],
) -> Artifact:
    if line.program in (*CHECKPOINT_PROGRAMS, OLD_BUILDER, TEMPLATE):
        return _layer_with_model(line, facts_from_command(line), source_of_output)
    artifact = command_from_line(host, line, script, "--command", version=version, text=text)
    facts = artifact.facts | (facts_from_command(line) if line.program == BUILDER else {})
    return replace(
        _layer_with_model(line, facts, source_of_output), refers_to=artifact.refers_to, unread=artifact.unread
    )


def _layer_with_model(line: CommandLine, facts: dict[str, Fact], source_of_output: dict[str, str]) -> Artifact:
    """Return what a command states, with the model that its input was made of."""
    added = FactCollector()
    model = facts.get("runtime.model")
    source, is_made = _original_model(
        _argument_value(line, INPUT_FLAGS) or (str(model.value) if model else ""), source_of_output
    )
    if source and (is_made or line.program in (*CHECKPOINT_PROGRAMS, OLD_BUILDER)):
        added.put("runtime.model", source, "--command")
    return Artifact("command", "--command", facts | added.to_dict())


def _original_model(name: str, source_of_output: dict[str, str]) -> tuple[str, bool]:
    """Return the model a folder was originally made from, and whether the text makes that folder."""
    is_made = name in source_of_output
    for _ in source_of_output:
        name = source_of_output.get(name, name)
    return name, is_made


def facts_from_command(line: CommandLine) -> dict[str, Fact]:
    """Return the facts that a builder's or converter's flags state, without those that cost no memory."""
    facts = FactCollector()
    for name, value in _flag_pairs(line):
        plain = FLAG_ALIASES.get(name, name)
        if plain in MEMORY_FLAGS:
            put_flag_fact(facts, f"--{plain}", FORMAT_ALIASES.get(str(value), value))
    names = {name for name, _ in _flag_pairs(line)}
    if "use_weight_only" in names and "weight_only_precision" not in names:
        put_flag_fact(facts, "--quantization", "int8")
    if "enable_fp8" in names:
        put_flag_fact(facts, "--quantization", "fp8")
    if "use_inflight_batching" in names:
        put_flag_fact(facts, "--paged_kv_cache", True)
        put_flag_fact(facts, "--remove_input_padding", True)
    return facts.to_dict()


def _flag_pairs(line: CommandLine) -> Iterator[tuple[str, Any]]:
    for argument in line.flags:
        if argument.is_known:
            yield (
                argument.name.lstrip("-").replace("-", "_"),
                True if argument.value is None else argument.value,
            )
    if line.program == TEMPLATE:
        for word in line.arguments:
            for part in word.text.split(","):
                name, colon, value = part.partition(":")
                if colon and value:
                    yield name, value
