"""Detects out-of-memory errors with another cause: the memory was free, or another process held it.

Each check takes what the log states and the failure, and returns a verdict or nothing. The order is the order of
certainty; the first that answers is the cause.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trtdx.memory.logs.commands import command_with
from trtdx.memory.logs.oom_changes import lower_fraction
from trtdx.memory.logs.verdict import OUT_OF_MEMORY, Verdict, evidence_of
from trtdx.memory.nouns import GIB, MIB
from trtdx.model import Fix, Stage
from trtdx.words import listed, size_in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.memory.logs.failed_allocation import Failure
    from trtdx.memory.logs.lines import Said
    from trtdx.memory.logs.read import LogMemory

MANY_PROCESSES = 3
A_CONTEXT = 1.5 * GIB  # what a CUDA context and its libraries may take before anything is loaded
OUTSIDE = 20 * GIB  # of NCCL, CUDA graphs and contexts, even with eight GPUs
MUCH_FREE = 0.2  # of the device


def ranks_on_one_gpu(log: LogMemory, failure: Failure) -> Verdict | None:
    """All ranks on one device: each gets a part of its memory, and the other GPUs are empty."""
    placed = {statement.rank: statement for statement in log.all("rank.gpu") if statement.rank is not None}
    devices = Counter(int(statement.values["gpu"].value) for statement in placed.values())
    if len(placed) > 1 and len(devices) == 1:
        gpu = next(iter(devices))
        return Verdict(
            code="DX342",
            message=f"all {len(placed)} ranks run on GPU {gpu}, so each got only a part of its memory",
            short=f"ranks {listed(sorted(placed), 8)} all use GPU {gpu}",
            evidence=evidence_of((*placed.values(), failure.said)),
            about=OUT_OF_MEMORY,
            false=True,
            failure=failure,
        )
    return _many_processes(failure)


def _many_processes(failure: Failure) -> Verdict | None:
    sizes = _processes(failure.said)
    own_bytes = failure.said.get("own")
    there = len(sizes) + (own_bytes is not None)
    if there < MANY_PROCESSES:
        return None
    total = sum(sizes.values()) + (own_bytes or 0)
    return Verdict(
        code="DX342",
        message=f"{there} processes are on GPU {failure.said.get('gpu') or 0:.0f} at once and hold {size_in_words(total)} together: "
        "the ranks were not spread over the GPUs",
        short=f"{there} processes hold {size_in_words(total)} of this one GPU",
        evidence=evidence_of((failure.said,)),
        about=OUT_OF_MEMORY,
        false=True,
        failure=failure,
    )


def _processes(said: Said) -> dict[str, int]:
    return {name: int(size) for name, size in said.words.items() if name.startswith("process ")}


def another_process(log: LogMemory, failure: Failure) -> Verdict | None:
    """Somebody else holds more of the GPU than was missing."""
    others, whose, statement = _held_by_others(log, failure)
    needed = failure.missing if failure.missing is not None and failure.missing > 0 else GIB
    if others < max(needed, 512 * MIB) or statement is None:
        return None
    return Verdict(
        code="DX341",
        message=f"{whose} {size_in_words(others)} of this GPU; without that the {size_in_words(needed)} that were missing would be there"
        if failure.missing
        else f"{whose} {size_in_words(others)} of this GPU",
        short=f"{whose} {size_in_words(others)} of it",
        evidence=evidence_of((statement, failure.said)),
        about=OUT_OF_MEMORY,
        false=True,
        failure=failure,
    )


def _held_by_others(log: LogMemory, failure: Failure) -> tuple[float, str, Said | None]:
    sizes = _processes(failure.said)
    if sizes and (failure.said.get("own") is not None or len(sizes) > 1):
        if (
            failure.said.get("own") is None
        ):  # this process is in the list: the smallest that holds what torch has
            torch_bytes = failure.said.get("allocated") or 0
            mine = min(sizes, key=lambda name: (sizes[name] < torch_bytes, sizes[name]))
            sizes = {name: size for name, size in sizes.items() if name != mine}
        return sum(sizes.values()), f"{listed(sizes)} {'holds' if len(sizes) == 1 else 'hold'}", failure.said
    rows = log.all("executor.stage", rank=failure.rank)
    total = log.last("executor.total", rank=failure.rank)
    if rows and total:
        held_bytes = total.values["total"].value - rows[0].values["before"].value - A_CONTEXT
        return held_bytes, "before anything was loaded, something else held about", rows[0]
    outside = log.last("torch.outside", rank=failure.rank)
    if outside and failure.total and outside.bytes() > max(OUTSIDE, 0.2 * failure.total.value):
        return outside.bytes() - OUTSIDE / 2, "something else than this model holds about", outside
    return _held_by_smi(log)


def _held_by_smi(log: LogMemory) -> tuple[float, str, Said | None]:
    """A table of nvidia-smi with several processes on one GPU, the largest taken as the one that failed."""
    rows = log.all("smi.process")
    by_gpu: dict[int, list[Said]] = {}
    for row in rows:
        by_gpu.setdefault(int(row.values["gpu"].value), []).append(row)
    crowded = max(by_gpu.values(), key=len, default=[])
    if len(crowded) < 2:
        return 0, "", None
    ordered = sorted(crowded, key=lambda row: row.bytes("used"))
    second = ordered[-2]
    return second.bytes("used"), f"process {second.get('pid'):.0f} ({second.words['name']}) holds", second


def fragmented(log: LogMemory, failure: Failure) -> Verdict | None:
    """PyTorch holds enough that nobody uses, in pieces."""
    unused = failure.said.get("unused")
    if failure.said.key != "torch.oom" or unused is None or failure.wanted is None:
        return None
    if unused < failure.wanted.value or unused < 256 * MIB:
        return None
    return Verdict(
        code="DX343",
        message=f"PyTorch holds {size_in_words(unused)} that nobody uses and could not make one piece of "
        f"{size_in_words(failure.wanted.value)} of it: its memory is fragmented",
        short=f"{size_in_words(unused)} were reserved and unused, {size_in_words(failure.wanted.value)} in one piece were wanted",
        evidence=evidence_of((failure.said,)),
        about=OUT_OF_MEMORY,
        false=True,
        failure=failure,
    )


def larger_than_the_gpu(log: LogMemory, failure: Failure) -> Verdict | None:
    """One allocation that no GPU of this size can hold, whatever is freed."""
    if failure.wanted is None or failure.total is None or failure.wanted.value <= failure.total.value:
        return None
    requested, total = size_in_words(failure.wanted.value), size_in_words(failure.total.value)
    stated = [
        f"{name} {log.number(name)}"
        for name in ("max_batch_size", "max_num_tokens", "max_seq_len")
        if log.number(name)
    ]
    return Verdict(
        code="DX884",
        message=f"one buffer of {requested} was asked for on a GPU of {total}: a limit is set far too high",
        short=f"{requested} in one piece is more than the whole GPU ({total})",
        why=f"Its size follows from the limits ({', '.join(stated)})." if stated else "",
        evidence=evidence_of((failure.said,)),
        about=OUT_OF_MEMORY,
        confidence=0.85,
        failure=failure,
    )


def refused_though_free(log: LogMemory, failure: Failure) -> Verdict | None:
    """The executor, or PyTorch, gives up on memory while a large part of the GPU is free."""
    by_torch = failure.said.key == "torch.oom"
    if failure.free is None or failure.total is None or (failure.after_pool and not by_torch):
        return None
    free, total = failure.free.value, failure.total.value
    enough = failure.wanted.value < free if failure.wanted else free > max(MUCH_FREE * total, 8 * GIB)
    if failure.said.key == "trt.refused" or not enough:
        return None
    fixes = [_torch_limit(log, failure)] if by_torch else [*_free_fixes(log, failure)]
    return Verdict(
        code="DX915",
        message=f"{failure.what} failed with {size_in_words(free)} of {size_in_words(total)} free: the GPU was not full",
        short=f"{size_in_words(free)} of {size_in_words(total)} were free",
        evidence=evidence_of((*failure.evidence, *log.all("executor.stage", rank=failure.rank))),
        fixes=tuple(fix for fix in fixes if fix),
        about=OUT_OF_MEMORY,
        confidence=0.75,
        false=True,
        failure=failure,
    )


def _torch_limit(log: LogMemory, failure: Failure) -> Fix | None:
    share = log.last("torch.fraction", rank=failure.rank)
    lower = lower_fraction(log, failure)
    limit = f" (it was set to {size_in_words(share.bytes())})" if share else ""
    return Fix(
        Stage.SERVE,
        f"PyTorch may not use what is free: TensorRT-LLM limits it after the KV cache is made{limit}; lower the KV cache fraction",
        lower.command if lower else command_with(log, Stage.SERVE, kv_cache_free_gpu_memory_fraction=0.8),
    )


def _free_fixes(log: LogMemory, failure: Failure) -> list[Fix | None]:
    ranks = f" of the other {len(log.ranks) - 1} ranks" if len(log.ranks) > 1 else " of the other ranks"
    return [
        Fix(
            Stage.LAUNCH,
            f"look for the first error{ranks}: one rank that fails makes the others give up here, and host memory, "
            "shared memory and NCCL fail with the same words",
            "trtdx diagnose LOGS",
        ),
        lower_fraction(log, failure)
        or Fix(
            Stage.SERVE,
            "see whether the KV cache is the reason: start with a small fixed one; if that fails too, it is not the memory",
            command_with(log, Stage.SERVE, kv_cache_free_gpu_memory_fraction=0.3),
        ),
    ]


CHECKS: tuple[Callable[[LogMemory, Failure], Verdict | None], ...] = (
    ranks_on_one_gpu,
    another_process,
    fragmented,
    larger_than_the_gpu,
    refused_though_free,
)
