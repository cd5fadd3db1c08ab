"""Resolves a request into a `Setup`, with the source of each value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from trtdx.errors import InputError, TrtdxError, UnknownNameError
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.facts.machine import machine_from_flags
from trtdx.knowledge.versions import has_engine_flow, parse_release, sm_of_gpu
from trtdx.memory.model.backend_support import first_newer_release
from trtdx.memory.model.hybrid_dims import with_state_dtype
from trtdx.memory.model.source import MODEL_HINT, NO_MODEL, UnknownModelError, read_model, split_format_suffix
from trtdx.memory.nouns import DEFAULT_SOURCE, LAST_STABLE_RELEASE, Device, Setup
from trtdx.memory.question.flags import ENGINE_FACTS
from trtdx.memory.question.gpu_support import lacks_fused_attention
from trtdx.memory.question.gpus import device_from_name
from trtdx.memory.question.limits import limits_from_settings
from trtdx.memory.question.requested_dims import dims_from_source
from trtdx.memory.question.settings import (
    LayeredSettings,
    formats_from_settings,
    layout_from_settings,
    runtime_from_settings,
)
from trtdx.words import parse_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.memory.model.source import ModelSource
    from trtdx.memory.nouns import Dims, Figure

# Attention with a bias on its scores, by distance: the engines' fused kernel cannot add it.
SCORE_BIAS_MODELS = ("t5", "mt5", "umt5", "longt5", "switch_transformers")
NO_FLAGS = Artifact("command", "the command line")
GPU_COUNT = re.compile(r"(\d{1,4})\s*[x*]\s*(.+)", re.IGNORECASE)
MOST_OF_AN_EMPTY_FILE = 1 << 16
ENV_ASSIGNMENT = re.compile(r"\b((?:TRTLLM|TLLM|FORCE|NCCL)_\w+)=['\"]?([^\s'\"]+)")


class MemoryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for."""

    model: str = ""
    dims: str = ""
    options: tuple[str, ...] = ()  # files of the LLM API's options
    commands: tuple[str, ...] = ()  # whole command lines
    flags: Artifact = NO_FLAGS
    version: str = ""
    gpu: str = ""  # "H100", "2xH100"
    gpu_memory: str = ""


class ResolvedSetup(NamedTuple):
    """A set-up, and what it was resolved from."""

    setup: Setup
    model: ModelSource
    layers: tuple[Artifact, ...]  # the first that states a thing rules
    notes: tuple[str, ...] = ()


def resolve_setup(host: Host, request: MemoryRequest) -> ResolvedSetup:
    """Return everything a plan needs, or raise naming what is missing."""
    version = _resolve_release(request.version)
    option_layers = _read_option_layers(host, request, version)
    model = _read_request_model(host, _requested_model(host, request, option_layers), request.dims, version)
    layers = (request.flags, *option_layers, *_format_from_name(host, request, option_layers), model.artifact)
    settings = LayeredSettings(layers)
    count, gpu = _parse_gpu_count(request.gpu)
    dims = dims_from_source(model, request.dims, settings)
    running = runtime_from_settings(settings, version, model.artifact.kind, dims.model_type)
    newer = first_newer_release(model.artifact, dims.model_type)
    if newer and running.backend == "pytorch" and settings.sources["version"].startswith(DEFAULT_SOURCE):
        running = runtime_from_settings(settings, newer, model.artifact.kind, dims.model_type)
        settings.sources["version"] = f"{DEFAULT_SOURCE}: the first release that has this model"
    _check_engine_release(running.backend, running.version)
    if dims.model_type in SCORE_BIAS_MODELS and settings.sources.get("context_fmha", DEFAULT_SOURCE).startswith(
        DEFAULT_SOURCE
    ):
        running = replace(running, context_fmha=False)
    limits = limits_from_settings(settings, running, dims)
    layout = layout_from_settings(settings, count, dims)
    if running.backend == "tensorrt":
        layout = replace(layout, attention_dp=False)
    formats = formats_from_settings(settings, dims)
    if dims.state_numbers and "state_bytes_per_sequence" not in request.dims:
        kind = settings.text("state_dtype", "option.kv_cache_config.mamba_ssm_cache_dtype")
        dims = with_state_dtype(dims, kind, formats.dtype, running.version or LAST_STABLE_RELEASE)
    device = _device_from_request(gpu, request.gpu_memory, settings)
    if running.backend == "tensorrt" and lacks_fused_attention(device, running.version):
        if running.context_fmha:
            settings.sources["fused_attention"] = settings.sources.get("context_fmha", DEFAULT_SOURCE)
        running = replace(running, context_fmha=False)
    draft, unread = _read_draft_dims(host, settings.text("draft_model", "runtime.draft_model"), version)
    running = replace(running, env=_environment_variables(request.commands))
    setup = Setup(
        model=model.name,
        dims=dims,
        layout=layout,
        formats=formats,
        limits=limits,
        running=running,
        device=device,
        draft=draft,
        said=settings.sources,
    )
    exact = _read_folder_weights(host, model, setup)
    notes = (
        *unread,
        *_idle_flag_notes(setup, LayeredSettings((request.flags, *option_layers))),
        *(f"{layer.path}: {note}" for layer in layers for note in layer.unread),
    )
    return ResolvedSetup(replace(setup, weights_by_rank=exact), model, layers, notes)


def _read_draft_dims(host: Host, name: str, version: str) -> tuple[Dims | None, tuple[str, ...]]:
    """Return the sizes of a draft model, or why they are not known."""
    if not name:
        return None, ()
    try:
        return dims_from_source(read_model(host, name, version=version), "", LayeredSettings(())), ()
    except TrtdxError as err:
        return None, (f"the draft model: {err.message.splitlines()[0]}",)


def _format_from_name(host: Host, request: MemoryRequest, option_layers: tuple[Artifact, ...]) -> Iterator[Artifact]:
    """Yield the format that a command's name of the model has and the model itself has not: `NAME-FP8` of NAME."""
    named = next(filter(None, (layer.text("runtime.model") for layer in option_layers)), "")
    name, weights = split_format_suffix(named.rstrip("/").rpartition("/")[2])
    model_name = request.model.rstrip("/").rpartition("/")[2]
    if weights and name.lower() == model_name.lower() and host.kind(named) == "absent":
        facts = FactCollector()
        facts.put("quant.algo", weights, f"the name {named}")
        yield Artifact("command", named, facts.to_dict())


def _idle_flag_notes(setup: Setup, stated: LayeredSettings) -> Iterator[str]:
    """Yield the flags that do nothing on the backend that runs."""
    build = stated.find_fact(*ENGINE_FACTS)
    if setup.running.backend == "pytorch" and build is not None:
        yield f"{build.where} is of trtllm-build: it does nothing on the PyTorch backend"
    apart = stated.find_fact("attention_dp")
    if setup.is_engine and apart is not None and apart.value:
        yield "attention data parallelism is of the PyTorch backend: an engine has none"
    experts = stated.find_fact("moe_ep_size")
    if experts is not None and experts.value != 1 and not setup.dims.num_experts:
        yield f"{experts.where} does nothing: the model has no experts"


def _environment_variables(commands: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that command lines set and that TensorRT-LLM reads."""
    return dict(variable for text in commands for variable in ENV_ASSIGNMENT.findall(text))


def _read_request_model(host: Host, name: str, dims: str, version: str) -> ModelSource:
    """Return the model; a name that leads nowhere is a name all the same where the sizes are given."""
    try:
        return read_model(host, name, version=version)
    except UnknownModelError:
        if not dims:
            raise
    return NO_MODEL._replace(name=name)


def _resolve_release(text: str) -> str:
    try:
        machine = machine_from_flags(runtime=text) if text else None
    except InputError as err:
        raise InputError(err.message.replace("--runtime", "--trtllm-version"), fix=err.fix) from err
    return machine.text("gpu.runtime") if machine else ""


def _read_option_layers(host: Host, request: MemoryRequest, version: str) -> tuple[Artifact, ...]:
    """Return command lines and files of options; of several the later one rules."""
    from trtdx.inspect.readers import read_artifact
    from trtdx.memory.question.scripts import layers_from_script

    commands = [layers_from_script(host, text, version) for text in reversed(request.commands)]
    files = [
        Artifact("llm-args", path) if _is_empty_options_file(host, path) else read_artifact(host, path, version=version)
        for path in request.options
    ]
    for file in files:
        if file.kind not in ("llm-args", "command"):
            raise InputError(f"{file.path} is a {file.title}, not a file of options", fix="give the model itself first")
    return (*(layer for layers in commands for layer in layers), *reversed(files))


def _is_empty_options_file(host: Host, path: str) -> bool:
    """Return whether a file of options sets none: nothing, comments, or an empty table."""
    if host.kind(path) != "file":
        return False
    with host.open(path) as stream:
        lines = (stream.read(MOST_OF_AN_EMPTY_FILE) or b"").splitlines()
    return all(line.strip() in (b"", b"---", b"{}") or line.lstrip().startswith(b"#") for line in lines)


def _requested_model(host: Host, request: MemoryRequest, option_layers: tuple[Artifact, ...]) -> str:
    if request.model or (request.dims and not option_layers):
        return request.model
    for artifact in option_layers:
        named = artifact.text("runtime.model")
        if named:
            return named
        for path in artifact.refers_to:
            if host.kind(path) != "absent":
                return path
    if request.dims:
        return ""
    raise InputError("no model was named", fix=MODEL_HINT)


def _parse_gpu_count(text: str) -> tuple[int, str]:
    """Return how many GPUs, and which: "2xH100"."""
    match = GPU_COUNT.fullmatch(text.strip())
    return (int(match[1]), match[2].strip()) if match else (0, text.strip())


def _device_from_request(gpu: str, memory: str, settings: LayeredSettings) -> Device | None:
    if not gpu and not memory:
        return None
    settings.sources["gpu"] = "--gpu" if gpu else "--gpu-memory"
    if not memory:
        return device_from_name(gpu)
    size = parse_size(memory)
    if not 2**28 <= size <= 2**44:
        raise InputError(f"--gpu-memory {memory} is not a GPU's memory", fix="write it as 24GiB or 80GB")
    if not gpu:
        return Device(name=f"a GPU with {memory}", total_bytes=size, source="given")
    try:
        device = device_from_name(gpu)
    except UnknownNameError:
        sm = sm_of_gpu(gpu)  # a GPU the table does not have, or a bare compute capability
        if sm is None:
            raise
        device = Device(name=gpu, total_bytes=size, sm=sm)
    return replace(device, total_bytes=size, source="given")


def _check_engine_release(backend: str, version: str) -> None:
    if backend == "tensorrt" and has_engine_flow(version) is False and parse_release(version):
        raise InputError(
            f"TensorRT-LLM {version} has no engines any more",
            fix="use --backend pytorch, or a release up to 1.2.1",
        )


def _read_folder_weights(host: Host, model: ModelSource, setup: Setup) -> tuple[Figure, ...]:
    """Return what files say of each rank's weights; empty if another format is asked for than they have."""
    if not model.folder or setup.formats.weights != (model.artifact.text("quant.algo") or ""):
        return ()
    from trtdx.memory.ledger.weight_files import weights_from_files

    return weights_from_files(host, model.folder, setup)
