"""Who serves what: option files, command lines and Triton repositories, and the engine or model behind them."""

from __future__ import annotations

import posixpath
import shlex
from typing import TYPE_CHECKING

from trtdx.model import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.artifact import Artifact, Deployment

SIDES = ("llm-args", "command", "triton")
CONFIG_FLAGS = ("option.--config", "option.--extra_llm_api_options")


def servers(deployment: Deployment, *kinds: str) -> Iterator[Artifact]:
    """Yield what says how to serve; an option file that a command names was read with the command."""
    for server in deployment.of(*(kinds or SIDES)):
        if not _is_build(server) and not is_read_with_command(deployment, server):
            yield server


def is_read_with_command(deployment: Deployment, artifact: Artifact) -> bool:
    """Return whether a file of options is the one a command names: what it says is among the command's facts."""
    if artifact.kind != "llm-args":
        return False
    commands = deployment.of("command")
    return any(names(command, flag, artifact) for command in commands for flag in CONFIG_FLAGS)


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
    """Return the Hugging Face model, where there is just one that is not there for its tokenizer."""
    models = [each for each in deployment.of("hf") if not _lends_tokenizer(deployment, each)]
    return models[0] if len(models) == 1 else None


def _lends_tokenizer(deployment: Deployment, model: Artifact) -> bool:
    """Return whether a server takes only the tokenizer from a model's directory."""
    named = [each for each in servers(deployment) if each.has("runtime.model")]
    return any(names(each, "runtime.tokenizer", model) for each in named) and not any(
        names(each, "runtime.model", model) for each in named
    )


def names(server: Artifact, fact: str, artifact: Artifact) -> bool:
    """Return whether a server's fact is the path of an artifact."""
    name = server.text(fact)
    return bool(name) and _same_path(artifact.path, name)


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


def verify_of(server: Artifact) -> str:
    """Return a command that looks at the same server again."""
    if server.path.startswith("--"):
        return "trtdx inspect --command 'COMMAND AS MENDED'"
    return f"trtdx inspect {shlex.quote(server.path)}"


def known_paths(deployment: Deployment, server: Artifact) -> dict[str, str]:
    """Return the paths at hand for a page's commands, each ready to be pasted; capitals where one is not known."""
    model, engine = model_of(deployment), deployment.first("engine")
    checkpoint = deployment.first("checkpoint")
    served = server.text("runtime.model") or (model.path if model else "")
    on_disk = [
        each.path for each in deployment.artifacts if each.kind not in ("machine", "request", "unknown")
    ]
    looked_at = [shlex.quote(path) for path in on_disk if not path.startswith("--")]
    again = " --command 'COMMAND AS MENDED'" if len(looked_at) < len(on_disk) else ""
    return {
        "served": shlex.quote(served) if served else "MODEL",
        "checkpoint": shlex.quote(checkpoint.path) if checkpoint else "CHECKPOINT_DIR",
        "rebuilt": shlex.quote(f"{engine.path.rstrip('/')}.new") if engine else "ENGINE_DIR.new",
        "verify": f"trtdx inspect {' '.join(looked_at)}".rstrip() + again,
    }


def stated(artifact: Artifact, *names: str) -> tuple[Evidence, ...]:
    """Return the evidence of those facts that are stated."""
    return artifact.evidence(*(name for name in names if artifact.has(name)))


def listed(artifact: Artifact, name: str, most: int = 6) -> tuple[str, tuple[Evidence, ...]]:
    """Return a fact's items in one line, and each item as evidence."""
    items = [str(item) for item in artifact.items(name)]
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    where = artifact.facts[name].where if name in artifact.facts else artifact.path
    return "; ".join(items[:most]) + more, tuple(Evidence(where, item) for item in items[:most])
