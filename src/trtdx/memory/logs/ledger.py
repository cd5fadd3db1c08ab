"""The ledger of each rank, rebuilt from what a log states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from trtdx.memory.nouns import COMPONENT_ORDER, GIB, ZERO_FIGURE, Component, Figure, RankLedger, sum_figures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.memory.logs.read import LogMemory
    from trtdx.memory.logs.statements import LogStatement
    from trtdx.memory.nouns import MemoryLedger

_SAME_BYTES = 0.011 * GIB  # two sizes printed to 0.01 GiB that are one
PROFILING_POOL = 5 * GIB  # a lone pool smaller than this, in a log that ends in a failure, was the temporary one

# The stages of the PyTorch executor, by the names of all releases, and the component they make.
EXECUTOR_STAGES = {
    "model": "weights", "draft model for speculative decoding": "draft_weights", "draft_model": "draft_weights",
    "sampler": "decoder_buffers", "drafter": "runtime_buffers", "guided decoder": "runtime_buffers",
    "guided_decoder": "runtime_buffers", "spec_resource_manager": "runtime_buffers",
    "speculative decoding resources": "runtime_buffers", "model resources created during usage": "activation",
    "model_extra": "activation", "additional executor resources": "runtime_buffers",
    "executor_extra": "runtime_buffers", "kv cache": "kv_pool", "kv_cache": "kv_pool",
}  # fmt: skip


def measured_figure(statement: LogStatement, name: str = "size") -> Figure:
    """Return a printed number as a figure: its band is half of its last digit."""
    value = statement.values[name]
    low, high = max(0, round(value.value - value.tolerance)), round(value.value + value.tolerance)
    return Figure(max(0, round(value.value)), low, high, statement_source(statement))


def measured_if_stated(statement: LogStatement, name: str) -> Figure | None:
    return measured_figure(statement, name) if name in statement.values else None


def statement_source(statement: LogStatement) -> str:
    return f"measured: {statement.source} line {statement.line}"


class MeasuredPool(msgspec.Struct, frozen=True):
    """The KV cache that was kept, and the temporary one before it."""

    bytes: Figure | None = None
    tokens: Figure | None = None
    temporary: Figure | None = None
    line: int = 0


def ledgers_from_log(log: LogMemory) -> tuple[RankLedger, ...]:
    """Return a ledger for each rank that spoke; the lines without a rank count for all of them."""
    return tuple(ledger_from_log(log, rank) for rank in log.ranks)


def ledger_from_log(log: LogMemory, rank: int) -> RankLedger:
    """Return what the log states of one rank, as a ledger."""
    pool = pool_from_log(log, rank)
    parts = dict(_engine_parts(log, rank) if log.backend != "pytorch" else _torch_parts(log, rank, pool))
    for name, component in _stage_parts(log, rank):
        parts.setdefault(name, component)
    lora = log.last("lora", rank=rank)
    if lora:
        parts["lora"] = Component("lora", measured_figure(lora))
    if pool.bytes is not None:
        parts["kv_pool"] = Component("kv_pool", pool.bytes)
    components = tuple(sorted(parts.values(), key=lambda component: COMPONENT_ORDER[component.name]))
    capacity = device_capacity(log, rank)
    return RankLedger(
        rank=rank,
        components=components,
        kv_bytes_per_token=token_bytes_from_log(log, rank, pool) or ZERO_FIGURE,
        kv_tokens=pool.tokens or ZERO_FIGURE,
        total_bytes=sum_figures(component.bytes for component in components),
        capacity=capacity.value if capacity else 0,
    )


def device_capacity(log: LogMemory, rank: int) -> Figure | None:
    """Return the memory of the device, from whichever line states it most exactly."""
    stated = [
        measured_figure(statement, "total")
        for key in ("torch.peak", "kv.available", "torch.profile", "executor.total", "torch.oom", "smi.gpu")
        for statement in log.select(key, rank=rank)
        if "total" in statement.values
    ]
    share = log.last("torch.fraction", rank=rank)
    if not stated and share and share.values["fraction"].value > 0:
        total = share.values["size"].value / share.values["fraction"].value
        return Figure.with_tolerance(total, 0.0001, statement_source(share))
    return stated[0] if stated else None


def pool_from_log(log: LogMemory, rank: int) -> MeasuredPool:
    """Return the KV cache that was kept. The first pool of the PyTorch backend is a temporary one."""
    pools = log.select("kv.pool", rank=rank)
    temporary = _temporary_pool(log, rank, pools)
    lasting = [pool for pool in pools if temporary is None or not _is_same_pool(pool, temporary)]
    peak = log.last("torch.peak", rank=rank)
    after = [pool for pool in lasting if peak is None or pool.line >= peak.line] or lasting
    temporary_figure = (
        measured_figure(temporary, "size" if temporary.key == "kv.pool" else "temporary") if temporary else None
    )
    if after:
        last = after[-1]
        size = _pool_size(log, rank, last)
        tokens = _exact_figure(last, "tokens") if "tokens" in last.values else _pool_tokens(log, rank)
        return MeasuredPool(size, tokens, temporary_figure, last.line)
    return _planned_pool(log, rank, temporary_figure)


def _planned_pool(log: LogMemory, rank: int, temporary: Figure | None) -> MeasuredPool:
    """Return the pool that was computed, where the line that says it was made is not there."""
    size, tokens = log.settings.get("kv_pool_bytes"), log.settings.get("kv_pool_tokens")
    count = Figure.exact(int(tokens.value), f"measured: {tokens.where}") if tokens else None
    if size:
        return MeasuredPool(Figure.exact(int(size.value), f"measured: {size.where}"), count, temporary)
    estimate = log.last("torch.estimated", rank=rank)
    if estimate:
        return MeasuredPool(measured_figure(estimate), count, temporary, estimate.line)
    peak = log.last("torch.peak", rank=rank)
    if peak and "budget" in peak.values:
        return MeasuredPool(measured_figure(peak, "budget"), count, temporary, peak.line)
    return MeasuredPool(None, count or _pool_tokens(log, rank), temporary)


def _temporary_pool(log: LogMemory, rank: int, pools: Sequence[LogStatement]) -> LogStatement | None:
    peaks = [peak for peak in log.select("torch.peak", rank=rank) if peak.value_of("temporary")]
    if peaks:
        return peaks[-1]
    if log.backend != "pytorch" or not pools:
        return None
    if len({pool.value_of("tokens") for pool in pools}) > 1:
        return pools[0]
    failed = log.select("torch.oom", "executor.failed", rank=rank)
    sized = log.select("torch.estimated", "torch.peak", "torch.fraction", rank=rank)
    alone = failed and not sized and failed[-1].line > pools[0].line and pools[0].bytes() < PROFILING_POOL
    return pools[0] if alone else None


def _is_same_pool(pool: LogStatement, temporary: LogStatement) -> bool:
    if temporary.key == "kv.pool":
        return pool.value_of("tokens") == temporary.value_of("tokens")
    return abs(pool.bytes() - temporary.bytes("temporary")) < _SAME_BYTES and pool.line < temporary.line + 60


def find_shortened_sequences(log: LogMemory) -> LogStatement | None:
    """Return the line that says sequences were made shorter, for the cache that was kept.

    The temporary cache of the PyTorch backend is small, so the same warning comes for it in healthy logs too.
    """
    shortenings = [statement for statement in log.select("kv.shortened") if "new" in statement.values]
    for statement in reversed(shortenings):
        rank = log.rank_of(statement)
        temporary = _temporary_pool(log, rank, log.select("kv.pool", rank=rank))
        if temporary is None or statement.line > temporary.line:
            return statement
    return None


def _pool_size(log: LogMemory, rank: int, pool: LogStatement) -> Figure | None:
    """Return the pool's size; AutoDeploy prints 0.00 GiB for a real one."""
    if pool.bytes():
        return measured_figure(pool)
    peak = log.last("torch.peak", rank=rank)
    per_token = peak.value_of("per_token") if peak else None
    if per_token and "tokens" in pool.values:
        return Figure.exact(per_token * pool.values["tokens"].value, statement_source(pool))
    return None


def _exact_figure(statement: LogStatement, name: str) -> Figure:
    return Figure.exact(statement.values[name].value, statement_source(statement))


def _pool_tokens(log: LogMemory, rank: int) -> Figure | None:
    statement = log.last("kv.tokens", rank=rank)
    if statement:
        return _exact_figure(statement, "tokens")
    blocks, per_block = log.last("kv.blocks", rank=rank), log.last("kv.per_block", rank=rank)
    if blocks and per_block:
        return Figure.exact(blocks.values["count"].value * per_block.values["count"].value, statement_source(blocks))
    return None


def token_bytes_from_log(log: LogMemory, rank: int, pool: MeasuredPool) -> Figure | None:
    """Return the bytes of one token: as printed, else the pool divided by its tokens."""
    peak = next(
        (statement for statement in log.select("torch.peak", rank=rank) if "per_token" in statement.values),
        None,
    )
    if peak:
        return _exact_figure(peak, "per_token")
    if pool.bytes is None or pool.tokens is None or not pool.tokens.value:
        return None
    tokens = pool.tokens.value
    size = pool.bytes
    return Figure(round(size.value / tokens), size.low // tokens, -(-size.high // tokens), size.source)


def _engine_parts(log: LogMemory, rank: int) -> Iterator[tuple[str, Component]]:
    weights = _engine_weights(log, rank)
    if weights:
        yield "weights", weights
    stated: set[str] = set()
    for name, keys in (
        ("activation", ("context", "build.activation")),
        ("runtime_buffers", ("runtime",)),
        ("decoder_buffers", ("decoder",)),
    ):
        statement = next((latest for key in keys if (latest := log.last(key, rank=rank))), None)
        if statement:
            stated.add(name)
            yield name, Component(name, measured_figure(statement))
    if "activation" not in stated:
        risen = _context_rise(log, rank)
        if risen:
            yield "activation", risen
    rest = _rest_before_pool(log, rank, weights)
    if rest:
        yield "cuda_context", rest


def _context_rise(log: LogMemory, rank: int) -> Component | None:
    """Return by how much the GPU filled up while an old runtime made its context, which prints no size of it."""
    changes = [change for change in log.select("trt.change", rank=rank) if change.words["what"].startswith("Init cu")]
    if len(changes) < 2 or log.last("engine.size", rank=rank) is None:
        return None
    size = changes[-1].bytes("now") - changes[0].bytes("now")
    figure = Figure.with_tolerance(size, 0.1, statement_source(changes[-1]))
    why = "the rise of the GPU's memory between loading and running: activations, contexts, driver"
    return Component("activation", figure, why) if size > 0.05 * GIB else None


def _engine_weights(log: LogMemory, rank: int) -> Component | None:
    """Return the weights: what TensorRT manages after loading, else the builder's sum, else the engine's file."""
    loaded = [
        change
        for change in log.select("trt.change", rank=rank)
        if "engine deserialization" in change.words["what"] or "IExecutionContext creation" in change.words["what"]
    ]
    for change in reversed(loaded):
        if change.bytes("now"):
            return Component("weights", measured_figure(change, "now"))
    built, size = log.last("build.weights", rank=rank), log.last("engine.size", rank=rank)
    if built:
        return Component("weights", measured_figure(built))
    if size:
        figure = measured_figure(size)
        low = round(figure.value * 0.99)  # a plan also holds its kernels
        return Component("weights", Figure(figure.value, low, figure.high, figure.source), "the engine's file")
    return None


def _rest_before_pool(log: LogMemory, rank: int, weights: Component | None) -> Component | None:
    """Return what was in use before the KV cache beside what the log names."""
    available = log.last("kv.available", rank=rank)
    if available is None or weights is None or log.last("context", rank=rank) is None:
        return None
    used = available.values["total"].value - available.values["free"].value
    named_bytes = weights.bytes.value + sum(
        statement.bytes() for key in ("context", "runtime", "decoder") if (statement := log.last(key, rank=rank))
    )
    figure = Figure.with_tolerance(max(0, used - named_bytes), 0, statement_source(available), extra=0.01 * GIB)
    why = "in use before the KV cache and not named: CUDA context, libraries, NCCL, other processes"
    return Component("cuda_context", figure, why)


def _torch_parts(log: LogMemory, rank: int, pool: MeasuredPool) -> Iterator[tuple[str, Component]]:
    printed, inside = log.last("torch.weights", rank=rank), log.last("torch.inside", rank=rank)
    outside = log.last("torch.outside_peak", rank=rank) or log.last("torch.outside", rank=rank)
    dynamic = log.last("torch.dynamic", rank=rank)
    temporary = pool.temporary.value if pool.temporary else _implied_temporary(log, rank)
    weights = printed or inside
    more = inside.bytes() - printed.bytes() if inside and printed else 0
    kept_outside = not (inside and printed and more >= temporary * 0.9)
    if weights:
        yield "weights", Component("weights", measured_figure(weights))
    if inside and printed and more - (0 if kept_outside else temporary) > 0.01 * GIB:
        size = more - (0 if kept_outside else temporary)
        figure = Figure.with_tolerance(size, 0, statement_source(inside), extra=0.01 * GIB)
        yield "runtime_buffers", Component("runtime_buffers", figure, "in torch beside the weights")
    activation = _torch_activation(log, rank, dynamic, inside)
    if activation:
        yield "activation", activation
    if outside:
        # The temporary cache of the C++ manager is not torch's, so it is in what torch does not know.
        size = outside.bytes() - (temporary if kept_outside else 0)
        figure = Figure.with_tolerance(max(0, size), 0, statement_source(outside), extra=0.01 * GIB)
        why = "outside torch: CUDA context, NCCL, CUDA graphs"
        yield "cuda_context", Component("cuda_context", figure, why)


def _implied_temporary(log: LogMemory, rank: int) -> int:
    """Return the temporary cache that the budget implies: (total - peak + temporary) x fraction, where it is not told."""
    peak, total = log.last("torch.peak", rank=rank), device_capacity(log, rank)
    if peak is None or total is None or not peak.value_of("fraction") or log.last("torch.limit", rank=rank):
        return 0
    implied = peak.bytes("budget") / peak.values["fraction"].value - (total.value - peak.bytes())
    return round(implied) if 0.03 * GIB < implied < PROFILING_POOL else 0


def _torch_activation(
    log: LogMemory, rank: int, dynamic: LogStatement | None, inside: LogStatement | None
) -> Component | None:
    if dynamic:
        return Component("activation", measured_figure(dynamic))
    peak, outside = log.last("torch.peak", rank=rank), log.last("torch.outside", rank=rank)
    if peak and inside and outside:
        size = peak.bytes() - inside.bytes() - outside.bytes()
        figure = Figure.with_tolerance(max(0, size), 0, statement_source(peak), extra=0.1 * GIB)
        return Component("activation", figure, "peak less what was there before, in torch and outside")
    return None


def _stage_parts(log: LogMemory, rank: int) -> Iterator[tuple[str, Component]]:
    """Yield what the table of an executor's failure tells: free memory before and after each component."""
    rows = log.select("executor.stage", rank=rank)
    total = log.last("executor.total", rank=rank)
    if rows and total:
        before = total.values["total"].value - rows[0].values["before"].value
        figure = Figure.with_tolerance(max(0, before), 0, statement_source(rows[0]), extra=0.01 * GIB)
        yield "cuda_context", Component("cuda_context", figure, "in use before the first component was made")
    sums: dict[str, tuple[float, LogStatement]] = {}
    for row in rows:
        name = EXECUTOR_STAGES.get(row.words["stage"].lower())
        used_bytes = row.values["before"].value - row.values["after"].value
        if name and used_bytes > 0.01 * GIB:
            sums[name] = (sums.get(name, (0.0, row))[0] + used_bytes, row)
    for name, (size, row) in sums.items():
        figure = Figure.with_tolerance(size, 0, statement_source(row), extra=0.01 * GIB)
        yield name, Component(name, figure, f"free memory before and after: {row.words['stage']}")


def complete_ledgers(ranks: Sequence[RankLedger], plan: MemoryLedger) -> tuple[RankLedger, ...]:
    """Return the ledgers with what the log does not tell taken from the plan of the same set-up."""
    return tuple(_complete_ledger(ledger, plan) for ledger in ranks)


def _complete_ledger(ledger: RankLedger, plan: MemoryLedger) -> RankLedger:
    planned = plan.rank_like(ledger.rank)
    known_names = {component.name for component in ledger.components}
    if "cuda_context" in known_names:  # what a log sums up as outside of torch, or in use before, is all of these
        known_names |= {"communication", "cuda_graphs", "other_process", "host_memory"}
    added = [
        component
        for component in planned.components
        if component.name not in known_names and component.name != "kv_pool"
    ]
    components = tuple(sorted((*ledger.components, *added), key=lambda component: COMPONENT_ORDER[component.name]))
    return replace(
        ledger,
        components=components,
        kv_bytes_per_token=ledger.kv_bytes_per_token if ledger.kv_bytes_per_token.value else planned.kv_bytes_per_token,
        total_bytes=sum_figures(component.bytes for component in components),
        capacity=ledger.capacity or planned.capacity,
    )
