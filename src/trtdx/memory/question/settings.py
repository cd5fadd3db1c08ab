"""Layout, formats and switches: as stated, or the release's defaults."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError
from trtdx.inspect.facts.build_defaults import UNKNOWN_DEFAULT
from trtdx.knowledge.versions import at_least, has_engine_flow
from trtdx.memory.model.format_names import (
    WEIGHT_FORMATS,
    dtype_from_word,
    kv_dtype_from_word,
    weight_format_from_word,
)
from trtdx.memory.model.mixed_formats import formats_by_module
from trtdx.memory.nouns import DEFAULT_SOURCE, LAST_STABLE_RELEASE, Formats, ParallelLayout, RuntimeSettings
from trtdx.memory.question.build_defaults import build_default
from trtdx.memory.question.flags import ENGINE_FACTS

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import Artifact, Fact
    from trtdx.memory.nouns import Dims

PYTORCH_SINCE = "1.0.0"  # trtllm-serve and the LLM API use it unless told otherwise
MOST_RANKS = 4096
# What `--use_inflight_batching` switched on (examples/llama/build.py@v0.7.1).
IN_FLIGHT_PLUGINS = ("gpt_attention_plugin", "remove_input_padding", "paged_kv_cache")


# Fields of `Running`: for those that are amounts the largest that makes sense, then the facts that state them.
AMOUNTS: dict[str, tuple[Any, ...]] = {
    "max_tokens": (10**12, "runtime.max_tokens_in_cache"),
    "max_kv_bytes": (10**15, "option.kv_cache_config.max_gpu_total_bytes"),
    "host_cache_bytes": (10**15, "option.kv_cache_config.host_cache_size"),
    "moe_max_tokens": (10**9, "option.moe_config.max_num_tokens", "option.moe_max_num_tokens"),
    "disaggregated_tokens": (10**9, "option.cache_transceiver_config.max_tokens_in_buffer"),
    "max_loras": (MOST_RANKS, "option.lora_config.max_loras"),
    "max_lora_rank": (10**5, "lora.max_rank"),
}
SWITCHES = {
    "multiple_profiles": ("multiple_profiles",),
    "gather_context_logits": ("gather_context_logits",),
    "gather_generation_logits": ("gather_generation_logits", "runtime.gather_generation_logits"),
    "piecewise_graphs": ("option.torch_compile_config.enable_piecewise_cuda_graph",),
    "chunked": ("runtime.chunked_context",),
    "lora": ("lora.enabled", "option.lora_plugin"),
}
ENGINE_PLUGINS = {
    "gemm_plugin": "gemm_plugin", "attention_plugin": "gpt_attention_plugin", "context_fmha": "context_fmha",
    "packed": "remove_input_padding", "paged_kv": "paged_kv_cache",
}  # fmt: skip


class LayeredSettings:
    """Takes each setting from the first of several artifacts that states it, and keeps where it stood."""

    def __init__(self, layers: tuple[Artifact, ...]) -> None:
        self.layers = layers
        self.sources: dict[str, str] = {}

    def find_fact(self, *facts: str) -> Fact | None:
        matches = (layer.facts[fact] for layer in self.layers for fact in facts if fact in layer.facts)
        return next(matches, None)

    def take(self, key: str, *facts: str, default: Any, why: str = "") -> Any:
        """Return what is stated under any of these facts, or the default."""
        fact = self.find_fact(*facts)
        self.sources[key] = fact.where if fact else f"{DEFAULT_SOURCE}{': ' if why else ''}{why}"
        return fact.value if fact else default

    def number(self, key: str, *facts: str, default: int, why: str = "", most: int = MOST_RANKS, least: int = 1) -> int:
        """Return a number that makes sense, or raise."""
        value = self.take(key, *facts, default=default, why=why)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(
                f"{key} = {value} ({self.sources[key]}) cannot be",
                fix=f"give a whole number from {least} to {most:,}",
            )
        return value

    def text(self, key: str, *facts: str) -> str:
        fact = self.find_fact(*facts)
        if fact is None or not isinstance(fact.value, str):
            return ""
        self.sources[key] = fact.where
        return fact.value

    def switch(self, key: str, *facts: str, default: bool) -> bool:
        """Return whether something is on; a plugin is on where its type is named."""
        fact = self.find_fact(*facts)
        if fact is None:
            return default
        self.sources[key] = fact.where
        return fact.value not in (False, None, "null", "disable", "none", "False", "false")


def layout_from_settings(settings: LayeredSettings, gpus: int, dims: Dims) -> ParallelLayout:
    """Return how the model is spread; "2xH100" alone means tensor parallelism over the two."""
    pp = settings.number("pp", "pp_size", default=1)
    cp = settings.number("cp", "cp_size", default=1)
    over = max(gpus // (pp * cp), 1) if gpus else 1
    tp = settings.number("tp", "tp_size", default=over)
    if gpus and settings.find_fact("tp_size") is None:
        settings.sources["tp"] = "--gpu"
    ep = settings.number("ep", "moe_ep_size", default=0, least=0)
    moe_tp = settings.number("moe_tp", "moe_tp_size", default=0, least=0)
    cut = settings.take("parallel_embedding", "use_parallel_embedding", default=None)
    partition = settings.find_fact("option.pp_partition")
    _check_world_size(settings, tp, pp, cp)
    return ParallelLayout(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep if dims.num_experts else 0,
        moe_tp=moe_tp if dims.num_experts else 0,
        attention_dp=settings.switch("attention_dp", "attention_dp", default=False),
        parallel_embedding=cut if isinstance(cut, bool) else None,
        pp_partition=tuple(partition.value) if partition and isinstance(partition.value, list) else (),
        gpus_per_node=settings.number("gpus_per_node", "gpus_per_node", default=0, least=0),
    )


def _check_world_size(settings: LayeredSettings, tp: int, pp: int, cp: int) -> None:
    """Raise where one source states a world size that is not the product of its parallel sizes."""
    for layer in settings.layers:
        world = layer.facts.get("world_size")
        has_sizes = layer.has("tp_size") or layer.has("pp_size")
        if world is not None and has_sizes and world.value != tp * pp * cp:
            sizes = [layer.integer(name) or 1 for name in ("tp_size", "pp_size", "cp_size")]
            if math.prod(sizes) == world.value:
                continue  # another layout is asked about than the files have
            raise InputError(
                f"world_size {world.value} ({world.where}) is not tp {tp} x pp {pp} x cp {cp} = {tp * pp * cp}",
                fix=f"start {tp * pp * cp} ranks, or give sizes whose product is {world.value}",
            )


def formats_from_settings(settings: LayeredSettings, dims: Dims) -> Formats:
    """Return the types of weights, cache and the rest; `--dtype fp8` means the weights."""
    dtype, weights = _model_dtype(settings), ""
    quant = settings.find_fact("quant.algo", "option.quant_config.quant_algo")
    if dtype.upper() in WEIGHT_FORMATS or dtype in ("awq", "gptq", "mxfp4", "int8", "int4"):
        weights, settings.sources["weights"] = weight_format_from_word(dtype), "--dtype"
        dtype = _unquantised_dtype(settings)
    elif quant is not None:
        weights, settings.sources["weights"] = _weight_format(quant)
    elif settings.find_fact("quant.method") is not None:
        weights, settings.sources["weights"] = _nearest_packed_format(settings)
    kv = settings.text("kv", "runtime.kv_cache_dtype")
    if kv in ("", "auto"):
        kv = settings.text("kv", "quant.kv_algo") or ""
    if settings.switch("kv", "option.fp8_kv_cache", default=False):
        kv = "fp8"
    if settings.switch("kv", "option.int8_kv_cache", default=False):
        kv = "int8"
    excluded = settings.find_fact("quant.excluded")
    names = tuple(name for name in excluded.value if isinstance(name, str)) if excluded else ()
    mixed = settings.find_fact("quant.per_layer") if weights == "MIXED_PRECISION" else None
    return Formats(
        dtype=dtype_from_word(dtype),
        weights=weights,
        kv=kv_dtype_from_word(kv) if kv else "",
        group_size=settings.number("group_size", "quant.group_size", default=_default_group_size(weights), most=10**6),
        excluded=names[:2000],
        by_module=formats_by_module(mixed.value, dims.num_layers) if mixed else (),
        logits_dtype=dtype_from_word(settings.take("logits_dtype", "logits_dtype", default="float32")),
    )


def _weight_format(quant: Fact) -> tuple[str, str]:
    """Return the format of weights and where it stands; one that files name and trtdx does not know is kept."""
    try:
        return weight_format_from_word(str(quant.value)), quant.where
    except InputError:
        if quant.where.startswith("--"):
            raise
    return str(quant.value).upper(), f"{DEFAULT_SOURCE}: it is not known, and taken for eight bits ({quant.where})"


def _nearest_packed_format(settings: LayeredSettings) -> tuple[str, str]:
    """Return the nearest format to what a file packs in a way that TensorRT-LLM has no name for."""
    bits, method = settings.find_fact("quant.bits"), settings.find_fact("quant.method")
    nearest = {4: "W4A16_AWQ", 8: "W8A16"}.get(bits.value, "") if bits and type(bits.value) is int else ""
    where = method.where if method else ""
    return nearest, f"{DEFAULT_SOURCE}: the nearest to what it has ({where})" if nearest else where


def _model_dtype(settings: LayeredSettings) -> str:
    stated = settings.text("dtype", "runtime.dtype")
    if stated and stated != "auto":
        return stated
    fact = settings.find_fact("dtype")
    value = str(fact.value).lower() if fact else "bfloat16"
    settings.sources["dtype"] = fact.where if fact else f"{DEFAULT_SOURCE}: what most models are"
    return "bfloat16" if value == "auto" else value


def _unquantised_dtype(settings: LayeredSettings) -> str:
    """Return the model's own type where `--dtype` named a format."""
    model = settings.layers[-1] if settings.layers else None
    model_dtype = model.text("dtype") if model else ""
    settings.sources["dtype"] = f"{DEFAULT_SOURCE}: the model's" if model_dtype else DEFAULT_SOURCE
    return model_dtype or "bfloat16"


def _default_group_size(weights: str) -> int:
    return 16 if weights == "NVFP4" else 32 if "MXFP" in weights or "NVFP4" in weights else 128


def runtime_from_settings(settings: LayeredSettings, version: str, kind: str, model_type: str = "") -> RuntimeSettings:
    """Return backend, release and switches."""
    version = version or _stated_version(settings, kind)
    backend = _choose_backend(settings, version, kind)
    if not version:
        version = LAST_STABLE_RELEASE
        settings.sources["version"] = f"{DEFAULT_SOURCE}: the last stable release"
    else:
        settings.sources.setdefault("version", "--trtllm-version")
    fraction = settings.take("free_fraction", "runtime.free_gpu_memory_fraction", default=0.9)
    if not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
        raise InputError(
            f"the share of free memory for the cache is {fraction} ({settings.sources['free_fraction']}), "
            "which is not between 0 and 1",
            fix="--kv_cache_free_gpu_memory_fraction 0.9: the rest is for what is allocated later",
        )
    settings.text("attn_backend", "option.attn_backend", "option.pytorch_backend_config.attn_backend")
    build = _EngineSwitches(settings, version, model_type) if backend == "tensorrt" else None
    plugins: dict[str, Any] = {field: build.is_on(name) if build else True for field, name in ENGINE_PLUGINS.items()}
    amounts: dict[str, Any] = {name: _read_amount(settings, name, *row) for name, row in AMOUNTS.items()}
    everything = settings.switch("gather_context_logits", "option.gather_all_token_logits", default=False)
    graphs = settings.find_fact(
        "option.cuda_graph_config", "option.use_cuda_graph", "option.pytorch_backend_config.use_cuda_graph"
    )
    switches: dict[str, Any] = {name: settings.switch(name, *facts, default=False) for name, facts in SWITCHES.items()}
    return RuntimeSettings(
        backend=backend,
        version=version,
        free_fraction=float(fraction),
        **amounts,
        block_reuse=settings.switch("block_reuse", "runtime.block_reuse", default=True)
        and not settings.switch("block_reuse", "option.disable_kv_cache_reuse", default=False),
        **plugins | {"paged_kv": _is_paged(settings, plugins["paged_kv"])},
        **switches | {name: everything or switches[name] for name in switches if name.startswith("gather")},
        moe_backend=settings.text("moe_backend", "option.moe_config.backend", "option.moe_backend").upper(),
        cuda_graphs=_captures_graphs(backend, version) if graphs is None else graphs.value not in ("null", False),
        cuda_graph_max_batch=_largest_graph_batch(settings),
        torch_compile=_uses_torch_compile(settings),
        other_process_bytes=_read_amount(settings, "other_processes", 10**15, "option.other_processes"),
    )


def _read_amount(chosen: LayeredSettings, key: str, most: int, *facts: str) -> int:
    """Return a number that is 0 where nobody states it."""
    return chosen.number(key, *facts, default=0, least=0, most=most)


def _stated_version(settings: LayeredSettings, kind: str) -> str:
    return settings.text("version", "version", "runtime.version") if kind in ("engine", "checkpoint") else ""


def _choose_backend(settings: LayeredSettings, version: str, kind: str) -> str:
    word = settings.text("backend", "runtime.backend").lower()
    if word in ("tensorrt", "trt"):
        return "tensorrt"
    if word in ("pytorch", "torch", "_autodeploy"):
        return "pytorch"
    if word:
        raise InputError(f"no backend is called {word!r}", fix="--backend pytorch or --backend tensorrt")
    command = settings.text("command", "runtime.command")
    engine_programs = ("trtllm-build", "launch_triton", "tritonserver")
    if kind in ("engine", "checkpoint") or command.startswith(engine_programs):
        settings.sources["backend"] = f"{DEFAULT_SOURCE}: engines run on it"
        return "tensorrt"
    build = settings.find_fact(*ENGINE_FACTS)
    if build is not None and has_engine_flow(version or LAST_STABLE_RELEASE):
        settings.sources["backend"] = f"{DEFAULT_SOURCE}: {build.where} is of engines"
        return "tensorrt"
    older = bool(version) and not at_least(version, PYTORCH_SINCE)
    settings.sources["backend"] = f"{DEFAULT_SOURCE} of TensorRT-LLM {version or 'since 1.0'}"
    return "tensorrt" if older else "pytorch"


class _EngineSwitches:
    """Plugins of an engine: as said, or as trtllm-build sets them by itself."""

    def __init__(self, settings: LayeredSettings, version: str, model_type: str) -> None:
        self._settings, self._version, self._model_type = settings, version, model_type

    def is_on(self, name: str) -> bool:
        usual = build_default(self._version, self._model_type, f"plugin.{name}")
        if name in IN_FLIGHT_PLUGINS and self._settings.switch(
            "in_flight", "option.use_inflight_batching", default=False
        ):
            usual = True
        return self._settings.switch(
            name,
            f"plugin.{name}",
            f"option.--{name}",
            default=name != "gemm_plugin" if usual is UNKNOWN_DEFAULT else bool(usual),
        )


def _captures_graphs(backend: str, version: str) -> bool:
    """Return whether CUDA graphs are on by themselves: for PyTorch since 1.0."""
    return backend == "pytorch" and (not version or at_least(version, PYTORCH_SINCE))


def _is_paged(settings: LayeredSettings, by_plugin: bool) -> bool:
    kind = settings.text("paged_kv", "kv_cache_type")
    if kind:
        return kind.lower() == "paged"
    return settings.switch("paged_kv", "plugin.paged_kv_cache", default=by_plugin)


def _largest_graph_batch(settings: LayeredSettings) -> int:
    sizes = settings.find_fact("option.cuda_graph_config.batch_sizes", "option.cuda_graph_batch_sizes")
    if sizes is not None and isinstance(sizes.value, list):
        return max((size for size in sizes.value if isinstance(size, int)), default=0)
    facts = ("option.cuda_graph_config.max_batch_size", "option.cuda_graph_max_batch_size")
    return _read_amount(settings, "cuda_graph_max_batch", 10**6, *facts)


def _uses_torch_compile(settings: LayeredSettings) -> bool:
    names = ("option.torch_compile", "option.torch_compile_config", "option.torch_compile_config.enable_fullgraph",
             "option.torch_compile_config.enable_piecewise_cuda_graph", "option.torch_compile_config.enable_inductor")  # fmt: skip
    return any((fact := settings.find_fact(name)) and fact.value not in (False, "null") for name in names)
