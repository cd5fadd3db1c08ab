"""Finds the cheapest set of changes after which a target load fits, and why other changes fail."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.memory.advice.change import ChangeCosts, apply_changes, cost_of
from trtdx.memory.advice.changes import changes_for
from trtdx.memory.ledger.capacity import caches, holds, in_the_way, requests, tokens_needed, with_limits
from trtdx.memory.ledger.plan import plan
from trtdx.memory.nouns import COMPONENTS
from trtdx.memory.report.figures import gib, short_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtdx.memory.advice.change import Change
    from trtdx.memory.advice.commands import Advised
    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.nouns import Device, Ledger, Setup

    Confirm = Callable[[Setup], Advised | None]

KEYS = {
    "batch": "batch", "max_batch_size": "batch", "requests": "batch", "concurrency": "batch",
    "seq": "seq", "seq_len": "seq", "max_seq_len": "seq", "length": "seq", "tokens": "tokens",
    "max_num_tokens": "tokens", "step": "tokens", "input": "input", "input_len": "input", "isl": "input",
    "output": "output", "output_len": "output", "osl": "output", "beam": "beam", "beams": "beam",
}  # fmt: skip
MOST_TOGETHER = 3
MOST_TRIED = 4000
PER_GROUP = 4
SHORTEST = 64  # of a sequence that is worth telling
MOST_CONFIRMED = 4


class Target(NamedTuple):
    """A load that is to fit."""

    batch: int
    seq: int
    tokens: int = 0  # 0: as it is
    beam: int = 0

    def __str__(self) -> str:
        more = f", steps of {self.tokens} tokens" if self.tokens else ""
        beams = f", {self.beam} beams" if self.beam else ""
        return f"{self.batch} requests of {self.seq} tokens{more}{beams}"


class Reached(NamedTuple):
    """How a target is reached: changes to make (none: it fits as it is), and what was tried in vain."""

    target: Target
    changes: tuple[Change, ...]
    setup: Setup
    ledger: Ledger
    fits: bool
    others: tuple[tuple[Change, str], ...] = ()  # each with why it does not do
    lacking: str = ""
    dearer: tuple[Change, ...] = ()  # single changes that do it too
    advised: Advised | None = None  # the commands that reach it
    nearest: tuple[Nearest, ...] = ()  # where it cannot be reached


def parse_target(text: str, setup: Setup) -> Target:
    """Return the load that "batch=64, seq=8192" names; input and output make up a sequence."""
    load: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.replace(";", ",").split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        key = KEYS.get(name.lower().replace("-", "_"))
        number = value.lower().replace("_", "")
        times = 1024 if number.endswith("k") else 1
        if key is None or not equals or not number.rstrip("k").isdecimal():
            raise InputError(
                f"--target {part!r} is not a part of a load", fix="write --target 'batch=64, seq=8192'"
            )
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
    return Target(batch, seq, load.get("tokens", 0), load.get("beam", 0))


def wanted(setup: Setup, target: Target) -> Setup:
    """Return the set-up with the limits of a load."""
    limits = {"max_batch_size": target.batch, "max_seq_len": target.seq}
    tokens = target.tokens or max(
        setup.limits.max_num_tokens, target.batch * (1 + setup.limits.max_draft_len)
    )
    limits["max_num_tokens"] = tokens
    if target.beam:
        limits["max_beam_width"] = target.beam
    return with_limits(setup, **limits)


def reach(
    setup: Setup,
    target: Target,
    devices: tuple[Device, ...] = (),
    planner: Planner = plan,
    confirm: Confirm | None = None,
) -> Reached:
    """Return the set of changes with the least harm after which a load fits.

    Args:
        setup: what was asked about.
        target: the load.
        devices: other GPUs there are.
        planner: makes plans.
        confirm: writes the commands of a set-up and plans them; what they do not reach is not told.
    """
    start = wanted(setup, target)
    ledger = planner(start)
    if holds(ledger, target.batch, target.seq):
        return Reached(target, (), start, ledger, True, advised=confirm(start) if confirm else None)
    changes = [change for change in changes_for(start, devices) if _keeps(change, target)]
    alone = [(change, planner(change.apply(start))) for change in changes]

    def does(after: Ledger) -> bool:
        if not holds(after, target.batch, target.seq):
            return False
        commands = confirm(after.setup) if confirm else None
        return confirm is None or (commands is not None and holds(commands.ledger, target.batch, target.seq))

    best = cheapest(start, changes, does, planner)
    others, lacking = _in_vain(alone, target, best or ()), _lacking(ledger, target)
    if best is None:
        nearest = tuple(_nearest(start, changes, target, planner, confirm))
        return Reached(target, (), start, ledger, False, others, lacking, nearest=nearest)
    done = apply_changes(start, best)
    dearer = [
        change for change, after in alone if change not in best and holds(after, target.batch, target.seq)
    ]
    commands = confirm(done) if confirm else None
    dearest = _one_of_each(dearer, start)
    return Reached(target, best, done, planner(done), True, others, lacking, dearest, commands)


class Nearest(NamedTuple):
    """A load that can be reached where the wanted one cannot, on the same GPUs."""

    target: Target
    changes: tuple[Change, ...]
    advised: Advised | None = None


def _nearest(
    start: Setup, changes: Sequence[Change], target: Target, planner: Planner, confirm: Confirm | None
) -> Iterator[Nearest]:
    """Yield the most requests of the wanted length, and the longest of so many, that no other GPU is needed for."""
    free = [change for change in changes if not change.harm.money]
    plans = [(chosen, planner(apply_changes(start, chosen))) for chosen in ((), *_sets(free)[:MOST_TRIED])]
    fitting = [(chosen, after) for chosen, after in plans if after.fits]
    for loads in (_fewer, _shorter):
        tried = [(loads(after, target), -len(chosen), chosen) for chosen, after in fitting]
        for load, _, chosen in sorted(tried, key=lambda row: row[:2], reverse=True)[:MOST_CONFIRMED]:
            if not load.batch or load.seq < SHORTEST:
                break
            done = wanted(apply_changes(start, chosen), load)
            commands = confirm(done) if confirm else None
            if holds(commands.ledger if commands else planner(done), load.batch, load.seq):
                yield Nearest(load, chosen, commands)
                break


def _fewer(ledger: Ledger, target: Target) -> Target:
    return target._replace(batch=min(requests(ledger, target.seq), target.batch))


def _shorter(ledger: Ledger, target: Target) -> Target:
    """Return the load with requests as long as the caches hold so many of, in whole blocks."""
    limits = ledger.setup.limits
    sequences_per_cache = (
        -(-target.batch // caches(ledger.setup)) * limits.max_beam_width
    )  # of the requests, in each cache
    length = (
        ledger.kv_tokens.value // sequences_per_cache // limits.tokens_per_block * limits.tokens_per_block
    )
    return target._replace(seq=min(length, target.seq))


def _keeps(change: Change, target: Target) -> bool:
    """Whether a change leaves alone what the load is made of."""
    stated = {"batch": True, "seq": True, "tokens": target.tokens, "beam": target.beam}
    return not stated.get(change.group)


def cheapest(
    start: Setup, changes: Sequence[Change], does: Callable[[Ledger], bool], planner: Planner = plan
) -> tuple[Change, ...] | None:
    """Return the set of changes with the least harm after which a plan does; sets are tried from the cheapest on."""
    sets = _sets(changes)
    costs = ChangeCosts(start, changes)
    sets.sort(key=lambda chosen: (costs.cost_of_set(chosen), len(chosen)))
    return next((chosen for chosen in sets[:MOST_TRIED] if does(planner(apply_changes(start, chosen)))), None)


def _sets(changes: Sequence[Change]) -> list[tuple[Change, ...]]:
    return [
        chosen
        for size in range(1, MOST_TOGETHER + 1)
        for chosen in combinations(_strongest(changes) if size > 1 else changes, size)
        if len({change.group for change in chosen}) == size
    ]


def _strongest(changes: Sequence[Change]) -> list[Change]:
    """Return at most a few of each group, for sets."""
    strongest: list[Change] = []
    for change in changes:
        if sum(other.group == change.group for other in strongest) < PER_GROUP:
            strongest.append(change)
    return strongest


def _in_vain(
    alone: list[tuple[Change, Ledger]], target: Target, best: tuple[Change, ...]
) -> tuple[tuple[Change, str], ...]:
    """Return single changes that do not do, the nearest to it first, one of each group."""
    failed = [(change, ledger) for change, ledger in alone if not holds(ledger, target.batch, target.seq)]
    failed.sort(key=lambda pair: _missing(pair[1], target))
    reasons: dict[str, tuple[Change, str]] = {}
    for change, ledger in failed:
        if best != (change,):
            reasons.setdefault(change.group, (change, _lacking(ledger, target)))
    return tuple(reasons.values())


def _one_of_each(changes: Sequence[Change], start: Setup) -> tuple[Change, ...]:
    by_group: dict[str, Change] = {}
    for change in sorted(changes, key=lambda candidate: cost_of((candidate,), start)):
        by_group.setdefault(change.group, change)
    return tuple(by_group.values())


def _missing(ledger: Ledger, target: Target) -> int:
    worst = ledger.worst
    cache_total = caches(ledger.setup)
    tokens = tokens_needed(ledger.setup, target.batch, target.seq) // cache_total - ledger.kv_tokens.value
    return worst.short_bytes + max(tokens, 0) * worst.kv_bytes_per_token.value


def _lacking(ledger: Ledger, target: Target) -> str:
    """Return in words what a plan lacks for a load."""
    worst = ledger.worst
    tokens = tokens_needed(ledger.setup, target.batch, target.seq)
    if not ledger.fits and in_the_way(worst) != COMPONENTS["kv_pool"]:
        return f"{in_the_way(worst)}: short by {gib(_missing(ledger, target))}"
    cached, needed = short_count(ledger.kv_tokens.value * caches(ledger.setup)), short_count(tokens)
    per_gpu = " on each GPU" if ledger.setup.layout.world > 1 else ""
    return f"the cache holds {cached} of {needed} tokens, short by {gib(_missing(ledger, target))}{per_gpu}"
