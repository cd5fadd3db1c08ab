"""More GPUs, or others: the sizes a model can be cut by, and GPUs with more memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from trtdx.memory.advice.costs import CHANGE_HARMS
from trtdx.memory.advice.memory_change import MemoryChange, replace_part
from trtdx.memory.ledger.capacity import has_kernels, smallest_placement
from trtdx.memory.report.figures import render_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.nouns import Device, Dims, Setup

LARGEST_TP = 16
PIPELINES = (2, 4, 8)


def valid_tp_sizes(setup: Setup, most: int = LARGEST_TP) -> list[int]:
    """Return the sizes of tensor parallelism that this model can be cut by."""
    dims, cp = setup.dims, setup.layout.cp
    return [size for size in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16) if size <= most and _can_shard(dims, size, cp)]


def _can_shard(dims: Dims, size: int, cp: int) -> bool:
    heads, kv_heads = dims.num_heads, dims.num_kv_heads
    if heads and heads % (size * cp):
        return False
    if kv_heads and kv_heads % size and size % kv_heads and not dims.mla:
        return False
    inner = (dims.intermediate_size, dims.moe_intermediate_size)
    return all(not width or width % size == 0 for width in inner)


def parallel_changes(setup: Setup) -> Iterator[MemoryChange]:
    tp, pp = setup.layout.tp, setup.layout.pp
    larger = [size for size in valid_tp_sizes(setup) if size > tp and size % tp == 0]
    for size in larger[:3]:
        harm = CHANGE_HARMS["tp"]._replace(money=size / tp - 1)
        spread = replace_part("layout", tp=size, ep=0, moe_tp=0)
        yield MemoryChange("gpus", f"tensor parallelism over {size * pp} GPUs", spread, harm, "weights")
    for size in PIPELINES:
        if pp == 1 and size <= setup.dims.num_layers // 2:
            harm = CHANGE_HARMS["pp"]._replace(money=size - 1.0)
            spread = replace_part("layout", pp=size, pp_partition=())
            yield MemoryChange("gpus", f"pipeline parallelism over {size * tp} GPUs", spread, harm, "weights")


def device_changes(setup: Setup, devices: tuple[Device, ...]) -> Iterator[MemoryChange]:
    """Yield GPUs with more memory, the next larger ones first."""
    if setup.device is None:
        return
    now = setup.device
    kinds = {device_kind(now), "server"}
    larger = sorted(
        (device for device in devices if device.total_bytes > 1.05 * now.total_bytes and device_kind(device) in kinds),
        key=lambda device: device.total_bytes,
    )
    sizes: set[int] = set()
    for device in larger:
        step = round(device.total_bytes / 2**33)  # one of each size of eight GiB is enough
        if step in sizes or device.sm < now.sm or not has_kernels(setup, device):
            continue
        sizes.add(step)
        harm = CHANGE_HARMS["gpu"]._replace(money=device.total_bytes / now.total_bytes / 2)
        yield MemoryChange("gpu", f"another GPU: {device.name}", _place_on(device), harm, "kv_pool")


def placement_change(setup: Setup, devices: tuple[Device, ...], planner: Planner) -> Iterator[MemoryChange]:
    """Yield the smallest GPUs on which it runs, others and more of them, for what no one change makes fit."""
    if setup.device is None:
        return
    kinds = {device_kind(setup.device), "server"}
    without_expert_split = replace_part("layout", ep=0, moe_tp=0)(setup)
    others = tuple(device for device in devices if device_kind(device) in kinds)
    home = smallest_placement(without_expert_split, others, valid_tp_sizes(setup), planner)
    if home is not None:
        harm = CHANGE_HARMS["gpu"]._replace(money=home.layout.world / setup.layout.world)
        words = f"{'other GPUs' if home.layout.world > 1 else 'another GPU'}: {render_gpus(home)}"
        yield MemoryChange("gpus", words, lambda _: home, harm, "weights")


def device_kind(device: Device) -> str:
    """Return where a GPU is found: nobody puts a workstation's card in place of a server's."""
    if device.unified:
        return "embedded"
    if device.name.startswith(("GH", "GB")):
        return "grace"
    desk = device.name.startswith(("RTX", "TITAN", "GTX")) or (
        device.source == "given" and device.total_bytes < 36 * 2**30
    )
    return "desk" if desk else "server"


def _place_on(device: Device) -> Callable[[Setup], Setup]:
    return lambda setup: replace(setup, device=device)
