"""Launches on Ray, whose actors take the place of MPI's ranks (a prototype in TensorRT-LLM since 1.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.ranks.launch.nouns import LaunchPart, LaunchPlan
from trtdx.ranks.launch.plan import added_flags, launch_notes, nodes_and_ranks
from trtdx.ranks.launch.program import ProgramKind, program_name

if TYPE_CHECKING:
    from trtdx.ranks.launch.nouns import LaunchQuestion, LaunchSurroundings

RAY_SINCE = "1.2.0rc1"


def plan_ray(question: LaunchQuestion, around: LaunchSurroundings, kind: ProgramKind) -> LaunchPlan:
    from trtdx.knowledge.versions import at_least

    if kind is ProgramKind.RANKS:
        raise InputError(
            f"{program_name(question.command)} is started by MPI, not by Ray", fix="--for interactive or --for slurm"
        )
    if question.runtime and not at_least(question.runtime, RAY_SINCE):
        raise InputError(
            f"TensorRT-LLM {question.runtime} has no Ray orchestrator",
            fix=f"--runtime {RAY_SINCE} or newer, or --for interactive",
        )
    nodes, per_node = nodes_and_ranks(question, around)
    head = "HEAD_NODE"
    before = [
        LaunchPart(
            ("ray", "start", "--head", "--port=6379", f"--num-gpus={per_node}"),
            "on the first node: Ray counts the GPUs it may give away",
        )
    ]
    if nodes > 1:
        before.append(
            LaunchPart(
                ("#", "on each other node:", "ray", "start", f"--address={head}:6379", f"--num-gpus={per_node}"),
                "every node joins the cluster before the program starts",
            )
        )
    flag = "--extra_llm_api_options"
    is_tool = program_name(question.command).startswith("trtllm-")
    before += (
        [
            LaunchPart(
                ("printf", "'orchestrator_type: ray\\n'", ">", "ray.yaml"),
                "Ray's actors take the place of MPI's ranks (a prototype)",
            )
        ]
        if is_tool
        else []
    )
    added = [
        *added_flags(question, kind),
        *([LaunchPart((flag, "ray.yaml"), "hands the choice of Ray to the LLM API")] if is_tool else []),
    ]
    notes = launch_notes(question, kind)
    if not is_tool:
        notes.append('the script has to pass orchestrator_type="ray" to LLM(...)')
    return LaunchPlan(
        target=question.target, nodes=nodes, ranks_per_node=per_node, program=question.command, before=tuple(before),
        program_parts=tuple(added), notes=tuple(notes),
    )  # fmt: skip
