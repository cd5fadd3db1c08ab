"""Which allocation failed: what was wanted, what was free, and for what it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from trtdx.memory.logs.ledger import EXECUTOR_STAGES, measured_figure, measured_if_stated, pool_from_log
from trtdx.memory.logs.statements import LogStatement
from trtdx.memory.nouns import COMPONENTS, MIB, Figure

if TYPE_CHECKING:
    from trtdx.memory.logs.read import LogMemory

FAILURE_KEYS = (
    "build.workspace",
    "torch.oom",
    "runtime.oom",
    "trt.refused",
    "trt.oom",
    "executor.failed",
    "kv.none",
)
_NEAR_LINES = 400  # lines between an allocator's text and the executor's report of it: a traceback of several ranks

SERVING = ""  # a buffer of a step: logits, activations or workspace, the log does not say which

# What a C++ runtime does next after a line, so what failed when no later line came.
_NEXT_ENGINE = (
    ("kv.pool", SERVING),
    ("kv.available", "kv_pool"),
    ("decoder", "kv_pool"),
    ("runtime", "decoder_buffers"),
    ("context", "runtime_buffers"),
    ("engine.size", "activation"),
)
_NEXT_TORCH = (
    ("torch.fraction", SERVING),
    ("torch.estimated", "kv_pool"),
    ("torch.peak", "kv_pool"),
    ("torch.dynamic", "activation"),
    ("torch.inside", "activation"),
    ("torch.weights", "activation"),
)


class FailedAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that was refused."""

    statement: LogStatement
    rank: int
    component: str = ""  # of COMPONENTS; nothing where the log does not let one tell
    stage_name: str = ""  # as the log names it
    requested: Figure | None = None
    free: Figure | None = None
    total: Figure | None = None
    after_pool: bool = False  # the KV cache had its memory already
    evidence: tuple[LogStatement, ...] = ()

    @property
    def missing(self) -> int | None:
        """Return how much was missing, where the log tells both sides."""
        if self.requested is None or self.free is None:
            return None
        return self.requested.value - self.free.value

    @property
    def description(self) -> str:
        if self.stage_name or self.component:
            return self.stage_name or COMPONENTS[self.component]
        return "a buffer after the KV cache was made" if self.after_pool else "an allocation"


def find_failures(log: LogMemory) -> list[FailedAllocation]:
    """Return the refused allocations in the order of the log, the one that began it first in each rank."""
    failures: list[FailedAllocation] = []
    for statement in log.select(*FAILURE_KEYS):
        if statement.level in ("warning", "info", "debug", "trace"):
            continue  # a builder that tries the next tactic, or advice
        if any(_is_repeated(statement, failure) for failure in failures):
            continue
        failures.append(_failure_from_statement(log, statement))
    return [_add_requested_size(log, _add_executor_report(log, failure)) for failure in failures]


def _add_requested_size(log: LogMemory, failure: FailedAllocation) -> FailedAllocation:
    """Return the failure with the size that an allocator states after the executor's report of it."""
    if failure.requested is not None or failure.statement.key != "executor.failed":
        return failure
    for statement in log.select("torch.oom", rank=failure.rank):
        if "wanted" in statement.values and _is_repeated(statement, failure):
            return replace(
                failure,
                requested=measured_figure(statement, "wanted"),
                free=measured_if_stated(statement, "free") or failure.free,
                evidence=(*failure.evidence, statement),
            )
    return failure


def _is_repeated(statement: LogStatement, earlier: FailedAllocation) -> bool:
    """Say whether a line only repeats a failure: the same rank, right after it."""
    same_rank = statement.rank is None or earlier.statement.rank is None or statement.rank == earlier.statement.rank
    return (
        same_rank
        and statement.source == earlier.statement.source
        and 0 <= statement.line - earlier.statement.line < _NEAR_LINES
    )


def _failure_from_statement(log: LogMemory, statement: LogStatement) -> FailedAllocation:
    rank = log.rank_of(statement)
    requested = measured_if_stated(statement, "wanted")
    pool = pool_from_log(log, rank)
    has_pool = pool.bytes and log.select("kv.pool", "torch.fraction", rank=rank)
    after_pool = bool(has_pool and 0 < pool.line < statement.line)
    component = _failed_component(log, statement, rank, requested, after_pool=after_pool)
    failure = FailedAllocation(
        statement=statement,
        rank=rank,
        component=component,
        requested=requested,
        free=measured_if_stated(statement, "free"),
        total=measured_if_stated(statement, "total"),
        after_pool=after_pool,
        evidence=(statement,),
    )
    return _add_pool_figures(log, failure) if component == "kv_pool" else failure


def _failed_component(
    log: LogMemory, statement: LogStatement, rank: int, requested: Figure | None, *, after_pool: bool
) -> str:
    if statement.key == "executor.failed":
        return stage_component(statement.words["component"])
    if statement.key == "kv.none":
        return "kv_pool"
    if statement.key == "build.workspace":
        return "activation"
    if statement.key in ("trt.refused", "trt.oom"):
        return _tensorrt_component(log, statement, rank, requested)
    order = _NEXT_TORCH if log.backend == "pytorch" else _NEXT_ENGINE
    pool = pool_from_log(log, rank).bytes
    other = pool is not None and requested is not None and requested.value < pool.value / 2  # a pool is one piece
    for key, component in order:
        if any(earlier.line < statement.line for earlier in log.select(key, rank=rank)):
            if component == "kv_pool" and (after_pool or other):
                return SERVING
            return component
    return "weights" if log.backend == "pytorch" else ""


def _tensorrt_component(log: LogMemory, statement: LogStatement, rank: int, requested: Figure | None) -> str:
    """TensorRT asks for the weights in one piece when an engine is loaded, then for the context's memory."""
    engine = next(
        (engine_line for engine_line in log.select("engine.size", rank=rank) if engine_line.line < statement.line),
        None,
    )
    if log.first("build.activation", "build.scratch", "build.tactic") and engine is None:
        weights = log.last("build.weights", rank=rank)
        is_held = weights and requested and abs(requested.value - weights.bytes()) < 0.06 * weights.bytes()
        return "weights" if is_held else "activation"
    loaded = any(
        "engine deserialization" in change.words["what"] and change.line < statement.line
        for change in log.select("trt.change", rank=rank)
    )
    if requested is not None and engine is not None:
        return "weights" if abs(requested.value - engine.bytes()) < 0.06 * engine.bytes() else "activation"
    if loaded or "IExecutionContext" in statement.text or "executionContext" in statement.text:
        return "activation"
    loading = engine or log.last("engine.not_deserialised", rank=rank)
    return "weights" if loading or "readEngine" in statement.text else ""


def stage_component(stage_name: str) -> str:
    """Return the component that a stage of the executor makes."""
    lower = stage_name.lower()
    if lower.startswith(("initial kv cache", "_no_capture_init_kv")):
        return "kv_pool"
    return EXECUTOR_STAGES.get(lower) or EXECUTOR_STAGES.get(lower.partition(" (")[0], "")


def _add_pool_figures(log: LogMemory, failure: FailedAllocation) -> FailedAllocation:
    """Return a failure of the KV cache with what was wanted for it and what was free."""
    rank = failure.rank
    available = log.last("kv.available", rank=rank)
    fraction = log.fraction
    if failure.requested is None and available and fraction:
        budget = available.values["free"].value * fraction
        return replace(
            failure,
            requested=Figure.with_tolerance(
                budget, 0, f"measured: {available.source} line {available.line}", extra=8 * MIB
            ),
            free=measured_figure(available, "free"),
            total=measured_figure(available, "total"),
            evidence=(*failure.evidence, available),
        )
    return failure


def _add_executor_report(log: LogMemory, failure: FailedAllocation) -> FailedAllocation:
    """Return the failure with what the executor's own report adds: the component, and the free memory before it."""
    near = [
        statement
        for statement in log.select("executor.failed", "executor.total", "executor.free", rank=failure.rank)
        if statement.source == failure.statement.source and 0 <= statement.line - failure.statement.line < _NEAR_LINES
    ]
    if not near:
        return failure
    report = {statement.key: statement for statement in reversed(near)}
    named = report.get("executor.failed")
    free, total = report.get("executor.free"), report.get("executor.total")
    estimated = log.last("torch.estimated", rank=failure.rank)
    component = (named and stage_component(named.words["component"])) or failure.component
    requested = failure.requested
    if requested is None and component == "kv_pool" and estimated:
        requested = measured_figure(estimated)
    pool_rows = [
        row
        for row in log.select("executor.stage", rank=failure.rank)
        if EXECUTOR_STAGES.get(row.words["stage"].lower()) == "kv_pool"
    ]
    return replace(
        failure,
        component=component,
        after_pool=failure.after_pool or bool(pool_rows),
        stage_name=named.words["component"] if named else failure.stage_name,
        requested=requested,
        free=failure.free or (measured_figure(free, "free") if free else None),
        total=failure.total or (measured_figure(total, "total") if total else None),
        evidence=(
            *failure.evidence,
            *(statement for statement in report.values() if statement is not failure.statement),
        ),
    )
