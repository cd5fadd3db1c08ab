"""Which rank a process is, by its environment."""

from __future__ import annotations

import os

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "WORLD_SIZE")
SHOWN_VARIABLES = (*RANK_VARIABLES, *SIZE_VARIABLES, "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID")


def rank_variables() -> dict[str, str]:
    """Return the variables that tell rank and size, as they are now."""
    return {name: os.environ[name] for name in SHOWN_VARIABLES if name in os.environ}


def first_number(names: tuple[str, ...]) -> int:
    """Return the first of the variables that holds a number, or -1."""
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return -1
