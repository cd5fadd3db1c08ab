"""What an artifact is, in the dozen lines a person can take in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.model import Section
from trtdx.words import counted, listed, size_in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.inspect.facts.artifact import Artifact


class Line(NamedTuple):
    """One line of the overview: its name and the words for it, empty where nothing was stated."""

    name: str
    words: Callable[[Artifact], str]


def overview(artifact: Artifact) -> Section:
    """Return the overview of one artifact."""
    rows = [(line.name, text) for line in LINES if (text := line.words(artifact))]
    is_unit = artifact.kind == "command" and artifact.unit
    name = f"{artifact.path} ({artifact.unit})" if is_unit else artifact.path
    return Section("overview", f"{artifact.title}: {name}", ("", ""), tuple(rows))


def joined(*parts: str, by: str = ", ") -> str:
    return by.join(part for part in parts if part)


def said(artifact: Artifact, name: str, form: str = "{}") -> str:
    """Return a fact put into words, or nothing where nobody stated it."""
    value = artifact.get(name)
    if value is None or value == "":
        return ""
    return form.format(f"{value:g}" if isinstance(value, float) else value)


def _made_by(a: Artifact) -> str:
    versions = a.items("plan.versions") or [a.text("plan.version")]
    product = a.text("plan.product") or "TensorRT"
    return joined(
        said(a, "version", "TensorRT-LLM {}"),
        joined(*(f"{product} {version}" for version in versions if version)),
        said(a, "onnx.producer"),
        said(a, "era", "layout of {}") if a.kind == "engine" and not a.has("version") else "",
    )


def _model(a: Artifact) -> str:
    return joined(said(a, "architecture"), said(a, "dtype"), "multimodal" if a.get("multimodal") else "")


def _size(a: Artifact) -> str:
    heads = joined(said(a, "num_heads", "{} heads"), said(a, "head_size", "of {}"), by=" ")
    kv = said(a, "num_kv_heads", "{} for keys and values")
    return joined(
        joined(said(a, "num_layers", "{} layers"), said(a, "hidden_size", "of {}"), by=" "),
        f"{heads} ({kv})" if heads and kv else heads,
        said(a, "intermediate_size", "MLP {}"),
    )


def _experts(a: Artifact) -> str:
    return joined(
        said(a, "num_experts", "{} experts"),
        said(a, "experts_per_token", "{} for a token"),
        said(a, "moe_intermediate_size", "inner size {}"),
    )


def _surroundings(a: Artifact) -> str:
    shm = a.integer("container.shm_bytes")
    return joined(
        said(a, "container.system"),
        said(a, "container.image"),
        f"{a.integer('container.nodes')} machines" if (a.integer("container.nodes") or 1) > 1 else "",
        counted(a.integer("container.gpus") or 0, "GPU") if a.has("container.gpus") else "",
        f"{size_in_words(shm)} of shared memory" if shm else "",
    )


def _positions(a: Artifact) -> str:
    scaling = a.table("rope_scaling")
    kind = scaling.get("type", "")
    return joined(
        said(a, "max_positions", "up to {}"),
        said(a, "position_embedding"),
        said(a, "rotary_base", "base {}"),
        joined(
            f"{kind} scaling",
            f"x{scaling['factor']:g}" if type(scaling.get("factor")) in (int, float) else "",
            by=" ",
        )
        if kind
        else "",
        said(a, "sliding_window", "window {}"),
    )


def _quantisation(a: Artifact) -> str:
    algo = a.text("quant.algo") or a.text("quant.method")
    layers = a.table("quant.per_layer")
    return joined(
        algo,
        said(a, "quant.group_size", "groups of {}") if algo else "",
        said(a, "quant.kv_algo", "key/value cache {}"),
        f"{len(layers)} layers of their own" if layers else "",
        f"not for {listed(a.items('quant.excluded'))}" if a.items("quant.excluded") else "",
    )


def _mapping(a: Artifact) -> str:
    sizes = {name: a.integer(f"{name}_size") for name in ("tp", "pp", "cp", "moe_ep")}
    split = joined(*(f"{name} {size}" for name, size in sizes.items() if size and size > 1), by=" x ")
    ranks = a.integer("world_size")
    return joined(counted(ranks, "rank") if ranks else "", split, said(a, "runtime.world_size", "{} started"))


def _limits(a: Artifact) -> str:
    return joined(
        said(a, "max_batch_size", "batch {}"),
        said(a, "max_input_len", "prompt {}"),
        said(a, "max_seq_len", "prompt and answer {}"),
        said(a, "max_output_len", "answer {}"),
        said(a, "max_num_tokens", "{} tokens a step"),
        said(a, "max_beam_width", "beams {}"),
        said(a, "max_draft_len", "draft {}") if a.get("max_draft_len") else "",
    )


def _weights(a: Artifact) -> str:
    if a.text("weights.format") == "engine":
        return ""  # they lie in the plans, which have a line of their own
    count, size = a.integer("weights.files"), a.integer("weights.bytes")
    return joined(
        counted(count, "file") if count is not None else "",
        size_in_words(size) if size is not None else "",
        ", ".join(map(str, a.table("weights.dtypes"))),
        said(a, "weights.format") if a.text("weights.format") != "safetensors" else "",
    )


def _cache(a: Artifact) -> str:
    return joined(
        said(a, "kv_cache_type"),
        said(a, "tokens_per_block", "blocks of {} tokens"),
        said(a, "runtime.kv_cache_dtype"),
        said(a, "runtime.free_gpu_memory_fraction", "{} of free memory"),
        "blocks reused" if a.get("runtime.block_reuse") else "",
    )


def _tokenizer(a: Artifact) -> str:
    return joined(
        said(a, "tokenizer.class"),
        said(a, "tokenizer.size", "{} ids"),
        *(said(a, f"tokenizer.{name}_id", f"{name} {{}}") for name in ("bos", "eos", "pad")),
        "chat template" if a.text("tokenizer.chat_template") else "",
    )


def _generation(a: Artifact) -> str:
    names = ("temperature", "top_p", "top_k", "repetition_penalty")
    sampling = joined(*(said(a, f"generation.{name}", f"{name} {{}}") for name in names))
    return joined(
        f"ends at {listed(a.items('generation.eos_ids'), by=' or ')}"
        if a.items("generation.eos_ids")
        else "",
        f"asks for {sampling}, which TensorRT-LLM does not apply by itself" if sampling else "",
    )


def _debug(a: Artifact) -> str:
    if a.get("debug_outputs") is None:
        return ""
    return "intermediate tensors are outputs" if a.get("debug_outputs") else "no intermediate tensors"


def _onnx(a: Artifact) -> str:
    external = a.items("onnx.external_files")
    size = a.integer("onnx.weights_bytes")
    opset = a.table("onnx.opset")
    return joined(
        said(a, "onnx.nodes", "{} nodes"),
        f"opset {opset.get('', opset.get('ai.onnx'))}" if opset else "",
        f"{size_in_words(size)} of weights" if size else "",
        f"in {counted(len(external), 'other file')}" if external else "",
    )


def _plan(a: Artifact) -> str:
    size, count = a.integer("plan.bytes"), a.integer("weights.files") or 1
    if size is None:
        return ""
    gpus = [f"SM {sm}" for sm in a.items("plan.sms")]
    return joined(counted(count, "plan"), size_in_words(size), f"for {listed(gpus)}" if gpus else "")


def _settings(a: Artifact) -> str:
    if a.kind != "engine":
        return ""
    from trtdx.inspect.facts.build_defaults import differs, settings_of

    changed = [name for name, value in settings_of(a).items() if differs(a, name, value)]
    return (
        f"not as by default: {listed(sorted(changed))} (--show settings)" if changed else "all as by default"
    )


def _log(a: Artifact) -> str:
    activations = [size_in_words(size) for size in a.items("log.activation_bytes") if isinstance(size, int)]
    weights = a.integer("log.weights_bytes")
    return joined(
        said(a, "log.layers", "{} kernels"),
        f"activations {' / '.join(activations)}" if activations else "",
        f"weights {size_in_words(weights)}" if weights else "",
        said(a, "log.build_seconds", "{} s"),
    )


def _lora(a: Artifact) -> str:
    return joined(
        said(a, "lora.rank", "rank {}"),
        said(a, "lora.alpha", "alpha {}"),
        said(a, "lora.max_rank", "up to rank {}"),
        listed(a.items("lora.modules") or a.items("lora.target_modules")),
        said(a, "lora.base_model", "for {}"),
    )


def _serving(a: Artifact) -> str:
    return joined(
        said(a, "runtime.model"),
        said(a, "runtime.backend", "{} backend"),
        listed(a.items("triton.models")),
        said(a, "triton.engine_dir", "engine {}"),
        "streaming" if a.get("triton.decoupled") else "",
    )


def _gpu(a: Artifact) -> str:
    return joined(said(a, "gpu.count", "{} x"), said(a, "gpu.name"), said(a, "gpu.sm", "(SM {})"), by=" ")


def _io(a: Artifact) -> str:
    ins = sum(tensor.mode == "in" for tensor in a.tensors)
    profiles = counted(len(a.profiles), "optimization profile") if a.profiles else ""
    return joined(f"{ins} in, {len(a.tensors) - ins} out" if a.tensors else "", profiles)


LINES = (
    Line("made by", _made_by),
    Line("model", _model),
    Line("size", _size),
    Line("experts", _experts),
    Line("vocabulary", lambda a: said(a, "vocab_size", "{} tokens")),
    Line("positions", _positions),
    Line("quantisation", _quantisation),
    Line("ranks", _mapping),
    Line("limits", _limits),
    Line("cache", _cache),
    Line("graph", _onnx),
    Line("plans", _plan),
    Line("settings", _settings),
    Line("build", _log),
    Line("weights", _weights),
    Line("tokenizer", _tokenizer),
    Line("generation", _generation),
    Line("LoRA", _lora),
    Line("serving", _serving),
    Line("runs in", _surroundings),
    Line("GPU", _gpu),
    Line("tensors", _io),
    Line("debug", _debug),
)
