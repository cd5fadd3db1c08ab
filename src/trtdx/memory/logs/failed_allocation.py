"""Which allocation failed: what was wanted, what was free, and for what it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from trtdx.memory.logs.ledger import STAGES, measured, measured_if_stated, pool_of
from trtdx.memory.logs.lines import Said
from trtdx.memory.nouns import COMPONENTS, MIB, Figure

if TYPE_CHECKING:
    from trtdx.memory.logs.read import LogMemory

FAILED = (
    "build.workspace",
    "torch.oom",
    "runtime.oom",
    "trt.refused",
    "trt.oom",
    "executor.failed",
    "kv.none",
)
_NEAR = 400  # lines between an allocator's text and the executor's report of it: a traceback of several ranks

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


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that was refused."""

    said: Said
    rank: int
    component: str = ""  # of COMPONENTS; nothing where the log does not let one tell
    named: str = ""  # as the log names it
    wanted: Figure | None = None
    free: Figure | None = None
    total: Figure | None = None
    after_pool: bool = False  # the KV cache had its memory already
    evidence: tuple[Said, ...] = ()

    @property
    def missing(self) -> int | None:
        """Return how much was missing, where the log tells both sides."""
        if self.wanted is None or self.free is None:
            return None
        return self.wanted.value - self.free.value

    @property
    def what(self) -> str:
        if self.named or self.component:
            return self.named or COMPONENTS[self.component]
        return "a buffer after the KV cache was made" if self.after_pool else "an allocation"


def failures_of(log: LogMemory) -> list[Failure]:
    """Return the refused allocations in the order of the log, the one that began it first in each rank."""
    failures: list[Failure] = []
    for statement in log.all(*FAILED):
        if statement.level in ("warning", "info", "debug", "trace"):
            continue  # a builder that tries the next tactic, or advice
        if any(_is_told_again(statement, failure) for failure in failures):
            continue
        failures.append(_failure(log, statement))
    return [_with_size(log, _with_report(log, failure)) for failure in failures]


def _with_size(log: LogMemory, failure: Failure) -> Failure:
    """Return the failure with the size that an allocator states after the executor's report of it."""
    if failure.wanted is not None or failure.said.key != "executor.failed":
        return failure
    for statement in log.all("torch.oom", rank=failure.rank):
        if "wanted" in statement.values and _is_told_again(statement, failure):
            return replace(
                failure,
                wanted=measured(statement, "wanted"),
                free=measured_if_stated(statement, "free") or failure.free,
                evidence=(*failure.evidence, statement),
            )
    return failure


def _is_told_again(said: Said, earlier: Failure) -> bool:
    """Say whether a line only repeats a failure: the same rank, right after it."""
    same_rank = said.rank is None or earlier.said.rank is None or said.rank == earlier.said.rank
    return same_rank and said.source == earlier.said.source and 0 <= said.line - earlier.said.line < _NEAR


def _failure(log: LogMemory, said: Said) -> Failure:
    rank = log.rank_of(said)
    requested = measured_if_stated(said, "wanted")
    pool = pool_of(log, rank)
    has_pool = pool.bytes and log.all("kv.pool", "torch.fraction", rank=rank)
    after_pool = bool(has_pool and 0 < pool.line < said.line)
    component = _component(log, said, rank, requested, after_pool=after_pool)
    failure = Failure(
        said=said,
        rank=rank,
        component=component,
        wanted=requested,
        free=measured_if_stated(said, "free"),
        total=measured_if_stated(said, "total"),
        after_pool=after_pool,
        evidence=(said,),
    )
    return _with_pool_figures(log, failure) if component == "kv_pool" else failure


def _component(log: LogMemory, said: Said, rank: int, wanted: Figure | None, *, after_pool: bool) -> str:
    if said.key == "executor.failed":
        return stage_component(said.words["component"])
    if said.key == "kv.none":
        return "kv_pool"
    if said.key == "build.workspace":
        return "activation"
    if said.key in ("trt.refused", "trt.oom"):
        return _tensorrt_component(log, said, rank, wanted)
    order = _NEXT_TORCH if log.backend == "pytorch" else _NEXT_ENGINE
    pool = pool_of(log, rank).bytes
    other = pool is not None and wanted is not None and wanted.value < pool.value / 2  # a pool is one piece
    for key, component in order:
        if any(earlier.line < said.line for earlier in log.all(key, rank=rank)):
            if component == "kv_pool" and (after_pool or other):
                return SERVING
            return component
    return "weights" if log.backend == "pytorch" else ""


def _tensorrt_component(log: LogMemory, said: Said, rank: int, wanted: Figure | None) -> str:
    """TensorRT asks for the weights in one piece when an engine is loaded, then for the context's memory."""
    engine = next(
        (engine_line for engine_line in log.all("engine.size", rank=rank) if engine_line.line < said.line),
        None,
    )
    if log.first("build.activation", "build.scratch", "build.tactic") and engine is None:
        weights = log.last("build.weights", rank=rank)
        is_held = weights and wanted and abs(wanted.value - weights.bytes()) < 0.06 * weights.bytes()
        return "weights" if is_held else "activation"
    loaded = any(
        "engine deserialization" in change.words["what"] and change.line < said.line
        for change in log.all("trt.change", rank=rank)
    )
    if wanted is not None and engine is not None:
        return "weights" if abs(wanted.value - engine.bytes()) < 0.06 * engine.bytes() else "activation"
    if loaded or "IExecutionContext" in said.text or "executionContext" in said.text:
        return "activation"
    loading = engine or log.last("engine.not_deserialised", rank=rank)
    return "weights" if loading or "readEngine" in said.text else ""


def stage_component(named: str) -> str:
    """Return the component that a stage of the executor makes."""
    lower = named.lower()
    if lower.startswith(("initial kv cache", "_no_capture_init_kv")):
        return "kv_pool"
    return STAGES.get(lower) or STAGES.get(lower.partition(" (")[0], "")


def _with_pool_figures(log: LogMemory, failure: Failure) -> Failure:
    """Return a failure of the KV cache with what was wanted for it and what was free."""
    rank = failure.rank
    available = log.last("kv.available", rank=rank)
    fraction = log.fraction
    if failure.wanted is None and available and fraction:
        budget = available.values["free"].value * fraction
        return replace(
            failure,
            wanted=Figure.within(
                budget, 0, f"measured: {available.source} line {available.line}", extra=8 * MIB
            ),
            free=measured(available, "free"),
            total=measured(available, "total"),
            evidence=(*failure.evidence, available),
        )
    return failure


def _with_report(log: LogMemory, failure: Failure) -> Failure:
    """Return the failure with what the executor's own report adds: the component, and the free memory before it."""
    near = [
        statement
        for statement in log.all("executor.failed", "executor.total", "executor.free", rank=failure.rank)
        if statement.source == failure.said.source and 0 <= statement.line - failure.said.line < _NEAR
    ]
    if not near:
        return failure
    report = {statement.key: statement for statement in reversed(near)}
    named = report.get("executor.failed")
    free, total = report.get("executor.free"), report.get("executor.total")
    estimated = log.last("torch.estimated", rank=failure.rank)
    component = (named and stage_component(named.words["component"])) or failure.component
    requested = failure.wanted
    if requested is None and component == "kv_pool" and estimated:
        requested = measured(estimated)
    pool_rows = [
        row
        for row in log.all("executor.stage", rank=failure.rank)
        if STAGES.get(row.words["stage"].lower()) == "kv_pool"
    ]
    return replace(
        failure,
        component=component,
        after_pool=failure.after_pool or bool(pool_rows),
        named=named.words["component"] if named else failure.named,
        wanted=requested,
        free=failure.free or (measured(free, "free") if free else None),
        total=failure.total or (measured(total, "total") if total else None),
        evidence=(
            *failure.evidence,
            *(statement for statement in report.values() if statement is not failure.said),
        ),
    )
