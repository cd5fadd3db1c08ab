"""From a graph to steps in an order that data can flow in.

A block is a list of steps. Most steps are one layer. A loop is one step with a block for what is done again in
each iteration; a conditional is one step with a block for each branch, of which one is run. What a loop's body
needs and never changes is computed before the loop. What only a branch needs is computed when that branch is
taken, unless it has been computed already.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from trtdx.engines.tensorrt.evaluate.control_flow import (
    BranchBlocks,
    EvaluationStep,
    LoopBlocks,
    ScheduledUnit,
    StepBlock,
    free_unneeded_values,
)
from trtdx.engines.tensorrt.network.graph import TrtConditional, TrtGraph, TrtLayer, TrtLoop
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.engines.tensorrt.evaluate.kernels import LayerKernels


class StepScheduler:
    """Makes the block for one set of wanted tensors.

    Where some tensors are given, the wanted ones alone are computed, from those.
    """

    def __init__(
        self,
        graph: TrtGraph,
        kernels: LayerKernels,
        tapped: set[int],
        known_slots: frozenset[int] = frozenset(),
    ) -> None:
        self.graph = graph
        self.kernels = kernels
        self.tapped = tapped
        self.in_branches = slots_in_branches(graph) if graph.conditionals else set()
        self.varies = varying_slots(graph)
        self.producers = {slot: unit for slot, unit in _unit_by_slot(graph).items() if slot not in known_slots}
        self.is_partial = bool(known_slots)
        self.bodies: dict[int, tuple[list[ScheduledUnit], set[int]]] = {}
        self.uncomputable: set[int] = set()  # slots that cannot be computed: there is no kernel for what makes them
        self.scheduled_units: set[int] = set()  # ids of units that come, for sure, before the step being made

    def schedule_block(self) -> StepBlock:
        """Return the steps that compute the network's outputs and what is tapped from the network's inputs."""
        outputs = () if self.is_partial else (tensor.slot for tensor in self.graph.outputs)
        targets = [*outputs, *(self.tapped - self.in_branches)]
        outer_targets = [slot for slot in targets if not self.varies.get(slot)]
        inside = {loop for slot in targets for loop in self.varies.get(slot, ()) if not self._enclosing_loops(loop)}
        assertions = (layer for layer in self.graph.layers if layer.kind == "ASSERTION" and not self.is_partial)
        checks = [layer for layer in assertions if self._is_outermost(layer)]
        units, _ = self._units_behind(outer_targets, None, [*checks, *(self.graph.loops[loop] for loop in inside)])
        block = StepBlock(self._steps_from_units(units))
        if self.uncomputable:  # then it will stop, and whoever looks at what there was wants all of it
            block.close()
            return block
        return free_unneeded_values(
            block, {tensor.slot for tensor in self.graph.inputs} | self.kernels.constants.keys()
        )

    def _is_outermost(self, layer: TrtLayer) -> bool:
        return all(slot not in self.in_branches and not self.varies.get(slot) for slot in layer.input_slots())

    def _units_behind(
        self, targets: Iterable[int], loop: int | None, more: Iterable[ScheduledUnit] = ()
    ) -> tuple[list[ScheduledUnit], set[int]]:
        """Return the units behind the targets in order, and what a loop's body needs from outside of it."""
        edges: dict[int, tuple[ScheduledUnit, list[int]]] = {}
        outside: set[int] = set()
        waiting: list[ScheduledUnit] = list(more)

        def look_at(slot: int) -> None:
            if loop is not None and loop not in self.varies.get(slot, ()):
                outside.add(slot)
            elif slot in self.producers and id(self.producers[slot]) not in self.scheduled_units:
                waiting.append(self.producers[slot])

        for slot in targets:
            look_at(slot)
        while waiting:
            unit = waiting.pop()
            if id(unit) in edges:
                continue
            needs = self._slots_needed_by(unit)
            edges[id(unit)] = (unit, needs)
            for slot in needs:
                look_at(slot)
        return self._sort_units(edges), outside

    def _slots_needed_by(self, unit: ScheduledUnit) -> list[int]:
        """Return what has to be there before a unit can start."""
        if isinstance(unit, TrtLayer):
            return [tensor.slot for tensor in unit.inputs if tensor]
        if isinstance(unit, TrtConditional):
            return unit.input_slots()
        number = self.graph.loops.index(unit)
        border = [slot for slot in unit.input_slots() if number not in self.varies.get(slot, ())]
        return [*border, *self._loop_body(number)[1]]

    def _loop_body(self, number: int) -> tuple[list[ScheduledUnit], set[int]]:
        """Return the units a loop runs in each iteration, and what they need from outside."""
        if number not in self.bodies:
            loop = self.graph.loops[number]
            tapped = [slot for slot in self.tapped - self.in_branches if number in self.varies.get(slot, ())]
            inner = {
                varying_loop: self._is_inside_loop(varying_loop, number)
                for slot in tapped
                for varying_loop in self.varies[slot]
            }
            direct = [slot for slot in tapped if not any(inner[varying_loop] for varying_loop in self.varies[slot])]
            nested = [self.graph.loops[varying_loop] for varying_loop, is_inside in inner.items() if is_inside]
            self.bodies[number] = self._units_behind([*loop.target_slots(), *direct], number, nested)
        return self.bodies[number]

    def _enclosing_loops(self, number: int) -> frozenset[int]:
        """Return the loops that a loop as a whole is inside of."""
        slots = self.graph.loops[number].input_slots()
        return frozenset().union(*(self.varies.get(slot, frozenset()) for slot in slots)) - {number}

    def _is_inside_loop(self, inner: int, outer: int) -> bool:
        return inner != outer and outer in self._enclosing_loops(inner)

    def _sort_units(self, edges: dict[int, tuple[ScheduledUnit, list[int]]]) -> list[ScheduledUnit]:
        """Return units so that each comes after what it needs: as the network has them, the doomed last."""
        blockers = dict.fromkeys(edges, 0)
        followers: dict[int, list[int]] = {}
        for key, (_, needs) in edges.items():
            for behind in {id(self.producers[slot]) for slot in needs if slot in self.producers}:
                if behind in edges and behind != key:
                    blockers[key] += 1
                    followers.setdefault(behind, []).append(key)
        ready = [(self._sort_key(*edges[key]), key) for key, count in blockers.items() if not count]
        heapq.heapify(ready)
        order: list[ScheduledUnit] = []
        while ready:
            _, key = heapq.heappop(ready)
            order.append(edges[key][0])
            for follower in followers.get(key, ()):
                blockers[follower] -= 1
                if not blockers[follower]:
                    heapq.heappush(ready, (self._sort_key(*edges[follower]), follower))
        if len(order) < len(edges):
            stuck = next(unit for unit, _ in edges.values() if unit not in order)
            raise InputError(f"the layers form a cycle: {stuck.name!r} depends on itself")
        return order

    def _sort_key(self, unit: ScheduledUnit, needs: list[int]) -> tuple[bool, int]:
        """Return what to order units by, having noted those that cannot be computed."""
        missing = isinstance(unit, TrtLayer) and self.kernels.is_uncomputable(unit)
        doomed = missing or any(slot in self.uncomputable for slot in needs)
        if doomed:
            self.uncomputable.update(unit.output_slots())
        return doomed, _unit_index(unit)

    def _steps_from_units(self, units: list[ScheduledUnit]) -> list[EvaluationStep]:
        steps = []
        for unit in units:
            if isinstance(unit, TrtLayer):
                if not self.kernels.fold_layer(unit):
                    steps.append(self._layer_step(unit))
            elif isinstance(unit, TrtConditional):
                steps.append(self._branch_step(unit))
            else:
                steps.append(self._loop_step(unit))
            self.scheduled_units.add(id(unit))
        return steps

    def _inner_block(self, units: list[ScheduledUnit], *, lazy: bool) -> StepBlock:
        """Return a block inside a step; nobody outside can count on what it computes."""
        before = set(self.scheduled_units)
        block = StepBlock(self._steps_from_units(units), lazy)
        self.scheduled_units = before
        return block

    def _tapped_among(self, slots: Iterable[int]) -> tuple[int, ...]:
        return tuple(slot for slot in slots if slot in self.tapped)

    def _layer_step(self, layer: TrtLayer) -> EvaluationStep:
        outs = layer.output_slots()
        kernel = None if layer.kind == "DIST_COLLECTIVE" else self.kernels.kernel_of(layer)
        return EvaluationStep(layer, layer.input_slots(), outs, kernel, None, self._tapped_among(outs))

    def _loop_step(self, loop: TrtLoop) -> EvaluationStep:
        number = self.graph.loops.index(loop)
        units, outside = self._loop_body(number)
        first, _ = self._units_behind(loop.condition_slots(), number)
        varying = tuple(slot for slot, loops in self.varies.items() if number in loops)
        blocks = self._inner_block(first, lazy=False), self._inner_block(units, lazy=bool(first))
        part = LoopBlocks(loop, *blocks, varying)
        outs = loop.output_slots()
        return EvaluationStep(loop, tuple({*loop.input_slots(), *outside}), outs, None, part, self._tapped_among(outs))

    def _branch_step(self, conditional: TrtConditional) -> EvaluationStep:
        ends = [layer.input_slots() for layer in conditional.outputs]
        blocks = [
            self._inner_block(self._units_behind([end[side] for end in ends], None)[0], lazy=True) for side in (0, 1)
        ]
        outs = conditional.output_slots()
        ins = (*(tensor.slot for tensor in conditional.conditions), *(slot for end in ends for slot in end))
        return EvaluationStep(
            conditional, ins, outs, None, BranchBlocks(conditional, *blocks), self._tapped_among(outs)
        )


def varying_slots(graph: TrtGraph) -> dict[int, frozenset[int]]:
    """Return, for each slot inside loops, the numbers of those loops."""
    varies: dict[int, frozenset[int]] = {}
    if not graph.loops:
        return varies
    borders = {id(layer): number for number, loop in enumerate(graph.loops) for layer in loop.entry_layers()}
    ends = {id(layer): number for number, loop in enumerate(graph.loops) for layer, _, _ in loop.outputs}
    branches = {id(layer): conditional for conditional in graph.conditionals for layer in conditional.outputs}

    def loops_around(layer: TrtLayer) -> frozenset[int]:
        slots = list(layer.input_slots())
        if id(layer) in ends:
            slots += graph.loops[ends[id(layer)]].input_slots()
        if id(layer) in branches:
            slots += [tensor.slot for tensor in branches[id(layer)].conditions]
        loops = frozenset().union(*(varies.get(slot, frozenset()) for slot in slots))
        if id(layer) in borders:
            return loops | {borders[id(layer)]}
        return loops - {ends[id(layer)]} if id(layer) in ends else loops

    changed = True
    while changed:
        changed = False
        for layer in graph.layers:
            loops = loops_around(layer)
            for tensor in layer.outputs:
                if loops - varies.get(tensor.slot, frozenset()):
                    varies[tensor.slot] = varies.get(tensor.slot, frozenset()) | loops
                    changed = True
    return varies


def slots_in_branches(graph: TrtGraph) -> set[int]:
    """Return the slots that only a branch of a conditional needs."""
    makers = {tensor.slot: layer for layer in graph.layers for tensor in layer.outputs}
    branches = {id(layer): conditional for conditional in graph.conditionals for layer in conditional.outputs}
    loops = {id(layer): loop for loop in graph.loops for layer, _, _ in loop.outputs}

    def behind(slots: Iterable[int], into_branches: bool) -> set[int]:
        visited: set[int] = set()
        waiting = list(slots)
        while waiting:
            slot = waiting.pop()
            if slot in visited:
                continue
            visited.add(slot)
            layer = makers.get(slot)
            if layer is None:
                continue
            conditional = branches.get(id(layer))
            if conditional is not None:
                waiting += conditional.input_slots()
            if conditional is None or into_branches:
                waiting += layer.input_slots()
            if id(layer) in loops:
                waiting += loops[id(layer)].input_slots()
        return visited

    sources = [
        slot for conditional in graph.conditionals for layer in conditional.outputs for slot in layer.input_slots()
    ]
    outputs = [tensor.slot for tensor in graph.outputs]
    return behind(sources, into_branches=True) - behind(outputs, into_branches=False)


def _unit_by_slot(graph: TrtGraph) -> dict[int, ScheduledUnit]:
    producers: dict[int, ScheduledUnit] = {}
    for layer in graph.layers:
        producers.update((tensor.slot, layer) for tensor in layer.outputs)
    for loop in graph.loops:
        for layer in loop.entry_layers():  # the loop itself puts these in place
            producers.pop(layer.outputs[0].slot)
        producers.update((slot, loop) for slot in loop.output_slots())
    for conditional in graph.conditionals:
        producers.update((slot, conditional) for slot in conditional.output_slots())
    return producers


def _unit_index(unit: ScheduledUnit) -> int:
    if isinstance(unit, TrtLayer):
        return unit.index
    layers = unit.outputs if isinstance(unit, TrtConditional) else [layer for layer, _, _ in unit.outputs]
    return max((layer.index for layer in layers), default=0)
