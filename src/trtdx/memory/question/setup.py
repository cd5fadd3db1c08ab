"""Resolves a request into a `Setup`, with the source of each value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from trtdx.errors import InputError, TrtdxError, UnknownNameError
from trtdx.inspect.facts.artifact import Artifact, Facts
from trtdx.inspect.facts.machine import machine_from
from trtdx.knowledge.versions import has_engine_flow, parsed, sm_of_gpu
from trtdx.memory.model.backend_support import newer_release
from trtdx.memory.model.hybrid_dims import with_state_type
from trtdx.memory.model.source import HOW, NO_MODEL, UnknownModelError, read_model, without_format
from trtdx.memory.nouns import DEFAULT_SOURCE, LAST_STABLE, Device, Setup
from trtdx.memory.question.dims import dims_from
from trtdx.memory.question.flags import OF_ENGINES
from trtdx.memory.question.gpu_support import lacks_fused_attention
from trtdx.memory.question.gpus import device_from
from trtdx.memory.question.limits import limits_of
from trtdx.memory.question.settings import Chosen, formats_of, layout_of, running_of
from trtdx.words import parse_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host
    from trtdx.memory.model.source import ModelSource
    from trtdx.memory.nouns import Dims, Figure

# Attention with a bias on its scores, by distance: the engines' fused kernel cannot add it.
ADDS_TO_SCORES = ("t5", "mt5", "umt5", "longt5", "switch_transformers")
EMPTY = Artifact("command", "the command line")
COUNTED = re.compile(r"(\d{1,4})\s*[x*]\s*(.+)", re.IGNORECASE)
MOST_OF_AN_EMPTY_FILE = 1 << 16
VARIABLE = re.compile(r"\b((?:TRTLLM|TLLM|FORCE|NCCL)_\w+)=['\"]?([^\s'\"]+)")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for."""

    model: str = ""
    dims: str = ""
    options: tuple[str, ...] = ()  # files of the LLM API's options
    commands: tuple[str, ...] = ()  # whole command lines
    flags: Artifact = EMPTY
    version: str = ""
    gpu: str = ""  # "H100", "2xH100"
    gpu_memory: str = ""


class Answer(NamedTuple):
    """A set-up, and what it was resolved from."""

    setup: Setup
    model: ModelSource
    layers: tuple[Artifact, ...]  # the first that states a thing rules
    notes: tuple[str, ...] = ()


def setup_from(host: Host, asked: Asked) -> Answer:
    """Return everything a plan needs, or raise naming what is missing."""
    version = _release(asked.version)
    option_layers = _options(host, asked, version)
    model = _model(host, _model_named(host, asked, option_layers), asked.dims, version)
    layers = (asked.flags, *option_layers, *_format_in_name(host, asked, option_layers), model.artifact)
    settings = Chosen(layers)
    count, gpu = _gpus(asked.gpu)
    dims = dims_from(model, asked.dims, settings)
    running = running_of(settings, version, model.artifact.kind, dims.model_type)
    newer = newer_release(model.artifact, dims.model_type)
    if newer and running.backend == "pytorch" and settings.said["version"].startswith(DEFAULT_SOURCE):
        running = running_of(settings, newer, model.artifact.kind, dims.model_type)
        settings.said["version"] = f"{DEFAULT_SOURCE}: the first release that has this model"
    _check_backend(running.backend, running.version)
    if dims.model_type in ADDS_TO_SCORES and settings.said.get("context_fmha", DEFAULT_SOURCE).startswith(
        DEFAULT_SOURCE
    ):
        running = replace(running, context_fmha=False)
    limits = limits_of(settings, running, dims)
    layout = layout_of(settings, count, dims)
    if running.backend == "tensorrt":
        layout = replace(layout, attention_dp=False)
    formats = formats_of(settings, dims)
    if dims.state_numbers and "state_bytes_per_sequence" not in asked.dims:
        kind = settings.text("state_dtype", "option.kv_cache_config.mamba_ssm_cache_dtype")
        dims = with_state_type(dims, kind, formats.dtype, running.version or LAST_STABLE)
    device = _device(gpu, asked.gpu_memory, settings)
    if running.backend == "tensorrt" and lacks_fused_attention(device, running.version):
        if running.context_fmha:
            settings.said["fused_attention"] = settings.said.get("context_fmha", DEFAULT_SOURCE)
        running = replace(running, context_fmha=False)
    draft, unread = _draft(host, settings.text("draft_model", "runtime.draft_model"), version)
    running = replace(running, env=_environment(asked.commands))
    setup = Setup(
        model=model.name,
        dims=dims,
        layout=layout,
        formats=formats,
        limits=limits,
        running=running,
        device=device,
        draft=draft,
        said=settings.said,
    )
    exact = _exact_weights(host, model, setup)
    notes = (
        *unread,
        *_idle(setup, Chosen((asked.flags, *option_layers))),
        *(f"{layer.path}: {note}" for layer in layers for note in layer.unread),
    )
    return Answer(replace(setup, weights_by_rank=exact), model, layers, notes)


def _draft(host: Host, name: str, version: str) -> tuple[Dims | None, tuple[str, ...]]:
    """Return the sizes of a draft model, or why they are not known."""
    if not name:
        return None, ()
    try:
        return dims_from(read_model(host, name, version=version), "", Chosen(())), ()
    except TrtdxError as err:
        return None, (f"the draft model: {err.message.splitlines()[0]}",)


def _format_in_name(host: Host, asked: Asked, given: tuple[Artifact, ...]) -> Iterator[Artifact]:
    """Yield the format that a command's name of the model has and the model itself has not: `NAME-FP8` of NAME."""
    named = next(filter(None, (layer.text("runtime.model") for layer in given)), "")
    name, weights = without_format(named.rstrip("/").rpartition("/")[2])
    model_name = asked.model.rstrip("/").rpartition("/")[2]
    if weights and name.lower() == model_name.lower() and host.kind(named) == "absent":
        facts = Facts()
        facts.put("quant.algo", weights, f"the name {named}")
        yield Artifact("command", named, facts.done())


def _idle(setup: Setup, given: Chosen) -> Iterator[str]:
    """Yield the flags that do nothing on the backend that runs."""
    build = given.find(*OF_ENGINES)
    if setup.running.backend == "pytorch" and build is not None:
        yield f"{build.where} is of trtllm-build: it does nothing on the PyTorch backend"
    apart = given.find("attention_dp")
    if setup.is_engine and apart is not None and apart.value:
        yield "attention data parallelism is of the PyTorch backend: an engine has none"
    experts = given.find("moe_ep_size")
    if experts is not None and experts.value != 1 and not setup.dims.num_experts:
        yield f"{experts.where} does nothing: the model has no experts"


def _environment(commands: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that command lines set and that TensorRT-LLM reads."""
    return dict(variable for text in commands for variable in VARIABLE.findall(text))


def _model(host: Host, name: str, dims: str, version: str) -> ModelSource:
    """Return the model; a name that leads nowhere is a name all the same where the sizes are given."""
    try:
        return read_model(host, name, version=version)
    except UnknownModelError:
        if not dims:
            raise
    return NO_MODEL._replace(name=name)


def _release(text: str) -> str:
    try:
        machine = machine_from(runtime=text) if text else None
    except InputError as err:
        raise InputError(err.message.replace("--runtime", "--trtllm-version"), fix=err.fix) from err
    return machine.text("gpu.runtime") if machine else ""


def _options(host: Host, asked: Asked, version: str) -> tuple[Artifact, ...]:
    """Return command lines and files of options; of several the later one rules."""
    from trtdx.inspect.readers import read_artifact
    from trtdx.memory.question.scripts import layers_from_script

    commands = [layers_from_script(host, text, version) for text in reversed(asked.commands)]
    files = [
        Artifact("llm-args", path) if _is_empty(host, path) else read_artifact(host, path, version=version)
        for path in asked.options
    ]
    for file in files:
        if file.kind not in ("llm-args", "command"):
            raise InputError(
                f"{file.path} is a {file.title}, not a file of options", fix="give the model itself first"
            )
    return (*(layer for layers in commands for layer in layers), *reversed(files))


def _is_empty(host: Host, path: str) -> bool:
    """Return whether a file of options sets none: nothing, comments, or an empty table."""
    if host.kind(path) != "file":
        return False
    with host.open(path) as stream:
        lines = (stream.read(MOST_OF_AN_EMPTY_FILE) or b"").splitlines()
    return all(line.strip() in (b"", b"---", b"{}") or line.lstrip().startswith(b"#") for line in lines)


def _model_named(host: Host, asked: Asked, given: tuple[Artifact, ...]) -> str:
    if asked.model or (asked.dims and not given):
        return asked.model
    for artifact in given:
        named = artifact.text("runtime.model")
        if named:
            return named
        for path in artifact.refers_to:
            if host.kind(path) != "absent":
                return path
    if asked.dims:
        return ""
    raise InputError("no model was named", fix=HOW)


def _gpus(text: str) -> tuple[int, str]:
    """Return how many GPUs, and which: "2xH100"."""
    match = COUNTED.fullmatch(text.strip())
    return (int(match[1]), match[2].strip()) if match else (0, text.strip())


def _device(gpu: str, memory: str, chosen: Chosen) -> Device | None:
    if not gpu and not memory:
        return None
    chosen.said["gpu"] = "--gpu" if gpu else "--gpu-memory"
    if not memory:
        return device_from(gpu)
    size = parse_size(memory)
    if not 2**28 <= size <= 2**44:
        raise InputError(f"--gpu-memory {memory} is not a GPU's memory", fix="write it as 24GiB or 80GB")
    if not gpu:
        return Device(name=f"a GPU with {memory}", total_bytes=size, source="given")
    try:
        device = device_from(gpu)
    except UnknownNameError:
        sm = sm_of_gpu(gpu)  # a GPU the table does not have, or a bare compute capability
        if sm is None:
            raise
        device = Device(name=gpu, total_bytes=size, sm=sm)
    return replace(device, total_bytes=size, source="given")


def _check_backend(backend: str, version: str) -> None:
    if backend == "tensorrt" and has_engine_flow(version) is False and parsed(version):
        raise InputError(
            f"TensorRT-LLM {version} has no engines any more",
            fix="use --backend pytorch, or a release up to 1.2.1",
        )


def _exact_weights(host: Host, model: ModelSource, setup: Setup) -> tuple[Figure, ...]:
    """Return what files say of each rank's weights; nothing where another format is asked for than they have."""
    if not model.folder or setup.formats.weights != (model.artifact.text("quant.algo") or ""):
        return ()
    from trtdx.memory.ledger.weight_files import weights_from_files

    return weights_from_files(host, model.folder, setup)
