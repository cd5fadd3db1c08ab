"""Fits the one number of a hypothesis that explains most of a difference."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trtdx.compare.attribute.module_bench import ModuleBench, Outputs

PROMISING_SHARE = 0.15  # share from which a search goes on
MOST_BEYOND = 4  # values that are tried beyond the ends of a grid


def fit_scalar(
    bench: ModuleBench,
    values: Iterable[float],
    outputs: Callable[[float], Outputs],
    *,
    logarithmic: bool = True,
    rounds: int = 14,
    exact: Sequence[float] = (),
) -> tuple[float, Outputs]:
    """Return the value of a parameter that explains most: the best of a grid, refined between its neighbours.

    Args:
        bench: what to explain.
        values: the grid.
        outputs: what the module gives with a value.
        logarithmic: whether to look between neighbours on a logarithmic scale.
        rounds: how often to narrow them.
        exact: values that people use; the nearest is taken if it does as well.
    """
    grid = sorted(set(values))
    known: dict[float, float] = {}

    def wrong(value: float) -> float:
        if value not in known:
            known[value] = bench.squared_error(outputs(value))
        return known[value]

    first = min(grid, key=wrong)
    if 1 - known[first] / max(bench.residual, 1e-300) < PROMISING_SHARE:
        return first, outputs(first)
    # What is best at an end may be better beyond it.
    for _ in range(MOST_BEYOND if logarithmic and grid[0] > 0 else 0):
        if len(grid) < 2 or first not in (grid[0], grid[-1]):
            break
        beyond = first * first / (grid[1] if first == grid[0] else grid[-2])
        grid = sorted({*grid, beyond})
        first = min(first, beyond, key=wrong)
    index = grid.index(first)
    low, high = grid[max(0, index - 1)], grid[min(len(grid) - 1, index + 1)]
    turn, back = (math.log, math.exp) if logarithmic and low > 0 else ((lambda x: x), (lambda x: x))
    low, high = turn(low), turn(high)
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(rounds):
        if high - low < 1e-7 * max(1.0, abs(high)):
            break
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if wrong(back(left)) <= wrong(back(right)) else (left, high)
    best_value = min(known, key=lambda value: known[value])
    for nice in sorted((value for value in exact if value > 0), key=lambda value: abs(math.log(value / best_value)))[
        :1
    ]:
        if wrong(nice) <= 1.05 * known[best_value] + bench.noise:
            best_value = nice
    return best_value, outputs(best_value)
