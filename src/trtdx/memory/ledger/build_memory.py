"""What trtllm-build itself needs: the builder holds a rank's weights on the GPU, and copies of them in host memory.

Peaks that builders printed, as GPU and host MiB of one rank: 775 and 6600, 2699 and 10624, 3361 and 12851, 11909 and
29706, 70725 and 176260 (examples of the TensorRT-LLM repository). On the GPU it is the weights to within a mebibyte;
tactics that would take more are skipped where that is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.memory.nouns import GIB, Figure
from trtdx.words import format_bytes

if TYPE_CHECKING:
    from trtdx.memory.nouns import MemoryLedger

HOST_COPIES = 2.4
HOST_FLOOR = int(4.6 * GIB)  # kernels and libraries


def build_host_memory(weights: int) -> Figure:
    """Return the host memory in which one rank's engine is built."""
    return Figure.with_tolerance(HOST_COPIES * weights + HOST_FLOOR, 0.15)


def render_build_note(ledger: MemoryLedger) -> str:
    """Return what building the largest rank's engine takes; "" if nothing is built."""
    setup = ledger.setup
    is_built = any(figure.source.endswith(".engine") for figure in setup.weights_by_rank)
    if setup.running.backend != "tensorrt" or is_built:
        return ""
    weights = max(rank.component_bytes("weights") for rank in ledger.ranks)
    text = (
        f"trtllm-build takes about {format_bytes(build_host_memory(weights).value)} of host memory for each rank that is "
        f"built at a time (--workers), and {format_bytes(weights)} on the GPU"
    )
    if setup.device is not None and weights > setup.device.total_bytes:
        return f"{text}: more than {setup.device.name} has"
    return text
