"""CUDA graphs: which batch sizes are captured, and what the driver keeps of each."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from trtdx.memory.ledger.decoder_layers import rank_layer_range
from trtdx.memory.nouns import GIB, MIB, Component, Figure
from trtdx.words import format_count

if TYPE_CHECKING:
    from trtdx.memory.nouns import Dims, Setup

DEFAULT_MAX_BATCH = 128
# What the driver keeps of one layer in one graph: the kernels of a dense layer, and of one with experts or latents.
LAYER_BYTES = int(1.1 * MIB)
EXPERT_LAYER_BYTES = int(2.35 * MIB)
PIECES_BYTES = 36 * MIB  # of one layer, of all token counts together, with the pieces' own pool


def cuda_graph_memory(setup: Setup, rank: int) -> Component:
    """Return what captured graphs of a rank take; an engine has none unless asked."""
    running, dims = setup.running, setup.dims
    if running.backend == "tensorrt" or not running.cuda_graphs:
        return Component("cuda_graphs", Figure.exact(0), "none are captured")
    most = min(running.cuda_graph_max_batch or DEFAULT_MAX_BATCH, setup.limits.max_batch_size)
    graphs = count_captured_graphs(most)
    layers = len(rank_layer_range(dims, setup.layout, rank))
    layers += min(dims.nextn_layers, setup.limits.max_draft_len)
    parts = {"graphs": graphs * layers * _graph_bytes_per_layer(dims)}
    if running.piecewise_graphs:
        parts["pieces"] = layers * PIECES_BYTES
    size = sum(parts.values())
    figure = Figure.with_tolerance(size, 0.5, extra=GIB // 8)
    return Component(
        "cuda_graphs", figure, f"{format_count(graphs, 'graph')} up to batch {most}, {layers} layers", parts
    )


def _graph_bytes_per_layer(dims: Dims) -> int:
    return EXPERT_LAYER_BYTES if dims.num_experts or dims.mla else LAYER_BYTES


@lru_cache(maxsize=4096)
def count_captured_graphs(most: int) -> int:
    """Return how many batch sizes are captured up to one: 1, 2, 4, every eighth to 128, then every 64th."""
    if most <= 0:
        return 0
    sizes = {1, 2, 4, *range(8, 129, 8), *range(192, most + 1, 64)}
    return len({size for size in sizes if size <= most} | {most})
