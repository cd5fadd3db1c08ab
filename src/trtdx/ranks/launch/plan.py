"""The right launch for a program, a place and a release."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.ranks.launch.nouns import LaunchPart, LaunchPlan, LaunchTarget
from trtdx.ranks.launch.program import (
    ProgramKind,
    classify_program,
    size_flags_to_add,
    unstated_sizes,
)
from trtdx.ranks.launch.remedies import SlurmPlace, find_remedy

if TYPE_CHECKING:
    from trtdx.ranks.launch.nouns import LaunchQuestion, LaunchSurroundings

DEFAULT_GPUS_PER_NODE = 8
LLMAPI_LAUNCH_SINCE = "0.15.0"
FORWARDED = ("NCCL_", "UCX_", "TLLM", "TRTLLM", "GLOO_", "NVSHMEM_", "HF_HOME", "HF_HUB_OFFLINE")
SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASS")
ROOT = LaunchPart(("--allow-run-as-root",), "Open MPI refuses to start for root without it")
LLMAPI_LAUNCH = LaunchPart(
    ("trtllm-llmapi-launch",),
    "rank 0 runs the program, all ranks become its workers; a program of the LLM API cannot be started once for each rank",
)


def plan_launch(question: LaunchQuestion, around: LaunchSurroundings) -> LaunchPlan:
    """Return the launch, with a reason for everything in it.

    Raises:
        InputError: the place cannot run what is asked for.
    """
    kind = classify_program(question.command)
    from trtdx.ranks.launch.containers import plan_docker, plan_kubernetes
    from trtdx.ranks.launch.ray_cluster import plan_ray

    planners = {
        LaunchTarget.INTERACTIVE: _plan_interactive,
        LaunchTarget.SLURM: _plan_slurm,
        LaunchTarget.DOCKER: plan_docker,
        LaunchTarget.K8S: plan_kubernetes,
        LaunchTarget.RAY: plan_ray,
    }
    return planners[question.target](question, around, kind)


def nodes_and_ranks(question: LaunchQuestion, around: LaunchSurroundings) -> tuple[int, int]:
    """Return over how many nodes the ranks are spread, and how many each has.

    Raises:
        InputError: they cannot be spread evenly.
    """
    if question.hosts:
        nodes = len(question.hosts)
    else:
        per_node = question.gpus_per_node or around.gpus or DEFAULT_GPUS_PER_NODE
        nodes = math.ceil(question.world / per_node)
    if question.world % nodes:
        raise InputError(
            f"{question.world} ranks cannot be spread evenly over {nodes} nodes",
            fix="choose --tp and --pp so that their product is a multiple of the nodes, or give --gpus-per-node",
        )
    return nodes, question.world // nodes


def added_flags(question: LaunchQuestion, kind: ProgramKind) -> list[LaunchPart]:
    return size_flags_to_add(question.command, question.sizes, question.runtime) if kind is ProgramKind.SPAWNS else []


def launch_notes(question: LaunchQuestion, kind: ProgramKind) -> list[str]:
    note = unstated_sizes(question.command, question.sizes) if kind is ProgramKind.SPAWNS else ""
    return [note] if note else []


def _plan_interactive(question: LaunchQuestion, around: LaunchSurroundings, kind: ProgramKind) -> LaunchPlan:
    nodes, per_node = nodes_and_ranks(question, around)
    parts: list[LaunchPart] = []
    variables: list[LaunchPart] = []
    notes = launch_notes(question, kind)
    if nodes > 1 and around.place is not SlurmPlace.NONE:
        parts = _srun_parts(question, around, kind, nodes, per_node)
    elif nodes > 1:
        parts = _mpirun_on_hosts(question, around, kind, nodes, per_node)
        notes.append(
            "every host needs the program, the model and ssh without a password; trtdx ranks check --hosts tells"
        )
    elif kind is ProgramKind.RANKS and question.world > 1:
        parts = _mpirun_here(question, around)
    elif kind is ProgramKind.SPAWNS:
        parts, variables = _spawning_here(question, around)
    return LaunchPlan(
        target=question.target,
        nodes=nodes,
        ranks_per_node=per_node,
        program=question.command,
        parts=tuple(parts),
        variables=tuple(variables),
        program_parts=tuple(added_flags(question, kind)),
        notes=tuple(notes),
    )


def _spawning_here(question: LaunchQuestion, around: LaunchSurroundings) -> tuple[list[LaunchPart], list[LaunchPart]]:
    """Return what stands before a program that spawns its workers: nothing, or one mpirun between Slurm and it."""
    if around.place is not SlurmPlace.NONE:
        remedy = find_remedy(around.place, around.family or "Open MPI", around.version, spawns=True)
        return [LaunchPart(remedy.words, remedy.reason), *([ROOT] if around.is_root else [])], []
    if question.world > 1 and around.cpus and around.cpus < question.world + 1:
        words = "OMPI_MCA_rmaps_base_oversubscribe=1"
        reason = f"Open MPI counts {around.cpus} cores as slots, and {question.world} workers beside the program need {question.world + 1}"
        return [], [LaunchPart((words,), reason)]
    return [], []


def _mpirun_here(question: LaunchQuestion, around: LaunchSurroundings) -> list[LaunchPart]:
    parts = [LaunchPart(("mpirun", "-n", str(question.world)), world_reason(question))]
    if around.place in (SlurmPlace.STEP, SlurmPlace.TASK) or (around.cpus and around.cpus < question.world):
        parts.append(LaunchPart(("--oversubscribe",), "there are fewer slots than ranks, and GPUs do the work"))
    return [*parts, *([ROOT] if around.is_root else [])]


def world_reason(question: LaunchQuestion) -> str:
    sizes = question.sizes
    named = (("tp", sizes.tp), ("pp", sizes.pp), ("cp", sizes.cp))
    return f"{question.world} ranks = " + " * ".join(
        f"{name} {size or 1}" for name, size in named if size > 1 or name == "tp"
    )


def _mpirun_on_hosts(
    question: LaunchQuestion, around: LaunchSurroundings, kind: ProgramKind, nodes: int, per_node: int
) -> list[LaunchPart]:
    hosts = question.hosts or tuple(f"NODE{number + 1}" for number in range(nodes))
    listed = ",".join(f"{host}:{per_node}" for host in hosts)
    parts = [
        LaunchPart(("mpirun", "-n", str(question.world)), world_reason(question)),
        LaunchPart(("-H", listed), f"{per_node} slots on each of {nodes} hosts"),
        LaunchPart(
            ("--map-by", f"ppr:{per_node}:node"),
            "ranks of one node are neighbours, so tensor parallelism stays inside it",
        ),
        *([ROOT] if around.is_root else []),
    ]
    names = forwarded_variables(around.environment)
    flags = tuple(word for name in ("PATH", "LD_LIBRARY_PATH", *names) for word in ("-x", name))
    parts.append(LaunchPart(flags, "mpirun passes only OMPI_* to other hosts by itself"))
    return [*parts, *([wrap_llm_api(question)] if kind is ProgramKind.SPAWNS else [])]


def forwarded_variables(environment: dict[str, str]) -> list[str]:
    """Return the variables of this shell that ranks on other hosts need; secrets are left to the user."""
    return sorted(
        name for name in environment if name.startswith(FORWARDED) and not any(word in name for word in SECRET_NAMES)
    )


def wrap_llm_api(question: LaunchQuestion) -> LaunchPart:
    from trtdx.knowledge.versions import at_least

    if question.runtime and not at_least(question.runtime, LLMAPI_LAUNCH_SINCE):
        raise InputError(
            f"TensorRT-LLM {question.runtime} has no trtllm-llmapi-launch, which starts the LLM API on several tasks or nodes",
            fix=f"use {LLMAPI_LAUNCH_SINCE} or newer, or an engine with mpirun -n {question.world} python3 examples/run.py",
        )
    return LLMAPI_LAUNCH


def _srun_parts(
    question: LaunchQuestion, around: LaunchSurroundings, kind: ProgramKind, nodes: int, per_node: int
) -> list[LaunchPart]:
    """Return srun with one task for each GPU, or mpirun where this Slurm has no plugin that Open MPI understands."""
    wrapped = [wrap_llm_api(question)] if kind is ProgramKind.SPAWNS else []
    if around.mpi_plugins and not any(name.startswith("pmix") for name in around.mpi_plugins):
        hidden = ("env", "-u", "SLURM_PROCID", "-u", "SLURM_NTASKS")
        reason = "in a batch script every rank of mpirun has SLURM_PROCID=0, which trtllm-llmapi-launch asks first"
        return [
            *([LaunchPart(hidden, reason)] if wrapped else []),
            LaunchPart(
                ("mpirun", "-n", str(question.world)),
                f"{world_reason(question)}; this srun has no pmix plugin, only {', '.join(around.mpi_plugins)}",
            ),
            LaunchPart(("--oversubscribe",), "Slurm's slots are its tasks, which may be fewer"),
            LaunchPart(("--map-by", f"ppr:{per_node}:node"), "ranks of one node are neighbours"),
            *([ROOT] if around.is_root else []),
            *wrapped,
        ]
    return [
        LaunchPart(("srun",), "Slurm starts one task for each GPU"),
        LaunchPart(
            ("--mpi=pmix",), "Open MPI learns its ranks by PMIx; without it every task is alone, or does not start"
        ),
        LaunchPart(
            (f"--nodes={nodes}", f"--ntasks={question.world}", f"--ntasks-per-node={per_node}"), world_reason(question)
        ),
        LaunchPart(("--kill-on-bad-exit=1",), "a rank that fails ends the others, which would wait for it"),
        LaunchPart(("--export=ALL",), "NCCL_*, UCX_* and TRTLLM_* of this shell reach all ranks"),
        *wrapped,
    ]


def _plan_slurm(question: LaunchQuestion, around: LaunchSurroundings, kind: ProgramKind) -> LaunchPlan:
    """Return a batch job; inside an allocation the same step without its directives."""
    nodes, per_node = nodes_and_ranks(question, around)
    lacks_pmix = bool(around.mpi_plugins) and not any(name.startswith("pmix") for name in around.mpi_plugins)
    alone = nodes == 1 and kind is ProgramKind.SPAWNS and (question.world == 1 or lacks_pmix)
    if around.place is not SlurmPlace.NONE and nodes == 1 and kind is ProgramKind.SPAWNS:
        alone = True  # the allocation is there already, and may have fewer tasks than GPUs
    if alone:
        place = around.place if around.place is not SlurmPlace.NONE else SlurmPlace.ALLOCATION
        remedy = find_remedy(place, around.family or "Open MPI", around.version, spawns=True)
        parts = [LaunchPart(remedy.words, remedy.reason), *([ROOT] if around.is_root else [])]
        tasks = 1
    else:
        parts, tasks = _srun_parts(question, around, kind, nodes, per_node), per_node
    if question.image and parts[0].words[0] == "srun":
        container = LaunchPart((f"--container-image={question.image}",), "pyxis runs every task in this image")
        at = len(parts) - (kind is ProgramKind.SPAWNS)
        parts.insert(at, container)
    return LaunchPlan(
        target=question.target,
        nodes=nodes,
        ranks_per_node=per_node,
        program=question.command,
        parts=tuple(parts),
        program_parts=tuple(added_flags(question, kind)),
        directives=tuple(_directives(nodes, per_node, tasks)),
        notes=tuple(launch_notes(question, kind)),
    )


def _directives(nodes: int, per_node: int, tasks: int) -> list[LaunchPart]:
    return [
        LaunchPart(("--job-name=trtllm",), "any name"),
        LaunchPart((f"--nodes={nodes}",), "as many as the GPUs of the job fill"),
        LaunchPart(
            (f"--ntasks-per-node={tasks}",),
            "one task for each GPU" if tasks == per_node else "one task, which spawns the workers",
        ),
        LaunchPart(
            (f"--gpus-per-node={per_node}",),
            "all GPUs of the node for all its tasks: --gpus-per-task would hide them from each other",
        ),
        LaunchPart(("--exclusive",), "no other job fills /dev/shm or the GPUs"),
        LaunchPart(("--output=trtllm-%j.out",), "%j is the job's number"),
    ]
