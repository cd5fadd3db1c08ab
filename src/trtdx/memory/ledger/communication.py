"""Communication buffers: all-reduce workspaces and NCCL's own."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from trtdx.memory.ledger.weight_storage import pad_to_multiple
from trtdx.memory.nouns import GIB, MIB, Component, Figure

if TYPE_CHECKING:
    from trtdx.memory.nouns import Setup

FUSION_VARIABLE = "TRTLLM_ALLREDUCE_FUSION_WORKSPACE_SIZE"
FUSION_WORKSPACE = 64 * MIB  # for each peer: one buffer shared between processes, and three that are used in turn
FUSION_BUFFERS = 4
MEMORY_PAGE = 2 * MIB
NCCL_FLOOR, NCCL_PEER = int(0.8 * GIB), int(0.05 * GIB)
ENGINE_NCCL_FLOOR, ENGINE_NCCL_PEER = int(0.25 * GIB), int(0.05 * GIB)
ENGINE_WORKSPACE = 32 * MIB  # of an engine's all-reduce plugin, for each peer


def communication_buffers(setup: Setup) -> Component:
    """Return the buffers of a rank that talks to others; one GPU alone has none."""
    layout = setup.layout
    if layout.world <= 1:
        return Component("communication", Figure.exact(0), "one GPU")
    engine = setup.is_engine
    floor, peer = (ENGINE_NCCL_FLOOR, ENGINE_NCCL_PEER) if engine else (NCCL_FLOOR, NCCL_PEER)
    parts = {"nccl": floor + peer * layout.world}
    if layout.tp > 1 and not layout.attention_dp:
        workspace = _fusion_workspace_bytes(setup.running.env.get(FUSION_VARIABLE, ""))
        parts["all_reduce"] = layout.tp * (
            ENGINE_WORKSPACE if engine else FUSION_BUFFERS * pad_to_multiple(workspace, MEMORY_PAGE)
        )
    return Component(
        "communication",
        Figure.with_tolerance(sum(parts.values()), 0.35, extra=GIB // 4),
        f"tp {layout.tp}, pp {layout.pp}",
        parts,
    )


@lru_cache(maxsize=64)
def _fusion_workspace_bytes(text: str) -> int:
    """Return the size of one workspace; what is no number is what it is without the variable."""
    return int(text) if text.isdecimal() else FUSION_WORKSPACE
