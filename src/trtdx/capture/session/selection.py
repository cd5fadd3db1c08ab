"""What of a run is to be kept: which steps, which tokens, whose values, and when to stop."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import InputError
from trtdx.tensors.taps import parse_selector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.tensors.taps import Place, Selector

_RANGE = re.compile(r"(\d+)(?:(-)(\d*))?")
# Of tokens: [batch, tokens, ...], packed [tokens, ...], [batch, heads, tokens, ...].
_LIKELY_AXES = (1, 0, 2, 3, 4)


class StepRanges(NamedTuple):
    """Steps chosen as ranges, both ends included: "0,5-9,20-"."""

    ranges: tuple[tuple[int, int | None], ...] = ()

    def has(self, step: int) -> bool:
        if not self.ranges:
            return True
        return any(first <= step and (last is None or step <= last) for first, last in self.ranges)


def parse_steps(text: str) -> StepRanges:
    """Return the steps a text chooses; none named means all."""
    ranges = []
    for part in text.replace(" ", "").split(","):
        if not part:
            continue
        match = _RANGE.fullmatch(part)
        if match is None:
            raise InputError(f"{part!r} is not a choice of steps", fix="write steps as 0,5-9,20-")
        first = int(match[1])
        ranges.append((first, int(match[3]) if match[3] else None if match[2] else first))
    return StepRanges(tuple(ranges))


def parse_positions(text: str) -> tuple[int, ...]:
    """Return token positions; a negative one counts from the last token of each step."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as err:
        raise InputError(f"{text!r} is not a list of positions", fix="write positions as 0,17,-1") from err


def check_value_selector(values: str, selector: str, places: Sequence[Place], *, sure: bool) -> None:
    """Raise if values are wanted of places that are not there, or that nobody looks at.

    Args:
        values: the selector of what to keep; none is fine.
        selector: of what is looked at.
        places: all there are.
        sure: whether types and names of places are known before a run.
    """
    if not values:
        return
    keeps, looks = parse_selector(values), parse_selector(selector)
    chosen = keeps.select(places) or ([] if sure else keeps.candidates(places))
    if not chosen:
        raise keeps.nothing_selected_error(places)
    if set(chosen).isdisjoint(looks.select(places) if sure else looks.candidates(places)):
        raise InputError(
            f"nothing that is tapped is selected by {values!r} as values to keep",
            fix=f"tap it too: {selector}, {values}" if "!" not in selector + values else "tap it too",
        )


class CaptureSelection(NamedTuple):
    """What of a run is to be kept.

    Attributes:
        values: whose values to keep; of everything else only statistics are.
        steps: which steps are captured.
        every: only each Nth of them, counted from step 0.
        positions: which token positions are captured; all where there is none. Statistics are then of these alone.
        watch: stop at the first tensor with a NaN or an infinity that no mask put there.
    """

    values: Selector | None = None
    steps: StepRanges = StepRanges()
    every: int = 1
    positions: tuple[int, ...] = ()
    watch: bool = False

    @classmethod
    def from_texts(cls, values: str, steps: str, every: int, positions: str, watch: bool) -> CaptureSelection:
        """Return what the options of a run ask for."""
        selector = parse_selector(values) if values else None
        return cls(selector, parse_steps(steps), every, parse_positions(positions), watch)

    def has_step(self, step: int) -> bool:
        return self.steps.has(step) and step % self.every == 0


class TokenPositions(NamedTuple):
    """Which positions of the sequence a step computes."""

    first: int
    length: int

    def columns_at(self, positions: Sequence[int]) -> list[int]:
        """Return which of a step's own columns are the positions asked for."""
        columns = (position + self.length if position < 0 else position - self.first for position in positions)
        return sorted({column for column in columns if 0 <= column < self.length})

    def axis_in(self, shape: Sequence[int]) -> int | None:
        """Return the axis along which the tokens lie, by its length; None if nothing has it."""
        return next((axis for axis in _LIKELY_AXES if axis < len(shape) and shape[axis] == self.length), None)


def select_columns(tensor: Any, axis: int, columns: Sequence[int]) -> Any:
    """Return a tensor's part at some columns, as an array or torch tensor like it."""
    if hasattr(tensor, "index_select"):
        return tensor.index_select(axis, tensor.new_tensor(columns).long())
    return tensor.take(columns, axis)
