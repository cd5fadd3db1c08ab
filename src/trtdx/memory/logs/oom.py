"""After a failure: which allocation it was, what was missing, and the smallest change that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from trtdx.memory.logs.commands import BUILD_COMMAND, SERVE_COMMAND
from trtdx.memory.logs.failed_allocation import FailedAllocation, find_failures
from trtdx.memory.logs.false_oom import FALSE_OOM_CHECKS
from trtdx.memory.logs.ledger import complete_ledgers, ledger_from_log, ledgers_from_log
from trtdx.memory.logs.oom_changes import smallest_fixes
from trtdx.memory.logs.oom_checks import (
    find_nothing_available,
    full_pool_verdict,
    host_memory_verdict,
    no_budget_verdict,
    no_cache_room_verdict,
    not_deserialised_verdict,
    pool_lines,
    render_held_memory,
    shortened_sequences_verdict,
    too_large_verdicts,
    uneven_ranks_verdict,
)
from trtdx.memory.logs.verdict import OUT_OF_MEMORY_CODES, MemoryVerdict, evidence_from_statements
from trtdx.memory.nouns import RankLedger
from trtdx.model import Fix, Stage
from trtdx.words import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.logs.read import LogMemory
    from trtdx.memory.logs.statements import LogStatement
    from trtdx.memory.nouns import Setup

_WOULD_FIT = "By the plan of these settings it would have fitted: look for what else is on the GPU, or for a setting that was not told."


class PostMortem(msgspec.Struct, frozen=True, kw_only=True):
    """What a log tells about memory, and what follows from it."""

    ranks: tuple[RankLedger, ...]
    failures: tuple[FailedAllocation, ...]
    verdicts: tuple[MemoryVerdict, ...]  # the first is the cause


def explain_memory_failure(log: LogMemory, setup: Setup | None = None, plan: Planner | None = None) -> PostMortem:
    """Return the ledgers, the failures and the verdicts of a log.

    Args:
        log: what was read.
        setup: the set-up the log is of, where the model is known; it fills what the log does not tell.
        plan: makes a ledger of a set-up; needed with `setup`.
    """
    ranks = ledgers_from_log(log)
    if setup is not None and plan is not None:
        ranks = complete_ledgers(ranks, plan(setup))
    failures = find_failures(log)
    judged = tuple(_judge_rank(rank, failures) for rank in ranks)
    verdicts = tuple(_log_verdicts(log, failures, setup, plan))
    return PostMortem(ranks=judged, failures=tuple(failures), verdicts=verdicts)


def _judge_rank(ledger: RankLedger, failures: list[FailedAllocation]) -> RankLedger:
    failure = next((failure for failure in failures if failure.rank == ledger.rank), failures[0] if failures else None)
    if failure is None:
        has_pool = ledger.capacity and ledger.component_bytes("kv_pool")
        return replace(ledger, fits=True) if has_pool else ledger
    short = max(0, failure.missing or 0)
    return replace(ledger, fits=False, short_bytes=short, why_not=failure.description)


def _log_verdicts(
    log: LogMemory, failures: list[FailedAllocation], setup: Setup | None, plan: Planner | None
) -> Iterator[MemoryVerdict]:
    if failures:
        yield _cause_verdict(log, _first_failure(failures), setup, plan)
    elif log.select("host.killed", "host.shm"):
        yield host_memory_verdict(log)
    elif any((statement.value_of("budget") or 1) <= 0 for statement in log.select("torch.peak")):
        yield no_budget_verdict(log, setup, plan)
    elif (available := find_nothing_available(log)) is not None:
        yield no_cache_room_verdict(log, available, setup, plan)
    elif log.last("engine.not_deserialised"):
        yield not_deserialised_verdict(log)
    elif log.last("build.estimate.short"):
        yield from too_large_verdicts(log, setup, plan)
    for check in (shortened_sequences_verdict, uneven_ranks_verdict, full_pool_verdict):
        verdict = check(log)
        if verdict and not (failures and check is full_pool_verdict):
            yield verdict


def _first_failure(failures: list[FailedAllocation]) -> FailedAllocation:
    """Return the failure to explain: each log's first, and of several logs one that tells what was missing.

    A rank that gives up because another one failed tells no numbers.
    """
    firsts = {failure.statement.source: failure for failure in reversed(failures)}
    ordered = [failure for failure in failures if firsts[failure.statement.source] is failure]
    return next((failure for failure in ordered if (failure.missing or 0) > 0), ordered[0])


def _cause_verdict(
    log: LogMemory, failure: FailedAllocation, setup: Setup | None, plan: Planner | None
) -> MemoryVerdict:
    changes = tuple(smallest_fixes(log, failure, setup, plan))
    for check in FALSE_OOM_CHECKS:
        verdict = check(log, failure)
        if verdict is not None:
            if not verdict.is_false_oom and not verdict.fixes:
                return replace(verdict, fixes=changes)
            return verdict
    if failure.after_pool:
        return _after_pool_verdict(log, failure, changes)
    unexplained = setup is not None and plan is not None and setup.device is not None and plan(setup).fits
    return _plain_verdict(log, failure, changes, _WOULD_FIT if unexplained else "")


def _after_pool_verdict(log: LogMemory, failure: FailedAllocation, changes: tuple[Fix, ...]) -> MemoryVerdict:
    """The KV cache was made first and took what a step needs later."""
    pool = ledger_from_log(log, failure.rank).component_bytes("kv_pool")
    size = format_bytes(pool) if pool else "its memory"
    fraction = f" ({log.fraction:g} of what was free)" if log.fraction else ""
    warm_up = (
        "The PyTorch backend sizes the cache by one profiled step, so what warm-up and larger batches need "
        "(compilation, graph capture, logits of a full batch) may be more than it left."
        if log.backend == "pytorch"
        else ""
    )
    return MemoryVerdict(
        code="DX914",
        message=f"the KV cache took {size}{fraction} and left too little for what came later{_render_numbers(failure)}",
        numbers=f"the KV cache had taken {size}{fraction}{_render_missing(failure)}",
        why=warm_up,
        evidence=evidence_from_statements((*failure.evidence, *pool_lines(log, failure.rank))),
        fixes=changes,
        next_step=None if changes and failure.missing else _measure_again_fix(log),
        related_codes=OUT_OF_MEMORY_CODES,
        confidence=0.85 if failure.missing else 0.7,
        failure=failure,
    )


def _render_missing(failure: FailedAllocation) -> str:
    is_known = failure.missing is not None and failure.missing > 0
    return f", {format_bytes(failure.missing or 0)} were missing" if is_known else ""


def _render_numbers(failure: FailedAllocation) -> str:
    requested, free, missing = failure.requested, failure.free, failure.missing
    if requested and free and missing is not None and missing > 0:
        return f": {format_bytes(requested.value)} were wanted, {format_bytes(free.value)} were free, {format_bytes(missing)} were missing"
    if requested:
        return f": {format_bytes(requested.value)} were wanted"
    return f": {format_bytes(free.value)} were free" if free else ""


def _plain_verdict(log: LogMemory, failure: FailedAllocation, changes: tuple[Fix, ...], doubt: str) -> MemoryVerdict:
    codes = {
        "build.workspace": "DX178", "trt.refused": "DX346", "trt.oom": "DX346", "runtime.oom": "DX345", "kv.none": "DX356",
    }  # fmt: skip
    code = codes.get(failure.statement.key, "DX340")
    if failure.statement.key == "executor.failed" or (failure.stage_name and code != "DX356"):
        code = "DX344"
    if code == "DX346" and log.backend == "build":
        code = "DX146"
    is_known = bool(failure.component) and (failure.requested or failure.free)
    biggest = render_held_memory(log, failure)
    return MemoryVerdict(
        code=code,
        message=f"the memory did not suffice for {failure.description}{_render_numbers(failure)}",
        numbers=_render_short_numbers(failure),
        why=f"{biggest} {doubt}".strip(),
        evidence=evidence_from_statements((*failure.evidence, *_ledger_lines(log, failure))),
        fixes=changes,
        next_step=None if changes and failure.missing else _measure_again_fix(log),
        related_codes=OUT_OF_MEMORY_CODES,
        confidence=0.85 if is_known else 0.6,
        is_plain=True,
        failure=failure,
    )


def _render_short_numbers(failure: FailedAllocation) -> str:
    numbers = _render_missing(failure) or _render_numbers(failure)
    if failure.component and not failure.stage_name:  # the page's own words do not say what it was for
        return f"it was for {failure.description}{numbers}"
    return numbers.lstrip(",: ")


def _ledger_lines(log: LogMemory, failure: FailedAllocation) -> list[LogStatement]:
    keys = ("engine.size", "context", "runtime", "decoder", "kv.available", "torch.weights", "torch.inside")
    statements = log.select(*keys, "executor.stage", rank=failure.rank)
    return [statement for statement in statements if statement.line < failure.statement.line + 60][-6:]


def _measure_again_fix(log: LogMemory) -> Fix:
    """What to do where the log does not tell enough."""
    if log.backend not in ("tensorrt", "build"):
        text = "the log does not tell enough for a number: run it again at level INFO and give that log"
        return Fix(
            Stage.SERVE,
            text,
            f"TLLM_LOG_LEVEL=INFO TLLM_LOG_MEM_PROFILE=1 {SERVE_COMMAND} 2>&1 | tee serve.log",
        )
    text = (
        "the log does not tell enough for a number: give the log of the build and of the start together, at level INFO"
    )
    return Fix(Stage.BUILD, text, f"{BUILD_COMMAND} --log_level info 2>&1 | tee build.log")
