"""Launches in a container: docker run on one machine, pods on one or several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.ranks.launch.nouns import LaunchPart, LaunchPlan
from trtdx.ranks.launch.plan import added_flags, launch_notes, nodes_and_ranks, world_reason, wrap_llm_api
from trtdx.ranks.launch.program import ProgramKind, server_host_to_add, server_port

if TYPE_CHECKING:
    from trtdx.ranks.launch.nouns import LaunchQuestion, LaunchSurroundings

IMAGE = "nvcr.io/nvidia/tensorrt-llm/release"


def image_name(question: LaunchQuestion) -> str:
    """Return the image that runs: the one named, else NVIDIA's of the release."""
    return question.image or f"{IMAGE}:{question.runtime or 'VERSION'}"


def plan_docker(question: LaunchQuestion, around: LaunchSurroundings, kind: ProgramKind) -> LaunchPlan:
    nodes, per_node = nodes_and_ranks(question, around)
    if nodes > 1:
        raise InputError(
            f"{question.world} ranks need {nodes} machines of {per_node} GPUs, and docker run starts one container",
            fix="--for slurm or --for k8s; or --gpus-per-node N where a machine has more",
        )
    image = image_name(question)
    parts = [
        LaunchPart(("docker", "run", "--rm"), "the container goes when the program ends"),
        LaunchPart(("--gpus", "all"), "the ranks see all GPUs, so that they can reach each other's memory"),
        LaunchPart(("--ipc=host",), "the host's /dev/shm: Docker's own 64 MB are too small for NCCL"),
        LaunchPart(("--ulimit", "memlock=-1"), "RDMA and pinned memory lock more than Docker's limit"),
        LaunchPart(("--ulimit", "stack=67108864"), "what NVIDIA's images ask for"),
        *_published_port(question),
        *_mounted_model(question),
        LaunchPart(
            (image,),
            "the release that runs" if question.image else f"TensorRT-LLM {question.runtime or 'of your choice'}",
        ),
    ]
    if kind is ProgramKind.RANKS and question.world > 1:
        parts.append(LaunchPart(("mpirun", "-n", str(question.world)), world_reason(question)))
        parts.append(LaunchPart(("--allow-run-as-root",), "in the container the program runs as root"))
    added = [*added_flags(question, kind), *server_host_to_add(question.command)]
    return LaunchPlan(
        target=question.target, nodes=1, ranks_per_node=per_node, program=question.command, parts=tuple(parts),
        program_parts=tuple(added), notes=tuple(launch_notes(question, kind)),
    )  # fmt: skip


def _published_port(question: LaunchQuestion) -> list[LaunchPart]:
    port = server_port(question.command)
    return [LaunchPart(("-p", f"{port}:{port}"), "requests come in on this port")] if port else []


def _mounted_model(question: LaunchQuestion) -> list[LaunchPart]:
    """Return the mounts of what the command names by an absolute path."""
    paths = [word for word in question.command if word.startswith("/") and Path(word).exists()]
    folders = dict.fromkeys(path if Path(path).is_dir() else str(Path(path).parent) for path in paths)
    return [
        LaunchPart(("-v", f"{folder}:{folder}"), "the command names it by this path")
        for folder in folders
        if folder not in ("/", "/usr/bin")
    ]


def plan_kubernetes(question: LaunchQuestion, around: LaunchSurroundings, kind: ProgramKind) -> LaunchPlan:
    nodes, per_node = nodes_and_ranks(question, around)
    parts: list[LaunchPart] = []
    if nodes > 1:
        parts = [
            LaunchPart(("mpirun", "-n", str(question.world)), world_reason(question)),
            LaunchPart(
                ("--map-by", f"ppr:{per_node}:node"),
                "ranks of one node are neighbours, so tensor parallelism stays inside it",
            ),
            LaunchPart(("--allow-run-as-root",), "in the pod the program runs as root"),
            *([wrap_llm_api(question)] if kind is ProgramKind.SPAWNS else []),
        ]
    elif kind is ProgramKind.RANKS and question.world > 1:
        parts = [LaunchPart(("mpirun", "-n", str(question.world), "--allow-run-as-root"), world_reason(question))]
    added = [*added_flags(question, kind), *server_host_to_add(question.command)]
    notes = launch_notes(question, kind)
    if nodes > 1:
        notes.append("the manifest is an MPIJob: the cluster needs the MPI operator of Kubeflow (kubeflow.org/v2beta1)")
    return LaunchPlan(
        target=question.target, nodes=nodes, ranks_per_node=per_node, program=question.command, parts=tuple(parts),
        program_parts=tuple(added), notes=tuple(notes),
    )  # fmt: skip
