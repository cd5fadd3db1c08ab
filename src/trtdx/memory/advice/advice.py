"""Ranks changes by the memory they gain for what they cost; each is planned again."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from trtdx.memory.advice.change import apply_changes, cost_of
from trtdx.memory.advice.changes import changes_for
from trtdx.memory.advice.gpu_changes import home_change
from trtdx.memory.advice.target import cheapest
from trtdx.memory.ledger.capacity import is_narrow, requests, usual_length
from trtdx.memory.ledger.plan import plan
from trtdx.memory.nouns import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.memory.advice.change import Change
    from trtdx.memory.advice.commands import Advised
    from trtdx.memory.ledger.capacity import Planner
    from trtdx.memory.nouns import Device, Ledger, Setup

    Confirm = Callable[[Setup], Advised | None]

LEAST_BYTES = 128 * MIB
LEAST_SHARE = 0.03  # of more cache, for each point of harm
WORTH_TELLING = 0.25
MOST = 3
SHORT_REQUEST, LEAST_BATCH = 1024, 64
LEAST_REQUESTS = 4  # that other GPUs must hold to be worth their money, and that any change had better
TIGHT = 1.5  # points against a change after which hardly anything fits
NARROW = 0.5  # and against one after which it may still not fit


class Advice(NamedTuple):
    """A change, or several together, that was planned and helps."""

    changes: tuple[Change, ...]
    setup: Setup
    ledger: Ledger
    gain_bytes: int  # of room for the cache, in bytes of the cache as it is now
    cost: float
    tokens_before: int = 0
    advised: Advised | None = None  # the commands, where there is a question they answer

    @property
    def words(self) -> str:
        return " and ".join(change.words for change in self.changes)

    @property
    def speed(self) -> str:
        return "; ".join(dict.fromkeys(change.harm.words for change in self.changes if change.harm.words))

    @property
    def score(self) -> float:
        return self.gain_bytes / (1 + self.cost)


def advise(
    setup: Setup,
    ledger: Ledger,
    devices: tuple[Device, ...] = (),
    planner: Planner = plan,
    most: int = MOST,
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
    ranked = _ranked(setup, ledger, devices, planner)
    if confirm is None:
        return tuple(ranked[:most])
    confirmed = (_confirmed(advice, ledger, confirm) for advice in ranked)
    return tuple(islice((advice for advice in confirmed if advice is not None), most))


def _confirmed(advice: Advice, now: Ledger, confirm: Confirm) -> Advice | None:
    """Return advice with its commands, and the plan they have; None where they do not do what was promised."""
    commands = confirm(advice.setup)
    if commands is None:
        return None
    gain = _worth(commands.ledger, now) - _worth(now, now)
    again = advice._replace(setup=commands.setup, ledger=commands.ledger, gain_bytes=gain, advised=commands)
    if again.ledger.fits and not now.fits:
        return again
    return again if gain > 0 and bool(again.ledger.fits) >= bool(advice.ledger.fits) else None


def _ranked(setup: Setup, ledger: Ledger, devices: tuple[Device, ...], planner: Planner) -> list[Advice]:
    tried = [_tried(setup, ledger, (change,), planner) for change in changes_for(setup, devices)]
    helping = [advice for advice in tried if _helps(advice, ledger)]
    if ledger.fits:
        helping = [advice for advice in helping if advice.changes[0].group not in ("gpu", "gpus", "seq")]
        return _one_of_each(sorted(helping, key=lambda advice: -advice.score))
    enough = sorted(
        (advice for advice in helping if advice.ledger.fits),
        key=lambda advice: (advice.cost + _tightness(advice.ledger), -advice.gain_bytes),
    )
    choices = _one_of_each(enough)
    together = _together(setup, ledger, planner)
    if together is not None and not any(
        _is_free(advice) and advice.cost <= together.cost for advice in choices
    ):
        choices = [together, *choices]
    if choices:
        return choices
    homes = [_tried(setup, ledger, (change,), planner) for change in home_change(setup, devices, planner)]
    if homes:
        return homes
    partly = sorted(
        (advice for advice in helping if not advice.ledger.fits), key=lambda advice: -advice.score
    )
    return _one_of_each(partly)


def _tried(setup: Setup, ledger: Ledger, changes: tuple[Change, ...], planner: Planner) -> Advice:
    changed = apply_changes(setup, changes)
    after = planner(changed)
    gain = _worth(after, ledger) - _worth(ledger, ledger)
    return Advice(changes, changed, after, gain, cost_of(changes, setup), ledger.kv_tokens.value)


def _worth(ledger: Ledger, now: Ledger) -> int:
    """Return the room a plan has in bytes of today's cache; what is missing counts against it."""
    per_token = now.worst.kv_bytes_per_token.value
    return ledger.kv_tokens.value * per_token - ledger.worst.short_bytes


def _helps(advice: Advice, now: Ledger) -> bool:
    is_rescue = bool(advice.ledger.fits and not now.fits)
    if not is_rescue and any(change.group == "batch" for change in advice.changes) and _starves(advice):
        return False
    if advice.ledger.fits and not now.fits:
        least = 1 if _is_free(advice) else LEAST_REQUESTS
        return _requests(advice.ledger) >= least
    if not now.fits:  # a part of the way, if it is a good part
        return advice.gain_bytes >= WORTH_TELLING * now.worst.short_bytes
    share = advice.gain_bytes / max(_worth(now, now), 1)
    return (
        bool(advice.ledger.fits)
        and advice.gain_bytes >= LEAST_BYTES
        and share >= LEAST_SHARE * (1 + advice.cost)
    )


def _starves(advice: Advice) -> bool:
    """Whether the batch would be smaller than what the cache holds of short requests: that is no saving."""
    batch = advice.setup.limits.max_batch_size
    return batch < min(requests(advice.ledger, SHORT_REQUEST), LEAST_BATCH)


def _one_of_each(advice: list[Advice]) -> list[Advice]:
    """Return the first of each group: one size of batch is advice enough."""
    best_by_group: dict[str, Advice] = {}
    for candidate in advice:
        best_by_group.setdefault(candidate.changes[0].group, candidate)
    return list(best_by_group.values())


def _is_free(advice: Advice) -> bool:
    return not any(change.harm.money for change in advice.changes)


def _together(setup: Setup, ledger: Ledger, planner: Planner) -> Advice | None:
    """Return the cheapest set of changes that makes it fit without money."""
    excluded = "" if setup.is_assumed("max_seq_len") else "seq"
    free = [change for change in changes_for(setup) if not change.harm.money and change.group != excluded]
    for least in (LEAST_REQUESTS, 1):
        does = partial(_runs, least)
        chosen = cheapest(setup, free, does, planner)
        if chosen is not None:
            return _tried(setup, ledger, chosen, planner)
    return None


def _runs(least: int, ledger: Ledger) -> bool:
    return bool(ledger.fits) and _requests(ledger) >= least


def _tightness(ledger: Ledger) -> float:
    return TIGHT * (_requests(ledger) < LEAST_REQUESTS) + NARROW * is_narrow(ledger.worst)


def _requests(ledger: Ledger) -> int:
    return requests(ledger, usual_length(ledger.setup))
