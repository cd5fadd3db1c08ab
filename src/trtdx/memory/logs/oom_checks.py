"""Memory problems in a log other than a refused GPU allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.diagnose.memory_lines import HOST_MEMORY_CODES
from trtdx.memory.logs.commands import command_with
from trtdx.memory.logs.failed_allocation import FailedAllocation
from trtdx.memory.logs.ledger import (
    find_shortened_sequences,
    ledger_from_log,
    ledgers_from_log,
    measured_figure,
    pool_from_log,
)
from trtdx.memory.logs.oom_changes import raise_fraction_fix, smaller_weights_fixes, smallest_fixes
from trtdx.memory.logs.verdict import OUT_OF_MEMORY_CODES, MemoryVerdict, evidence_from_statements
from trtdx.memory.nouns import COMPONENTS, GIB, MIB, Figure
from trtdx.model import Fix, Stage
from trtdx.words import format_bytes, group_digits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.logs.read import LogMemory
    from trtdx.memory.logs.statements import LogStatement
    from trtdx.memory.nouns import Setup

UNEVEN_SHARE = 0.1  # of the most that any rank has free
SMALL_SHARE = 0.05
LEAST_FREE = 256 * MIB  # for a cache that is worth its name


def pool_lines(log: LogMemory, rank: int) -> list[LogStatement]:
    """Return the lines that say how large the KV cache is, without the temporary one."""
    line = pool_from_log(log, rank).line
    statements = [
        statement for statement in log.select("kv.pool", "torch.estimated", rank=rank) if statement.line == line
    ]
    statements += [
        statement
        for statement in log.select("executor.stage", rank=rank)
        if statement.words["stage"].lower() in ("kv cache", "kv_cache")
    ]
    return log.select("torch.peak", rank=rank)[-1:] + log.select("kv.available", rank=rank)[-1:] + statements


def render_held_memory(log: LogMemory, failure: FailedAllocation) -> str:
    """Return what held the memory, the largest first."""
    ledger = next((rank for rank in ledgers_from_log(log) if rank.rank == failure.rank), None)
    parts = sorted(ledger.components, key=lambda component: -component.bytes.value) if ledger else []
    if not parts:
        return ""
    words = ", ".join(f"{COMPONENTS[component.name]} {format_bytes(component.bytes.value)}" for component in parts[:4])
    return f"By then the log counts: {words}."


def host_memory_verdict(log: LogMemory) -> MemoryVerdict:
    """The host's memory ended, not the GPU's."""
    shm = log.last("host.shm")
    statement = shm or log.last("host.killed")
    assert statement is not None
    free = _free_on_gpu(log)
    words = f"; on the GPU {format_bytes(free)} were free" if free else ""
    need, host_need = log.last("host.prefetch"), ""
    if need:
        host_need = f"; {format_bytes(need.bytes())} of checkpoint files were being read into host memory"
    what = "shared memory (/dev/shm) was too small" if shm else "the process was killed for its host memory"
    return MemoryVerdict(
        code="DX400" if shm else "DX350",
        message=f"{what}{host_need}{words}",
        numbers=f"{host_need}{words}".lstrip("; "),
        evidence=evidence_from_statements((statement, *([need] if need else []))),
        related_codes=HOST_MEMORY_CODES,
        confidence=0.8,
        is_false_oom=True,
    )


def no_budget_verdict(log: LogMemory, setup: Setup | None, plan: Planner | None) -> MemoryVerdict:
    """One profiled step needs all there is, so the KV cache gets nothing."""
    profile = next(statement for statement in log.select("torch.peak") if (statement.value_of("budget") or 1) <= 0)
    rank = log.rank_of(profile)
    failure = FailedAllocation(statement=profile, rank=rank, component="activation", evidence=(profile,))
    total = f" of {format_bytes(profile.bytes('total'))}" if "total" in profile.values else ""
    return MemoryVerdict(
        code="DX356",
        message=f"nothing is left for the KV cache: the profiled step alone needs {format_bytes(profile.bytes())}{total}",
        numbers=f"the profiled step alone needs {format_bytes(profile.bytes())}{total}",
        why=render_held_memory(log, failure),
        evidence=evidence_from_statements((profile,)),
        fixes=tuple(smallest_fixes(log, failure, setup, plan)),
        related_codes=OUT_OF_MEMORY_CODES,
        confidence=0.9,
        failure=failure,
    )


def find_nothing_available(log: LogMemory) -> LogStatement | None:
    """Return the line that says that next to nothing is left for an engine's cache, where none was made after it."""
    available = log.last("kv.available")
    if available is None or any(pool.line > available.line for pool in log.select("kv.pool", rank=available.rank)):
        return None
    free, total = available.bytes("free"), available.bytes("total")
    return available if total and free < min(SMALL_SHARE * total, LEAST_FREE) else None


def no_cache_room_verdict(
    log: LogMemory, available: LogStatement, setup: Setup | None, plan: Planner | None
) -> MemoryVerdict:
    """The engine and its buffers take all there is."""
    rank = log.rank_of(available)
    free, total = format_bytes(available.bytes("free")), format_bytes(available.bytes("total"))
    failure = FailedAllocation(
        statement=available,
        rank=rank,
        component="activation",
        total=measured_figure(available, "total"),
        evidence=(available,),
    )
    fixes = [*smallest_fixes(log, failure, setup, plan), *smaller_weights_fixes(log, failure)]
    return MemoryVerdict(
        code="DX356",
        message=f"nothing is left for the KV cache: {free} of {total} are free after weights, activations and buffers",
        numbers=f"{free} of {total} were free for it",
        why=render_held_memory(log, failure),
        evidence=evidence_from_statements((available,)),
        fixes=tuple(fixes),
        related_codes=OUT_OF_MEMORY_CODES,
        confidence=0.85,
        failure=failure,
    )


def too_large_verdicts(log: LogMemory, setup: Setup | None, plan: Planner | None) -> Iterator[MemoryVerdict]:
    """An engine was built whose weights and activations alone are more than the GPU has."""
    warning, ledger = log.last("build.estimate.short"), ledger_from_log(log, log.ranks[0])
    assert warning is not None
    weights, activation = ledger.component_bytes("weights"), ledger.component_bytes("activation")
    total = measured_figure(warning, "total")
    if not activation or weights + activation < total.value:
        return  # the warning also counts the largest KV cache there could be, and the real one takes what is left
    requested = Figure.exact(activation, "the log")
    free = Figure.exact(max(0, total.value - weights), "the log")
    failure = FailedAllocation(
        statement=warning,
        rank=ledger.rank,
        component="activation",
        requested=requested,
        free=free,
        total=total,
    )
    yield MemoryVerdict(
        code="DX368",
        message=f"the engine needs {format_bytes(weights)} of weights and {format_bytes(activation)} of activations, "
        f"the GPU has {format_bytes(total.value)}: it was built and cannot be loaded",
        numbers=f"{format_bytes(weights + activation)} are needed before any KV cache, the GPU has {format_bytes(total.value)}",
        evidence=evidence_from_statements((*log.select("build.activation", "build.weights")[-2:], warning)),
        fixes=tuple(smallest_fixes(log, failure, setup, plan)),
        related_codes=OUT_OF_MEMORY_CODES,
        failure=failure,
    )


def _free_on_gpu(log: LogMemory) -> int:
    statement = log.last("kv.available") or log.last("torch.profile")
    return statement.bytes("free") if statement and "free" in statement.values else 0


def not_deserialised_verdict(log: LogMemory) -> MemoryVerdict:
    statement = log.last("engine.not_deserialised")
    assert statement is not None
    return MemoryVerdict(
        code="DX917",
        message="the engine could not be loaded, and no line says that memory was refused: this is not an out-of-memory",
        numbers="no line says that memory was refused",
        why="The same assertion follows from a plan of another TensorRT version, of another GPU, or from a damaged file.",
        evidence=evidence_from_statements((statement,)),
        fixes=(Fix(Stage.BUILD, "find the cause in the lines above it", "trtdx diagnose LOG"),),
        confidence=0.7,
        is_false_oom=True,
    )


def shortened_sequences_verdict(log: LogMemory) -> MemoryVerdict | None:
    """Sequences were made shorter than asked for, silently, because the cache is too small."""
    statement = find_shortened_sequences(log)
    if statement is None:
        return None
    rank = log.rank_of(statement)
    new = int(statement.values["new"].value)
    old = int(statement.value_of("old") or log.number("max_seq_len") or 0)
    more = raise_fraction_fix(log, ledger_from_log(log, rank), old)
    fixes = [more] if more else []
    fixes.append(
        Fix(
            Stage.SERVE,
            f"or say that {group_digits(new)} tokens are enough, so that nobody is surprised",
            command_with(log, Stage.SERVE, max_seq_len=new),
        )
    )
    request_note = f", {group_digits(old)} were asked for" if old and old != new else ""
    return MemoryVerdict(
        code="DX356",
        message=f"sequences were shortened to {group_digits(new)} tokens{request_note}: the KV cache cannot hold a longer one",
        numbers=f"{group_digits(new)} tokens{request_note}",
        evidence=evidence_from_statements((statement, *pool_lines(log, rank))),
        fixes=tuple(fixes),
        related_codes=frozenset(("DX356", "DX270", "DX271")),
        confidence=0.9,
        replaced_codes=frozenset(("DX356",)),
    )


def uneven_ranks_verdict(log: LogMemory) -> MemoryVerdict | None:
    """One rank with less free memory decides for all."""
    by_rank = {
        statement.rank: statement
        for statement in log.select("kv.available", "torch.peak")
        if statement.rank is not None
    }
    free = {rank: _free_bytes(statement) for rank, statement in by_rank.items() if _free_bytes(statement)}
    if len(free) < 2:
        return None
    least, most = min(free, key=lambda rank: free[rank]), max(free, key=lambda rank: free[rank])
    lost = free[most] - free[least]
    if lost < max(UNEVEN_SHARE * free[most], GIB):
        return None
    return MemoryVerdict(
        code="DX916",
        message=f"rank {least} has {format_bytes(free[least])} for the KV cache and rank {most} {format_bytes(free[most])}: "
        f"all ranks keep only as many tokens as rank {least}",
        numbers=f"rank {least} has {format_bytes(lost)} less than rank {most}",
        evidence=evidence_from_statements((by_rank[least], by_rank[most])),
        related_codes=frozenset(("DX356", "DX357")),
        confidence=0.85,
    )


def _free_bytes(statement: LogStatement) -> int:
    return next((statement.bytes(name) for name in ("free", "budget") if name in statement.values), 0)


def full_pool_verdict(log: LogMemory) -> MemoryVerdict | None:
    """nvidia-smi shows a full GPU, and the KV cache accounts for it."""
    table = log.last("smi.gpu")
    rank = log.ranks[0]
    pool = pool_from_log(log, rank)
    if table is None or pool.bytes is None or table.line < pool.line:
        return None
    used, size = table.bytes("used"), pool.bytes.value
    rest = used - size
    if size < 0.4 * used or rest < -SMALL_SHARE * used:
        return None
    return MemoryVerdict(
        code="DX354",
        message=f"{format_bytes(used)} are in use, and {format_bytes(size)} of that are the KV cache, taken on purpose at the start",
        numbers=f"{format_bytes(size)} of {format_bytes(used)} are the KV cache",
        evidence=evidence_from_statements((table, *pool_lines(log, rank))),
        related_codes=frozenset(("DX354", "DX363", "DX367")),
        confidence=0.8,
        is_false_oom=True,
    )
