"""Time by module, with the names that taps have; layers that repeat are one row, and those that stand out are named."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from trtdx.trace.nouns import Category

if TYPE_CHECKING:
    from trtdx.trace.analysis.ledger import TimeLedger

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|(?<=_)\d+(?=\.|$)|^\d+(?=\.)")
OUTLIER = 1.5


class ModuleRow(NamedTuple):
    """The time of one module, or of all that have the same place in their layers."""

    module: str  # "layers.*.mlp"
    modules: int
    time: float
    share: float
    slowest: str  # the one that stands out; empty where none does
    factor: float


def fold_path(path: str) -> str:
    """Return a path with its numbers replaced: the module of any layer."""
    return _NUMBER.sub("*", path)


def module_rows(ledger: TimeLedger) -> list[ModuleRow]:
    """Return the time by folded module, the largest first; each instant counts for the innermost module."""
    times: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for context, time in ledger.by_context.items():
        if context.module and context.category not in (Category.IDLE, Category.QUEUE):
            times[fold_path(context.module)][context.module] += time
    rows = [_row(folded, paths, ledger.wall) for folded, paths in times.items()]
    return sorted(rows, key=lambda row: -row.time)


def _row(folded: str, paths: dict[str, float], wall: float) -> ModuleRow:
    total = sum(paths.values())
    ordered = sorted(paths.values())
    typical = ordered[(len(ordered) - 1) // 2]
    slowest = max(paths, key=paths.__getitem__)
    factor = paths[slowest] / typical if typical else 1.0
    stands_out = len(paths) > 2 and factor > OUTLIER
    return ModuleRow(folded, len(paths), total, total / wall, slowest if stands_out else "", factor)
