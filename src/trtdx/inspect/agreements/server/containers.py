"""What a container or job gives its command: GPUs, shared memory, ports, and a command that can be started at all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.server.runtime_engine import ENGINE_RUNNERS
from trtdx.inspect.agreements.serving import (
    items_and_evidence,
    rank_count,
    served_engine,
    server_words,
    stated_evidence,
    verify_command,
)
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

# NCCL takes about 10 MB for each connection between two ranks, MPI and Python some more
MIN_SHM_BYTES = 256 << 20
LOOPBACK_HOSTS = ("", "localhost", "127.0.0.1", "::1")
DEFAULT_PORT = 8000  # of trtllm-serve, 0.17 to 1.3.0rc22 (commands/serve.py)


def ranks_per_node(deployment: Deployment, command: Artifact) -> int:
    """Return how many ranks run on one machine."""
    engine = served_engine(deployment, command)
    ranks = rank_count(command) or command.integer("runtime.world_size") or (rank_count(engine) if engine else 1)
    nodes = command.integer("container.nodes") or 1 if command.has("runtime.launcher") else 1
    return math.ceil((ranks or 1) / nodes)


@make_agreement("DX400", "command", "engine")
def shared_memory(deployment: Deployment) -> Iterator[Violation]:
    """Ranks on one machine have enough shared memory to meet in."""
    for command in deployment.of_kinds("command"):
        size, ranks = command.integer("container.shm_bytes"), ranks_per_node(deployment, command)
        if size is None or size >= MIN_SHM_BYTES or ranks < 2:
            continue
        system = command.text("container.system")
        values = {"size": format_bytes(size), "ranks": ranks, "system": system, "remedy": _shm_remedy(system)}
        evidence = command.evidence("container.shm_bytes") + stated_evidence(command, "tp_size", "runtime.world_size")
        yield Violation(evidence, values | {"verify": verify_command(command)}, confidence=0.85)


def _shm_remedy(system: str) -> str:
    if system.startswith("Kubernetes"):
        return "mount an emptyDir with medium: Memory (sizeLimit: 16Gi) at /dev/shm"
    return "set ipc: host, or shm_size: 16gb" if system == "compose" else "add --ipc=host, or --shm-size=16g"


@make_agreement("DX568", "command")
def gpus_given(deployment: Deployment) -> Iterator[Violation]:
    """A container that runs a model is given a GPU."""
    for command in deployment.of_kinds("command"):
        program = command.text("runtime.command")
        if command.get("container.no_gpus") is not True or "disaggregated" in program:
            continue
        system = command.text("container.system")
        values = {
            "program": program,
            "system": system,
            "remedy": _gpu_remedy(system, ranks_per_node(deployment, command)),
        }
        yield Violation(
            command.evidence("container.no_gpus"),
            values | {"verify": verify_command(command)},
            confidence=0.8,
        )


def _gpu_remedy(system: str, ranks: int) -> str:
    if system.startswith("Kubernetes"):
        return f"add resources.limits with nvidia.com/gpu: {ranks} to the container"
    if system == "compose":
        return (
            "add deploy.resources.reservations.devices with driver: nvidia, "
            f"count: {ranks} and capabilities: [gpu] to the service"
        )
    return "add --gpus all to docker run"


@make_agreement("DX569", "command")
def listens_for_others(deployment: Deployment) -> Iterator[Violation]:
    """A server that others reach by its container's ports does not listen on localhost only."""
    for command in _published_servers(deployment):
        if command.text("option.--host") in LOOPBACK_HOSTS:
            values = {"ports": ", ".join(map(str, command.items("container.ports"))), **server_words(command)}
            yield Violation(command.evidence("container.ports", "option.--host"), values, confidence=0.9)


@make_agreement("DX570", "command")
def port_served(deployment: Deployment) -> Iterator[Violation]:
    """The port a server listens on is among those its container is reached by."""
    for command in _published_servers(deployment):
        port = command.get("option.--port", DEFAULT_PORT)
        if not isinstance(port, int):
            continue
        callers = command.table("container.callers").items()
        astray = [f"{called} ({name})" for name, called in callers if called != port]
        if port not in command.items("container.ports"):
            ports, fact = ", ".join(map(str, command.items("container.ports"))), "container.ports"
        elif astray:
            ports, fact = ", ".join(astray), "container.callers"
        else:
            continue
        values = {"port": port, "ports": ports, "verify": verify_command(command)}
        is_hint = command.text("container.system") == "Dockerfile"  # EXPOSE opens nothing by itself
        evidence = command.evidence(fact, "option.--port")
        yield Violation(evidence, values, Severity.WARNING if is_hint else None, confidence=0.9)


def _published_servers(deployment: Deployment) -> Iterator[Artifact]:
    for command in deployment.of_kinds("command"):
        is_server = command.text("runtime.command") in ("trtllm-serve", "trtllm-serve serve")
        if is_server and command.items("container.ports"):
            yield command


@make_agreement("DX571", "command")
def started_without_shell(deployment: Deployment) -> Iterator[Violation]:
    """A command that is written as a list holds words, and nothing that only a shell understands."""
    for command in deployment.of_kinds("command"):
        words, evidence = items_and_evidence(command, "container.no_shell", 3)
        if words:
            yield Violation(evidence, {"what": words, "verify": verify_command(command)}, confidence=0.9)


@make_agreement("DX572", "command")
def manifest_accepted(deployment: Deployment) -> Iterator[Violation]:
    """A manifest holds nothing that the API server refuses."""
    for command in deployment.of_kinds("command"):
        words, evidence = items_and_evidence(command, "container.refused", 4)
        if words:
            yield Violation(evidence, {"what": words, **server_words(command)}, confidence=0.95)


@make_agreement("DX442", "command")
def ranks_know_each_other(deployment: Deployment) -> Iterator[Violation]:
    """Srun tells the ranks of one MPI program of each other."""
    for command in deployment.of_kinds("command"):
        launcher, ranks = command.text("runtime.launcher").split(), command.integer("runtime.world_size") or 1
        meets = "trtllm-llmapi-launch" in launcher or command.text("runtime.command") in ENGINE_RUNNERS
        by_srun = "srun" in launcher and "mpirun" not in launcher
        if by_srun and meets and ranks > 1 and not command.has("container.mpi"):
            evidence = command.evidence("runtime.launcher", "runtime.world_size")
            yield Violation(evidence, {"ranks": ranks, "verify": verify_command(command)}, confidence=0.75)
