"""Memory problems in a log other than a refused GPU allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.diagnose.memory_lines import HOST_MEMORY
from trtdx.memory.logs.commands import command_with
from trtdx.memory.logs.failed_allocation import Failure
from trtdx.memory.logs.ledger import ledger_of, ledgers_of, measured, pool_of, shortened
from trtdx.memory.logs.oom_changes import raise_fraction, smaller_weights, smallest_changes
from trtdx.memory.logs.verdict import OUT_OF_MEMORY, Verdict, evidence_of
from trtdx.memory.nouns import COMPONENTS, GIB, MIB, Figure
from trtdx.model import Fix, Stage
from trtdx.words import size_in_words, thousands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.logs.lines import Said
    from trtdx.memory.logs.read import LogMemory
    from trtdx.memory.nouns import Setup

UNEVEN = 0.1  # of the most that any rank has free
SMALL = 0.05
LEAST_FREE = 256 * MIB  # for a cache that is worth its name


def pool_lines(log: LogMemory, rank: int) -> list[Said]:
    """Return the lines that say how large the KV cache is, without the temporary one."""
    line = pool_of(log, rank).line
    statements = [
        statement for statement in log.all("kv.pool", "torch.estimated", rank=rank) if statement.line == line
    ]
    statements += [
        statement
        for statement in log.all("executor.stage", rank=rank)
        if statement.words["stage"].lower() in ("kv cache", "kv_cache")
    ]
    return log.all("torch.peak", rank=rank)[-1:] + log.all("kv.available", rank=rank)[-1:] + statements


def held_by_then(log: LogMemory, failure: Failure) -> str:
    """Return what held the memory, the largest first."""
    ledger = next((rank for rank in ledgers_of(log) if rank.rank == failure.rank), None)
    parts = sorted(ledger.components, key=lambda component: -component.bytes.value) if ledger else []
    if not parts:
        return ""
    words = ", ".join(
        f"{COMPONENTS[component.name]} {size_in_words(component.bytes.value)}" for component in parts[:4]
    )
    return f"By then the log counts: {words}."


def host_memory(log: LogMemory) -> Verdict:
    """The host's memory ended, not the GPU's."""
    shm = log.last("host.shm")
    statement = shm or log.last("host.killed")
    assert statement is not None
    free = _free_on_gpu(log)
    words = f"; on the GPU {size_in_words(free)} were free" if free else ""
    need, host_need = log.last("host.prefetch"), ""
    if need:
        host_need = f"; {size_in_words(need.bytes())} of checkpoint files were being read into host memory"
    what = "shared memory (/dev/shm) was too small" if shm else "the process was killed for its host memory"
    return Verdict(
        code="DX400" if shm else "DX350",
        message=f"{what}{host_need}{words}",
        short=f"{host_need}{words}".lstrip("; "),
        evidence=evidence_of((statement, *([need] if need else []))),
        about=HOST_MEMORY,
        confidence=0.8,
        false=True,
    )


def nothing_left(log: LogMemory, setup: Setup | None, plan: Planner | None) -> Verdict:
    """One profiled step needs all there is, so the KV cache gets nothing."""
    profile = next(statement for statement in log.all("torch.peak") if (statement.get("budget") or 1) <= 0)
    rank = log.rank_of(profile)
    failure = Failure(said=profile, rank=rank, component="activation", evidence=(profile,))
    total = f" of {size_in_words(profile.bytes('total'))}" if "total" in profile.values else ""
    return Verdict(
        code="DX356",
        message=f"nothing is left for the KV cache: the profiled step alone needs {size_in_words(profile.bytes())}{total}",
        short=f"the profiled step alone needs {size_in_words(profile.bytes())}{total}",
        why=held_by_then(log, failure),
        evidence=evidence_of((profile,)),
        fixes=tuple(smallest_changes(log, failure, setup, plan)),
        about=OUT_OF_MEMORY,
        confidence=0.9,
        failure=failure,
    )


def nothing_available(log: LogMemory) -> Said | None:
    """Return the line that says that next to nothing is left for an engine's cache, where none was made after it."""
    available = log.last("kv.available")
    if available is None or any(
        pool.line > available.line for pool in log.all("kv.pool", rank=available.rank)
    ):
        return None
    free, total = available.bytes("free"), available.bytes("total")
    return available if total and free < min(SMALL * total, LEAST_FREE) else None


def no_room_for_cache(log: LogMemory, said: Said, setup: Setup | None, plan: Planner | None) -> Verdict:
    """The engine and its buffers take all there is."""
    rank = log.rank_of(said)
    free, total = size_in_words(said.bytes("free")), size_in_words(said.bytes("total"))
    failure = Failure(
        said=said, rank=rank, component="activation", total=measured(said, "total"), evidence=(said,)
    )
    fixes = [*smallest_changes(log, failure, setup, plan), *smaller_weights(log, failure)]
    return Verdict(
        code="DX356",
        message=f"nothing is left for the KV cache: {free} of {total} are free after weights, activations and buffers",
        short=f"{free} of {total} were free for it",
        why=held_by_then(log, failure),
        evidence=evidence_of((said,)),
        fixes=tuple(fixes),
        about=OUT_OF_MEMORY,
        confidence=0.85,
        failure=failure,
    )


def too_large_to_load(log: LogMemory, setup: Setup | None, plan: Planner | None) -> Iterator[Verdict]:
    """An engine was built whose weights and activations alone are more than the GPU has."""
    warning, ledger = log.last("build.estimate.short"), ledger_of(log, log.ranks[0])
    assert warning is not None
    weights, activation = ledger.bytes_of("weights"), ledger.bytes_of("activation")
    total = measured(warning, "total")
    if not activation or weights + activation < total.value:
        return  # the warning also counts the largest KV cache there could be, and the real one takes what is left
    requested = Figure.exact(activation, "the log")
    free = Figure.exact(max(0, total.value - weights), "the log")
    failure = Failure(
        said=warning, rank=ledger.rank, component="activation", wanted=requested, free=free, total=total
    )
    yield Verdict(
        code="DX368",
        message=f"the engine needs {size_in_words(weights)} of weights and {size_in_words(activation)} of activations, "
        f"the GPU has {size_in_words(total.value)}: it was built and cannot be loaded",
        short=f"{size_in_words(weights + activation)} are needed before any KV cache, the GPU has {size_in_words(total.value)}",
        evidence=evidence_of((*log.all("build.activation", "build.weights")[-2:], warning)),
        fixes=tuple(smallest_changes(log, failure, setup, plan)),
        about=OUT_OF_MEMORY,
        failure=failure,
    )


def _free_on_gpu(log: LogMemory) -> int:
    statement = log.last("kv.available") or log.last("torch.profile")
    return statement.bytes("free") if statement and "free" in statement.values else 0


def not_deserialised(log: LogMemory) -> Verdict:
    statement = log.last("engine.not_deserialised")
    assert statement is not None
    return Verdict(
        code="DX917",
        message="the engine could not be loaded, and no line says that memory was refused: this is not an out-of-memory",
        short="no line says that memory was refused",
        why="The same assertion follows from a plan of another TensorRT version, of another GPU, or from a damaged file.",
        evidence=evidence_of((statement,)),
        fixes=(Fix(Stage.BUILD, "find the cause in the lines above it", "trtdx diagnose LOG"),),
        confidence=0.7,
        false=True,
    )


def shortened_sequences(log: LogMemory) -> Verdict | None:
    """Sequences were made shorter than asked for, silently, because the cache is too small."""
    statement = shortened(log)
    if statement is None:
        return None
    rank = log.rank_of(statement)
    new = int(statement.values["new"].value)
    old = int(statement.get("old") or log.number("max_seq_len") or 0)
    more = raise_fraction(log, ledger_of(log, rank), old)
    fixes = [more] if more else []
    fixes.append(
        Fix(
            Stage.SERVE,
            f"or say that {thousands(new)} tokens are enough, so that nobody is surprised",
            command_with(log, Stage.SERVE, max_seq_len=new),
        )
    )
    request_note = f", {thousands(old)} were asked for" if old and old != new else ""
    return Verdict(
        code="DX356",
        message=f"sequences were shortened to {thousands(new)} tokens{request_note}: the KV cache cannot hold a longer one",
        short=f"{thousands(new)} tokens{request_note}",
        evidence=evidence_of((statement, *pool_lines(log, rank))),
        fixes=tuple(fixes),
        about=frozenset(("DX356", "DX270", "DX271")),
        confidence=0.9,
        replaces=frozenset(("DX356",)),
    )


def uneven_ranks(log: LogMemory) -> Verdict | None:
    """One rank with less free memory decides for all."""
    by_rank = {
        statement.rank: statement
        for statement in log.all("kv.available", "torch.peak")
        if statement.rank is not None
    }
    free = {rank: _free_of(statement) for rank, statement in by_rank.items() if _free_of(statement)}
    if len(free) < 2:
        return None
    least, most = min(free, key=lambda rank: free[rank]), max(free, key=lambda rank: free[rank])
    lost = free[most] - free[least]
    if lost < max(UNEVEN * free[most], GIB):
        return None
    return Verdict(
        code="DX916",
        message=f"rank {least} has {size_in_words(free[least])} for the KV cache and rank {most} {size_in_words(free[most])}: "
        f"all ranks keep only as many tokens as rank {least}",
        short=f"rank {least} has {size_in_words(lost)} less than rank {most}",
        evidence=evidence_of((by_rank[least], by_rank[most])),
        about=frozenset(("DX356", "DX357")),
        confidence=0.85,
    )


def _free_of(said: Said) -> int:
    return next((said.bytes(name) for name in ("free", "budget") if name in said.values), 0)


def pool_is_no_leak(log: LogMemory) -> Verdict | None:
    """nvidia-smi shows a full GPU, and the KV cache accounts for it."""
    table = log.last("smi.gpu")
    rank = log.ranks[0]
    pool = pool_of(log, rank)
    if table is None or pool.bytes is None or table.line < pool.line:
        return None
    used, size = table.bytes("used"), pool.bytes.value
    rest = used - size
    if size < 0.4 * used or rest < -SMALL * used:
        return None
    return Verdict(
        code="DX354",
        message=f"{size_in_words(used)} are in use, and {size_in_words(size)} of that are the KV cache, taken on purpose at the start",
        short=f"{size_in_words(size)} of {size_in_words(used)} are the KV cache",
        evidence=evidence_of((table, *pool_lines(log, rank))),
        about=frozenset(("DX354", "DX363", "DX367")),
        confidence=0.8,
        false=True,
    )
