"""Which backend has a model at all, by release."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from trtdx.inspect.agreements.model.quantization import is_method_supported
from trtdx.knowledge.versions import at_least, parse_release
from trtdx.memory.nouns import LAST_STABLE_RELEASE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.memory.question.setup import ResolvedSetup

PYTORCH_SINCE = "0.17.0"  # trtllm-serve --backend pytorch; before there was nothing to serve it with
TABLE_ENDS_AT = "1.3.0rc23"  # what later ones have is not known
AUTODEPLOY = "_autodeploy"  # takes models that nobody wrote a class for


class _TorchOnlyModels(msgspec.Struct, frozen=True):
    architectures: tuple[str, ...]


class _ModelSupport(msgspec.Struct, frozen=True):
    since: dict[str, str]
    torch_only: _TorchOnlyModels
    engine_since: dict[str, str]
    of_type: dict[str, str]


@cache
def _support_table() -> _ModelSupport:
    data = resources.files("trtdx").joinpath("data/torch_models.toml").read_bytes()
    return msgspec.toml.decode(data, type=_ModelSupport)


def architecture_of(model: Artifact, model_type: str) -> str:
    """Return the architecture that a model's config names, or its type implies; "" if neither is known."""
    named = model.text("architecture") if model.kind == "hf" else ""
    return named or _support_table().of_type.get(model_type, "")


def first_newer_release(model: Artifact, model_type: str) -> str:
    """Return the first release whose PyTorch backend has a model, where it is later than the last stable one."""
    since = _support_table().since.get(architecture_of(model, model_type), "")
    return "" if not since or _may_include(LAST_STABLE_RELEASE, since) else since


def find_missing_support(resolved: ResolvedSetup) -> Iterator[tuple[str, str]]:
    """Yield what the backend of a release lacks for a model, and what to do."""
    running = resolved.setup.running
    name = architecture_of(resolved.model.artifact, resolved.setup.dims.model_type)
    release = running.version or LAST_STABLE_RELEASE
    if running.backend == "tensorrt":
        yield from _missing_engine(name, release)
        return
    if not at_least(release, PYTORCH_SINCE):
        yield (
            f"TensorRT-LLM {release} has no PyTorch backend to serve: it came with {PYTORCH_SINCE}",
            "use --backend tensorrt, or a later release",
        )
        return
    since = _support_table().since.get(name, "")
    if not name or _uses_autodeploy(resolved) or (since and _may_include(release, since)):
        return
    if since:
        yield (
            f"the PyTorch backend has {name} since {since}, not in {release}",
            f"use TensorRT-LLM {since} or later",
        )
    elif not at_least(release, TABLE_ENDS_AT):
        yield (
            f"the PyTorch backend of {release} has no {name}",
            "build an engine: --backend tensorrt, with a release up to 1.2.1",
        )


def _missing_engine(name: str, release: str) -> Iterator[tuple[str, str]]:
    since = _support_table().engine_since.get(name, "")
    if name in _support_table().torch_only.architectures:
        yield f"no engine can be built of {name}: only the PyTorch backend has it", "use --backend pytorch"
    elif since and not _may_include(release, since):
        yield (
            f"engines of {name} can be built since {since}, not in {release}",
            f"use TensorRT-LLM {since} or later",
        )


def _may_include(release: str, since: str) -> bool:
    """Return whether a release may have what came with another: of pre-releases of one version any may."""
    here, there = parse_release(release), parse_release(since)
    return here is None or there is None or here.release >= there.release


def _uses_autodeploy(resolved: ResolvedSetup) -> bool:
    stated = (layer.text("runtime.backend") for layer in resolved.layers)
    return next(filter(None, stated), "") == AUTODEPLOY


def unread_quant_method(resolved: ResolvedSetup) -> str:
    """Return the quantisation method of a model's files that the PyTorch backend of the release does not read."""
    model, running = resolved.model.artifact, resolved.setup.running
    method = model.text("quant.method")
    if running.backend != "pytorch" or not method or model.text("quant.source") == "hf_quant_config.json":
        return ""
    is_asked = any(layer.has("quant.algo") for layer in resolved.layers if layer is not model)
    if is_asked or is_method_supported(model, method, running.version):
        return ""
    return method
