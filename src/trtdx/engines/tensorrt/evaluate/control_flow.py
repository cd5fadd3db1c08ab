"""Steps in order, what is inside of them, and when each value can be let go."""

from __future__ import annotations

from typing import Any

import msgspec

from trtdx.engines.tensorrt.network.graph import TrtConditional, TrtLayer, TrtLoop

ScheduledUnit = TrtLayer | TrtLoop | TrtConditional  # what becomes one step


class EvaluationStep(msgspec.Struct, eq=False):
    """One thing to do: run a layer's kernel, a loop or a conditional."""

    unit: ScheduledUnit
    input_slots: tuple[int, ...]
    output_slots: tuple[int, ...]
    kernel: Any = None
    part: LoopBlocks | BranchBlocks | None = None
    taps: tuple[int, ...] = ()  # outputs somebody wants to see
    frees: tuple[int, ...] = ()  # values nobody needs after this step

    def touched_slots(self) -> set[int]:
        """Return every slot that this step, or anything inside it, reads or writes."""
        slots = {*self.input_slots, *self.output_slots}
        for block in self.part.blocks() if self.part else ():
            for step in block.steps:
                slots |= step.touched_slots()
        return slots


class StepBlock(msgspec.Struct, eq=False):
    """Steps in order; a lazy block leaves out what has been computed already."""

    steps: list[EvaluationStep]
    lazy: bool = False
    rows: list[tuple[Any, ...]] = []  # the steps as the walk wants them

    def close(self) -> None:
        """Make the rows, when nothing changes any more: kernel, inputs, the only output or 0, and so on."""
        for step in self.steps:
            for block in step.part.blocks() if step.part else ():
                block.close()
        self.rows = [
            (
                step.kernel,
                step.input_slots,
                step.output_slots[0] if len(step.output_slots) == 1 else 0,
                step.frees,
                step.taps,
                step,
            )
            for step in self.steps
        ]


class LoopBlocks(msgspec.Struct, eq=False):
    """What a loop does."""

    loop: TrtLoop
    before: StepBlock  # what decides whether to go on
    body: StepBlock
    varying: tuple[int, ...]  # slots that hold another value in each iteration

    def blocks(self) -> tuple[StepBlock, ...]:
        return self.before, self.body


class BranchBlocks(msgspec.Struct, eq=False):
    """What a conditional does."""

    conditional: TrtConditional
    taken: StepBlock
    other: StepBlock

    def blocks(self) -> tuple[StepBlock, ...]:
        return self.taken, self.other


def free_unneeded_values(block: StepBlock, fixed: set[int]) -> StepBlock:
    """Return a block whose steps let go of values that nobody needs any more, but for the fixed ones."""
    _mark_last_uses(block, set().union(*(step.touched_slots() for step in block.steps)) - fixed)
    block.close()
    return block


def _mark_last_uses(block: StepBlock, owned: set[int]) -> None:
    """Note at each step which of the values the block owns nobody needs any more."""
    last: dict[int, int] = {}
    times: dict[int, int] = {}
    for number, step in enumerate(block.steps):
        for slot in step.touched_slots() & owned:
            last[slot] = number
            times[slot] = times.get(slot, 0) + 1
    frees: dict[int, list[int]] = {}
    for slot, number in last.items():
        frees.setdefault(number, []).append(slot)
    for number, step in enumerate(block.steps):
        step.frees = tuple(frees.get(number, ()))
        if isinstance(step.part, BranchBlocks):
            branch_inputs = set(step.input_slots)
            for branch in step.part.blocks():
                produced = set().union(*(set(inner.output_slots) for inner in branch.steps)) - branch_inputs
                _mark_last_uses(branch, {slot for slot in produced & owned if times.get(slot) == 1})
        elif isinstance(step.part, LoopBlocks):
            needed = {*step.part.loop.target_slots(), *step.part.loop.input_slots()}
            entries = {layer.outputs[0].slot for layer in step.part.loop.entry_layers()}
            _mark_last_uses(step.part.body, set(step.part.varying) - needed - entries)
