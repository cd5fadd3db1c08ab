"""The walk over steps: computes, shows and forgets values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from trtdx.engines.errors import EvaluationError, LayerError
from trtdx.engines.tensorrt.evaluate.control_flow import BranchBlocks, EvaluationStep, LoopBlocks, StepBlock
from trtdx.engines.tensorrt.network.graph import TrtLayer, TrtLoop
from trtdx.engines.tensorrt.network.values import trt_numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable


class CollectiveExchange(msgspec.Struct, eq=False):
    """What a rank brings to a collective; it goes on with what is sent back."""

    layer: TrtLayer
    value: Any


class NetworkRun:
    """One computation: the values there are now by slot, and those somebody wants to keep.

    Where `lasting` is told, a layer with something tapped is yielded and only what is lasting is kept.
    """

    def __init__(
        self,
        values: list[Any],
        tapped: frozenset[int],
        watched: bool = False,
        lasting: frozenset[int] | None = None,
    ) -> None:
        self.values = values
        self.watched = watched  # whether all layers are to be yielded
        self.tapped = tapped
        self.lasting = lasting
        self.kept_values: dict[int, Any] = {}

    def walk_block(self, block: StepBlock) -> Generator[TrtLayer | CollectiveExchange, Any, None]:
        """Run a block; yield each layer while its outputs are there, and what goes to other ranks."""
        values, lazy, watched, passing = self.values, block.lazy, self.watched, self.lasting is not None
        step = None
        try:
            for kernel, ins, out, frees, taps, step in block.rows:
                if lazy and self.has_outputs(step):
                    continue
                if kernel is None:
                    yield from self.run_without_kernel(step)
                    continue
                output = kernel(*[values[slot] for slot in ins])
                if out:
                    values[out] = output
                else:
                    self.store_outputs(step, output)
                if taps:
                    self.keep_taps(step)
                if watched or (passing and taps):
                    yield step.unit
                for slot in frees:
                    values[slot] = None
        except Exception as err:
            raise _error_with_layer(err, step, values) from err

    def has_outputs(self, step: EvaluationStep) -> bool:
        """Return whether a step's outputs are there already."""
        return bool(step.output_slots) and self.values[step.output_slots[0]] is not None

    def store_outputs(self, step: EvaluationStep, outputs: tuple[Any, ...]) -> None:
        for slot, value in zip(step.output_slots, outputs, strict=True):
            self.values[slot] = value

    def keep_taps(self, step: EvaluationStep) -> None:
        self.keep_slots(step.taps)

    def keep_slots(self, slots: Iterable[int]) -> None:
        self.kept_values.update(
            (slot, self.values[slot]) for slot in slots if self.lasting is None or slot in self.lasting
        )

    def run_without_kernel(self, step: EvaluationStep) -> Generator[TrtLayer | CollectiveExchange, Any, None]:
        if isinstance(step.part, BranchBlocks):
            yield from self.run_branch(step, step.part)
        elif isinstance(step.part, LoopBlocks):
            yield from self.run_loop(step, step.part)
        else:
            assert isinstance(step.unit, TrtLayer)
            self.values[step.output_slots[0]] = yield CollectiveExchange(step.unit, self.values[step.input_slots[0]])
            self.keep_taps(step)
            yield step.unit
        for slot in step.frees:
            self.values[slot] = None

    def run_branch(
        self, step: EvaluationStep, part: BranchBlocks
    ) -> Generator[TrtLayer | CollectiveExchange, Any, None]:
        """Run the branch that the condition chooses."""
        values = self.values
        is_true = all(values[tensor.slot].item() for tensor in part.conditional.conditions)
        yield from self.walk_block(part.taken if is_true else part.other)
        for layer in part.conditional.outputs:
            values[layer.outputs[0].slot] = values[layer.input_slots()[0 if is_true else 1]]
        self.keep_taps(step)
        yield from part.conditional.outputs

    def run_loop(self, step: EvaluationStep, part: LoopBlocks) -> Generator[TrtLayer | CollectiveExchange, Any, None]:
        """Run a loop until its count is reached or a condition of it is false."""
        values, loop = self.values, part.loop
        count = min((values[tensor.slot].item() for kind, tensor in loop.limits if kind == "COUNT"), default=None)
        state = [values[layer.input_slots()[0]] for layer in loop.recurrences]
        sources = [values[layer.input_slots()[0]] for layer, _, _ in loop.iterators]
        collected: list[list[Any]] = [[] for _ in loop.outputs]
        trip = 0
        while True:
            self.start_iteration(part, state)
            if count is not None and trip >= count:
                break
            yield from self.walk_block(part.before)
            if not all(values[slot].item() for slot in loop.condition_slots()):
                break
            self.set_iterator_slices(loop, sources, trip, count)
            yield from loop.recurrences
            yield from (layer for layer, _, _ in loop.iterators)
            yield from self.walk_block(part.body)
            for (layer, kind, _), parts in zip(loop.outputs, collected, strict=True):
                if kind == "LAST_VALUE":
                    parts.clear()
                parts.append(values[layer.input_slots()[0]])
            state = [values[layer.input_slots()[1]] for layer in loop.recurrences]
            trip += 1
        recurring = {layer.outputs[0].slot for layer in loop.recurrences}
        for (layer, kind, axis), parts in zip(loop.outputs, collected, strict=True):
            if kind == "LAST_VALUE" and layer.input_slots()[0] in recurring:
                parts = [values[layer.input_slots()[0]]]
            values[layer.outputs[0].slot] = self.loop_output(layer, kind, axis, parts)
        self.keep_taps(step)
        yield from (layer for layer, _, _ in loop.outputs)

    def start_iteration(self, part: LoopBlocks, state: list[Any]) -> None:
        for slot in part.varying:
            self.values[slot] = None
        for layer, value in zip(part.loop.recurrences, state, strict=True):
            self.values[layer.outputs[0].slot] = value

    def set_iterator_slices(self, loop: TrtLoop, sources: list[Any], trip: int, count: int | None) -> None:
        """Put in place the slices that this iteration looks at."""
        for (layer, axis, backward), source in zip(loop.iterators, sources, strict=True):
            place = (count or source.shape[axis]) - 1 - trip if backward else trip
            self.values[layer.outputs[0].slot] = np.asarray(source[(*[slice(None)] * axis, place)])
        entries = (layer.outputs[0].slot for layer in loop.entry_layers())
        self.keep_slots(slot for slot in entries if slot in self.tapped)

    def loop_output(self, layer: TrtLayer, kind: str, axis: int, parts: list[Any]) -> Any:
        """Return what a loop hands out: the last value, or all of them along a new axis."""
        if kind == "LAST_VALUE":
            if not parts:
                raise LayerError(f"the loop ends before {layer.name!r} has a value", layer=layer.name)
            return parts[0]
        length = self.values[layer.input_slots()[1]].item()
        if not parts:
            return _empty_loop_output(layer, axis, length)
        ordered = parts[::-1] if kind == "REVERSE" else parts
        missing = [np.zeros_like(parts[0])] * (length - len(parts))  # TensorRT leaves these undefined
        return np.stack([*ordered, *missing], axis)


def _empty_loop_output(layer: TrtLayer, axis: int, length: int) -> Any:
    """Return what a loop without iterations hands out."""
    shape = [max(size, 0) for size in layer.trt.get_output(0).shape]
    shape[axis] = length
    return np.zeros(shape, trt_numpy_dtype(layer.outputs[0].dtype))


def _error_with_layer(err: Exception, step: EvaluationStep | None, values: list[Any]) -> EvaluationError:
    """Return an error that says which layer could not be computed, and with what."""
    if isinstance(err, EvaluationError):
        err.layer = err.layer or (step.unit.name if step else "")
        return err
    if step is None or not isinstance(step.unit, TrtLayer):
        return LayerError(f"the network cannot be computed: {err}")
    layer = step.unit
    shapes = [list(values[slot].shape) if values[slot] is not None else None for slot in layer.input_slots()]
    return LayerError(
        f"layer {layer.name!r} ({layer.kind}) cannot be computed from inputs of shape {shapes}: {err}",
        layer=layer.name,
    )
