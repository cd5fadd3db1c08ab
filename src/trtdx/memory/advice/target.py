"""Finds the cheapest set of changes after which a target load fits, and why other changes fail."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.memory.advice.changes import list_changes
from trtdx.memory.advice.memory_change import ChangeCosts, apply_changes, cost_of_changes
from trtdx.memory.ledger.capacity import (
    cache_tokens_needed,
    count_caches,
    count_requests,
    holds_load,
    limiting_component,
    with_limits,
)
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import COMPONENTS
from trtdx.memory.report.figures import render_count, render_gib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.memory.advice.commands import AdvisedCommands
    from trtdx.memory.advice.memory_change import MemoryChange
    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.nouns import Device, MemoryLedger, Setup

    Confirm = Callable[[Setup], AdvisedCommands | None]

TARGET_KEYS = {
    "batch": "batch", "max_batch_size": "batch", "requests": "batch", "concurrency": "batch",
    "seq": "seq", "seq_len": "seq", "max_seq_len": "seq", "length": "seq", "tokens": "tokens",
    "max_num_tokens": "tokens", "step": "tokens", "input": "input", "input_len": "input", "isl": "input",
    "output": "output", "output_len": "output", "osl": "output", "beam": "beam", "beams": "beam",
}  # fmt: skip
MOST_TOGETHER = 3
MOST_TRIED = 4000
PER_GROUP = 4
SHORTEST_TOLD = 64  # of a sequence that is worth telling
MOST_CONFIRMED = 4


class TargetLoad(NamedTuple):
    """A load that is to fit."""

    batch: int
    seq: int
    tokens: int = 0  # 0: as it is
    beam: int = 0

    def __str__(self) -> str:
        more = f", steps of {self.tokens} tokens" if self.tokens else ""
        beams = f", {self.beam} beams" if self.beam else ""
        return f"{self.batch} requests of {self.seq} tokens{more}{beams}"


class TargetResult(NamedTuple):
    """How a target is reached: changes to make (none: it fits as it is), and what was tried in vain."""

    target: TargetLoad
    changes: tuple[MemoryChange, ...]
    setup: Setup
    ledger: MemoryLedger
    fits: bool
    failed_changes: tuple[tuple[MemoryChange, str], ...] = ()  # each with why it does not do
    shortage: str = ""
    dearer: tuple[MemoryChange, ...] = ()  # single changes that do it too
    commands: AdvisedCommands | None = None  # the commands that reach it
    nearest: tuple[NearestLoad, ...] = ()  # where it cannot be reached


def parse_target(text: str, setup: Setup) -> TargetLoad:
    """Return the load that "batch=64, seq=8192" names; input and output make up a sequence."""
    load: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.replace(";", ",").split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        key = TARGET_KEYS.get(name.lower().replace("-", "_"))
        number = value.lower().replace("_", "")
        times = 1024 if number.endswith("k") else 1
        if key is None or not equals or not number.rstrip("k").isdecimal():
            raise InputError(f"--target {part!r} is not a part of a load", fix="write --target 'batch=64, seq=8192'")
        load[key] = int(number.rstrip("k")) * times
        if not 1 <= load[key] <= 10**8:
            raise InputError(f"--target {part!r} cannot be", fix="numbers are from 1 to 100,000,000")
    if not load:
        raise InputError("--target names no load", fix="write --target 'batch=64, seq=8192'")
    seq = load.get("seq") or load.get("input", 0) + load.get("output", 0) or setup.limits.max_seq_len
    batch = load.get("batch") or setup.limits.max_batch_size
    if load.get("tokens", batch) < batch:
        raise InputError(
            f"--target: steps of {load['tokens']} tokens do not hold one token of each of {batch} requests"
        )
    return TargetLoad(batch, seq, load.get("tokens", 0), load.get("beam", 0))


def setup_for_target(setup: Setup, target: TargetLoad) -> Setup:
    """Return the set-up with the limits of a load."""
    limits = {"max_batch_size": target.batch, "max_seq_len": target.seq}
    tokens = target.tokens or max(setup.limits.max_num_tokens, target.batch * (1 + setup.limits.max_draft_len))
    limits["max_num_tokens"] = tokens
    if target.beam:
        limits["max_beam_width"] = target.beam
    return with_limits(setup, **limits)


def reach_target(
    setup: Setup,
    target: TargetLoad,
    devices: tuple[Device, ...] = (),
    planner: Planner = plan_memory,
    confirm: Confirm | None = None,
) -> TargetResult:
    """Return the set of changes with the least harm after which a load fits.

    Args:
        setup: what was asked about.
        target: the load.
        devices: other GPUs there are.
        planner: makes plans.
        confirm: writes the commands of a set-up and plans them; what they do not reach is not told.
    """
    start = setup_for_target(setup, target)
    ledger = planner(start)
    if holds_load(ledger, target.batch, target.seq):
        return TargetResult(target, (), start, ledger, True, commands=confirm(start) if confirm else None)
    changes = [change for change in list_changes(start, devices) if _keeps_target(change, target)]
    alone = [(change, planner(change.apply(start))) for change in changes]

    def does(after: MemoryLedger) -> bool:
        if not holds_load(after, target.batch, target.seq):
            return False
        commands = confirm(after.setup) if confirm else None
        return confirm is None or (commands is not None and holds_load(commands.ledger, target.batch, target.seq))

    best = cheapest_changes(start, changes, does, planner)
    others, lacking = _failed_changes(alone, target, best or ()), _render_shortage(ledger, target)
    if best is None:
        nearest = tuple(_nearest_loads(start, changes, target, planner, confirm))
        return TargetResult(target, (), start, ledger, False, others, lacking, nearest=nearest)
    done = apply_changes(start, best)
    dearer = [change for change, after in alone if change not in best and holds_load(after, target.batch, target.seq)]
    commands = confirm(done) if confirm else None
    dearest = _cheapest_of_each_group(dearer, start)
    return TargetResult(target, best, done, planner(done), True, others, lacking, dearest, commands)


class NearestLoad(NamedTuple):
    """A load that can be reached where the wanted one cannot, on the same GPUs."""

    target: TargetLoad
    changes: tuple[MemoryChange, ...]
    commands: AdvisedCommands | None = None


def _nearest_loads(
    start: Setup,
    changes: Sequence[MemoryChange],
    target: TargetLoad,
    planner: Planner,
    confirm: Confirm | None,
) -> Iterator[NearestLoad]:
    """Yield the most requests of the wanted length, and the longest of so many, that no other GPU is needed for."""
    free = [change for change in changes if not change.harm.money]
    plans = [(chosen, planner(apply_changes(start, chosen))) for chosen in ((), *_change_sets(free)[:MOST_TRIED])]
    fitting = [(chosen, after) for chosen, after in plans if after.fits]
    for loads in (_fewer_requests, _shorter_requests):
        tried = [(loads(after, target), -len(chosen), chosen) for chosen, after in fitting]
        for load, _, chosen in sorted(tried, key=lambda row: row[:2], reverse=True)[:MOST_CONFIRMED]:
            if not load.batch or load.seq < SHORTEST_TOLD:
                break
            done = setup_for_target(apply_changes(start, chosen), load)
            commands = confirm(done) if confirm else None
            if holds_load(commands.ledger if commands else planner(done), load.batch, load.seq):
                yield NearestLoad(load, chosen, commands)
                break


def _fewer_requests(ledger: MemoryLedger, target: TargetLoad) -> TargetLoad:
    return target._replace(batch=min(count_requests(ledger, target.seq), target.batch))


def _shorter_requests(ledger: MemoryLedger, target: TargetLoad) -> TargetLoad:
    """Return the load with requests as long as the caches hold so many of, in whole blocks."""
    limits = ledger.setup.limits
    sequences_per_cache = (
        -(-target.batch // count_caches(ledger.setup)) * limits.max_beam_width
    )  # of the requests, in each cache
    length = ledger.kv_tokens.value // sequences_per_cache // limits.tokens_per_block * limits.tokens_per_block
    return target._replace(seq=min(length, target.seq))


def _keeps_target(change: MemoryChange, target: TargetLoad) -> bool:
    """Whether a change leaves alone what the load is made of."""
    stated = {"batch": True, "seq": True, "tokens": target.tokens, "beam": target.beam}
    return not stated.get(change.group)


def cheapest_changes(
    start: Setup,
    changes: Sequence[MemoryChange],
    is_enough: Callable[[MemoryLedger], bool],
    planner: Planner = plan_memory,
) -> tuple[MemoryChange, ...] | None:
    """Return the set of changes with the least harm after which a plan does; sets are tried from the cheapest on."""
    sets = _change_sets(changes)
    costs = ChangeCosts(start, changes)
    sets.sort(key=lambda chosen: (costs.cost_of_set(chosen), len(chosen)))
    return next((chosen for chosen in sets[:MOST_TRIED] if is_enough(planner(apply_changes(start, chosen)))), None)


def _change_sets(changes: Sequence[MemoryChange]) -> list[tuple[MemoryChange, ...]]:
    return [
        chosen
        for size in range(1, MOST_TOGETHER + 1)
        for chosen in combinations(_strongest_per_group(changes) if size > 1 else changes, size)
        if len({change.group for change in chosen}) == size
    ]


def _strongest_per_group(changes: Sequence[MemoryChange]) -> list[MemoryChange]:
    """Return at most a few of each group, for sets."""
    strongest: list[MemoryChange] = []
    for change in changes:
        if sum(other.group == change.group for other in strongest) < PER_GROUP:
            strongest.append(change)
    return strongest


def _failed_changes(
    alone: list[tuple[MemoryChange, MemoryLedger]], target: TargetLoad, best: tuple[MemoryChange, ...]
) -> tuple[tuple[MemoryChange, str], ...]:
    """Return single changes that do not do, the nearest to it first, one of each group."""
    failed = [(change, ledger) for change, ledger in alone if not holds_load(ledger, target.batch, target.seq)]
    failed.sort(key=lambda pair: _missing_bytes(pair[1], target))
    reasons: dict[str, tuple[MemoryChange, str]] = {}
    for change, ledger in failed:
        if best != (change,):
            reasons.setdefault(change.group, (change, _render_shortage(ledger, target)))
    return tuple(reasons.values())


def _cheapest_of_each_group(changes: Sequence[MemoryChange], start: Setup) -> tuple[MemoryChange, ...]:
    by_group: dict[str, MemoryChange] = {}
    for change in sorted(changes, key=lambda candidate: cost_of_changes((candidate,), start)):
        by_group.setdefault(change.group, change)
    return tuple(by_group.values())


def _missing_bytes(ledger: MemoryLedger, target: TargetLoad) -> int:
    worst = ledger.tightest_rank
    cache_total = count_caches(ledger.setup)
    tokens = cache_tokens_needed(ledger.setup, target.batch, target.seq) // cache_total - ledger.kv_tokens.value
    return worst.short_bytes + max(tokens, 0) * worst.kv_bytes_per_token.value


def _render_shortage(ledger: MemoryLedger, target: TargetLoad) -> str:
    """Return in words what a plan lacks for a load."""
    worst = ledger.tightest_rank
    tokens = cache_tokens_needed(ledger.setup, target.batch, target.seq)
    if not ledger.fits and limiting_component(worst) != COMPONENTS["kv_pool"]:
        return f"{limiting_component(worst)}: short by {render_gib(_missing_bytes(ledger, target))}"
    cached, needed = render_count(ledger.kv_tokens.value * count_caches(ledger.setup)), render_count(tokens)
    per_gpu = " on each GPU" if ledger.setup.layout.world > 1 else ""
    return (
        f"the cache holds {cached} of {needed} tokens, short by {render_gib(_missing_bytes(ledger, target))}{per_gpu}"
    )
