"""Steps in order, what is inside of them, and when each value can be let go."""

from __future__ import annotations

from typing import Any

import msgspec

from trtdx.engines.tensorrt.network.graph import Conditional, Layer, Loop

Unit = Layer | Loop | Conditional  # what becomes one step


class Step(msgspec.Struct, eq=False):
    """One thing to do: run a layer's kernel, a loop or a conditional."""

    unit: Unit
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    kernel: Any = None
    part: LoopPart | BranchPart | None = None
    taps: tuple[int, ...] = ()  # outputs somebody wants to see
    frees: tuple[int, ...] = ()  # values nobody needs after this step

    def touched(self) -> set[int]:
        """Return every slot that this step, or anything inside it, reads or writes."""
        slots = {*self.ins, *self.outs}
        for block in self.part.blocks() if self.part else ():
            for step in block.steps:
                slots |= step.touched()
        return slots


class Block(msgspec.Struct, eq=False):
    """Steps in order; a lazy block leaves out what has been computed already."""

    steps: list[Step]
    lazy: bool = False
    rows: list[tuple[Any, ...]] = []  # the steps as the walk wants them

    def close(self) -> None:
        """Make the rows, when nothing changes any more: kernel, inputs, the only output or 0, and so on."""
        for step in self.steps:
            for block in step.part.blocks() if step.part else ():
                block.close()
        self.rows = [
            (step.kernel, step.ins, step.outs[0] if len(step.outs) == 1 else 0, step.frees, step.taps, step)
            for step in self.steps
        ]


class LoopPart(msgspec.Struct, eq=False):
    """What a loop does."""

    loop: Loop
    before: Block  # what decides whether to go on
    body: Block
    varying: tuple[int, ...]  # slots that hold another value in each iteration

    def blocks(self) -> tuple[Block, ...]:
        return self.before, self.body


class BranchPart(msgspec.Struct, eq=False):
    """What a conditional does."""

    conditional: Conditional
    taken: Block
    other: Block

    def blocks(self) -> tuple[Block, ...]:
        return self.taken, self.other


def freed(block: Block, fixed: set[int]) -> Block:
    """Return a block whose steps let go of values that nobody needs any more, but for the fixed ones."""
    _free(block, set().union(*(step.touched() for step in block.steps)) - fixed)
    block.close()
    return block


def _free(block: Block, owned: set[int]) -> None:
    """Note at each step which of the values the block owns nobody needs any more."""
    last: dict[int, int] = {}
    times: dict[int, int] = {}
    for number, step in enumerate(block.steps):
        for slot in step.touched() & owned:
            last[slot] = number
            times[slot] = times.get(slot, 0) + 1
    frees: dict[int, list[int]] = {}
    for slot, number in last.items():
        frees.setdefault(number, []).append(slot)
    for number, step in enumerate(block.steps):
        step.frees = tuple(frees.get(number, ()))
        if isinstance(step.part, BranchPart):
            branch_inputs = set(step.ins)
            for branch in step.part.blocks():
                produced = set().union(*(set(inner.outs) for inner in branch.steps)) - branch_inputs
                _free(branch, {slot for slot in produced & owned if times.get(slot) == 1})
        elif isinstance(step.part, LoopPart):
            needed = {*step.part.loop.targets(), *step.part.loop.input_slots()}
            entries = {layer.outputs[0].slot for layer in step.part.loop.given()}
            _free(step.part.body, set(step.part.varying) - needed - entries)
