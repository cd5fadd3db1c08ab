"""Ranks changes by the memory they gain for what they cost; each is planned again."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from trtdx.memory.advice.changes import list_changes
from trtdx.memory.advice.gpu_changes import placement_change
from trtdx.memory.advice.memory_change import apply_changes, cost_of_changes
from trtdx.memory.advice.target import cheapest_changes
from trtdx.memory.ledger.capacity import count_requests, fits_narrowly, typical_request_length
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.memory.advice.commands import AdvisedCommands
    from trtdx.memory.advice.memory_change import MemoryChange
    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.nouns import Device, MemoryLedger, Setup

    Confirm = Callable[[Setup], AdvisedCommands | None]

LEAST_BYTES = 128 * MIB
LEAST_SHARE = 0.03  # of more cache, for each point of harm
WORTH_TELLING = 0.25
MOST_ADVICE = 3
SHORT_REQUEST, LEAST_BATCH = 1024, 64
LEAST_REQUESTS = 4  # that other GPUs must hold to be worth their money, and that any change had better
TIGHT_COST = 1.5  # points against a change after which hardly anything fits
NARROW_COST = 0.5  # and against one after which it may still not fit


class Advice(NamedTuple):
    """A change, or several together, that was planned and helps."""

    changes: tuple[MemoryChange, ...]
    setup: Setup
    ledger: MemoryLedger
    gain_bytes: int  # of room for the cache, in bytes of the cache as it is now
    cost: float
    tokens_before: int = 0
    commands: AdvisedCommands | None = None  # the commands, where there is a question they answer

    @property
    def words(self) -> str:
        return " and ".join(change.words for change in self.changes)

    @property
    def speed(self) -> str:
        return "; ".join(dict.fromkeys(change.harm.words for change in self.changes if change.harm.words))

    @property
    def score(self) -> float:
        return self.gain_bytes / (1 + self.cost)


def advise_changes(
    setup: Setup,
    ledger: MemoryLedger,
    devices: tuple[Device, ...] = (),
    planner: Planner = plan_memory,
    most: int = MOST_ADVICE,
    confirm: Confirm | None = None,
) -> tuple[Advice, ...]:
    """Return the best pieces of advice; where it does not fit, those that make it fit come first.

    Args:
        setup: what was asked about.
        ledger: its plan.
        devices: other GPUs there are.
        planner: makes plans.
        most: how many pieces of advice are wanted.
        confirm: writes the commands of a change and plans them; advice that it has none for is left out.
    """
    ranked = _rank_changes(setup, ledger, devices, planner)
    if confirm is None:
        return tuple(ranked[:most])
    confirmed = (_confirm_advice(advice, ledger, confirm) for advice in ranked)
    return tuple(islice((advice for advice in confirmed if advice is not None), most))


def _confirm_advice(advice: Advice, now: MemoryLedger, confirm: Confirm) -> Advice | None:
    """Return advice with its commands, and the plan they have; None where they do not do what was promised."""
    commands = confirm(advice.setup)
    if commands is None:
        return None
    gain = _cache_worth(commands.ledger, now) - _cache_worth(now, now)
    again = advice._replace(setup=commands.setup, ledger=commands.ledger, gain_bytes=gain, commands=commands)
    if again.ledger.fits and not now.fits:
        return again
    return again if gain > 0 and bool(again.ledger.fits) >= bool(advice.ledger.fits) else None


def _rank_changes(setup: Setup, ledger: MemoryLedger, devices: tuple[Device, ...], planner: Planner) -> list[Advice]:
    tried = [_try_changes(setup, ledger, (change,), planner) for change in list_changes(setup, devices)]
    helping = [advice for advice in tried if _is_helpful(advice, ledger)]
    if ledger.fits:
        helping = [advice for advice in helping if advice.changes[0].group not in ("gpu", "gpus", "seq")]
        return _first_of_each_group(sorted(helping, key=lambda advice: -advice.score))
    enough = sorted(
        (advice for advice in helping if advice.ledger.fits),
        key=lambda advice: (advice.cost + _tightness_cost(advice.ledger), -advice.gain_bytes),
    )
    choices = _first_of_each_group(enough)
    together = _cheapest_together(setup, ledger, planner)
    if together is not None and not any(_is_free(advice) and advice.cost <= together.cost for advice in choices):
        choices = [together, *choices]
    if choices:
        return choices
    homes = [_try_changes(setup, ledger, (change,), planner) for change in placement_change(setup, devices, planner)]
    if homes:
        return homes
    partly = sorted((advice for advice in helping if not advice.ledger.fits), key=lambda advice: -advice.score)
    return _first_of_each_group(partly)


def _try_changes(setup: Setup, ledger: MemoryLedger, changes: tuple[MemoryChange, ...], planner: Planner) -> Advice:
    changed = apply_changes(setup, changes)
    after = planner(changed)
    gain = _cache_worth(after, ledger) - _cache_worth(ledger, ledger)
    return Advice(changes, changed, after, gain, cost_of_changes(changes, setup), ledger.kv_tokens.value)


def _cache_worth(ledger: MemoryLedger, now: MemoryLedger) -> int:
    """Return the room a plan has in bytes of today's cache; what is missing counts against it."""
    per_token = now.tightest_rank.kv_bytes_per_token.value
    return ledger.kv_tokens.value * per_token - ledger.tightest_rank.short_bytes


def _is_helpful(advice: Advice, now: MemoryLedger) -> bool:
    is_rescue = bool(advice.ledger.fits and not now.fits)
    if not is_rescue and any(change.group == "batch" for change in advice.changes) and _starves_batch(advice):
        return False
    if advice.ledger.fits and not now.fits:
        least = 1 if _is_free(advice) else LEAST_REQUESTS
        return _typical_requests(advice.ledger) >= least
    if not now.fits:  # a part of the way, if it is a good part
        return advice.gain_bytes >= WORTH_TELLING * now.tightest_rank.short_bytes
    share = advice.gain_bytes / max(_cache_worth(now, now), 1)
    return bool(advice.ledger.fits) and advice.gain_bytes >= LEAST_BYTES and share >= LEAST_SHARE * (1 + advice.cost)


def _starves_batch(advice: Advice) -> bool:
    """Whether the batch would be smaller than what the cache holds of short requests: that is no saving."""
    batch = advice.setup.limits.max_batch_size
    return batch < min(count_requests(advice.ledger, SHORT_REQUEST), LEAST_BATCH)


def _first_of_each_group(advice: list[Advice]) -> list[Advice]:
    """Return the first of each group: one size of batch is advice enough."""
    best_by_group: dict[str, Advice] = {}
    for candidate in advice:
        best_by_group.setdefault(candidate.changes[0].group, candidate)
    return list(best_by_group.values())


def _is_free(advice: Advice) -> bool:
    return not any(change.harm.money for change in advice.changes)


def _cheapest_together(setup: Setup, ledger: MemoryLedger, planner: Planner) -> Advice | None:
    """Return the cheapest set of changes that makes it fit without money."""
    excluded = "" if setup.is_assumed("max_seq_len") else "seq"
    free = [change for change in list_changes(setup) if not change.harm.money and change.group != excluded]
    for least in (LEAST_REQUESTS, 1):
        does = partial(_holds_requests, least)
        chosen = cheapest_changes(setup, free, does, planner)
        if chosen is not None:
            return _try_changes(setup, ledger, chosen, planner)
    return None


def _holds_requests(least: int, ledger: MemoryLedger) -> bool:
    return bool(ledger.fits) and _typical_requests(ledger) >= least


def _tightness_cost(ledger: MemoryLedger) -> float:
    return TIGHT_COST * (_typical_requests(ledger) < LEAST_REQUESTS) + NARROW_COST * fits_narrowly(ledger.tightest_rank)


def _typical_requests(ledger: MemoryLedger) -> int:
    return count_requests(ledger, typical_request_length(ledger.setup))
