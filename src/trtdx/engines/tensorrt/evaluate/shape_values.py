"""Values that follow from the shapes of a network's inputs alone, kept for the next run with the same shapes.

Half of the layers that TensorRT's parser makes of a decoder do arithmetic on shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.engines.tensorrt.evaluate.control_flow import EvaluationStep, StepBlock, free_unneeded_values
from trtdx.engines.tensorrt.evaluate.kernels import NEVER_FOLDED, LayerKernels
from trtdx.engines.tensorrt.network.graph import TrtGraph, TrtLayer
from trtdx.engines.tensorrt.network.values import memory_owner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.engines.tensorrt.evaluate.network_run import NetworkRun

SHAPED_BY = {  # inputs whose values decide the output's shape
    "FILL": (0,), "ONE_HOT": (2,), "RESIZE": (1,), "SHUFFLE": (1,), "SLICE": (1, 2, 3, 5), "SQUEEZE": (1,),
    "TOPK": (1,), "UNSQUEEZE": (1,),
}  # fmt: skip
SHAPED_BY_DATA = (*NEVER_FOLDED, "NON_ZERO", "NMS")
MOST_SHAPES = 64  # that are remembered
MOST_ELEMENTS = 1 << 16  # in all values for one of them


class EvaluationPlan(msgspec.Struct, eq=False):
    """What to run: all, or the rest where the values that follow from the inputs' shapes are known."""

    full_block: StepBlock
    remaining_block: StepBlock | None = None
    remembered_slots: tuple[int, ...] = ()  # what the rest needs to be told
    values_by_shapes: dict[tuple[tuple[int, ...], ...], list[Any]] = {}
    owners: set[int] = set()  # of the known values' memory

    def recall(self, shapes: tuple[tuple[int, ...], ...], values: list[Any]) -> StepBlock:
        """Return the block to run, having put in place what is known for inputs of these shapes."""
        remembered = self.values_by_shapes.get(shapes)
        if self.remaining_block is None or remembered is None:
            return self.full_block
        for slot, value in zip(self.remembered_slots, remembered, strict=True):
            values[slot] = value
        return self.remaining_block

    def remember(self, shapes: tuple[tuple[int, ...], ...], run: NetworkRun) -> None:
        """Keep what the whole has computed of the foreseen values."""
        if self.remaining_block is None or shapes in self.values_by_shapes:
            return
        shape_values = [run.kept_values[slot] for slot in self.remembered_slots]
        if sum(value.size for value in shape_values) > MOST_ELEMENTS:
            return
        if len(self.values_by_shapes) >= MOST_SHAPES:
            self.values_by_shapes.pop(next(iter(self.values_by_shapes)))
        self.values_by_shapes[shapes] = shape_values
        self.owners = {id(memory_owner(value)) for values in self.values_by_shapes.values() for value in values}


def plan_with_shape_values(
    graph: TrtGraph, kernels: LayerKernels, block: StepBlock, tapped: Iterable[int]
) -> EvaluationPlan:
    """Return a plan for a block; one with loops or conditionals, or that will stop, is always run as a whole."""
    if any(not isinstance(step.unit, TrtLayer) or kernels.is_uncomputable(step.unit) for step in block.steps):
        return EvaluationPlan(block)
    following = _shape_value_slots(graph, kernels, block)
    targets = set(tapped)
    rest = [
        step for step in block.steps if not (set(step.output_slots) <= following) or targets & set(step.output_slots)
    ]
    left_out = {slot for step in block.steps for slot in step.output_slots} - {
        slot for step in rest for slot in step.output_slots
    }
    foreseen = {slot for step in rest for slot in step.input_slots} & left_out
    if not foreseen:
        return EvaluationPlan(block)
    for step in block.steps:
        step.taps = (*step.taps, *(slot for slot in step.output_slots if slot in foreseen))
    block.close()
    copies = [
        EvaluationStep(step.unit, step.input_slots, step.output_slots, step.kernel, None, step.taps) for step in rest
    ]
    fixed = {tensor.slot for tensor in graph.inputs} | kernels.constants.keys()
    return EvaluationPlan(block, free_unneeded_values(StepBlock(copies), fixed), tuple(sorted(foreseen)))


def _shape_value_slots(graph: TrtGraph, kernels: LayerKernels, block: StepBlock) -> set[int]:
    """Return the slots whose values follow from the shapes of the inputs."""
    shaped = {tensor.slot for tensor in graph.inputs} | kernels.constants.keys()  # the shapes follow
    values: set[int] = set()
    for step in block.steps:
        layer = step.unit
        assert isinstance(layer, TrtLayer)
        if layer.kind in SHAPED_BY_DATA:
            continue
        has_value = [not slot or slot in values or slot in kernels.constants for slot in step.input_slots]
        deciding = [has_value[number] for number in SHAPED_BY.get(layer.kind, ()) if number < len(has_value)]
        if all(deciding) and all(not slot or slot in shaped for slot in step.input_slots):
            shaped.update(step.output_slots)
        is_known_shape = layer.kind == "SHAPE" and step.input_slots[0] in shaped
        if is_known_shape or (has_value and all(has_value) and not layer.is_random()):
            values.update(step.output_slots)
    return values
