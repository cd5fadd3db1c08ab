"""All judges, in the order in which equally grave findings are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.ranks.judges import gpus, hosts, limits, mpi, network, settings, shared_memory, variables

if TYPE_CHECKING:
    from trtdx.ranks.judges.judge import Judge

JUDGES: tuple[Judge, ...] = (
    *mpi.JUDGES,
    *variables.JUDGES,
    *shared_memory.JUDGES,
    *gpus.JUDGES,
    *network.JUDGES,
    *hosts.JUDGES,
    *limits.JUDGES,
    *settings.JUDGES,
)
