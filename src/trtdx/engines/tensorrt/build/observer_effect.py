"""The observer effect: what marking tensors changed in the program that is compiled."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from trtdx.engines.tensorrt.build.nouns import Built  # msgspec reads it at run time
from trtdx.formats.tensorrt.nouns import Kernel
from trtdx.model import Cell, Section
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MOST_ROWS = 200
COUNTER = re.compile(r"\d+")
Identity = tuple[int, str, tuple[str, ...]]
NAMED = 4


class Split(msgspec.Struct, frozen=True):
    """Layers that one kernel computed together and that several compute now."""

    profile: int
    kernel: str
    kind: str
    layers: tuple[str, ...]
    now: tuple[str, ...]  # the kernels they are in


class Effect(msgspec.Struct, frozen=True):
    """What a debug variant is like beside the production one."""

    production: Built
    debug: Built
    splits: tuple[Split, ...]
    added: tuple[Kernel, ...]  # kernels that production has not, such as copies into outputs

    @property
    def changed(self) -> bool:
        """Whether the program is another one; a plan may hold more and still compute the same way."""
        return bool(self.splits) or listing(self.production) != listing(self.debug)

    @property
    def text(self) -> str:
        """Return the effect in one sentence."""
        before, after = len(self.production.kernels), len(self.debug.kernels)
        if not self.changed:
            return (
                f"marking {counted(len(self.debug.marked), 'tensor')} left all {before} kernels as they were"
            )
        lost = f", and split {len(self.splits)} fused ones" if self.splits else ""
        return (
            f"marking {counted(len(self.debug.marked), 'tensor')} changed {before} kernels into {after}{lost}"
        )

    def sections(self) -> list[Section]:
        """Return the tables for a report."""
        return [_sizes(self), _kinds(self), *_splits(self), *_new(self), *_left_out(self)]


def observer_effect(production: Built, debug: Built) -> Effect:
    """Return what marking changed; both are compiled from one definition with the same profiles."""
    splits = tuple(_all_splits(production.kernels, debug.kernels))
    return Effect(production, debug, splits, tuple(_added(production.kernels, debug.kernels)))


def listing(built: Built) -> list[Identity]:
    """Return the kernels without their counters, which change from build to build."""
    return [_identity(kernel) for kernel in built.kernels]


def _identity(kernel: Kernel) -> Identity:
    return kernel.profile, kernel.kind, kernel.nodes or (COUNTER.sub("", kernel.name),)


def _added(before: Sequence[Kernel], after: Sequence[Kernel]) -> Iterator[Kernel]:
    remaining = Counter(_identity(kernel) for kernel in before)
    for kernel in after:
        if remaining[_identity(kernel)]:
            remaining[_identity(kernel)] -= 1
        else:
            yield kernel


def _all_splits(before: Sequence[Kernel], after: Sequence[Kernel]) -> Iterator[Split]:
    where: dict[tuple[int, str], set[int]] = {}
    for number, kernel in enumerate(after):
        for node in kernel.nodes:
            where.setdefault((kernel.profile, node), set()).add(number)
    for kernel in before:
        homes = {node: where.get((kernel.profile, node), set()) for node in kernel.nodes}
        present = [numbers for numbers in homes.values() if numbers]
        if len(present) < 2 or set.intersection(*present):
            continue
        numbers = sorted(set.union(*present))
        now = tuple(after[number].name for number in numbers)
        yield Split(kernel.profile, kernel.name, kernel.kind, kernel.nodes, now)


def _sizes(effect: Effect) -> Section:
    before, after = effect.production, effect.debug
    rows: list[tuple[Cell, ...]] = [
        _row("kernels", len(before.kernels), len(after.kernels)),
        _row("kernels that compute several layers", _fused(before), _fused(after)),
        _row("plan bytes", before.plan_size, after.plan_size),
        _row("weights bytes", before.weights_bytes, after.weights_bytes),
    ]
    for number, (old, new) in enumerate(zip(before.activation_bytes, after.activation_bytes, strict=False)):
        rows.append(_row(f"activation bytes, profile {number}", old, new))
    rows += [
        _row("output bindings", len(before.outputs), len(after.outputs)),
        _row("bytes of output bindings at the largest shapes", before.output_bytes, after.output_bytes),
        _row("activation and output bindings together", _together(before), _together(after)),
        ("seconds to build", round(before.seconds, 2), round(after.seconds, 2), None),
    ]
    columns = ("what", before.variant, after.variant, "change")
    note = "outputs live in bindings of the caller, not in activation memory: look at both together"
    return Section("observer", "what marking changed", columns, tuple(rows), note)


def _row(what: str, before: int | None, after: int | None) -> tuple[Cell, ...]:
    if before is None or after is None:
        return what, before, after, None
    share = f" ({(after - before) / before:+.1%})" if before and after != before else ""
    return what, before, after, f"{after - before:+d}{share}" if after != before else "same"


def _fused(built: Built) -> int:
    return sum(len(kernel.nodes) > 1 for kernel in built.kernels)


def _together(built: Built) -> int | None:
    if built.output_bytes is None or not built.activation_bytes:
        return None
    return max(built.activation_bytes) + built.output_bytes


def _kinds(effect: Effect) -> Section:
    before = Counter(kernel.kind for kernel in effect.production.kernels)
    after = Counter(kernel.kind for kernel in effect.debug.kernels)
    kinds = sorted(before | after, key=lambda kind: (-before[kind], kind))
    rows = tuple(_row(kind, before[kind], after[kind]) for kind in kinds)
    columns = ("type", effect.production.variant, effect.debug.variant, "change")
    return Section("observer-kernels", "kernels by type", columns, rows)


def _splits(effect: Effect) -> Iterator[Section]:
    rows = [
        (split.profile, split.kind, listed(split.layers, NAMED), len(split.now), listed(split.now, NAMED))
        for split in effect.splits
    ]
    columns = ("profile", "type", "layers that were in one kernel", "kernels now", "which")
    return _first_rows("observer-fusions", "fusions lost", columns, rows)


def _new(effect: Effect) -> Iterator[Section]:
    rows = [(added.profile, added.kind, added.name, listed(added.nodes, NAMED)) for added in effect.added]
    title = f"kernels that only {effect.debug.variant} has"
    return _first_rows("observer-added", title, ("profile", "type", "kernel", "layers"), rows)


def _first_rows(
    key: str, title: str, columns: tuple[str, ...], rows: Sequence[tuple[Cell, ...]]
) -> Iterator[Section]:
    """Yield a table if it has rows; of many only the first are shown."""
    if rows:
        left = len(rows) - MOST_ROWS
        note = f"{left} more are not shown" if left > 0 else ""
        yield Section(key, title, columns, tuple(rows[:MOST_ROWS]), note=note)


def _left_out(effect: Effect) -> Iterator[Section]:
    if effect.debug.left_out:
        rows = tuple((tensor.name, tensor.reason) for tensor in effect.debug.left_out[:MOST_ROWS])
        yield Section("left-out", "tensors that could not be marked", ("tensor", "reason"), rows)
