"""Who serves what: option files, command lines and Triton repositories, and the engine or model behind them."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from trtdx.model import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.artifact import Artifact, Deployment

SIDES = ("llm-args", "command", "triton")
CONFIG_FLAGS = ("option.--config", "option.--extra_llm_api_options")


def servers(deployment: Deployment, *kinds: str) -> Iterator[Artifact]:
    """Yield what says how to serve; an option file that a command names was read with the command."""
    named = [
        command.text(flag)
        for command in deployment.of("command")
        for flag in CONFIG_FLAGS
        if command.has(flag)
    ]
    for server in deployment.of(*(kinds or SIDES)):
        is_named = any(_same_path(server.path, name) for name in named)
        if not _is_build(server) and not (server.kind == "llm-args" and is_named):
            yield server


def _is_build(server: Artifact) -> bool:
    return server.text("runtime.command").startswith("trtllm-build")


def _same_path(path: str, name: str) -> bool:
    """Return whether a name in a command can be this path: the command may stand in another folder."""
    one, other = posixpath.normpath(path), posixpath.normpath(name)
    return one == other or (not other.startswith("/") and one.endswith("/" + other))


def serves_engine(server: Artifact) -> bool:
    """Return whether a server may run an engine: nothing says that it runs the model itself."""
    return (
        server.text("runtime.backend") in ("", "tensorrt", "trt") and server.text("triton.flow") != "llmapi"
    )


def engine_of(deployment: Deployment, server: Artifact) -> Artifact | None:
    """Return the engine a server runs: the one it names, or the only one at hand."""
    if not serves_engine(server):
        return None
    engines = list(deployment.of("engine"))
    name = server.text("triton.engine_dir") or server.text("runtime.model")
    named = [engine for engine in engines if name and _same_path(engine.path, name)]
    if len(named) == 1:
        return named[0]
    return engines[0] if len(engines) == 1 else None


def served_engines(deployment: Deployment, *kinds: str) -> Iterator[tuple[Artifact, Artifact]]:
    """Yield each server with the engine it runs."""
    for server in servers(deployment, *kinds):
        engine = engine_of(deployment, server)
        if engine is not None:
            yield server, engine


def model_of(deployment: Deployment) -> Artifact | None:
    """Return the Hugging Face model, where there is just one."""
    models = list(deployment.of("hf"))
    return models[0] if len(models) == 1 else None


def release_of(deployment: Deployment, server: Artifact) -> str:
    """Return the release that is to run: said for the server, or for the machine."""
    machine = deployment.first("machine")
    return server.text("runtime.version") or (machine.text("gpu.runtime") if machine else "")


def ranks_of(artifact: Artifact) -> int | None:
    """Return how many ranks a mapping makes, where it is stated."""
    if not artifact.has("tp_size") and not artifact.has("world_size"):
        return None
    sizes = [artifact.integer(name) or 1 for name in ("tp_size", "pp_size", "cp_size")]
    return artifact.integer("world_size") or sizes[0] * sizes[1] * sizes[2]


def sizes_of(artifact: Artifact) -> str:
    names = ("tp_size", "pp_size", "cp_size")
    return " * ".join(f"{name} {artifact.integer(name)}" for name in names if artifact.has(name))


def place_of(server: Artifact) -> str:
    """Return where a server's options stand, for use in a sentence."""
    return "the command line" if server.path.startswith("--") else server.path


def stated(artifact: Artifact, *names: str) -> tuple[Evidence, ...]:
    """Return the evidence of those facts that are stated."""
    return artifact.evidence(*(name for name in names if artifact.has(name)))


def listed(artifact: Artifact, name: str, most: int = 6) -> tuple[str, tuple[Evidence, ...]]:
    """Return a fact's items in one line, and each item as evidence."""
    items = [str(item) for item in artifact.items(name)]
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    where = artifact.facts[name].where if name in artifact.facts else artifact.path
    return "; ".join(items[:most]) + more, tuple(Evidence(where, item) for item in items[:most])
