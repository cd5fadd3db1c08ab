"""The command that converts or quantises a model's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.inspect.readers.server.command_text import CommandText
from trtdx.knowledge.versions import at_least
from trtdx.memory.model.format_names import FORMATS, format_from, kv_type_from
from trtdx.memory.question.scripts import CONVERTER, EXPORTER, QUANTISER

if TYPE_CHECKING:
    from collections.abc import Mapping

# Since when the scripts under examples/ have these (quantize.py and llama/convert_checkpoint.py, 0.8.0 to 1.2.1).
FORMATS_SINCE = {"nvfp4": "0.17.0", "fp8_pc_pt": "1.0.0"}
EXPERTS_SINCE, CONTEXT_SINCE, OWN_TYPE_SINCE = "0.11.0", "0.16.0", "0.16.0"
EXPORTED = ("fp8", "nvfp4", "int4_awq", "w4a8_awq", "fp8_pc_pt", "nvfp4_awq")


class UnwritableError(Exception):
    """There is no flag or option for a thing, so no command is advised that would need it."""


def checkpoint_command(
    stated: Mapping[str, Any], release: str, source: str, output: str, dtype: str, *, engine: bool
) -> CommandText:
    """Return the conversion that gives what is stated: of an engine's checkpoint, or of one for the PyTorch backend."""
    algo = format_from(str(stated.get("quant.algo") or ""))
    form = FORMATS[algo].qformat if algo else ""
    if algo and not form:
        raise UnwritableError(f"no script of the examples makes {algo}")
    kv = kv_type_from(str(stated.get("runtime.kv_cache_dtype") or "auto"))
    if stated.get("option.int8_kv_cache") or stated.get("option.fp8_kv_cache"):
        kv = "int8" if stated.get("option.int8_kv_cache") else "fp8"
    if not engine:
        return _exported(form, kv, source, output)
    if not at_least(release, FORMATS_SINCE.get(form, "0.8.0")):
        raise UnwritableError(f"quantize.py of {release} has no {form}")
    only = form in ("int8_wo", "int4_wo")
    quantised = bool(form) and not only
    if quantised or kv == "fp8":
        command = _quantised(stated, form, kv, source, output)
    else:
        command = _converted(stated, form, kv, source, output, release)
    if stated.get("dtype") or not at_least(release, OWN_TYPE_SINCE):
        command.put("--dtype", stated.get("dtype") or dtype or "float16")
    _put_layout(command, stated, release)
    return command


def _exported(form: str, kv: str, source: str, output: str) -> CommandText:
    """hf_ptq.py makes an FP8 cache unless told otherwise (examples/disaggregated/README.md at 1.2.1)."""
    if form not in EXPORTED:
        raise UnwritableError(f"hf_ptq.py makes no checkpoint in {form} for the PyTorch backend")
    command = CommandText(f"python3 {EXPORTER}")
    command.put("--pyt_ckpt_path", source)
    command.put("--qformat", form)
    command.put("--kv_cache_qformat", kv if kv in ("fp8", "nvfp4") else "none")
    command.put("--export_path", output)
    return command


def _quantised(stated: Mapping[str, Any], form: str, kv: str, source: str, output: str) -> CommandText:
    for name in ("moe_ep_size", "moe_tp_size", "use_parallel_embedding"):
        if stated.get(name) not in (None, False, 1):
            raise UnwritableError(f"quantize.py has no {name}")
    command = _command(QUANTISER, source, output)
    command.put("--qformat", form or "full_prec")
    if kv in ("fp8", "int8"):
        command.put("--kv_cache_dtype", kv)
    return command


def _converted(
    stated: Mapping[str, Any], form: str, kv: str, source: str, output: str, release: str
) -> CommandText:
    command = _command(CONVERTER, source, output)
    if form:
        command.put("--use_weight_only")
        command.put("--weight_only_precision", form.partition("_")[0])
    if kv == "int8":
        command.put("--int8_kv_cache")
    if stated.get("use_parallel_embedding"):
        command.put("--use_parallel_embedding")
    for name in ("moe_tp_size", "moe_ep_size"):
        if stated.get(name) not in (None, 1):
            if not at_least(release, EXPERTS_SINCE):
                raise UnwritableError(f"convert_checkpoint.py of {release} has no {name}")
            command.put(f"--{name}", stated[name])
    return command


def _command(program: str, source: str, output: str) -> CommandText:
    command = CommandText(f"python3 {program}")
    command.put("--model_dir", source)
    command.put("--output_dir", output)
    return command


def _put_layout(command: CommandText, stated: Mapping[str, Any], release: str) -> None:
    for name in ("tp_size", "pp_size", "cp_size"):
        if stated.get(name) in (None, 1):
            continue
        if name == "cp_size" and not at_least(release, CONTEXT_SINCE):
            raise UnwritableError(f"the conversion of {release} has no cp_size")
        command.put(f"--{name}", stated[name])
