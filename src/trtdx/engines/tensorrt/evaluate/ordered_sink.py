"""Tensors handed on in the order of their places, while a network is computed in its own order."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from trtdx.engines.engine import Array, Sink, TappedTensor
from trtdx.engines.tensorrt.evaluate.schedule import slots_in_branches, varying_slots
from trtdx.engines.tensorrt.network.graph import CONDITIONAL_KINDS, LOOP_KINDS, TrtGraph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.engines.tensorrt.evaluate.kernels import LayerKernels
    from trtdx.engines.tensorrt.network.places import TensorPlace


class OrderedSink:
    """The places of one step, each waiting for those before it.

    A tensor is held from when it is there until its last place had its turn: what enters a module is told when the
    module begins. Those that may come often or never (in loops and branches, behind a plugin without a reference)
    are no part of the line and handed on at once.
    """

    def __init__(self, spots: Sequence[TensorPlace], unsure: set[str], sink: Sink, step: int) -> None:
        self._sink, self._step = sink, step
        self._waiting = deque(spot for spot in spots if spot.tensor not in unsure)
        self._places_left = Counter(spot.tensor for spot in self._waiting)
        self._waiting_values: dict[str, Array] = {}
        self._unordered: dict[str, list[TensorPlace]] = {}
        self._times_shown: Counter[str] = Counter()
        for spot in spots:
            if spot.tensor in unsure:
                self._unordered.setdefault(spot.tensor, []).append(spot)

    def show(self, tensor: str, value: Array) -> None:
        """Take a tensor that was just computed."""
        for spot in self._unordered.get(tensor, ()):
            self._sink(TappedTensor(spot.place, value, self._step, spot.call + self._times_shown[tensor]))
        self._times_shown[tensor] += 1
        if self._places_left[tensor]:
            self._waiting_values[tensor] = value
            while self._waiting and self._waiting[0].tensor in self._waiting_values:
                self._emit_place(self._waiting.popleft())

    def flush(self) -> None:
        """Hand on what still waits, because something before it will never come."""
        for spot in self._waiting:
            if spot.tensor in self._waiting_values:
                self._emit_place(spot)
        self._waiting.clear()

    def _emit_place(self, spot: TensorPlace) -> None:
        self._sink(TappedTensor(spot.place, self._waiting_values[spot.tensor], self._step, spot.call))
        self._places_left[spot.tensor] -= 1
        if not self._places_left[spot.tensor]:
            del self._waiting_values[spot.tensor]


def find_unsure_tensors(graph: TrtGraph, kernels: LayerKernels) -> set[str]:
    """Return the tensors that are computed often or perhaps not at all."""
    slots = set(varying_slots(graph)) | (slots_in_branches(graph) if graph.conditionals else set())
    inner = [layer for layer in graph.layers if layer.kind not in (*LOOP_KINDS, *CONDITIONAL_KINDS)]
    missing = {layer.index for layer in inner if kernels.is_uncomputable(layer)}
    if missing:
        slots |= _slots_behind_layers(graph, missing)
    return {graph.tensors[slot].name for slot in slots}


def _slots_behind_layers(graph: TrtGraph, missing: set[int]) -> set[int]:
    """Return what needs the result of some layers."""
    slots: set[int] = set()
    before = -1
    while len(slots) != before:
        before = len(slots)
        for layer in graph.layers:
            if layer.index in missing or any(slot in slots for slot in layer.input_slots()):
                slots.update(layer.output_slots())
    return slots
