"""The smallest change after which a failed allocation fits, in numbers, as flags at the right stage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from trtdx.memory.logs.commands import command_with, is_engine_log, limit_stage, limits_command
from trtdx.memory.logs.ledger import ledger_from_log
from trtdx.memory.nouns import MIB
from trtdx.model import Fix, Stage
from trtdx.words import format_bytes, group_digits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.logs.failed_allocation import FailedAllocation
    from trtdx.memory.logs.read import LogMemory
    from trtdx.memory.nouns import RankLedger, Setup

ALLOCATION_MARGIN = 256 * MIB  # allocators round up, and the next allocation wants something too
DEFAULT_FRACTION = 0.9
TOKEN_STEP = 256  # tokens
FEWEST_TOKENS = 512


def smallest_fixes(log: LogMemory, failure: FailedAllocation, setup: Setup | None, plan: Planner | None) -> list[Fix]:
    """Return what to change, least harm first; each would be enough by itself where it says so."""
    of_plugin = failure.statement.key == "build.workspace"
    fixes = [*(smaller_workspace_fixes(log, failure) if of_plugin else _fixes_from_log(log, failure))]
    if setup is not None and plan is not None:
        planned = fix_from_plan(log, setup, plan)
        fixes = [planned, *(fix for fix in fixes if fix.command != planned.command)] if planned else fixes
    return fixes


def _fixes_from_log(log: LogMemory, failure: FailedAllocation) -> list[Fix]:
    fixes: list[Fix | None] = []
    component, is_empty = failure.component, _is_empty_pool(failure)
    if failure.after_pool or (component == "kv_pool" and not is_empty):
        fixes.append(lower_fraction_fix(log, failure))
    if is_empty:
        length = log.number("max_seq_len") or 0
        fixes.append(raise_fraction_fix(log, ledger_from_log(log, failure.rank), length))
    if component in ("activation", "runtime_buffers", "decoder_buffers", ""):
        fixes.append(fewer_tokens_fix(log, failure))
    if component in ("weights", "draft_weights") or _mostly_weights(log, failure):
        fixes += smaller_weights_fixes(log, failure)
    if component in ("runtime_buffers", "decoder_buffers") or not (component or failure.after_pool):
        fixes.append(smaller_batch_fix(log))
    return [fix for fix in fixes if fix]


def _mostly_weights(log: LogMemory, failure: FailedAllocation) -> bool:
    """Say whether the weights leave next to nothing to anybody else."""
    total = failure.total.value if failure.total else 0
    return (
        failure.component == "kv_pool"
        and ledger_from_log(log, failure.rank).component_bytes("weights") > 0.8 * total > 0
    )


def _is_empty_pool(failure: FailedAllocation) -> bool:
    return failure.statement.key == "kv.none"


def lower_fraction_fix(log: LogMemory, failure: FailedAllocation) -> Fix | None:
    """Return the fraction of the KV cache that leaves what was missing."""
    ledger = ledger_from_log(log, failure.rank)
    old = log.fraction or DEFAULT_FRACTION
    pool = ledger.component_bytes("kv_pool") or (failure.requested.value if failure.requested else 0)
    if failure.component == "kv_pool" and failure.requested is not None:
        pool = failure.requested.value
    missing = failure.missing
    if not pool or old <= 0:
        return None
    base = pool / old
    is_known = missing is not None and missing > 0
    lacking = missing + max(ALLOCATION_MARGIN, 0.05 * missing) if missing is not None and is_known else 0.05 * base
    new = math.floor((pool - lacking) / base * 100) / 100
    if new < 0.05:
        return None
    freed = (old - new) * base
    per_token = ledger.kv_bytes_per_token.value
    held_tokens = ledger.kv_tokens.value or (int(pool // per_token) if per_token else 0)
    tokens = (
        f", and holds {group_digits(int(held_tokens * new / old))} tokens instead of {group_digits(held_tokens)}"
        if held_tokens
        else ""
    )
    unknown = "; the log does not say how much was asked for, so lower it further if that is not enough"
    doubt = "" if is_known else unknown
    assumed = "" if log.fraction else " (the default, the log does not say)"
    return Fix(
        Stage.SERVE,
        f"lower the KV cache fraction from {old:g}{assumed} to {new:.2f}: that leaves {format_bytes(freed)} more{tokens}{doubt}",
        _fraction_command(log, new),
    )


def raise_fraction_fix(log: LogMemory, ledger: RankLedger, tokens: int) -> Fix | None:
    """Return the fraction with which the cache holds one sequence of so many tokens, or what else would."""
    available = log.last("kv.available", rank=ledger.rank)
    fraction, pool = log.fraction, ledger.component_bytes("kv_pool")
    per_token = ledger.kv_bytes_per_token.value
    room = pool / fraction if pool and fraction else available.bytes("free") if available else 0
    if not (tokens and per_token and room):
        return None
    needed = tokens * per_token * (log.number("max_beam_width") or 1)
    one = f"one sequence of {group_digits(tokens)} tokens needs {format_bytes(needed)}"
    new = math.ceil(needed / room * 100 + 0.5) / 100
    if new <= 0.95:
        was = f" from {fraction:g}" if fraction else ""
        text = f"raise the KV cache fraction{was} to {new:.2f}: {one}, the cache has {format_bytes(pool)}"
        return Fix(Stage.SERVE, text, _fraction_command(log, new))
    text = f"{one} and only {format_bytes(room)} are left for the cache: use an FP8 KV cache (half of 16 bit), or more GPUs"
    stage = Stage.CONVERT if is_engine_log(log) else Stage.SERVE
    return Fix(stage, text, None if is_engine_log(log) else command_with(log, stage, kv_cache_dtype="fp8"))


def _fraction_command(log: LogMemory, new: float) -> str | None:
    if is_engine_log(log) and "version" not in log.settings:  # Triton, or trtllm-serve
        return (
            f"python3 tools/fill_template.py -i tensorrt_llm/config.pbtxt kv_cache_free_gpu_mem_fraction:{new:.2f}"
            f"   # trtllm-serve and run.py: --kv_cache_free_gpu_memory_fraction {new:.2f}"
        )
    return command_with(log, Stage.SERVE, kv_cache_free_gpu_memory_fraction=round(new, 2))


def fewer_tokens_fix(log: LogMemory, failure: FailedAllocation) -> Fix | None:
    """Return the max_num_tokens at which the activations fit; they grow in step with it."""
    limit = log.number("max_num_tokens")
    ledger = ledger_from_log(log, failure.rank)
    activation = ledger.component_bytes("activation")
    missing = failure.missing if failure.missing is not None and failure.missing > 0 else None
    if failure.component == "activation" and failure.requested is not None:
        # What a step had taken already counts too: torch says how much it has beside the weights.
        step_bytes = (failure.statement.value_of("allocated") or 0) - ledger.component_bytes("weights")
        if ledger.capacity and failure.free is not None:  # the cache may be a part of it, and is no activation
            named_bytes = ledger.component_bytes("weights") + ledger.component_bytes("kv_pool")
            step_bytes = min(step_bytes, ledger.capacity - failure.free.value - named_bytes)
        activation = round(failure.requested.value + max(0, step_bytes if ledger.component_bytes("weights") else 0))
    if limit is None or not activation:
        return _unmeasured_tokens_fix(log, limit, activation)
    if missing is None:
        new = max(FEWEST_TOKENS, limit // 4 // TOKEN_STEP * TOKEN_STEP)
        text = f"lower max_num_tokens from {limit} to {new}: the activations shrink from {format_bytes(activation)} to about {format_bytes(activation * new / limit)}"
        return _token_limit_fix(log, text, new) if new < limit else None
    share = (activation - missing - ALLOCATION_MARGIN) / activation
    new = int(limit * share) // TOKEN_STEP * TOKEN_STEP
    if new < FEWEST_TOKENS:
        return None
    text = f"lower max_num_tokens from {limit} to {new}: the activations shrink from {format_bytes(activation)} to about {format_bytes(activation * new / limit)}, and {format_bytes(missing)} were missing"
    return _token_limit_fix(log, text, new)


def _token_limit_fix(log: LogMemory, text: str, tokens: int) -> Fix:
    stage = limit_stage(log)
    return Fix(stage, text + _chunk_words(log), command_with(log, stage, max_num_tokens=tokens))


def _unmeasured_tokens_fix(log: LogMemory, limit: int | None, activation: int) -> Fix | None:
    """Return the same advice where the log tells only the limit, or only the size."""
    if limit is None:
        half = f"lower max_num_tokens: half of it saves about {format_bytes(activation / 2)}"
        return Fix(limit_stage(log), half + _chunk_words(log)) if activation else None
    new = limit // 4 // TOKEN_STEP * TOKEN_STEP
    if new < FEWEST_TOKENS:
        return None
    text = f"lower max_num_tokens from {limit} to {new}: the activations shrink in step with it, to about a quarter"
    return _token_limit_fix(log, text, new)


def _chunk_words(log: LogMemory) -> str:
    longest = log.number("max_input_len") or log.number("max_seq_len")
    is_short = longest is not None and longest <= FEWEST_TOKENS
    return "" if is_short else "; prompts longer than that need chunked prefill"


def smaller_workspace_fixes(log: LogMemory, failure: FailedAllocation) -> Iterator[Fix]:
    """Yield ways to a smaller workspace of a plugin; that of plain attention grows with the square of the length."""
    requested, free = failure.requested, failure.free
    if requested is None or free is None or not free.value:
        return
    share = 0.9 * min(1.0, free.value / requested.value)
    fused = log.settings.get("context_fmha")
    if "Attention" in failure.statement.text and (fused is None or fused.value.lower() in ("false", "disable")):
        text = "build with fused attention, which needs no such workspace (GPUs of compute capability 8.0 and later have it)"
        yield Fix(Stage.BUILD, text, command_with(log, Stage.BUILD, context_fmha=True))
    batch, tokens = log.number("max_batch_size"), log.number("max_num_tokens")
    changes = {
        name: max(1, int(value * share))
        for name, value in (("max_batch_size", batch), ("max_num_tokens", tokens))
        if value
    }
    words = " and ".join(f"{name} from {log.number(name)} to {value}" for name, value in changes.items())
    text = f"the workspace has to shrink to {share:.0%} of what it is: lower {words or 'max_batch_size, max_input_len and max_num_tokens'}"
    yield Fix(Stage.BUILD, text, command_with(log, Stage.BUILD, **changes) if changes else None)


def smaller_batch_fix(log: LogMemory) -> Fix | None:
    limit = log.number("max_batch_size")
    if limit is None or limit < 2:
        return None
    stage = limit_stage(log)
    new = max(1, limit // 2 if limit <= 64 else 2 ** int(math.log2(limit / 4)))
    return Fix(
        stage,
        f"lower max_batch_size from {limit} to {new}: decoder and runtime buffers grow in step with it",
        command_with(log, stage, max_batch_size=new),
    )


def smaller_weights_fixes(log: LogMemory, failure: FailedAllocation) -> Iterator[Fix]:
    """Yield the ways to make weights fit: the fewest GPUs that hold them, and the format that does."""
    size = max(
        failure.requested.value if failure.requested and failure.statement.key != "torch.oom" else 0,
        ledger_from_log(log, failure.rank).component_bytes("weights"),
        (log.last("engine.size").bytes() if log.last("engine.size") else 0),  # type: ignore[union-attr]
    )
    now = log.number("tp_size") or log.number("world_size") or 1
    stage = limit_stage(log)
    total = failure.total.value if failure.total else 0
    times = 2
    if size and total:
        while size / times > 0.8 * total and times < 64:
            times *= 2
        per_gpu = f"{format_bytes(size / times)} of weights on each instead of {format_bytes(size)}"
        effect = f": {per_gpu}, of {format_bytes(total)}"
    else:
        effect = f", which halves {f'{format_bytes(size)} of weights' if size else 'the weights'}"
    command = command_with(log, stage, tp_size=now * times) if stage is Stage.SERVE else None
    yield Fix(stage, f"split the model over {now * times} GPUs instead of {now}{effect}", command)
    text = "or use quantised weights: FP8 needs about half of 16 bit, NVFP4 and INT4 AWQ under a third"
    yield Fix(Stage.CONVERT, text)


def fix_from_plan(log: LogMemory, setup: Setup, plan: Planner) -> Fix | None:
    """Return the first change, in the order of the harm it does, with which the plan fits."""
    if setup.device is None or plan(setup).fits:  # a plan that saw no failure cannot mend one
        return None
    for changed, text, changes in _candidate_changes(setup):
        ledger = plan(changed)
        if ledger.fits:
            worst = ledger.tightest_rank
            left = worst.capacity - worst.total_bytes.value
            stage = Stage.SERVE if changed.running.backend == "pytorch" else Stage.BUILD
            command = limits_command(log, changes, engine=stage is Stage.BUILD)
            words = f"{text}: by the plan it fits, with {group_digits(ledger.kv_tokens.value)} tokens of KV cache and {format_bytes(max(0, left))} left"
            return Fix(stage, words, command)
    return None


def _candidate_changes(setup: Setup) -> Iterator[tuple[Setup, str, dict[str, int]]]:
    limits, layout = setup.limits, setup.layout
    for tokens in _successive_halves(limits.max_num_tokens, 1024):
        changed = replace(setup, limits=replace(limits, max_num_tokens=tokens), activation=None)
        text = f"lower max_num_tokens from {limits.max_num_tokens} to {tokens}"
        yield changed, text, {"max_num_tokens": tokens}
    for batch in _successive_halves(limits.max_batch_size, 8):
        tokens = min(limits.max_num_tokens, 2048)
        changed = replace(setup, limits=replace(limits, max_batch_size=batch, max_num_tokens=tokens), activation=None)
        text = f"lower max_batch_size from {limits.max_batch_size} to {batch} and max_num_tokens to {tokens}"
        yield changed, text, {"max_batch_size": batch, "max_num_tokens": tokens}
    tp = layout.tp * 2
    while tp <= 16 and setup.dims.num_heads % tp == 0:
        changed = replace(setup, layout=replace(layout, tp=tp), weights_by_rank=(), activation=None)
        yield changed, f"split the model over {tp} GPUs instead of {layout.tp}", {"tp_size": tp}
        tp *= 2


def _successive_halves(value: int, least: int) -> Iterator[int]:
    while value // 2 >= least:
        value //= 2
        yield value
