"""What an artifact is, in the dozen lines a person can take in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.model import Section
from trtdx.words import abbreviate_list, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.inspect.facts.artifact import Artifact


class OverviewLine(NamedTuple):
    """One line of the overview: its name and the words for it, empty where nothing was stated."""

    name: str
    render: Callable[[Artifact], str]


def overview_section(artifact: Artifact) -> Section:
    """Return the overview of one artifact."""
    rows = [(line.name, text) for line in OVERVIEW_LINES if (text := line.render(artifact))]
    is_unit = artifact.kind == "command" and artifact.unit
    name = f"{artifact.path} ({artifact.unit})" if is_unit else artifact.path
    return Section("overview", f"{artifact.title}: {name}", ("", ""), tuple(rows))


def join_stated(*parts: str, by: str = ", ") -> str:
    return by.join(part for part in parts if part)


def fact_words(artifact: Artifact, name: str, template: str = "{}") -> str:
    """Return a fact put into words, or nothing where nobody stated it."""
    value = artifact.get(name)
    if value is None or value == "":
        return ""
    return template.format(f"{value:g}" if isinstance(value, float) else value)


def _maker_words(artifact: Artifact) -> str:
    versions = artifact.items("plan.versions") or [artifact.text("plan.version")]
    product = artifact.text("plan.product") or "TensorRT"
    return join_stated(
        fact_words(artifact, "version", "TensorRT-LLM {}"),
        join_stated(*(f"{product} {version}" for version in versions if version)),
        fact_words(artifact, "onnx.producer"),
        fact_words(artifact, "era", "layout of {}")
        if artifact.kind == "engine" and not artifact.has("version")
        else "",
    )


def _model_words(artifact: Artifact) -> str:
    return join_stated(
        fact_words(artifact, "architecture"),
        fact_words(artifact, "dtype"),
        "multimodal" if artifact.get("multimodal") else "",
    )


def _size_words(artifact: Artifact) -> str:
    heads = join_stated(
        fact_words(artifact, "num_heads", "{} heads"), fact_words(artifact, "head_size", "of {}"), by=" "
    )
    kv = fact_words(artifact, "num_kv_heads", "{} for keys and values")
    return join_stated(
        join_stated(
            fact_words(artifact, "num_layers", "{} layers"),
            fact_words(artifact, "hidden_size", "of {}"),
            by=" ",
        ),
        f"{heads} ({kv})" if heads and kv else heads,
        fact_words(artifact, "intermediate_size", "MLP {}"),
    )


def _expert_words(artifact: Artifact) -> str:
    return join_stated(
        fact_words(artifact, "num_experts", "{} experts"),
        fact_words(artifact, "experts_per_token", "{} for a token"),
        fact_words(artifact, "moe_intermediate_size", "inner size {}"),
    )


def _container_words(artifact: Artifact) -> str:
    shm = artifact.integer("container.shm_bytes")
    return join_stated(
        fact_words(artifact, "container.system"),
        fact_words(artifact, "container.image"),
        f"{artifact.integer('container.nodes')} machines" if (artifact.integer("container.nodes") or 1) > 1 else "",
        format_count(artifact.integer("container.gpus") or 0, "GPU") if artifact.has("container.gpus") else "",
        f"{format_bytes(shm)} of shared memory" if shm else "",
    )


def _position_words(artifact: Artifact) -> str:
    scaling = artifact.table("rope_scaling")
    kind = scaling.get("type", "")
    return join_stated(
        fact_words(artifact, "max_positions", "up to {}"),
        fact_words(artifact, "position_embedding"),
        fact_words(artifact, "rotary_base", "base {}"),
        join_stated(
            f"{kind} scaling",
            f"x{scaling['factor']:g}" if type(scaling.get("factor")) in (int, float) else "",
            by=" ",
        )
        if kind
        else "",
        fact_words(artifact, "sliding_window", "window {}"),
    )


def _quantisation_words(artifact: Artifact) -> str:
    algo = artifact.text("quant.algo") or artifact.text("quant.method")
    layers = artifact.table("quant.per_layer")
    return join_stated(
        algo,
        fact_words(artifact, "quant.group_size", "groups of {}") if algo else "",
        fact_words(artifact, "quant.kv_algo", "key/value cache {}"),
        f"{len(layers)} layers of their own" if layers else "",
        f"not for {abbreviate_list(artifact.items('quant.excluded'))}" if artifact.items("quant.excluded") else "",
    )


def _mapping_words(artifact: Artifact) -> str:
    sizes = {name: artifact.integer(f"{name}_size") for name in ("tp", "pp", "cp", "moe_ep")}
    split = join_stated(*(f"{name} {size}" for name, size in sizes.items() if size and size > 1), by=" x ")
    ranks = artifact.integer("world_size")
    return join_stated(
        format_count(ranks, "rank") if ranks else "",
        split,
        fact_words(artifact, "runtime.world_size", "{} started"),
    )


def _limit_words(artifact: Artifact) -> str:
    return join_stated(
        fact_words(artifact, "max_batch_size", "batch {}"),
        fact_words(artifact, "max_input_len", "prompt {}"),
        fact_words(artifact, "max_seq_len", "prompt and answer {}"),
        fact_words(artifact, "max_output_len", "answer {}"),
        fact_words(artifact, "max_num_tokens", "{} tokens a step"),
        fact_words(artifact, "max_beam_width", "beams {}"),
        fact_words(artifact, "max_draft_len", "draft {}") if artifact.get("max_draft_len") else "",
    )


def _weight_words(artifact: Artifact) -> str:
    if artifact.text("weights.format") == "engine":
        return ""  # they lie in the plans, which have a line of their own
    count, size = artifact.integer("weights.files"), artifact.integer("weights.bytes")
    return join_stated(
        format_count(count, "file") if count is not None else "",
        format_bytes(size) if size is not None else "",
        ", ".join(map(str, artifact.table("weights.dtypes"))),
        fact_words(artifact, "weights.format") if artifact.text("weights.format") != "safetensors" else "",
    )


def _cache_words(artifact: Artifact) -> str:
    return join_stated(
        fact_words(artifact, "kv_cache_type"),
        fact_words(artifact, "tokens_per_block", "blocks of {} tokens"),
        fact_words(artifact, "runtime.kv_cache_dtype"),
        fact_words(artifact, "runtime.free_gpu_memory_fraction", "{} of free memory"),
        "blocks reused" if artifact.get("runtime.block_reuse") else "",
    )


def _tokenizer_words(artifact: Artifact) -> str:
    return join_stated(
        fact_words(artifact, "tokenizer.class"),
        fact_words(artifact, "tokenizer.size", "{} ids"),
        *(fact_words(artifact, f"tokenizer.{name}_id", f"{name} {{}}") for name in ("bos", "eos", "pad")),
        "chat template" if artifact.text("tokenizer.chat_template") else "",
    )


def _generation_words(artifact: Artifact) -> str:
    names = ("temperature", "top_p", "top_k", "repetition_penalty")
    sampling = join_stated(*(fact_words(artifact, f"generation.{name}", f"{name} {{}}") for name in names))
    return join_stated(
        f"ends at {abbreviate_list(artifact.items('generation.eos_ids'), separator=' or ')}"
        if artifact.items("generation.eos_ids")
        else "",
        f"asks for {sampling}, which TensorRT-LLM does not apply by itself" if sampling else "",
    )


def _debug_words(artifact: Artifact) -> str:
    if artifact.get("debug_outputs") is None:
        return ""
    return "intermediate tensors are outputs" if artifact.get("debug_outputs") else "no intermediate tensors"


def _graph_words(artifact: Artifact) -> str:
    external = artifact.items("onnx.external_files")
    size = artifact.integer("onnx.weights_bytes")
    opset = artifact.table("onnx.opset")
    return join_stated(
        fact_words(artifact, "onnx.nodes", "{} nodes"),
        f"opset {opset.get('', opset.get('ai.onnx'))}" if opset else "",
        f"{format_bytes(size)} of weights" if size else "",
        f"in {format_count(len(external), 'other file')}" if external else "",
    )


def _plan_words(artifact: Artifact) -> str:
    size, count = artifact.integer("plan.bytes"), artifact.integer("weights.files") or 1
    if size is None:
        return ""
    gpus = [f"SM {sm}" for sm in artifact.items("plan.sms")]
    return join_stated(format_count(count, "plan"), format_bytes(size), f"for {abbreviate_list(gpus)}" if gpus else "")


def _settings_words(artifact: Artifact) -> str:
    if artifact.kind != "engine":
        return ""
    from trtdx.inspect.facts.build_defaults import differs_from_default, engine_settings

    changed = [name for name, value in engine_settings(artifact).items() if differs_from_default(artifact, name, value)]
    return (
        f"not as by default: {abbreviate_list(sorted(changed))} (--show settings)" if changed else "all as by default"
    )


def _build_log_words(artifact: Artifact) -> str:
    activations = [format_bytes(size) for size in artifact.items("log.activation_bytes") if isinstance(size, int)]
    weights = artifact.integer("log.weights_bytes")
    return join_stated(
        fact_words(artifact, "log.layers", "{} kernels"),
        f"activations {' / '.join(activations)}" if activations else "",
        f"weights {format_bytes(weights)}" if weights else "",
        fact_words(artifact, "log.build_seconds", "{} s"),
    )


def _lora_words(artifact: Artifact) -> str:
    return join_stated(
        fact_words(artifact, "lora.rank", "rank {}"),
        fact_words(artifact, "lora.alpha", "alpha {}"),
        fact_words(artifact, "lora.max_rank", "up to rank {}"),
        abbreviate_list(artifact.items("lora.modules") or artifact.items("lora.target_modules")),
        fact_words(artifact, "lora.base_model", "for {}"),
    )


def _serving_words(artifact: Artifact) -> str:
    return join_stated(
        fact_words(artifact, "runtime.model"),
        fact_words(artifact, "runtime.backend", "{} backend"),
        abbreviate_list(artifact.items("triton.models")),
        fact_words(artifact, "triton.engine_dir", "engine {}"),
        "streaming" if artifact.get("triton.decoupled") else "",
    )


def _gpu_words(artifact: Artifact) -> str:
    return join_stated(
        fact_words(artifact, "gpu.count", "{} x"),
        fact_words(artifact, "gpu.name"),
        fact_words(artifact, "gpu.sm", "(SM {})"),
        by=" ",
    )


def _tensor_words(artifact: Artifact) -> str:
    ins = sum(tensor.mode == "in" for tensor in artifact.tensors)
    profiles = format_count(len(artifact.profiles), "optimization profile") if artifact.profiles else ""
    return join_stated(f"{ins} in, {len(artifact.tensors) - ins} out" if artifact.tensors else "", profiles)


OVERVIEW_LINES = (
    OverviewLine("made by", _maker_words),
    OverviewLine("model", _model_words),
    OverviewLine("size", _size_words),
    OverviewLine("experts", _expert_words),
    OverviewLine("vocabulary", lambda a: fact_words(a, "vocab_size", "{} tokens")),
    OverviewLine("positions", _position_words),
    OverviewLine("quantisation", _quantisation_words),
    OverviewLine("ranks", _mapping_words),
    OverviewLine("limits", _limit_words),
    OverviewLine("cache", _cache_words),
    OverviewLine("graph", _graph_words),
    OverviewLine("plans", _plan_words),
    OverviewLine("settings", _settings_words),
    OverviewLine("build", _build_log_words),
    OverviewLine("weights", _weight_words),
    OverviewLine("tokenizer", _tokenizer_words),
    OverviewLine("generation", _generation_words),
    OverviewLine("LoRA", _lora_words),
    OverviewLine("serving", _serving_words),
    OverviewLine("runs in", _container_words),
    OverviewLine("GPU", _gpu_words),
    OverviewLine("tensors", _tensor_words),
    OverviewLine("debug", _debug_words),
)
