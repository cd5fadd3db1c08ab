"""The observer effect: what marking tensors changed in the program that is compiled."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from trtdx.engines.tensorrt.build.nouns import BuiltPlan  # msgspec reads it at run time
from trtdx.formats.tensorrt.nouns import Kernel
from trtdx.model import Cell, Section
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MOST_ROWS = 200
_DIGITS = re.compile(r"\d+")
KernelIdentity = tuple[int, str, tuple[str, ...]]
MOST_NAMES = 4


class LostFusion(msgspec.Struct, frozen=True):
    """Layers that one kernel computed together and that several compute now."""

    profile: int
    kernel: str
    kind: str
    layers: tuple[str, ...]
    now: tuple[str, ...]  # the kernels they are in


class ObserverEffect(msgspec.Struct, frozen=True):
    """What a debug variant is like beside the production one."""

    production: BuiltPlan
    debug: BuiltPlan
    splits: tuple[LostFusion, ...]
    added: tuple[Kernel, ...]  # kernels that production has not, such as copies into outputs

    @property
    def changed(self) -> bool:
        """Whether the program is another one; a plan may hold more and still compute the same way."""
        return bool(self.splits) or kernel_identities(self.production) != kernel_identities(self.debug)

    @property
    def summary(self) -> str:
        """Return the effect in one sentence."""
        before, after = len(self.production.kernels), len(self.debug.kernels)
        if not self.changed:
            return f"marking {format_count(len(self.debug.marked), 'tensor')} left all {before} kernels as they were"
        lost = f", and split {len(self.splits)} fused ones" if self.splits else ""
        return f"marking {format_count(len(self.debug.marked), 'tensor')} changed {before} kernels into {after}{lost}"

    def sections(self) -> list[Section]:
        """Return the tables for a report."""
        return [
            _sizes_section(self),
            _kernel_types_section(self),
            *_lost_fusion_sections(self),
            *_added_kernel_sections(self),
            *_unmarked_tensor_sections(self),
        ]


def compare_builds(production: BuiltPlan, debug: BuiltPlan) -> ObserverEffect:
    """Return what marking changed; both are compiled from one definition with the same profiles."""
    splits = tuple(_find_lost_fusions(production.kernels, debug.kernels))
    return ObserverEffect(production, debug, splits, tuple(_find_added_kernels(production.kernels, debug.kernels)))


def kernel_identities(built: BuiltPlan) -> list[KernelIdentity]:
    """Return the kernels without their counters, which change from build to build."""
    return [_kernel_identity(kernel) for kernel in built.kernels]


def _kernel_identity(kernel: Kernel) -> KernelIdentity:
    return kernel.profile, kernel.kind, kernel.nodes or (_DIGITS.sub("", kernel.name),)


def _find_added_kernels(before: Sequence[Kernel], after: Sequence[Kernel]) -> Iterator[Kernel]:
    remaining = Counter(_kernel_identity(kernel) for kernel in before)
    for kernel in after:
        if remaining[_kernel_identity(kernel)]:
            remaining[_kernel_identity(kernel)] -= 1
        else:
            yield kernel


def _find_lost_fusions(before: Sequence[Kernel], after: Sequence[Kernel]) -> Iterator[LostFusion]:
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
        yield LostFusion(kernel.profile, kernel.name, kernel.kind, kernel.nodes, now)


def _sizes_section(effect: ObserverEffect) -> Section:
    before, after = effect.production, effect.debug
    rows: list[tuple[Cell, ...]] = [
        _change_row("kernels", len(before.kernels), len(after.kernels)),
        _change_row("kernels that compute several layers", _count_fused_kernels(before), _count_fused_kernels(after)),
        _change_row("plan bytes", before.plan_size, after.plan_size),
        _change_row("weights bytes", before.weights_bytes, after.weights_bytes),
    ]
    for number, (old, new) in enumerate(zip(before.activation_bytes, after.activation_bytes, strict=False)):
        rows.append(_change_row(f"activation bytes, profile {number}", old, new))
    rows += [
        _change_row("output bindings", len(before.outputs), len(after.outputs)),
        _change_row("bytes of output bindings at the largest shapes", before.output_bytes, after.output_bytes),
        _change_row(
            "activation and output bindings together",
            _activation_and_output_bytes(before),
            _activation_and_output_bytes(after),
        ),
        ("seconds to build", round(before.seconds, 2), round(after.seconds, 2), None),
    ]
    columns = ("what", before.variant, after.variant, "change")
    note = "outputs live in bindings of the caller, not in activation memory: look at both together"
    return Section("observer", "what marking changed", columns, tuple(rows), note)


def _change_row(what: str, before: int | None, after: int | None) -> tuple[Cell, ...]:
    if before is None or after is None:
        return what, before, after, None
    share = f" ({(after - before) / before:+.1%})" if before and after != before else ""
    return what, before, after, f"{after - before:+d}{share}" if after != before else "same"


def _count_fused_kernels(built: BuiltPlan) -> int:
    return sum(len(kernel.nodes) > 1 for kernel in built.kernels)


def _activation_and_output_bytes(built: BuiltPlan) -> int | None:
    if built.output_bytes is None or not built.activation_bytes:
        return None
    return max(built.activation_bytes) + built.output_bytes


def _kernel_types_section(effect: ObserverEffect) -> Section:
    before = Counter(kernel.kind for kernel in effect.production.kernels)
    after = Counter(kernel.kind for kernel in effect.debug.kernels)
    kinds = sorted(before | after, key=lambda kind: (-before[kind], kind))
    rows = tuple(_change_row(kind, before[kind], after[kind]) for kind in kinds)
    columns = ("type", effect.production.variant, effect.debug.variant, "change")
    return Section("observer-kernels", "kernels by type", columns, rows)


def _lost_fusion_sections(effect: ObserverEffect) -> Iterator[Section]:
    rows = [
        (
            split.profile,
            split.kind,
            abbreviate_list(split.layers, MOST_NAMES),
            len(split.now),
            abbreviate_list(split.now, MOST_NAMES),
        )
        for split in effect.splits
    ]
    columns = ("profile", "type", "layers that were in one kernel", "kernels now", "which")
    return _first_rows("observer-fusions", "fusions lost", columns, rows)


def _added_kernel_sections(effect: ObserverEffect) -> Iterator[Section]:
    rows = [(added.profile, added.kind, added.name, abbreviate_list(added.nodes, MOST_NAMES)) for added in effect.added]
    title = f"kernels that only {effect.debug.variant} has"
    return _first_rows("observer-added", title, ("profile", "type", "kernel", "layers"), rows)


def _first_rows(key: str, title: str, columns: tuple[str, ...], rows: Sequence[tuple[Cell, ...]]) -> Iterator[Section]:
    """Yield a table if it has rows; of many only the first are shown."""
    if rows:
        left = len(rows) - MOST_ROWS
        note = f"{left} more are not shown" if left > 0 else ""
        yield Section(key, title, columns, tuple(rows[:MOST_ROWS]), note=note)


def _unmarked_tensor_sections(effect: ObserverEffect) -> Iterator[Section]:
    if effect.debug.left_out:
        rows = tuple((tensor.name, tensor.reason) for tensor in effect.debug.left_out[:MOST_ROWS])
        yield Section("left-out", "tensors that could not be marked", ("tensor", "reason"), rows)
