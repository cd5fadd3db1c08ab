"""Values that follow from the shapes of a network's inputs alone, kept for the next run with the same shapes.

Half of the layers that TensorRT's parser makes of a decoder do arithmetic on shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.engines.tensorrt.evaluate.control_flow import Block, Step, freed
from trtdx.engines.tensorrt.evaluate.kernels import NEVER_FOLDED, Kernels
from trtdx.engines.tensorrt.network.graph import Graph, Layer
from trtdx.engines.tensorrt.network.values import owner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.engines.tensorrt.evaluate.walk import Run

SHAPED_BY = {  # inputs whose values decide the output's shape
    "FILL": (0,), "ONE_HOT": (2,), "RESIZE": (1,), "SHUFFLE": (1,), "SLICE": (1, 2, 3, 5), "SQUEEZE": (1,),
    "TOPK": (1,), "UNSQUEEZE": (1,),
}  # fmt: skip
SHAPED_BY_DATA = (*NEVER_FOLDED, "NON_ZERO", "NMS")
MOST_SHAPES = 64  # that are remembered
MOST_ELEMENTS = 1 << 16  # in all values for one of them


class Plan(msgspec.Struct, eq=False):
    """What to run: all, or the rest where the values that follow from the inputs' shapes are known."""

    whole: Block
    rest: Block | None = None
    foreseen: tuple[int, ...] = ()  # what the rest needs to be told
    known: dict[tuple[tuple[int, ...], ...], list[Any]] = {}
    owners: set[int] = set()  # of the known values' memory

    def recall(self, shapes: tuple[tuple[int, ...], ...], values: list[Any]) -> Block:
        """Return the block to run, having put in place what is known for inputs of these shapes."""
        remembered = self.known.get(shapes)
        if self.rest is None or remembered is None:
            return self.whole
        for slot, value in zip(self.foreseen, remembered, strict=True):
            values[slot] = value
        return self.rest

    def remember(self, shapes: tuple[tuple[int, ...], ...], run: Run) -> None:
        """Keep what the whole has computed of the foreseen values."""
        if self.rest is None or shapes in self.known:
            return
        shape_values = [run.kept[slot] for slot in self.foreseen]
        if sum(value.size for value in shape_values) > MOST_ELEMENTS:
            return
        if len(self.known) >= MOST_SHAPES:
            self.known.pop(next(iter(self.known)))
        self.known[shapes] = shape_values
        self.owners = {id(owner(value)) for values in self.known.values() for value in values}


def plan_with_foresight(graph: Graph, kernels: Kernels, block: Block, tapped: Iterable[int]) -> Plan:
    """Return a plan for a block; one with loops or conditionals, or that will stop, is always run as a whole."""
    if any(not isinstance(step.unit, Layer) or kernels.is_missing(step.unit) for step in block.steps):
        return Plan(block)
    following = _following(graph, kernels, block)
    targets = set(tapped)
    rest = [step for step in block.steps if not (set(step.outs) <= following) or targets & set(step.outs)]
    left_out = {slot for step in block.steps for slot in step.outs} - {
        slot for step in rest for slot in step.outs
    }
    foreseen = {slot for step in rest for slot in step.ins} & left_out
    if not foreseen:
        return Plan(block)
    for step in block.steps:
        step.taps = (*step.taps, *(slot for slot in step.outs if slot in foreseen))
    block.close()
    copies = [Step(step.unit, step.ins, step.outs, step.kernel, None, step.taps) for step in rest]
    fixed = {tensor.slot for tensor in graph.inputs} | kernels.constants.keys()
    return Plan(block, freed(Block(copies), fixed), tuple(sorted(foreseen)))


def _following(graph: Graph, kernels: Kernels, block: Block) -> set[int]:
    """Return the slots whose values follow from the shapes of the inputs."""
    shaped = {tensor.slot for tensor in graph.inputs} | kernels.constants.keys()  # the shapes follow
    values: set[int] = set()
    for step in block.steps:
        layer = step.unit
        assert isinstance(layer, Layer)
        if layer.kind in SHAPED_BY_DATA:
            continue
        has_value = [not slot or slot in values or slot in kernels.constants for slot in step.ins]
        deciding = [has_value[number] for number in SHAPED_BY.get(layer.kind, ()) if number < len(has_value)]
        if all(deciding) and all(not slot or slot in shaped for slot in step.ins):
            shaped.update(step.outs)
        is_known_shape = layer.kind == "SHAPE" and step.ins[0] in shaped
        if is_known_shape or (has_value and all(has_value) and not layer.is_random()):
            values.update(step.outs)
    return values
