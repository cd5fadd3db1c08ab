"""Reads shell text of several stages (convert or quantise, build, serve) as layers of settings.

Serve flags override build flags, and these override flags of the conversion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trtdx.inspect.facts.artifact import Artifact, Facts
from trtdx.inspect.readers.server.commands import PROGRAMS, command_lines, demand_command
from trtdx.inspect.readers.server.llm_args import read_line
from trtdx.memory.question.flags import FLAGS, put_flag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.shell import Script
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
OF_CHECKPOINTS = (CONVERTER, QUANTISER, EXPORTER)
KNOWN = (*PROGRAMS, *OF_CHECKPOINTS, OLD_BUILDER, TEMPLATE)
INPUTS = ("--model_dir", "--hf_model_dir", "--pyt_ckpt_path", "--checkpoint_dir")
OUTPUTS = ("--output_dir", "--export_path")
# What these programs call what `trtdx memory` knows under another name.
MEANT = {
    "use_gemm_plugin": "gemm_plugin", "use_gpt_attention_plugin": "gpt_attention_plugin",
    "enable_context_fmha": "context_fmha", "kv_cache_qformat": "kv_cache_dtype",
}  # fmt: skip
WORDS = {"int4_gptq": "gptq", "int8_gptq": "W8A16_GPTQ"}


def layers_from_script(host: Host, text: str, version: str) -> tuple[Artifact, ...]:
    """Return the settings of each command in a text, the last stage first."""
    lines, script = command_lines(text, KNOWN)
    demand_command(lines, script)
    source_of_output = {output: source for line in lines for output, source in _made(line)}
    started = sorted(lines, key=_rank)
    layers = [_layer(host, line, script, text, version, source_of_output) for line in started[::-1]]
    if not any(line.program in (BUILDER, OLD_BUILDER) for line in lines):
        return tuple(layers)
    return tuple(_of_engine(layer) for layer in layers)


def _of_engine(layer: Artifact) -> Artifact:
    """Return a layer of a text that builds an engine: what is served after that is the engine."""
    facts = Facts()
    facts.put("runtime.backend", "tensorrt", f"--command: {BUILDER}")
    return replace(layer, facts=facts.done() | layer.facts)


def _rank(line: CommandLine) -> int:
    return 0 if line.program in OF_CHECKPOINTS else 1 if line.program in (BUILDER, OLD_BUILDER) else 2


def _made(line: CommandLine) -> Iterator[tuple[str, str]]:
    """Yield a command's output folder with its input folder."""
    source, output = _named(line, INPUTS), _named(line, OUTPUTS)
    if source and output:
        yield output, source


def _named(line: CommandLine, names: tuple[str, ...]) -> str:
    values = (argument.value for argument in line.given if argument.name in names and argument.is_known)
    return next((value for value in values if value), "")


def _layer(
    host: Host, line: CommandLine, script: Script, text: str, version: str, made: dict[str, str]
) -> Artifact:
    if line.program in (*OF_CHECKPOINTS, OLD_BUILDER, TEMPLATE):
        return _stated(line, own_facts(line), made)
    artifact = read_line(host, line, script, "--command", version=version, text=text)
    facts = artifact.facts | (own_facts(line) if line.program == BUILDER else {})
    return replace(_stated(line, facts, made), refers_to=artifact.refers_to, unread=artifact.unread)


def _stated(line: CommandLine, facts: dict[str, Fact], made: dict[str, str]) -> Artifact:
    """Return what a command states, with the model that its input was made of."""
    added = Facts()
    model = facts.get("runtime.model")
    source, is_made = _origin(_named(line, INPUTS) or (str(model.value) if model else ""), made)
    if source and (is_made or line.program in (*OF_CHECKPOINTS, OLD_BUILDER)):
        added.put("runtime.model", source, "--command")
    return Artifact("command", "--command", facts | added.done())


def _origin(name: str, made: dict[str, str]) -> tuple[str, bool]:
    """Return the model a folder was originally made from, and whether the text makes that folder."""
    is_made = name in made
    for _ in made:
        name = made.get(name, name)
    return name, is_made


def own_facts(line: CommandLine) -> dict[str, Fact]:
    """Return the facts that a builder's or converter's flags state, without those that cost no memory."""
    facts = Facts()
    for name, value in _pairs(line):
        plain = MEANT.get(name, name)
        if plain in FLAGS:
            put_flag(facts, f"--{plain}", WORDS.get(str(value), value))
    names = {name for name, _ in _pairs(line)}
    if "use_weight_only" in names and "weight_only_precision" not in names:
        put_flag(facts, "--quantization", "int8")
    if "enable_fp8" in names:
        put_flag(facts, "--quantization", "fp8")
    if "use_inflight_batching" in names:
        put_flag(facts, "--paged_kv_cache", True)
        put_flag(facts, "--remove_input_padding", True)
    return facts.done()


def _pairs(line: CommandLine) -> Iterator[tuple[str, Any]]:
    for argument in line.given:
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
