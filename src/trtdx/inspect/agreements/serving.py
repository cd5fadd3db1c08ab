"""Who serves what: option files, command lines and Triton repositories, and the engine or model behind them."""

from __future__ import annotations

import posixpath
import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.mended_commands import CHANGED
from trtdx.inspect.facts.gaps import lacking
from trtdx.inspect.readers.server.commands import ENGINE_FLAGS
from trtdx.inspect.readers.server.named_paths import CONFIG_FLAGS
from trtdx.model import Evidence
from trtdx.words import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

SIDES = ("llm-args", "command", "triton")
CONFIG_OPTIONS = tuple(f"option.{flag}" for flag in CONFIG_FLAGS)


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
    return any(names(command, option, artifact) for command in commands for option in CONFIG_OPTIONS)


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
    facts = ("triton.engine_dir", "runtime.model", *(f"option.{flag}" for flag in ENGINE_FLAGS))
    fact = next((fact for fact in facts if server.text(fact)), "runtime.model")
    return _served(server, fact, list(deployment.of("engine")))


def _served(server: Artifact, fact: str, candidates: list[Artifact]) -> Artifact | None:
    """Return the candidate that a server's fact names, or the only one where the name is of another machine."""
    named = [candidate for candidate in candidates if names(server, fact, candidate)]
    alike = [candidate for candidate in candidates if _called_like(server.text(fact), candidate)]
    if server.text(fact) in server.resolved:
        served = named  # it is on this machine: either it is one of these, or none of them is served
    else:
        served = next((group for group in (named, alike, candidates) if len(group) == 1), candidates)
    paths = [candidate.path for candidate in candidates]
    if len(served) > 1:
        lacking(f"{place_of(server)} does not say which of {joined(paths)} is served")
    elif not served and candidates:
        lacking(f"{place_of(server)} serves {server.text(fact)}, not {joined(paths, by='or')}")
    return served[0] if len(served) == 1 else None


def _called_like(name: str, artifact: Artifact) -> bool:
    """Return whether a name on the Hub or in a container ends as the folder does: Qwen/Qwen3-8B and ./Qwen3-8B."""
    last = posixpath.basename(name.rstrip("/"))
    folder = posixpath.normpath(artifact.path)
    return bool(last) and (
        posixpath.basename(folder) == last or f"models--{name.replace('/', '--')}" in folder
    )


def served_engines(deployment: Deployment, *kinds: str) -> Iterator[tuple[Artifact, Artifact]]:
    """Yield each server with the engine it runs."""
    for server in servers(deployment, *kinds):
        engine = engine_of(deployment, server)
        if engine is not None:
            yield server, engine


def model_of(deployment: Deployment, server: Artifact) -> Artifact | None:
    """Return the Hugging Face model that a server serves or whose engine it serves."""
    from trtdx.inspect.agreements.lineage import origin

    models = [model for model in deployment.of("hf") if not _lends_tokenizer(deployment, model)]
    if any(names(server, "runtime.model", model) for model in models):
        return _served(server, "runtime.model", models)
    engine = engine_of(deployment, server) if deployment.first("engine") else None
    if engine is not None:
        return origin(deployment, engine, "hf")
    return _served(server, "runtime.model", models)


def served_models(deployment: Deployment) -> Iterator[tuple[Artifact, Artifact]]:
    """Yield each file of options and command line with the Hugging Face model behind it."""
    for server in servers(deployment, "llm-args", "command"):
        model = model_of(deployment, server)
        if model is not None:
            yield server, model


def _lends_tokenizer(deployment: Deployment, model: Artifact) -> bool:
    """Return whether a server takes only the tokenizer from a model's directory."""
    named = [server for server in servers(deployment) if server.has("runtime.model")]
    return any(names(server, "runtime.tokenizer", model) for server in named) and not any(
        names(server, "runtime.model", model) for server in named
    )


def names(server: Artifact, fact: str, artifact: Artifact) -> bool:
    """Return whether a server's fact is the path of an artifact."""
    name = server.text(fact)
    real = server.resolved.get(name)
    if real is not None and artifact.real:
        return real == artifact.real
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
        return f"trtdx inspect{_again(server)}"
    return f"trtdx inspect {shlex.quote(server.path)}"


def server_words(server: Artifact) -> dict[str, str]:
    """Return what pages say of a server: where its options stand, and how to look at it again."""
    return {"path": place_of(server), "verify": verify_of(server)}


def _again(server: Artifact) -> str:
    """Return the option that gives the same command line once more; what is to be changed in it is the fix's to say."""
    return f" --command {shlex.quote(server.spelled)}{CHANGED}" if server.spelled else ""


def known_paths(deployment: Deployment, server: Artifact) -> dict[str, str]:
    """Return the paths at hand for a page's commands, each ready to be pasted; capitals where one is not known."""
    model, engine = model_of(deployment, server), deployment.first("engine")
    checkpoint = deployment.first("checkpoint")
    served = server.text("runtime.model") or (model.path if model else "")
    return {
        "served": shlex.quote(served) if served else "MODEL",
        "checkpoint": shlex.quote(checkpoint.path) if checkpoint else "CHECKPOINT_DIR",
        "rebuilt": shlex.quote(f"{engine.path.rstrip('/')}.new") if engine else "ENGINE_DIR.new",
        "verify": look_again(deployment),
    }


def look_again(deployment: Deployment) -> str:
    """Return the command that looks at the same artifacts once more."""
    on_disk = [
        artifact
        for artifact in deployment.artifacts
        if artifact.kind not in ("machine", "request", "unknown")
    ]
    paths = [shlex.quote(artifact.path) for artifact in on_disk if not artifact.path.startswith("--")]
    commands = [_again(artifact) for artifact in on_disk if artifact.path.startswith("--")]
    return f"trtdx inspect {' '.join(dict.fromkeys(paths))}".rstrip() + next(iter(commands), "")


def stated(artifact: Artifact, *names: str) -> tuple[Evidence, ...]:
    """Return the evidence of those facts that are stated."""
    return artifact.evidence(*(name for name in names if artifact.has(name)))


def listed(artifact: Artifact, name: str, most: int = 6) -> tuple[str, tuple[Evidence, ...]]:
    """Return a fact's items in one line, and each item as evidence."""
    items = [str(item) for item in artifact.items(name)]
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    where = artifact.facts[name].where if name in artifact.facts else artifact.path
    return "; ".join(items[:most]) + more, tuple(Evidence(where, item) for item in items[:most])
