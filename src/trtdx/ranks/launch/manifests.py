"""A plan as a manifest for Kubernetes: a pod on one node, an MPIJob on several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from trtdx.ranks.launch.program import server_port
from trtdx.ranks.launch.scripts import reason_lines

if TYPE_CHECKING:
    from trtdx.ranks.launch.nouns import LaunchPlan

SHM_GIB = 16
REASONS = (
    ("resources.limits nvidia.com/gpu", "all ranks of a node are in one pod, so that they reach each other's memory"),
    ("emptyDir medium: Memory at /dev/shm", "a pod's own 64 MB of shared memory are too small for NCCL"),
    ("IPC_LOCK", "RDMA locks memory; a pod has no other way to raise memlock"),
    ("restartPolicy: Never", "a pod that restarts hides its first error"),
)


def render_manifest(plan: LaunchPlan, image: str) -> str:
    """Return YAML with the reasons as comments before it."""
    document = _mpi_job(plan, image) if plan.nodes > 1 else _pod(plan, image)
    comments = [
        *reason_lines(plan),
        *(f"#   {what}: {why}" for what, why in REASONS),
        *(f"# note: {note}" for note in plan.notes),
    ]
    return "\n".join(comments) + "\n" + yaml.safe_dump(document, sort_keys=False, width=100)


def _pod(plan: LaunchPlan, image: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trtllm", "labels": {"app": "trtllm"}},
        "spec": _pod_spec(plan, image, plan.words, gpus=plan.ranks_per_node),
    }


def _pod_spec(plan: LaunchPlan, image: str, command: list[str], *, gpus: int) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "trtllm", "image": image}
    if command:
        container["command"] = command
    port = server_port(plan.program)
    if port and command:
        container["ports"] = [{"containerPort": port}]
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if gpus:
        spec["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHM_GIB}Gi"}}]
    return spec


def _mpi_job(plan: LaunchPlan, image: str) -> dict[str, Any]:
    """Return a launcher pod that runs mpirun, and one worker pod for each node."""
    launcher = _pod_spec(plan, image, plan.words, gpus=0)
    worker = _pod_spec(plan, image, [], gpus=plan.ranks_per_node)
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "trtllm"},
        "spec": {
            "slotsPerWorker": plan.ranks_per_node,
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": {"spec": launcher}},
                "Worker": {"replicas": plan.nodes, "template": {"spec": worker}},
            },
        },
    }
