"""Detects out-of-memory errors with another cause: the memory was free, or another process held it.

Each check takes what the log states and the failure, and returns a verdict or nothing. The order is the order of
certainty; the first that answers is the cause.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trtdx.memory.logs.commands import command_with
from trtdx.memory.logs.oom_changes import lower_fraction_fix
from trtdx.memory.logs.verdict import OUT_OF_MEMORY_CODES, MemoryVerdict, evidence_from_statements
from trtdx.memory.nouns import GIB, MIB
from trtdx.model import Fix, Stage
from trtdx.words import abbreviate_list, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.memory.logs.failed_allocation import FailedAllocation
    from trtdx.memory.logs.read import LogMemory
    from trtdx.memory.logs.statements import LogStatement

MANY_PROCESSES = 3
CONTEXT_BYTES = 1.5 * GIB  # what a CUDA context and its libraries may take before anything is loaded
OUTSIDE_BYTES = 20 * GIB  # of NCCL, CUDA graphs and contexts, even with eight GPUs
MUCH_FREE_SHARE = 0.2  # of the device


def check_ranks_on_one_gpu(log: LogMemory, failure: FailedAllocation) -> MemoryVerdict | None:
    """All ranks on one device: each gets a part of its memory, and the other GPUs are empty."""
    placed = {statement.rank: statement for statement in log.select("rank.gpu") if statement.rank is not None}
    devices = Counter(int(statement.values["gpu"].value) for statement in placed.values())
    if len(placed) > 1 and len(devices) == 1:
        gpu = next(iter(devices))
        return MemoryVerdict(
            code="DX342",
            message=f"all {len(placed)} ranks run on GPU {gpu}, so each got only a part of its memory",
            numbers=f"ranks {abbreviate_list(sorted(placed), 8)} all use GPU {gpu}",
            evidence=evidence_from_statements((*placed.values(), failure.statement)),
            related_codes=OUT_OF_MEMORY_CODES,
            is_false_oom=True,
            failure=failure,
        )
    return _check_many_processes(failure)


def _check_many_processes(failure: FailedAllocation) -> MemoryVerdict | None:
    sizes = _process_sizes(failure.statement)
    own_bytes = failure.statement.value_of("own")
    there = len(sizes) + (own_bytes is not None)
    if there < MANY_PROCESSES:
        return None
    total = sum(sizes.values()) + (own_bytes or 0)
    return MemoryVerdict(
        code="DX342",
        message=f"{there} processes are on GPU {failure.statement.value_of('gpu') or 0:.0f} at once and hold {format_bytes(total)} together: "
        "the ranks were not spread over the GPUs",
        numbers=f"{there} processes hold {format_bytes(total)} of this one GPU",
        evidence=evidence_from_statements((failure.statement,)),
        related_codes=OUT_OF_MEMORY_CODES,
        is_false_oom=True,
        failure=failure,
    )


def _process_sizes(statement: LogStatement) -> dict[str, int]:
    return {name: int(size) for name, size in statement.words.items() if name.startswith("process ")}


def check_other_process(log: LogMemory, failure: FailedAllocation) -> MemoryVerdict | None:
    """Somebody else holds more of the GPU than was missing."""
    others, whose, statement = _held_by_others(log, failure)
    needed = failure.missing if failure.missing is not None and failure.missing > 0 else GIB
    if others < max(needed, 512 * MIB) or statement is None:
        return None
    return MemoryVerdict(
        code="DX341",
        message=f"{whose} {format_bytes(others)} of this GPU; without that the {format_bytes(needed)} that were missing would be there"
        if failure.missing
        else f"{whose} {format_bytes(others)} of this GPU",
        numbers=f"{whose} {format_bytes(others)} of it",
        evidence=evidence_from_statements((statement, failure.statement)),
        related_codes=OUT_OF_MEMORY_CODES,
        is_false_oom=True,
        failure=failure,
    )


def _held_by_others(log: LogMemory, failure: FailedAllocation) -> tuple[float, str, LogStatement | None]:
    sizes = _process_sizes(failure.statement)
    if sizes and (failure.statement.value_of("own") is not None or len(sizes) > 1):
        if (
            failure.statement.value_of("own") is None
        ):  # this process is in the list: the smallest that holds what torch has
            torch_bytes = failure.statement.value_of("allocated") or 0
            mine = min(sizes, key=lambda name: (sizes[name] < torch_bytes, sizes[name]))
            sizes = {name: size for name, size in sizes.items() if name != mine}
        return (
            sum(sizes.values()),
            f"{abbreviate_list(sizes)} {'holds' if len(sizes) == 1 else 'hold'}",
            failure.statement,
        )
    rows = log.select("executor.stage", rank=failure.rank)
    total = log.last("executor.total", rank=failure.rank)
    if rows and total:
        held_bytes = total.values["total"].value - rows[0].values["before"].value - CONTEXT_BYTES
        return held_bytes, "before anything was loaded, something else held about", rows[0]
    outside = log.last("torch.outside", rank=failure.rank)
    if outside and failure.total and outside.bytes() > max(OUTSIDE_BYTES, 0.2 * failure.total.value):
        return outside.bytes() - OUTSIDE_BYTES / 2, "something else than this model holds about", outside
    return _held_by_smi(log)


def _held_by_smi(log: LogMemory) -> tuple[float, str, LogStatement | None]:
    """A table of nvidia-smi with several processes on one GPU, the largest taken as the one that failed."""
    rows = log.select("smi.process")
    by_gpu: dict[int, list[LogStatement]] = {}
    for row in rows:
        by_gpu.setdefault(int(row.values["gpu"].value), []).append(row)
    crowded = max(by_gpu.values(), key=len, default=[])
    if len(crowded) < 2:
        return 0, "", None
    ordered = sorted(crowded, key=lambda row: row.bytes("used"))
    second = ordered[-2]
    return (
        second.bytes("used"),
        f"process {second.value_of('pid'):.0f} ({second.words['name']}) holds",
        second,
    )


def check_fragmentation(log: LogMemory, failure: FailedAllocation) -> MemoryVerdict | None:
    """PyTorch holds enough that nobody uses, in pieces."""
    unused = failure.statement.value_of("unused")
    if failure.statement.key != "torch.oom" or unused is None or failure.requested is None:
        return None
    if unused < failure.requested.value or unused < 256 * MIB:
        return None
    return MemoryVerdict(
        code="DX343",
        message=f"PyTorch holds {format_bytes(unused)} that nobody uses and could not make one piece of "
        f"{format_bytes(failure.requested.value)} of it: its memory is fragmented",
        numbers=f"{format_bytes(unused)} were reserved and unused, {format_bytes(failure.requested.value)} in one piece were wanted",
        evidence=evidence_from_statements((failure.statement,)),
        related_codes=OUT_OF_MEMORY_CODES,
        is_false_oom=True,
        failure=failure,
    )


def check_oversized_buffer(log: LogMemory, failure: FailedAllocation) -> MemoryVerdict | None:
    """One allocation that no GPU of this size can hold, whatever is freed."""
    if failure.requested is None or failure.total is None or failure.requested.value <= failure.total.value:
        return None
    requested, total = format_bytes(failure.requested.value), format_bytes(failure.total.value)
    stated = [
        f"{name} {log.number(name)}" for name in ("max_batch_size", "max_num_tokens", "max_seq_len") if log.number(name)
    ]
    return MemoryVerdict(
        code="DX884",
        message=f"one buffer of {requested} was asked for on a GPU of {total}: a limit is set far too high",
        numbers=f"{requested} in one piece is more than the whole GPU ({total})",
        why=f"Its size follows from the limits ({', '.join(stated)})." if stated else "",
        evidence=evidence_from_statements((failure.statement,)),
        related_codes=OUT_OF_MEMORY_CODES,
        confidence=0.85,
        failure=failure,
    )


def check_refused_though_free(log: LogMemory, failure: FailedAllocation) -> MemoryVerdict | None:
    """The executor, or PyTorch, gives up on memory while a large part of the GPU is free."""
    by_torch = failure.statement.key == "torch.oom"
    if failure.free is None or failure.total is None or (failure.after_pool and not by_torch):
        return None
    free, total = failure.free.value, failure.total.value
    enough = failure.requested.value < free if failure.requested else free > max(MUCH_FREE_SHARE * total, 8 * GIB)
    if failure.statement.key == "trt.refused" or not enough:
        return None
    fixes = [_torch_limit_fix(log, failure)] if by_torch else [*_free_fixes(log, failure)]
    return MemoryVerdict(
        code="DX915",
        message=f"{failure.description} failed with {format_bytes(free)} of {format_bytes(total)} free: the GPU was not full",
        numbers=f"{format_bytes(free)} of {format_bytes(total)} were free",
        evidence=evidence_from_statements((*failure.evidence, *log.select("executor.stage", rank=failure.rank))),
        fixes=tuple(fix for fix in fixes if fix),
        related_codes=OUT_OF_MEMORY_CODES,
        confidence=0.75,
        is_false_oom=True,
        failure=failure,
    )


def _torch_limit_fix(log: LogMemory, failure: FailedAllocation) -> Fix | None:
    share = log.last("torch.fraction", rank=failure.rank)
    lower = lower_fraction_fix(log, failure)
    limit = f" (it was set to {format_bytes(share.bytes())})" if share else ""
    return Fix(
        Stage.SERVE,
        f"PyTorch may not use what is free: TensorRT-LLM limits it after the KV cache is made{limit}; lower the KV cache fraction",
        lower.command if lower else command_with(log, Stage.SERVE, kv_cache_free_gpu_memory_fraction=0.8),
    )


def _free_fixes(log: LogMemory, failure: FailedAllocation) -> list[Fix | None]:
    ranks = f" of the other {len(log.ranks) - 1} ranks" if len(log.ranks) > 1 else " of the other ranks"
    return [
        Fix(
            Stage.LAUNCH,
            f"look for the first error{ranks}: one rank that fails makes the others give up here, and host memory, "
            "shared memory and NCCL fail with the same words",
            "trtdx diagnose LOGS",
        ),
        lower_fraction_fix(log, failure)
        or Fix(
            Stage.SERVE,
            "see whether the KV cache is the reason: start with a small fixed one; if that fails too, it is not the memory",
            command_with(log, Stage.SERVE, kv_cache_free_gpu_memory_fraction=0.3),
        ),
    ]


FALSE_OOM_CHECKS: tuple[Callable[[LogMemory, FailedAllocation], MemoryVerdict | None], ...] = (
    check_ranks_on_one_gpu,
    check_other_process,
    check_fragmentation,
    check_oversized_buffer,
    check_refused_though_free,
)
