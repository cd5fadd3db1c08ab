"""Layout, formats and switches: as stated, or the release's defaults."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trtdx.errors import InputError
from trtdx.inspect.facts.build_defaults import UNKNOWN
from trtdx.knowledge.versions import at_least, has_engine_flow
from trtdx.memory.model.format_names import FORMATS, dtype_from, format_from, kv_type_from
from trtdx.memory.model.mixed_formats import formats_by_module
from trtdx.memory.nouns import DEFAULT_SOURCE, LAST_STABLE, Formats, Layout, Running
from trtdx.memory.question.build_defaults import build_default
from trtdx.memory.question.flags import OF_ENGINES

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import Artifact, Fact
    from trtdx.memory.nouns import Dims

PYTORCH_SINCE = "1.0.0"  # trtllm-serve and the LLM API use it unless told otherwise
MOST_RANKS = 4096
# What `--use_inflight_batching` switched on (examples/llama/build.py@v0.7.1).
IN_FLIGHT = ("gpt_attention_plugin", "remove_input_padding", "paged_kv_cache")


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


class Chosen:
    """Takes each setting from the first of several artifacts that states it, and keeps where it stood."""

    def __init__(self, layers: tuple[Artifact, ...]) -> None:
        self.layers = layers
        self.said: dict[str, str] = {}

    def find(self, *facts: str) -> Fact | None:
        matches = (layer.facts[fact] for layer in self.layers for fact in facts if fact in layer.facts)
        return next(matches, None)

    def take(self, key: str, *facts: str, default: Any, why: str = "") -> Any:
        """Return what is stated under any of these facts, or the default."""
        fact = self.find(*facts)
        self.said[key] = fact.where if fact else f"{DEFAULT_SOURCE}{': ' if why else ''}{why}"
        return fact.value if fact else default

    def number(
        self, key: str, *facts: str, default: int, why: str = "", most: int = MOST_RANKS, least: int = 1
    ) -> int:
        """Return a number that makes sense, or raise."""
        value = self.take(key, *facts, default=default, why=why)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(
                f"{key} = {value} ({self.said[key]}) cannot be",
                fix=f"give a whole number from {least} to {most:,}",
            )
        return value

    def text(self, key: str, *facts: str) -> str:
        fact = self.find(*facts)
        if fact is None or not isinstance(fact.value, str):
            return ""
        self.said[key] = fact.where
        return fact.value

    def switch(self, key: str, *facts: str, default: bool) -> bool:
        """Return whether something is on; a plugin is on where its type is named."""
        fact = self.find(*facts)
        if fact is None:
            return default
        self.said[key] = fact.where
        return fact.value not in (False, None, "null", "disable", "none", "False", "false")


def layout_of(chosen: Chosen, gpus: int, dims: Dims) -> Layout:
    """Return how the model is spread; "2xH100" alone means tensor parallelism over the two."""
    pp = chosen.number("pp", "pp_size", default=1)
    cp = chosen.number("cp", "cp_size", default=1)
    over = max(gpus // (pp * cp), 1) if gpus else 1
    tp = chosen.number("tp", "tp_size", default=over)
    if gpus and chosen.find("tp_size") is None:
        chosen.said["tp"] = "--gpu"
    ep = chosen.number("ep", "moe_ep_size", default=0, least=0)
    moe_tp = chosen.number("moe_tp", "moe_tp_size", default=0, least=0)
    cut = chosen.take("parallel_embedding", "use_parallel_embedding", default=None)
    partition = chosen.find("option.pp_partition")
    _check_world(chosen, tp, pp, cp)
    return Layout(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep if dims.num_experts else 0,
        moe_tp=moe_tp if dims.num_experts else 0,
        attention_dp=chosen.switch("attention_dp", "attention_dp", default=False),
        parallel_embedding=cut if isinstance(cut, bool) else None,
        pp_partition=tuple(partition.value) if partition and isinstance(partition.value, list) else (),
        gpus_per_node=chosen.number("gpus_per_node", "gpus_per_node", default=0, least=0),
    )


def _check_world(chosen: Chosen, tp: int, pp: int, cp: int) -> None:
    """Raise where one source states a world size that is not the product of its parallel sizes."""
    for layer in chosen.layers:
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


def formats_of(chosen: Chosen, dims: Dims) -> Formats:
    """Return the types of weights, cache and the rest; `--dtype fp8` means the weights."""
    dtype, weights = _dtype(chosen), ""
    quant = chosen.find("quant.algo", "option.quant_config.quant_algo")
    if dtype.upper() in FORMATS or dtype in ("awq", "gptq", "mxfp4", "int8", "int4"):
        weights, chosen.said["weights"] = format_from(dtype), "--dtype"
        dtype = _plain_dtype(chosen)
    elif quant is not None:
        weights, chosen.said["weights"] = _format(quant)
    elif chosen.find("quant.method") is not None:
        weights, chosen.said["weights"] = _packed(chosen)
    kv = chosen.text("kv", "runtime.kv_cache_dtype")
    if kv in ("", "auto"):
        kv = chosen.text("kv", "quant.kv_algo") or ""
    if chosen.switch("kv", "option.fp8_kv_cache", default=False):
        kv = "fp8"
    if chosen.switch("kv", "option.int8_kv_cache", default=False):
        kv = "int8"
    excluded = chosen.find("quant.excluded")
    names = tuple(name for name in excluded.value if isinstance(name, str)) if excluded else ()
    mixed = chosen.find("quant.per_layer") if weights == "MIXED_PRECISION" else None
    return Formats(
        dtype=dtype_from(dtype),
        weights=weights,
        kv=kv_type_from(kv) if kv else "",
        group_size=chosen.number("group_size", "quant.group_size", default=_group(weights), most=10**6),
        excluded=names[:2000],
        by_module=formats_by_module(mixed.value, dims.num_layers) if mixed else (),
        logits_dtype=dtype_from(chosen.take("logits_dtype", "logits_dtype", default="float32")),
    )


def _format(quant: Fact) -> tuple[str, str]:
    """Return the format of weights and where it stands; one that files name and trtdx does not know is kept."""
    try:
        return format_from(str(quant.value)), quant.where
    except InputError:
        if quant.where.startswith("--"):
            raise
    return str(
        quant.value
    ).upper(), f"{DEFAULT_SOURCE}: it is not known, and taken for eight bits ({quant.where})"


def _packed(chosen: Chosen) -> tuple[str, str]:
    """Return the nearest format to what a file packs in a way that TensorRT-LLM has no name for."""
    bits, method = chosen.find("quant.bits"), chosen.find("quant.method")
    nearest = {4: "W4A16_AWQ", 8: "W8A16"}.get(bits.value, "") if bits and type(bits.value) is int else ""
    where = method.where if method else ""
    return nearest, f"{DEFAULT_SOURCE}: the nearest to what it has ({where})" if nearest else where


def _dtype(chosen: Chosen) -> str:
    stated = chosen.text("dtype", "runtime.dtype")
    if stated and stated != "auto":
        return stated
    fact = chosen.find("dtype")
    value = str(fact.value).lower() if fact else "bfloat16"
    chosen.said["dtype"] = fact.where if fact else f"{DEFAULT_SOURCE}: what most models are"
    return "bfloat16" if value == "auto" else value


def _plain_dtype(chosen: Chosen) -> str:
    """Return the model's own type where `--dtype` named a format."""
    model = chosen.layers[-1] if chosen.layers else None
    model_dtype = model.text("dtype") if model else ""
    chosen.said["dtype"] = f"{DEFAULT_SOURCE}: the model's" if model_dtype else DEFAULT_SOURCE
    return model_dtype or "bfloat16"


def _group(weights: str) -> int:
    return 16 if weights == "NVFP4" else 32 if "MXFP" in weights or "NVFP4" in weights else 128


def running_of(chosen: Chosen, version: str, kind: str, model_type: str = "") -> Running:
    """Return backend, release and switches."""
    version = version or _stated_version(chosen, kind)
    backend = _backend(chosen, version, kind)
    if not version:
        version = LAST_STABLE
        chosen.said["version"] = f"{DEFAULT_SOURCE}: the last stable release"
    else:
        chosen.said.setdefault("version", "--trtllm-version")
    fraction = chosen.take("free_fraction", "runtime.free_gpu_memory_fraction", default=0.9)
    if not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
        raise InputError(
            f"the share of free memory for the cache is {fraction} ({chosen.said['free_fraction']}), "
            "which is not between 0 and 1",
            fix="--kv_cache_free_gpu_memory_fraction 0.9: the rest is for what is allocated later",
        )
    chosen.text("attn_backend", "option.attn_backend", "option.pytorch_backend_config.attn_backend")
    build = _EngineSwitches(chosen, version, model_type) if backend == "tensorrt" else None
    plugins: dict[str, Any] = {
        field: build.on(name) if build else True for field, name in ENGINE_PLUGINS.items()
    }
    amounts: dict[str, Any] = {name: _read_amount(chosen, name, *row) for name, row in AMOUNTS.items()}
    everything = chosen.switch("gather_context_logits", "option.gather_all_token_logits", default=False)
    graphs = chosen.find(
        "option.cuda_graph_config", "option.use_cuda_graph", "option.pytorch_backend_config.use_cuda_graph"
    )
    switches: dict[str, Any] = {
        name: chosen.switch(name, *facts, default=False) for name, facts in SWITCHES.items()
    }
    return Running(
        backend=backend,
        version=version,
        free_fraction=float(fraction),
        **amounts,
        block_reuse=chosen.switch("block_reuse", "runtime.block_reuse", default=True)
        and not chosen.switch("block_reuse", "option.disable_kv_cache_reuse", default=False),
        **plugins | {"paged_kv": _is_paged(chosen, plugins["paged_kv"])},
        **switches | {name: everything or switches[name] for name in switches if name.startswith("gather")},
        moe_backend=chosen.text("moe_backend", "option.moe_config.backend", "option.moe_backend").upper(),
        cuda_graphs=_captures(backend, version) if graphs is None else graphs.value not in ("null", False),
        cuda_graph_max_batch=_graph_batch(chosen),
        torch_compile=_compiles(chosen),
        other_process_bytes=_read_amount(chosen, "other_processes", 10**15, "option.other_processes"),
    )


def _read_amount(chosen: Chosen, key: str, most: int, *facts: str) -> int:
    """Return a number that is 0 where nobody states it."""
    return chosen.number(key, *facts, default=0, least=0, most=most)


def _stated_version(chosen: Chosen, kind: str) -> str:
    return chosen.text("version", "version", "runtime.version") if kind in ("engine", "checkpoint") else ""


def _backend(chosen: Chosen, version: str, kind: str) -> str:
    word = chosen.text("backend", "runtime.backend").lower()
    if word in ("tensorrt", "trt"):
        return "tensorrt"
    if word in ("pytorch", "torch", "_autodeploy"):
        return "pytorch"
    if word:
        raise InputError(f"no backend is called {word!r}", fix="--backend pytorch or --backend tensorrt")
    command = chosen.text("command", "runtime.command")
    engine_programs = ("trtllm-build", "launch_triton", "tritonserver")
    if kind in ("engine", "checkpoint") or command.startswith(engine_programs):
        chosen.said["backend"] = f"{DEFAULT_SOURCE}: engines run on it"
        return "tensorrt"
    build = chosen.find(*OF_ENGINES)
    if build is not None and has_engine_flow(version or LAST_STABLE):
        chosen.said["backend"] = f"{DEFAULT_SOURCE}: {build.where} is of engines"
        return "tensorrt"
    older = bool(version) and not at_least(version, PYTORCH_SINCE)
    chosen.said["backend"] = f"{DEFAULT_SOURCE} of TensorRT-LLM {version or 'since 1.0'}"
    return "tensorrt" if older else "pytorch"


class _EngineSwitches:
    """Plugins of an engine: as said, or as trtllm-build sets them by itself."""

    def __init__(self, chosen: Chosen, version: str, model_type: str) -> None:
        self._chosen, self._version, self._model_type = chosen, version, model_type

    def on(self, name: str) -> bool:
        usual = build_default(self._version, self._model_type, f"plugin.{name}")
        if name in IN_FLIGHT and self._chosen.switch(
            "in_flight", "option.use_inflight_batching", default=False
        ):
            usual = True
        return self._chosen.switch(
            name,
            f"plugin.{name}",
            f"option.--{name}",
            default=name != "gemm_plugin" if usual is UNKNOWN else bool(usual),
        )


def _captures(backend: str, version: str) -> bool:
    """Return whether CUDA graphs are on by themselves: for PyTorch since 1.0."""
    return backend == "pytorch" and (not version or at_least(version, PYTORCH_SINCE))


def _is_paged(chosen: Chosen, by_plugin: bool) -> bool:
    kind = chosen.text("paged_kv", "kv_cache_type")
    if kind:
        return kind.lower() == "paged"
    return chosen.switch("paged_kv", "plugin.paged_kv_cache", default=by_plugin)


def _graph_batch(chosen: Chosen) -> int:
    sizes = chosen.find("option.cuda_graph_config.batch_sizes", "option.cuda_graph_batch_sizes")
    if sizes is not None and isinstance(sizes.value, list):
        return max((size for size in sizes.value if isinstance(size, int)), default=0)
    facts = ("option.cuda_graph_config.max_batch_size", "option.cuda_graph_max_batch_size")
    return _read_amount(chosen, "cuda_graph_max_batch", 10**6, *facts)


def _compiles(chosen: Chosen) -> bool:
    names = ("option.torch_compile", "option.torch_compile_config", "option.torch_compile_config.enable_fullgraph",
             "option.torch_compile_config.enable_piecewise_cuda_graph", "option.torch_compile_config.enable_inductor")  # fmt: skip
    return any((fact := chosen.find(name)) and fact.value not in (False, "null") for name in names)
