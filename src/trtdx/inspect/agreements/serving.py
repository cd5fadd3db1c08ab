"""Who serves what: option files, command lines and Triton repositories, and the engine or model behind them."""

from __future__ import annotations

import posixpath
import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.mended_commands import WITH_CHANGE
from trtdx.inspect.facts.gaps import note_gap
from trtdx.inspect.readers.server.commands import ENGINE_FLAGS
from trtdx.inspect.readers.server.named_paths import CONFIG_FLAGS
from trtdx.knowledge.versions import parse_release
from trtdx.model import Evidence
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

SERVER_KINDS = ("llm-args", "command", "triton")
CONFIG_OPTIONS = tuple(f"option.{flag}" for flag in CONFIG_FLAGS)


def serving_artifacts(deployment: Deployment, *kinds: str) -> Iterator[Artifact]:
    """Yield what says how to serve; an option file that a command names was read with the command."""
    for server in deployment.of_kinds(*(kinds or SERVER_KINDS)):
        if not _is_build(server) and not is_read_with_command(deployment, server):
            yield server


def is_read_with_command(deployment: Deployment, artifact: Artifact) -> bool:
    """Return whether a file of options is the one a command names: what it says is among the command's facts."""
    if artifact.kind != "llm-args":
        return False
    commands = deployment.of_kinds("command")
    return any(names_artifact(command, option, artifact) for command in commands for option in CONFIG_OPTIONS)


def _is_build(server: Artifact) -> bool:
    return server.text("runtime.command").startswith("trtllm-build")


def _is_same_path(path: str, name: str) -> bool:
    """Return whether a name in a command can be this path: the command may stand in another folder."""
    one, other = posixpath.normpath(path), posixpath.normpath(name)
    return one == other or (not other.startswith("/") and one.endswith("/" + other))


def may_serve_engine(server: Artifact) -> bool:
    """Return whether a server may run an engine: nothing says that it runs the model itself."""
    return server.text("runtime.backend") in ("", "tensorrt", "trt") and server.text("triton.flow") != "llmapi"


def served_engine(deployment: Deployment, server: Artifact) -> Artifact | None:
    """Return the engine a server runs: the one it names, or the only one at hand."""
    if not may_serve_engine(server):
        return None
    facts = ("triton.engine_dir", "runtime.model", *(f"option.{flag}" for flag in ENGINE_FLAGS))
    fact = next((fact for fact in facts if server.text(fact)), "runtime.model")
    return _served_artifact(server, fact, list(deployment.of_kinds("engine")))


def _served_artifact(server: Artifact, fact: str, candidates: list[Artifact]) -> Artifact | None:
    """Return the candidate that a server's fact names, or the only one where the name is of another machine."""
    named = [candidate for candidate in candidates if names_artifact(server, fact, candidate)]
    alike = [candidate for candidate in candidates if _is_named_like(server.text(fact), candidate)]
    if server.text(fact) in server.resolved_paths:
        served = named  # it is on this machine: either it is one of these, or none of them is served
    else:
        served = next((group for group in (named, alike, candidates) if len(group) == 1), candidates)
    paths = [candidate.path for candidate in candidates]
    if len(served) > 1:
        note_gap(f"{server_place(server)} does not say which of {join_words(paths)} is served")
    elif not served and candidates:
        note_gap(f"{server_place(server)} serves {server.text(fact)}, not {join_words(paths, conjunction='or')}")
    return served[0] if len(served) == 1 else None


def _is_named_like(name: str, artifact: Artifact) -> bool:
    """Return whether a name on the Hub or in a container ends as the folder does: Qwen/Qwen3-8B and ./Qwen3-8B."""
    last = posixpath.basename(name.rstrip("/"))
    folder = posixpath.normpath(artifact.path)
    return bool(last) and (posixpath.basename(folder) == last or f"models--{name.replace('/', '--')}" in folder)


def served_engines(deployment: Deployment, *kinds: str) -> Iterator[tuple[Artifact, Artifact]]:
    """Yield each server with the engine it runs."""
    for server in serving_artifacts(deployment, *kinds):
        engine = served_engine(deployment, server)
        if engine is not None:
            yield server, engine


def served_model(deployment: Deployment, server: Artifact) -> Artifact | None:
    """Return the Hugging Face model that a server serves or whose engine it serves."""
    from trtdx.inspect.agreements.lineage import source_artifact

    models = [model for model in deployment.of_kinds("hf") if not _lends_tokenizer(deployment, model)]
    if any(names_artifact(server, "runtime.model", model) for model in models):
        return _served_artifact(server, "runtime.model", models)
    engine = served_engine(deployment, server) if deployment.first_of("engine") else None
    if engine is not None:
        return source_artifact(deployment, engine, "hf")
    return _served_artifact(server, "runtime.model", models)


def served_models(deployment: Deployment) -> Iterator[tuple[Artifact, Artifact]]:
    """Yield each file of options and command line with the Hugging Face model behind it."""
    for server in serving_artifacts(deployment, "llm-args", "command"):
        model = served_model(deployment, server)
        if model is not None:
            yield server, model


def _lends_tokenizer(deployment: Deployment, model: Artifact) -> bool:
    """Return whether a server takes only the tokenizer from a model's directory."""
    named = [server for server in serving_artifacts(deployment) if server.has("runtime.model")]
    return any(names_artifact(server, "runtime.tokenizer", model) for server in named) and not any(
        names_artifact(server, "runtime.model", model) for server in named
    )


def names_artifact(server: Artifact, fact: str, artifact: Artifact) -> bool:
    """Return whether a server's fact is the path of an artifact."""
    name = server.text(fact)
    real = server.resolved_paths.get(name)
    if real is not None and artifact.real_path:
        return real == artifact.real_path
    return bool(name) and _is_same_path(artifact.path, name)


def server_release(deployment: Deployment, server: Artifact) -> str:
    """Return the release that is to run: said for the server, or for the machine."""
    machine = deployment.first_of("machine")
    return server.text("runtime.version") or (machine.text("gpu.runtime") if machine else "")


def deployment_releases(deployment: Deployment) -> tuple[str, str]:
    """Return the oldest and the newest release that is to run; without a server, those that engines were built with."""
    servers = [server_release(deployment, server) for server in serving_artifacts(deployment)]
    machines = [machine.text("gpu.runtime") for machine in deployment.of_kinds("machine")]
    engines = [engine.text("version") for engine in deployment.of_kinds("engine")]
    versions = [
        version for name in (list(filter(None, servers + machines)) or engines) if (version := parse_release(name))
    ]
    return (str(min(versions)), str(max(versions))) if versions else ("", "")


def rank_count(artifact: Artifact) -> int | None:
    """Return how many ranks a mapping makes, where it is stated."""
    if not artifact.has("tp_size") and not artifact.has("world_size"):
        return None
    sizes = [artifact.integer(name) or 1 for name in ("tp_size", "pp_size", "cp_size")]
    return artifact.integer("world_size") or sizes[0] * sizes[1] * sizes[2]


def parallel_sizes(artifact: Artifact) -> str:
    names = ("tp_size", "pp_size", "cp_size")
    return " * ".join(f"{name} {artifact.integer(name)}" for name in names if artifact.has(name))


def server_place(server: Artifact) -> str:
    """Return where a server's options stand, for use in a sentence."""
    return "the command line" if server.path.startswith("--") else server.path


def verify_command(server: Artifact) -> str:
    """Return a command that looks at the same server again."""
    if server.path.startswith("--"):
        return f"trtdx inspect{_command_option(server)}"
    return f"trtdx inspect {shlex.quote(server.path)}"


def server_words(server: Artifact) -> dict[str, str]:
    """Return what pages say of a server: where its options stand, and how to look at it again."""
    return {"path": server_place(server), "verify": verify_command(server)}


def _command_option(server: Artifact) -> str:
    """Return the option that gives the same command line once more; what is to be changed in it is the fix's to say."""
    return f" --command {shlex.quote(server.command_text)}{WITH_CHANGE}" if server.command_text else ""


def pasteable_paths(deployment: Deployment, server: Artifact) -> dict[str, str]:
    """Return the paths at hand for a page's commands, each ready to be pasted; capitals where one is not known."""
    model, engine = served_model(deployment, server), deployment.first_of("engine")
    checkpoint = deployment.first_of("checkpoint")
    served = server.text("runtime.model") or (model.path if model else "")
    return {
        "served": shlex.quote(served) if served else "MODEL",
        "checkpoint": shlex.quote(checkpoint.path) if checkpoint else "CHECKPOINT_DIR",
        "rebuilt": shlex.quote(f"{engine.path.rstrip('/')}.new") if engine else "ENGINE_DIR.new",
        "verify": inspect_again_command(deployment),
    }


def inspect_again_command(deployment: Deployment) -> str:
    """Return the command that looks at the same artifacts once more."""
    on_disk = [artifact for artifact in deployment.artifacts if artifact.kind not in ("machine", "request", "unknown")]
    paths = [shlex.quote(artifact.path) for artifact in on_disk if not artifact.path.startswith("--")]
    commands = [_command_option(artifact) for artifact in on_disk if artifact.path.startswith("--")]
    return f"trtdx inspect {' '.join(dict.fromkeys(paths))}".rstrip() + next(iter(commands), "")


def stated_evidence(artifact: Artifact, *names: str) -> tuple[Evidence, ...]:
    """Return the evidence of those facts that are stated."""
    return artifact.evidence(*(name for name in names if artifact.has(name)))


def items_and_evidence(artifact: Artifact, name: str, max_items: int = 6) -> tuple[str, tuple[Evidence, ...]]:
    """Return a fact's items in one line, and each item as evidence."""
    items = [str(item) for item in artifact.items(name)]
    more = f"; and {len(items) - max_items} more" if len(items) > max_items else ""
    where = artifact.facts[name].where if name in artifact.facts else artifact.path
    return "; ".join(items[:max_items]) + more, tuple(Evidence(where, item) for item in items[:max_items])
