"""How a change is written down for a backend and release: the flag or key, and the stage it belongs to."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from trtdx.inspect.options import known_in, table
from trtdx.memory.format_names import FORMATS
from trtdx.memory.nouns import LAST_STABLE
from trtdx.model import Stage
from trtdx.versions import at_least, parsed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.memory.nouns import Setup


class Written(NamedTuple):
    """One piece of a command line or of a file of options."""

    stage: Stage
    text: str

    def __str__(self) -> str:
        return f"{self.stage.value}: {self.text}"


def is_engine(setup: Setup) -> bool:
    return setup.running.backend == "tensorrt"


def release_of(setup: Setup) -> str:
    return setup.running.version or LAST_STABLE


def option(setup: Setup, key: str, value: object) -> tuple[Written, ...]:
    """Return an option of the LLM API as the flag its release has, else as the line of the YAML file."""
    release = release_of(setup)
    name = _flag_of(key, release)
    if not name or value is None:
        return (Written(Stage.LAUNCH, in_yaml(_spelled(key, release), value, release)),)
    is_switch = table().flag["trtllm-serve"][name].type == "flag"
    return (Written(Stage.LAUNCH, f"trtllm-serve {name}{'' if is_switch else f' {value}'}"),)


@cache
def _flag_of(key: str, release: str) -> str:
    """Return the flag of trtllm-serve for an option, the one that most releases have."""
    flags = {
        name: flag
        for name, flag in table().flag["trtllm-serve"].items()
        if flag.option == key and known_in(flag, parsed(release), table().releases)
    }
    return min(flags, key=lambda name: (flags[name].since, len(name)), default="")


def merged(lines: Sequence[Written]) -> list[Written]:
    """Return lines with the flags of one program at one stage put together."""
    found: list[Written] = []
    for line in dict.fromkeys(lines):
        flags = line.text.partition(" ")[2]
        same = [at for at, each in enumerate(found) if each.stage is line.stage and _joins(each, line)]
        if same and flags.startswith("-"):
            before = found[same[0]].text
            text = before.replace(CONVERTER, _program(line), 1)
            new = [each for each in FLAG.findall(flags) if each not in FLAG.findall(before)]
            found[same[0]] = Written(line.stage, " ".join([text, *new]))
        else:
            found.append(line)
    whole = [Written(each.stage, _whole(each.text)) for each in found]
    return sorted(whole, key=lambda each: list(Stage).index(each.stage))


def _whole(text: str) -> str:
    """Return a command as it can be pasted: flags alone do not say what is served or built."""
    program, _, flags = text.partition(" ")
    if not flags.startswith("-") or "--checkpoint_dir" in flags:
        return text
    return " ".join(({"trtllm-serve": SERVE, "trtllm-build": BUILD}.get(program, program), flags))


SERVE = "trtllm-serve MODEL"
BUILD = "trtllm-build --checkpoint_dir CKPT --output_dir ENGINE"
FLAG = re.compile(r"-\S+(?: (?!-)\S+)*")
CONVERTER, QUANTISER = "convert_checkpoint.py", "quantize.py"


def _joins(one: Written, other: Written) -> bool:
    """Return whether two lines are of one run: what quantises a model converts it too."""
    programs = {_program(one), _program(other)}
    return len(programs) == 1 or programs == {CONVERTER, QUANTISER}


def _program(line: Written) -> str:
    return line.text.partition(" ")[0]


def _spelled(key: str, release: str) -> str:
    """Return a key as a release spells it: some had other names."""
    known = table()
    here = parsed(release)
    found = known.option.get(key)
    if found is not None and known_in(found, here, known.releases):
        return key
    older = [name for name, new in known.renamed.items() if new.to == key and name in known.option]
    return next((name for name in older if known_in(known.option[name], here, known.releases)), key)


def in_yaml(key: str, value: object, release: str = LAST_STABLE) -> str:
    """Return a dotted key as one line of YAML for --config, which had another name before 1.2."""
    file = "--config" if at_least(release, "1.2.0") else "--extra_llm_api_options"
    section, _, leaf = key.rpartition(".")
    words = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    line = f"{{{leaf}: {words}}}" if section else f"{words}"
    return f"in {file}: {section or leaf}: {line}"


# How build.py of the examples wrote what trtllm-build of 0.8 and later does.
OF_BUILD_PY = {
    "--context_fmha enable": "--enable_context_fmha",
    "--remove_input_padding enable": "--remove_input_padding",
    "--paged_kv_cache enable": "--paged_kv_cache",
    "--gemm_plugin": "--use_gemm_plugin",
    "--gpt_attention_plugin": "--use_gpt_attention_plugin",
}


def build(setup: Setup, *flags: str) -> tuple[Written, ...]:
    """Return flags of the build; plugins were named by their type before "auto" was a word."""
    release, text = release_of(setup), " ".join(flags)
    if not at_least(release, "0.12.0"):
        text = text.replace("plugin auto", f"plugin {setup.formats.dtype}")
    if at_least(release, BUILD_SINCE):
        return (Written(Stage.BUILD, f"trtllm-build {text}"),)
    for new, old in OF_BUILD_PY.items():
        text = text.replace(new, old)
    return (Written(Stage.BUILD, f"build.py {text}"),)


BUILD_SINCE = "0.8.0"  # trtllm-build; before, each example had a build.py that converted too


def converted(setup: Setup, flags: str, program: str = CONVERTER) -> tuple[Written, ...]:
    """Return flags of the conversion, and the build that has to follow."""
    if not at_least(release_of(setup), BUILD_SINCE):
        return build(setup, flags)
    return (
        Written(Stage.CONVERT, f"{program} --model_dir MODEL --output_dir CKPT {flags}"),
        *build(setup, "--checkpoint_dir CKPT --output_dir ENGINE"),
    )


def paged(setup: Setup) -> tuple[Written, ...]:
    new = at_least(release_of(setup), "0.13.0")
    return build(setup, "--kv_cache_type paged" if new else "--paged_kv_cache enable")


def limit(setup: Setup, name: str, value: int) -> tuple[Written, ...]:
    """Return one of the limits: built into an engine, or given at the start."""
    if not is_engine(setup):
        return option(setup, name, value)
    if name == "max_seq_len" and not at_least(release_of(setup), "0.11.0"):  # prompt and answer had one each
        return build(setup, f"--max_input_len {value // 2} --max_output_len {value - value // 2}")
    return build(setup, f"--{name} {value}")


def fraction(setup: Setup, value: float) -> tuple[Written, ...]:
    """Return the cache's share of free memory; before trtllm-serve engines were served by Triton alone."""
    if not is_engine(setup):
        return option(setup, "kv_cache_config.free_gpu_memory_fraction", f"{value:g}")
    if at_least(release_of(setup), "0.15.0"):
        return (Written(Stage.LAUNCH, f"trtllm-serve --kv_cache_free_gpu_memory_fraction {value:g}"),)
    return (Written(Stage.LAUNCH, f"Triton's config.pbtxt: kv_cache_free_gpu_mem_fraction {value:g}"),)


def chunked(setup: Setup, tokens: int) -> tuple[Written, ...]:
    """Return smaller steps with prompts cut into chunks."""
    if not is_engine(setup):
        return (*limit(setup, "max_num_tokens", tokens), *option(setup, "enable_chunked_prefill", True))
    paged = [] if at_least(release_of(setup), "0.19.0") else ["--use_paged_context_fmha enable"]
    return (
        *build(setup, f"--max_num_tokens {tokens}", *paged),
        Written(Stage.LAUNCH, _chunks_on(release_of(setup))),
    )


def _chunks_on(release: str) -> str:
    if not at_least(release, "0.15.0"):
        return "Triton's config.pbtxt: enable_chunked_context true"
    return in_yaml("enable_chunked_prefill", True, release)


def kv_type(setup: Setup, kind: str) -> tuple[Written, ...]:
    """Return another type of cache: of the checkpoint for engines, of the server for PyTorch."""
    if not is_engine(setup):
        return option(setup, "kv_cache_config.dtype", kind)
    if kind == "int8":
        return converted(setup, "--int8_kv_cache")
    now = FORMATS.get(setup.formats.weights)
    qformat = now.qformat if now and now.qformat else "full_prec"
    return converted(setup, f"--qformat {qformat} --kv_cache_dtype {kind}", QUANTISER)


def weights(setup: Setup, qformat: str) -> tuple[Written, ...]:
    if not is_engine(setup):
        text = f"hf_ptq.py --pyt_ckpt_path MODEL --qformat {qformat} --export_path NEW"
        return (Written(Stage.CONVERT, text), Written(Stage.LAUNCH, "trtllm-serve NEW"))
    if qformat in ("int8_wo", "int4_wo"):
        precision = qformat.partition("_")[0]
        return converted(setup, f"--use_weight_only --weight_only_precision {precision}")
    return converted(setup, f"--qformat {qformat}", QUANTISER)


def parallel(setup: Setup, name: str, value: int) -> tuple[Written, ...]:
    """Return another way of cutting the model: `name` is tp, pp or ep."""
    if not is_engine(setup):
        keys = {
            "tp": "tensor_parallel_size",
            "pp": "pipeline_parallel_size",
            "ep": "moe_expert_parallel_size",
        }
        return option(setup, keys[name], value)
    flags = {"tp": "--tp_size", "pp": "--pp_size", "ep": "--moe_ep_size"}
    ranks = setup.layout.world // max(getattr(setup.layout, name) or 1, 1) * value
    started = (
        (Written(Stage.LAUNCH, f"mpirun -n {ranks} tritonserver"),)
        if name != "ep" and not at_least(release_of(setup), "0.15.0")
        else ()
    )
    return (*converted(setup, f"{flags[name]} {value}"), *started)
