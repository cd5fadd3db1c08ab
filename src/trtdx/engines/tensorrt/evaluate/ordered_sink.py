"""Tensors handed on in the order of their places, while a network is computed in its own order."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from trtdx.engines.engine import Array, Seen, Sink
from trtdx.engines.tensorrt.evaluate.schedule import slots_in_branches, varying_slots
from trtdx.engines.tensorrt.network.graph import IN_CONDITIONAL, IN_LOOP, Graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.engines.tensorrt.evaluate.kernels import Kernels
    from trtdx.engines.tensorrt.network.places import Spot


class Line:
    """The places of one step, each waiting for those before it.

    A tensor is held from when it is there until its last place had its turn: what enters a module is told when the
    module begins. Those that may come often or never (in loops and branches, behind a plugin without a reference)
    are no part of the line and handed on at once.
    """

    def __init__(self, spots: Sequence[Spot], unsure: set[str], sink: Sink, step: int) -> None:
        self._sink, self._step = sink, step
        self._waiting = deque(spot for spot in spots if spot.tensor not in unsure)
        self._left = Counter(spot.tensor for spot in self._waiting)
        self._held: dict[str, Array] = {}
        self._aside: dict[str, list[Spot]] = {}
        self._times: Counter[str] = Counter()
        for spot in spots:
            if spot.tensor in unsure:
                self._aside.setdefault(spot.tensor, []).append(spot)

    def show(self, tensor: str, value: Array) -> None:
        """Take a tensor that was just computed."""
        for spot in self._aside.get(tensor, ()):
            self._sink(Seen(spot.place, value, self._step, spot.call + self._times[tensor]))
        self._times[tensor] += 1
        if self._left[tensor]:
            self._held[tensor] = value
            while self._waiting and self._waiting[0].tensor in self._held:
                self._hand_on(self._waiting.popleft())

    def end(self) -> None:
        """Hand on what still waits, because something before it will never come."""
        for spot in self._waiting:
            if spot.tensor in self._held:
                self._hand_on(spot)
        self._waiting.clear()

    def _hand_on(self, spot: Spot) -> None:
        self._sink(Seen(spot.place, self._held[spot.tensor], self._step, spot.call))
        self._left[spot.tensor] -= 1
        if not self._left[spot.tensor]:
            del self._held[spot.tensor]


def unsure_tensors(graph: Graph, kernels: Kernels) -> set[str]:
    """Return the tensors that are computed often or perhaps not at all."""
    slots = set(varying_slots(graph)) | (slots_in_branches(graph) if graph.conditionals else set())
    inner = [layer for layer in graph.layers if layer.kind not in (*IN_LOOP, *IN_CONDITIONAL)]
    missing = {layer.index for layer in inner if kernels.is_missing(layer)}
    if missing:
        slots |= _behind(graph, missing)
    return {graph.tensors[slot].name for slot in slots}


def _behind(graph: Graph, missing: set[int]) -> set[int]:
    """Return what needs the result of some layers."""
    slots: set[int] = set()
    before = -1
    while len(slots) != before:
        before = len(slots)
        for layer in graph.layers:
            if layer.index in missing or any(slot in slots for slot in layer.input_slots()):
                slots.update(layer.output_slots())
    return slots
