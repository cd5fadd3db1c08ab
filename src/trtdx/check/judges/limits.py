"""The machine's limits: space, shared memory, locked memory, memory, processes, clock, GPU faults."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from trtdx.check.nouns import Cause, MendingOrder
from trtdx.check.view import make_evidence
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import abbreviate_list, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.nouns import DiskFacts
    from trtdx.check.view import EnvironmentView

MIB, GIB = 1 << 20, 1 << 30
FULL_BYTES, SCARCE_BYTES = 64 * MIB, GIB
DOCKER_SHM_BYTES = 64 * MIB  # what `docker run` gives unless reported otherwise
LEAST_MEMORY_BYTES = 4 * GIB
LEAST_PIDS = 256
DAY_S = 86400.0
FIRST_DAY = 1735689600.0  # 2025-01-01: no machine that runs this is older


def judge_limits(view: EnvironmentView) -> Iterator[Cause]:
    """Yield what the machine has too little of."""
    if view.record.root:
        return
    yield from _judge_gpu(view)
    yield from _judge_disks(view)
    yield from _judge_shared_memory(view)
    yield from _judge_memory(view)
    yield from _judge_clock(view)
    yield from _judge_pointers(view)


def _judge_gpu(view: EnvironmentView) -> Iterator[Cause]:
    machine = view.record.machine
    if machine.gpus:
        yield from _judge_visible_devices(view)
        return
    mismatch = "Driver/library version mismatch" in machine.driver_problem
    words = " ".join(machine.driver_problem.split()) or "nvidia-smi lists none"
    evidence = (make_evidence("nvidia-smi", words),)
    if mismatch:
        yield Cause("DX036", Violation(evidence, {"words": words}), MendingOrder.MACHINE, frozenset({"driver"}))
        return
    absent = not machine.driver_problem or "could not be started" in words
    severity = Severity.ERROR if view.record.expects_gpu else Severity.NOTE
    reason = "this machine has no NVIDIA GPU, or hides it" if absent else f"nvidia-smi fails ({words})"
    values = {"reason": reason, "library": "libcuda.so.1", "owner": "TensorRT-LLM"}
    yield Cause(
        "DX035", Violation(evidence, values, severity), MendingOrder.MACHINE, frozenset({"libcuda.so.1", "gpu"})
    )


def _judge_visible_devices(view: EnvironmentView) -> Iterator[Cause]:
    """Yield a CUDA_VISIBLE_DEVICES that hides every GPU of the machine."""
    value, count = view.record.python.variables.get("CUDA_VISIBLE_DEVICES"), len(view.record.machine.gpus)
    first = (value or "").split(",")[0].strip()
    if value is None or first.startswith(("GPU-", "MIG-")) or (first.isdigit() and int(first) < count):
        return
    reason = f"CUDA_VISIBLE_DEVICES={value} hides {'the GPU' if count == 1 else f'all {count} GPUs'} of this machine"
    evidence = (make_evidence("CUDA_VISIBLE_DEVICES", value or "(empty)"),)
    values = {"reason": reason, "variable": "CUDA_VISIBLE_DEVICES"}
    severity = Severity.ERROR if view.record.expects_gpu else Severity.NOTE
    yield Cause("DX035", Violation(evidence, values, severity), MendingOrder.MACHINE, frozenset({"gpu"}))


def _judge_disks(view: EnvironmentView) -> Iterator[Cause]:
    fullest: dict[tuple[int, int], DiskFacts] = {}
    for disk in view.record.machine.disks:
        fullest.setdefault((disk.total_bytes, disk.free_bytes), disk)
    for disk in fullest.values():
        out_of_files = 0 <= disk.free_files < 100 and disk.total_bytes > 0
        if disk.free_bytes >= SCARCE_BYTES and not out_of_files:
            continue
        full = disk.free_bytes < FULL_BYTES or out_of_files
        left = (
            "no more files can be made"
            if out_of_files
            else f"{format_bytes(disk.free_bytes)} of {format_bytes(disk.total_bytes)} are free"
        )
        values = {"path": disk.path, "purpose": disk.purpose, "left": left}
        evidence = (make_evidence(f"df {disk.path}", left),)
        severity = Severity.ERROR if full else Severity.WARNING
        yield Cause("DX046", Violation(evidence, values, severity), MendingOrder.DISK if full else MendingOrder.MACHINE)


def _judge_shared_memory(view: EnvironmentView) -> Iterator[Cause]:
    machine = view.record.machine
    if machine.shm_bytes < 0:
        return
    scarce = machine.shm_bytes <= DOCKER_SHM_BYTES and (machine.gpus or view.release)
    small = scarce or machine.shm_bytes < DOCKER_SHM_BYTES or 0 <= machine.shm_free_bytes < 16 * MIB
    matters = len(machine.gpus) > 1 and machine.shm_bytes <= GIB
    if not small and not matters:
        return
    free = format_bytes(max(0, machine.shm_free_bytes))
    values = {
        "ranks": "all", "size": format_bytes(machine.shm_bytes), "system": machine.container or "this machine",
        "remedy": "start the container with --ipc=host or --shm-size=8g; in Kubernetes mount an emptyDir of medium Memory",
    }  # fmt: skip
    evidence = (make_evidence("df /dev/shm", f"{values['size']} in all, {free} free"),)
    severity = Severity.WARNING if small or matters else Severity.NOTE
    yield Cause("DX400", Violation(evidence, values, severity), MendingOrder.MACHINE)


def _judge_memory(view: EnvironmentView) -> Iterator[Cause]:
    machine = view.record.machine
    place = f"this {machine.container} container" if machine.container else "this control group"
    if 0 <= machine.memory_limit_bytes < LEAST_MEMORY_BYTES:
        limit = format_bytes(machine.memory_limit_bytes)
        yield _limit_cause("DX351", "/sys/fs/cgroup/memory.max", {"what": "memory", "limit": limit, "container": place})
    if 0 <= machine.pids_limit < LEAST_PIDS:
        yield _limit_cause("DX1124", "/sys/fs/cgroup/pids.max", {"limit": str(machine.pids_limit), "container": place})
    if 0 <= machine.memlock_bytes < MIB and not machine.can_lock and len(machine.gpus) > 1:
        limit = format_bytes(machine.memlock_bytes)
        yield _limit_cause("DX401", "ulimit -l", {"limit": limit, "container": "this session"})


def _limit_cause(code: str, where: str, values: dict[str, str]) -> Cause:
    return Cause(
        code, Violation((make_evidence(where, values["limit"]),), values, Severity.WARNING), MendingOrder.MACHINE
    )


def _judge_clock(view: EnvironmentView) -> Iterator[Cause]:
    machine = view.record.machine
    behind = machine.newest_file - machine.now
    if machine.now <= 0 or (machine.now >= FIRST_DAY and behind < DAY_S):
        return
    today = datetime.fromtimestamp(machine.now, timezone.utc).strftime("%Y-%m-%d")
    reason = (
        f"files of the environment are {behind / DAY_S:.0f} days newer" if behind >= DAY_S else "this trtdx is newer"
    )
    evidence = (make_evidence("date", today),)
    yield Cause(
        "DX1122", Violation(evidence, {"today": today, "reason": reason}, Severity.WARNING), MendingOrder.MACHINE
    )


def _judge_pointers(view: EnvironmentView) -> Iterator[Cause]:
    """Yield model folders whose weights are Git LFS pointers."""
    folders: dict[str, list[str]] = {}
    for path in view.record.machine.pointers:
        folders.setdefault(os.path.dirname(path), []).append(path)
    for folder, paths in folders.items():
        values = {"files": abbreviate_list(paths, 2), "folder": folder}
        evidence = tuple(make_evidence(path, "a Git LFS pointer of a few lines") for path in paths[:3])
        yield Cause("DX086", Violation(evidence, values, Severity.WARNING), MendingOrder.MACHINE)
