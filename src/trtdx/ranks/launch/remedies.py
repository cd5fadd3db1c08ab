"""What mends the interference of Slurm's PMI with a program's own MPI, as measured on a real Slurm.

Slurm 22.05 (plugins none, pmi2, pmix_v4), Open MPI 4.1.4 and 5.0.11, MPICH 4.0.2 and 5.0.2, with mpi4py's
`MPIPoolExecutor`, which is what TensorRT-LLM's MpiPoolSession starts. `tests/ranks/test_remedies.py` runs the rows.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class SlurmPlace(str, Enum):
    """Where in Slurm a process is, by its variables."""

    NONE = "outside of Slurm"
    ALLOCATION = "in an allocation"  # the shell of salloc, or a batch script
    TASK = "a task of a step without PMI"  # srun --mpi=none
    STEP = "a task of a step with PMI"  # srun --mpi=pmix or pmi2


class Remedy(NamedTuple):
    """What to put in front of a command, and why."""

    words: tuple[str, ...]
    reason: str
    is_measured: bool = True


PMI_VARIABLES = ("PMIX_RANK", "PMIX_NAMESPACE", "PMI_FD", "PMI_RANK", "PMI2_RANK")


def slurm_place(environment: Mapping[str, str]) -> SlurmPlace:
    """Return where in Slurm a process with these variables is; a batch script is no step although it has a number."""
    if not ({"SLURM_JOB_ID", "SLURM_JOBID"} & set(environment)):
        return SlurmPlace.NONE
    if not environment.get("SLURM_STEP_ID", "").isdigit() or environment.get("OMPI_COMM_WORLD_RANK"):
        return SlurmPlace.ALLOCATION
    return SlurmPlace.STEP if any(name in environment for name in PMI_VARIABLES) else SlurmPlace.TASK


ISOLATED = ("mpirun", "-n", "1", "--oversubscribe")


def find_remedy(place: SlurmPlace, family: str, version: tuple[int, ...], *, spawns: bool) -> Remedy:
    """Return what starts a program so that Slurm's PMI does not get in its way.

    Args:
        place: where in Slurm the command is started.
        family: the MPI that the program's library is of.
        version: its version, where it is known.
        spawns: whether the program spawns its workers itself (LLM API), or is started once for each rank.
    """
    if place is SlurmPlace.NONE:
        return Remedy((), "outside of Slurm nothing interferes")
    if not spawns:
        plugin = "pmix" if family == "Open MPI" else "pmi2"
        return Remedy(("srun", f"--mpi={plugin}"), f"{family} learns its ranks from Slurm by {plugin}")
    if family not in ("", "Open MPI"):
        return Remedy(ISOLATED, f"TensorRT-LLM needs Open MPI; with {family} no remedy is known", is_measured=False)
    return Remedy(ISOLATED, _isolation_reason(place, version))


def _isolation_reason(place: SlurmPlace, version: tuple[int, ...]) -> str:
    """Return why one mpirun stands between Slurm and the program."""
    spawn = "MPI_ERR_UNKNOWN" if version[:1] >= (5,) else "MPI_ERR_SPAWN, or a hang"
    if place is SlurmPlace.ALLOCATION:
        return "mpirun -n 1 answers for the workers that the program spawns; --oversubscribe, because it takes a slot itself"
    return (
        "mpirun -n 1 keeps the program out of the step's PMI, always 1 whatever the number of GPUs; "
        f"--oversubscribe, because without it the spawn ends in {spawn}"
    )


# What does not mend it, however often it is advised; each was run and failed.
NO_REMEDIES = {
    "mpirun -n 1 without --oversubscribe": "the one slot is already filled",
    "unset PMI_* and PMIX_*": "Open MPI still sees Slurm by SLURM_*",
    "srun --mpi=pmix": "a step cannot spawn",
    "--mca plm isolated": "no nodes are available",
}
