"""Constants re-fit from the user's own logs: what each log measured, against the plan of the same set-up."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from trtdx.memory.ledger.calibration import (
    ANY_FAMILY,
    FACTOR_OF_COMPONENT,
    CalibrationConstants,
    CalibrationFactor,
)
from trtdx.memory.logs.failed_allocation import find_failures
from trtdx.memory.logs.ledger import ledgers_from_log, pool_from_log
from trtdx.memory.nouns import GIB, Device, Figure
from trtdx.words import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.logs.read import LogMemory
    from trtdx.memory.nouns import MemoryLedger, RankLedger, Setup

ONE_LOG_TOLERANCE = 0.08  # how far the next run may be from a single one; less with each further log
LEAST_FACTOR, MOST_FACTOR = 0.2, 5.0  # a factor outside of this is not a factor but another set-up
CLOSE_BYTES = 0.12 * GIB  # figures printed to 0.01 GiB, several of them added


class LearntFactor(msgspec.Struct, frozen=True):
    """One factor that changed."""

    key: str  # backend/family/name
    old: CalibrationFactor | None
    new: CalibrationFactor


class RefusedLog(msgspec.Struct, frozen=True):
    """A log that was not used, and why."""

    names: tuple[str, ...]
    reason: str


class Calibration(msgspec.Struct, frozen=True):
    """The constants after looking at logs, what changed, and what was left out."""

    constants: CalibrationConstants
    learnt: tuple[LearntFactor, ...] = ()
    refused: tuple[RefusedLog, ...] = ()


class _FactorRatio(msgspec.Struct, frozen=True):
    key: str
    value: float
    tolerance: float
    line: str


def calibrate_factors(
    logs: Sequence[tuple[LogMemory, Setup]], plan: Planner, known: CalibrationConstants | None = None
) -> Calibration:
    """Return the constants that make the plan of each set-up tell what its log measured.

    Args:
        logs: each log with the set-up it is of; what the log prints of its settings rules over the set-up's defaults.
        plan: makes a ledger of a set-up by formula alone.
        known: what was calibrated before; entries that these logs say nothing about stay.
    """
    known = known or CalibrationConstants()
    refused: list[RefusedLog] = []
    ratios_by_key: defaultdict[str, list[_FactorRatio]] = defaultdict(list)
    used: Counter[str] = Counter()
    for log, setup in logs:
        of_log = with_log_settings(setup, log)
        planned = plan(of_log)
        reason = calibration_problem(log) or _find_model_mismatch(log, planned)
        ratios = [] if reason else [*_factor_ratios(log, planned)]
        if reason or not ratios:
            refused.append(RefusedLog(log.names, reason or "it states nothing that the plan has too"))
            continue
        used.update({ratio.key for ratio in ratios})
        for ratio in ratios:
            ratios_by_key[ratio.key].append(ratio)
    entries = dict(known.entries)
    learnt: list[LearntFactor] = []
    for key, ratios in sorted(ratios_by_key.items()):
        new = _fit_factor(ratios, used[key])
        learnt.append(LearntFactor(key, known.entries.get(key), new))
        entries[key] = new
    return Calibration(CalibrationConstants(known.version, entries), tuple(learnt), tuple(refused))


def _fit_factor(ratios: Sequence[_FactorRatio], logs: int) -> CalibrationFactor:
    values = [ratio.value for ratio in ratios]
    middle = statistics.median(values)
    slack = ONE_LOG_TOLERANCE / logs**0.5 + max(ratio.tolerance for ratio in ratios)
    return CalibrationFactor(
        value=round(middle, 4),
        low=round(min(values) * (1 - slack), 4),
        high=round(max(values) * (1 + slack), 4),
        logs=logs,
        lines=tuple(dict.fromkeys(ratio.line for ratio in ratios))[:20],
    )


def constants_from_log(
    log: LogMemory, planned: MemoryLedger, known: CalibrationConstants | None = None
) -> CalibrationConstants:
    """Return the constants of this one log, to plan what its set-up would be with a change."""
    ratios_by_key: defaultdict[str, list[_FactorRatio]] = defaultdict(list)
    for ratio in _factor_ratios(log, planned, least=0.001, most=1000):
        ratios_by_key[ratio.key].append(ratio)
    fitted = {key: _fit_factor(ratios, 1) for key, ratios in ratios_by_key.items()}
    return CalibrationConstants(entries=(known.entries if known else {}) | fitted)


def _factor_ratios(
    log: LogMemory, planned: MemoryLedger, least: float = LEAST_FACTOR, most: float = MOST_FACTOR
) -> Iterator[_FactorRatio]:
    """Yield measured / planned for each component that the log states."""
    family = planned.setup.dims.model_type or ANY_FAMILY
    backend = planned.setup.running.backend
    for rank in ledgers_from_log(log):
        plan = planned.rank_like(rank.rank)
        for name in dict.fromkeys(FACTOR_OF_COMPONENT.values()):
            measured, source = _measured_factor(rank, name)
            formula = sum(plan.component_bytes(part) for part, factor in FACTOR_OF_COMPONENT.items() if factor == name)
            if measured is None or not measured.value or not formula:
                continue
            ratio = measured.value / formula
            if least <= ratio <= most:
                off = (measured.high - measured.low) / 2 / measured.value
                yield _FactorRatio(f"{backend}/{family}/{name}", ratio, off, source)


def _measured_factor(ledger: RankLedger, factor: str) -> tuple[Figure | None, str]:
    name = next(part for part, factor_name in FACTOR_OF_COMPONENT.items() if factor_name == factor)
    component = ledger.find_component(name)
    if component is None:
        return None, ""
    return component.bytes, component.bytes.source.removeprefix("measured: ").replace(" line ", ":")


def with_log_settings(setup: Setup, log: LogMemory) -> Setup:
    """Return the set-up with what the log prints of its settings, its GPU's memory and its release."""
    limits = {
        name: number
        for name in ("max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len", "max_beam_width", "tokens_per_block")
        if (number := log.number(name))
    }  # fmt: skip
    running: dict[str, object] = {}
    if log.fraction:
        running["free_fraction"] = log.fraction
    version = log.settings.get("version")
    if version and not setup.running.version:
        running["version"] = version.value
    graphs = log.number("cuda_graph_max_batch_size")
    if graphs:
        running["cuda_graph_max_batch"] = graphs
    capacity = next((rank.capacity for rank in ledgers_from_log(log) if rank.capacity), 0)
    device = setup.device
    if capacity:
        device = Device(name=device.name if device else "the GPU of the log", total_bytes=capacity, sm=device.sm if device else 0, source="measured")  # fmt: skip
    return replace(
        setup,
        limits=replace(setup.limits, **limits),
        running=replace(setup.running, **running),
        device=device,
        said={**setup.said, **dict.fromkeys(limits, "the log")},
    )


def calibration_problem(log: LogMemory) -> str:
    """Return why a log cannot be trusted to calibrate with, or nothing."""
    failures = find_failures(log)
    if failures:
        statement = failures[0].statement
        return f"the run ran out of memory ({statement.where}), so what it measured is not whole"
    if log.backend not in ("pytorch", "tensorrt", "build"):
        return "it states no activation and no profile: give the log of the start at level INFO, or of the build"
    for rank in log.ranks:
        reason = find_several_servers(log, rank) or _find_contradiction(log, rank)
        if reason:
            return reason
    if log.backend == "pytorch" and not log.last("torch.peak", "torch.dynamic"):
        return (
            "it ends before the memory profile ('Peak memory during memory usage profiling'), or is not at level INFO"
        )
    if log.backend == "tensorrt" and not log.last("context"):
        return "it ends before the execution context ('Allocated ... for execution context memory')"
    return ""


def find_several_servers(log: LogMemory, rank: int) -> str:
    """Several servers in one log have several profiles of one rank, or an engine loaded after a KV cache was made."""
    profiles = [statement for statement in log.select("torch.peak", rank=rank) if statement.rank in (rank, None)]
    different = {round(statement.bytes() / CLOSE_BYTES) for statement in profiles if statement.rank == rank} or {
        round(statement.bytes() / CLOSE_BYTES) for statement in profiles if len(log.ranks) == 1
    }
    if len(different) > 1 and max(different) - min(different) > 1:
        return f"it holds several profiles of rank {rank} ({profiles[0].where} and {profiles[-1].where}): two servers in one log"
    pools, engines = log.select("kv.pool", rank=rank), log.select("engine.size", rank=rank)
    late = next((engine for engine in engines if pools and engine.line > pools[0].line), None)
    return (
        f"an engine is loaded ({late.where}) after a KV cache was made ({pools[0].where}): two servers in one log"
        if late
        else ""
    )


def _find_contradiction(log: LogMemory, rank: int) -> str:
    for check in (_sum_differs, _budget_differs, _pool_differs):
        reason = check(log, rank)
        if reason:
            return reason
    return ""


def _sum_differs(log: LogMemory, rank: int) -> str:
    peak = log.last("torch.peak", rank=rank)
    parts = [log.last(key, rank=rank) for key in ("torch.inside", "torch.dynamic", "torch.outside_peak")]
    if peak is None or not all(parts):
        return ""
    total = sum(part.bytes() for part in parts if part)
    if abs(total - peak.bytes()) < CLOSE_BYTES:
        return ""
    return f"its parts sum up to {format_bytes(total)}, its peak is {format_bytes(peak.bytes())} ({peak.where})"


def _budget_differs(log: LogMemory, rank: int) -> str:
    """(total - peak + temporary) x fraction is what the PyTorch backend gives to the cache."""
    peak = log.last("torch.peak", rank=rank)
    if peak is None or not {"total", "fraction", "budget", "temporary"} <= set(peak.values):
        return ""
    if log.last("torch.limit", rank=rank):
        return ""
    free = peak.values["total"].value - peak.values["size"].value + peak.values["temporary"].value
    budget = free * peak.values["fraction"].value
    if abs(budget - peak.bytes("budget")) < CLOSE_BYTES:
        return ""
    return f"{peak.where} gives the cache {format_bytes(peak.bytes('budget'))}, and by its own numbers it is {format_bytes(budget)}"


def _pool_differs(log: LogMemory, rank: int) -> str:
    """The C++ runtime gives available x fraction to the cache, unless a number of tokens limits it."""
    available, fraction, pool = (
        log.last("kv.available", rank=rank),
        log.fraction,
        pool_from_log(log, rank).bytes,
    )
    if available is None or fraction is None or pool is None or log.last("kv.both", rank=rank):
        return ""
    budget = available.values["free"].value * fraction
    if pool.value < budget * 1.02 + CLOSE_BYTES:
        return ""
    return f"{format_bytes(available.bytes('free'))} were available ({available.where}) and the cache took {format_bytes(pool.value)}"


def _find_model_mismatch(log: LogMemory, planned: MemoryLedger) -> str:
    """Return why the log cannot be of this set-up."""
    differs = kv_token_mismatch(log, planned)
    if differs is None:
        return ""
    return (
        f"one token of its KV cache takes {differs[0]} bytes, by the plan {differs[1]}: "
        "another model, another type of KV cache, or another number of GPUs"
    )


def kv_token_mismatch(log: LogMemory, planned: MemoryLedger) -> tuple[int, int, str] | None:
    """Return the bytes of one token in the log and in the plan, and where the log says so, if they are not the same."""
    for rank in ledgers_from_log(log):
        measured = rank.kv_bytes_per_token
        plan = planned.rank_like(rank.rank).kv_bytes_per_token
        if measured.value and plan.value and not measured.low - 1 <= plan.value <= measured.high + 1:
            where = measured.source.removeprefix("measured: ").replace(" line ", ":")
            return measured.value, plan.value, where
    return None
