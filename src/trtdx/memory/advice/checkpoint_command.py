"""The command that converts or quantises a model's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.inspect.readers.server.command_text import CommandEditor
from trtdx.knowledge.versions import at_least
from trtdx.memory.model.format_names import WEIGHT_FORMATS, kv_dtype_from_word, weight_format_from_word
from trtdx.memory.question.scripts import CONVERTER, EXPORTER, QUANTISER

if TYPE_CHECKING:
    from collections.abc import Mapping

# Since when the scripts under examples/ have these (quantize.py and llama/convert_checkpoint.py, 0.8.0 to 1.2.1).
FORMATS_SINCE = {"nvfp4": "0.17.0", "fp8_pc_pt": "1.0.0"}
EXPERTS_SINCE, CONTEXT_SINCE, OWN_TYPE_SINCE = "0.11.0", "0.16.0", "0.16.0"
EXPORT_FORMATS = ("fp8", "nvfp4", "int4_awq", "w4a8_awq", "fp8_pc_pt", "nvfp4_awq")


class UnwritableError(Exception):
    """There is no flag or option for a thing, so no command is advised that would need it."""


def checkpoint_command(
    stated: Mapping[str, Any], release: str, source: str, output: str, dtype: str, *, engine: bool
) -> CommandEditor:
    """Return the conversion that gives what is stated: of an engine's checkpoint, or of one for the PyTorch backend."""
    algo = weight_format_from_word(str(stated.get("quant.algo") or ""))
    form = WEIGHT_FORMATS[algo].qformat if algo else ""
    if algo and not form:
        raise UnwritableError(f"no script of the examples makes {algo}")
    kv = kv_dtype_from_word(str(stated.get("runtime.kv_cache_dtype") or "auto"))
    if stated.get("option.int8_kv_cache") or stated.get("option.fp8_kv_cache"):
        kv = "int8" if stated.get("option.int8_kv_cache") else "fp8"
    if not engine:
        return _export_command(form, kv, source, output)
    if not at_least(release, FORMATS_SINCE.get(form, "0.8.0")):
        raise UnwritableError(f"quantize.py of {release} has no {form}")
    only = form in ("int8_wo", "int4_wo")
    quantised = bool(form) and not only
    if quantised or kv == "fp8":
        command = _quantise_command(stated, form, kv, source, output)
    else:
        command = _conversion_command(stated, form, kv, source, output, release)
    if stated.get("dtype") or not at_least(release, OWN_TYPE_SINCE):
        command.set_flag("--dtype", stated.get("dtype") or dtype or "float16")
    _put_parallel_sizes(command, stated, release)
    return command


def _export_command(form: str, kv: str, source: str, output: str) -> CommandEditor:
    """hf_ptq.py makes an FP8 cache unless told otherwise (examples/disaggregated/README.md at 1.2.1)."""
    if form not in EXPORT_FORMATS:
        raise UnwritableError(f"hf_ptq.py makes no checkpoint in {form} for the PyTorch backend")
    command = CommandEditor(f"python3 {EXPORTER}")
    command.set_flag("--pyt_ckpt_path", source)
    command.set_flag("--qformat", form)
    command.set_flag("--kv_cache_qformat", kv if kv in ("fp8", "nvfp4") else "none")
    command.set_flag("--export_path", output)
    return command


def _quantise_command(stated: Mapping[str, Any], form: str, kv: str, source: str, output: str) -> CommandEditor:
    for name in ("moe_ep_size", "moe_tp_size", "use_parallel_embedding"):
        if stated.get(name) not in (None, False, 1):
            raise UnwritableError(f"quantize.py has no {name}")
    command = _checkpoint_script(QUANTISER, source, output)
    command.set_flag("--qformat", form or "full_prec")
    if kv in ("fp8", "int8"):
        command.set_flag("--kv_cache_dtype", kv)
    return command


def _conversion_command(
    stated: Mapping[str, Any], form: str, kv: str, source: str, output: str, release: str
) -> CommandEditor:
    command = _checkpoint_script(CONVERTER, source, output)
    if form:
        command.set_flag("--use_weight_only")
        command.set_flag("--weight_only_precision", form.partition("_")[0])
    if kv == "int8":
        command.set_flag("--int8_kv_cache")
    if stated.get("use_parallel_embedding"):
        command.set_flag("--use_parallel_embedding")
    for name in ("moe_tp_size", "moe_ep_size"):
        if stated.get(name) not in (None, 1):
            if not at_least(release, EXPERTS_SINCE):
                raise UnwritableError(f"convert_checkpoint.py of {release} has no {name}")
            command.set_flag(f"--{name}", stated[name])
    return command


def _checkpoint_script(program: str, source: str, output: str) -> CommandEditor:
    command = CommandEditor(f"python3 {program}")
    command.set_flag("--model_dir", source)
    command.set_flag("--output_dir", output)
    return command


def _put_parallel_sizes(command: CommandEditor, stated: Mapping[str, Any], release: str) -> None:
    for name in ("tp_size", "pp_size", "cp_size"):
        if stated.get(name) in (None, 1):
            continue
        if name == "cp_size" and not at_least(release, CONTEXT_SINCE):
            raise UnwritableError(f"the conversion of {release} has no cp_size")
        command.set_flag(f"--{name}", stated[name])
