"""After a failure: which allocation it was, what was missing, and the smallest change that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from trtdx.memory.logs.checks import (
    held_by_then,
    host_memory,
    no_room_for_cache,
    not_deserialised,
    nothing_available,
    nothing_left,
    pool_is_no_leak,
    pool_lines,
    shortened_sequences,
    too_large_to_load,
    uneven_ranks,
)
from trtdx.memory.logs.commands import BUILD, SERVE
from trtdx.memory.logs.failed_allocation import Failure, failures_of
from trtdx.memory.logs.false_oom import CHECKS
from trtdx.memory.logs.ledger import completed, ledger_of, ledgers_of
from trtdx.memory.logs.oom_changes import smallest_changes
from trtdx.memory.logs.verdict import OUT_OF_MEMORY, Verdict, evidence_of
from trtdx.memory.nouns import RankLedger
from trtdx.model import Fix, Stage
from trtdx.words import size_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.logs.lines import Said
    from trtdx.memory.logs.read import LogMemory
    from trtdx.memory.nouns import Setup

_WOULD_FIT = "By the plan of these settings it would have fitted: look for what else is on the GPU, or for a setting that was not told."


class PostMortem(msgspec.Struct, frozen=True, kw_only=True):
    """What a log tells about memory, and what follows from it."""

    ranks: tuple[RankLedger, ...]
    failures: tuple[Failure, ...]
    verdicts: tuple[Verdict, ...]  # the first is the cause


def post_mortem(log: LogMemory, setup: Setup | None = None, plan: Planner | None = None) -> PostMortem:
    """Return the ledgers, the failures and the verdicts of a log.

    Args:
        log: what was read.
        setup: the set-up the log is of, where the model is known; it fills what the log does not tell.
        plan: makes a ledger of a set-up; needed with `setup`.
    """
    ranks = ledgers_of(log)
    if setup is not None and plan is not None:
        ranks = completed(ranks, plan(setup))
    failures = failures_of(log)
    judged = tuple(_judged(rank, failures) for rank in ranks)
    verdicts = tuple(_verdicts(log, failures, setup, plan))
    return PostMortem(ranks=judged, failures=tuple(failures), verdicts=verdicts)


def _judged(ledger: RankLedger, failures: list[Failure]) -> RankLedger:
    failure = next(
        (failure for failure in failures if failure.rank == ledger.rank), failures[0] if failures else None
    )
    if failure is None:
        has_pool = ledger.capacity and ledger.bytes_of("kv_pool")
        return replace(ledger, fits=True) if has_pool else ledger
    short = max(0, failure.missing or 0)
    return replace(ledger, fits=False, short_bytes=short, why_not=failure.what)


def _verdicts(
    log: LogMemory, failures: list[Failure], setup: Setup | None, plan: Planner | None
) -> Iterator[Verdict]:
    if failures:
        yield _cause(log, _first(failures), setup, plan)
    elif log.all("host.killed", "host.shm"):
        yield host_memory(log)
    elif any((statement.get("budget") or 1) <= 0 for statement in log.all("torch.peak")):
        yield nothing_left(log, setup, plan)
    elif (available := nothing_available(log)) is not None:
        yield no_room_for_cache(log, available, setup, plan)
    elif log.last("engine.not_deserialised"):
        yield not_deserialised(log)
    elif log.last("build.estimate.short"):
        yield from too_large_to_load(log, setup, plan)
    for check in (shortened_sequences, uneven_ranks, pool_is_no_leak):
        verdict = check(log)
        if verdict and not (failures and check is pool_is_no_leak):
            yield verdict


def _first(failures: list[Failure]) -> Failure:
    """Return the failure to explain: each log's first, and of several logs one that tells what was missing.

    A rank that gives up because another one failed tells no numbers.
    """
    firsts = {failure.said.source: failure for failure in reversed(failures)}
    ordered = [failure for failure in failures if firsts[failure.said.source] is failure]
    return next((failure for failure in ordered if (failure.missing or 0) > 0), ordered[0])


def _cause(log: LogMemory, failure: Failure, setup: Setup | None, plan: Planner | None) -> Verdict:
    changes = tuple(smallest_changes(log, failure, setup, plan))
    for check in CHECKS:
        verdict = check(log, failure)
        if verdict is not None:
            if not verdict.false and not verdict.fixes:
                return replace(verdict, fixes=changes)
            return verdict
    if failure.after_pool:
        return _after_pool(log, failure, changes)
    unexplained = setup is not None and plan is not None and setup.device is not None and plan(setup).fits
    return _plain(log, failure, changes, _WOULD_FIT if unexplained else "")


def _after_pool(log: LogMemory, failure: Failure, changes: tuple[Fix, ...]) -> Verdict:
    """The KV cache was made first and took what a step needs later."""
    pool = ledger_of(log, failure.rank).bytes_of("kv_pool")
    size = size_in_words(pool) if pool else "its memory"
    fraction = f" ({log.fraction:g} of what was free)" if log.fraction else ""
    warm_up = (
        "The PyTorch backend sizes the cache by one profiled step, so what warm-up and larger batches need "
        "(compilation, graph capture, logits of a full batch) may be more than it left."
        if log.backend == "pytorch"
        else ""
    )
    return Verdict(
        code="DX914",
        message=f"the KV cache took {size}{fraction} and left too little for what came later{_numbers(failure)}",
        short=f"the KV cache had taken {size}{fraction}{_missing(failure)}",
        why=warm_up,
        evidence=evidence_of((*failure.evidence, *pool_lines(log, failure.rank))),
        fixes=changes,
        next_step=None if changes and failure.missing else _measure(log),
        about=OUT_OF_MEMORY,
        confidence=0.85 if failure.missing else 0.7,
        failure=failure,
    )


def _missing(failure: Failure) -> str:
    is_known = failure.missing is not None and failure.missing > 0
    return f", {size_in_words(failure.missing or 0)} were missing" if is_known else ""


def _numbers(failure: Failure) -> str:
    requested, free, missing = failure.wanted, failure.free, failure.missing
    if requested and free and missing is not None and missing > 0:
        return f": {size_in_words(requested.value)} were wanted, {size_in_words(free.value)} were free, {size_in_words(missing)} were missing"
    if requested:
        return f": {size_in_words(requested.value)} were wanted"
    return f": {size_in_words(free.value)} were free" if free else ""


def _plain(log: LogMemory, failure: Failure, changes: tuple[Fix, ...], doubt: str) -> Verdict:
    codes = {
        "build.workspace": "DX178", "trt.refused": "DX346", "trt.oom": "DX346", "runtime.oom": "DX345", "kv.none": "DX356",
    }  # fmt: skip
    code = codes.get(failure.said.key, "DX340")
    if failure.said.key == "executor.failed" or (failure.named and code != "DX356"):
        code = "DX344"
    if code == "DX346" and log.backend == "build":
        code = "DX146"
    is_known = bool(failure.component) and (failure.wanted or failure.free)
    biggest = held_by_then(log, failure)
    return Verdict(
        code=code,
        message=f"the memory did not suffice for {failure.what}{_numbers(failure)}",
        short=_short(failure),
        why=f"{biggest} {doubt}".strip(),
        evidence=evidence_of((*failure.evidence, *_ledger_lines(log, failure))),
        fixes=changes,
        next_step=None if changes and failure.missing else _measure(log),
        about=OUT_OF_MEMORY,
        confidence=0.85 if is_known else 0.6,
        plain=True,
        failure=failure,
    )


def _short(failure: Failure) -> str:
    numbers = _missing(failure) or _numbers(failure)
    if failure.component and not failure.named:  # the page's own words do not say what it was for
        return f"it was for {failure.what}{numbers}"
    return numbers.lstrip(",: ")


def _ledger_lines(log: LogMemory, failure: Failure) -> list[Said]:
    keys = ("engine.size", "context", "runtime", "decoder", "kv.available", "torch.weights", "torch.inside")
    statements = log.all(*keys, "executor.stage", rank=failure.rank)
    return [statement for statement in statements if statement.line < failure.said.line + 60][-6:]


def _measure(log: LogMemory) -> Fix:
    """What to do where the log does not tell enough."""
    if log.backend not in ("tensorrt", "build"):
        text = "the log does not tell enough for a number: run it again at level INFO and give that log"
        return Fix(
            Stage.SERVE, text, f"TLLM_LOG_LEVEL=INFO TLLM_LOG_MEM_PROFILE=1 {SERVE} 2>&1 | tee serve.log"
        )
    text = "the log does not tell enough for a number: give the log of the build and of the start together, at level INFO"
    return Fix(Stage.BUILD, text, f"{BUILD} --log_level info 2>&1 | tee build.log")
