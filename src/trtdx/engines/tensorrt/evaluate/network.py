"""A network definition computed on the CPU, layer by layer, with every tensor to look at.

What comes back is what the definition says in float32 arithmetic, rounded to each layer's output type once. An
engine built from it may fuse layers and round less often, or more coarsely (TF32): compare with a tolerance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.errors import EvaluationError
from trtdx.engines.tensorrt.evaluate.collectives import Collective, alone
from trtdx.engines.tensorrt.evaluate.kernels import Kernels
from trtdx.engines.tensorrt.evaluate.schedule import Planner
from trtdx.engines.tensorrt.evaluate.shape_values import Plan, plan_with_foresight
from trtdx.engines.tensorrt.evaluate.walk import Exchange, Run
from trtdx.engines.tensorrt.network.graph import Layer, Tensor, graph_from_network
from trtdx.engines.tensorrt.network.values import Array, owner, shape_matches, value_from_given
from trtdx.engines.torch.lazy import torch
from trtdx.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.evaluate.control_flow import Block

Taps = Collection[str] | str | None
Plugins = Mapping[str | tuple[str, str], Callable[..., Any]]


def evaluate(
    network: Any,
    inputs: Mapping[str, Any],
    taps: Taps = None,
    *,
    plugins: Plugins | None = None,
    collectives: Mapping[str, Collective] | None = None,
) -> dict[str, Array]:
    """Return a network's outputs, and the tensors tapped, by name.

    Args:
        network: an INetworkDefinition of `tensorrt` or `tensorrt_rtx`, or what `prepare_network` made of one.
        inputs: an array for each input of the network, in the network's types.
        taps: names of tensors or layers to see as well, or "all". A tensor inside a loop comes back as it was in
            the last iteration; one inside a branch that was not taken does not come back.
        plugins: for a plugin's name, or its name and version, a function from input arrays to output arrays. One
            that has a parameter called `layer` is told the layer.
        collectives: for a collective layer's name, what it does, where the bindings do not tell.
    """
    return prepare(network, plugins=plugins, collectives=collectives)(inputs, taps)


def steps(
    network: Any,
    inputs: Mapping[str, Any],
    taps: Taps = None,
    *,
    plugins: Plugins | None = None,
    collectives: Mapping[str, Collective] | None = None,
) -> Iterator[tuple[Layer, dict[str, Array]]]:
    """Yield each layer and its outputs by name, as they are computed; nothing is kept.

    The arrays are those the computation goes on with: whoever writes into one changes what follows. Layers that the network's outputs (or the taps) do not need are left out, and so is what never changes:
    weights and what is computed from them alone.
    """
    return prepare(network, plugins=plugins, collectives=collectives).steps(inputs, taps)


def prepare(
    network: Any, *, plugins: Plugins | None = None, collectives: Mapping[str, Collective] | None = None
) -> Prepared:
    """Return a network ready to be computed many times; it must not be changed afterwards."""
    if isinstance(network, Prepared):
        if plugins or collectives:
            raise InputError("plugins and collectives are told when a network is prepared, not afterwards")
        return network
    return Prepared(network, plugins or {}, collectives or {})


class Prepared:
    """A network with its kernels made, its weights converted and its constants computed."""

    def __init__(self, network: Any, plugins: Plugins, collectives: Mapping[str, Collective]) -> None:
        self.graph = graph_from_network(network)
        self.collectives = collectives
        self._shapes = {
            network.get_input(number).name: tuple(network.get_input(number).shape)
            for number in range(network.num_inputs)
        }
        self.kernels = Kernels(self.graph, plugins)
        self._plans: dict[frozenset[int], Plan] = {}
        self._start: list[Any] = [None] * len(self.graph.tensors)
        self._owners: set[int] = set()  # of the constants' memory
        self._names = _names(self.graph.layers, self.graph.inputs)

    def __call__(self, inputs: Mapping[str, Any], taps: Taps = None) -> dict[str, Array]:
        """Return the network's outputs, and the tensors tapped, by name."""
        tapped = self.tapped(taps)
        run, events = self.start(inputs, tapped)
        with quietly():
            for _ in self._layers(run, events):
                pass
        return self.finish(run)

    def steps(self, inputs: Mapping[str, Any], taps: Taps = None) -> Iterator[tuple[Layer, dict[str, Array]]]:
        """Yield each layer and its outputs by name, as they are computed."""
        run, events = self.start(inputs, self.tapped(taps), watched=True)
        for layer in self._quiet_layers(run, events):
            yield layer, {tensor.name: contiguous(run.values[tensor.slot]) for tensor in layer.outputs}

    def watch(
        self, inputs: Mapping[str, Any], taps: Taps, show: Callable[[str, Array], None]
    ) -> dict[str, Array]:
        """Return the network's outputs; each tensor tapped is shown by name when it is there, and not kept.

        One inside a loop is shown in each iteration. What never changes is shown first.
        """
        tapped = self.tapped(taps)
        plan = self._plan(tapped)
        lasting = frozenset((*plan.foreseen, *(tensor.slot for tensor in self.graph.outputs)))
        run = Run(self._values(inputs), tapped, lasting=lasting)
        self._show(run, plan.recall(self._shapes_in(run), run.values), show)
        results = {tensor.name for tensor in self.graph.outputs}
        return {name: value for name, value in self.finish(run).items() if name in results}

    def compute(
        self, given: Mapping[str, Any], wanted: Taps, show: Callable[[str, Array], None] | None = None
    ) -> dict[str, Array]:
        """Return the tensors wanted, computed from any others that are given by name.

        Raises:
            InputError: what is given does not suffice; the error names what else is needed.
        """
        slots = self._values_of(given)
        tapped = self.tapped(wanted)
        with quietly():
            block = Planner(self.graph, self.kernels, set(tapped), frozenset(slots)).block()
        self._note_constants()
        self._check_enough(block, slots)
        run = Run(self._start.copy(), tapped, lasting=tapped)
        for slot, value in slots.items():
            run.values[slot] = value
        self._show(run, block, show or (lambda name, value: None))
        values = {slot: self._value(run, self.graph.tensors[slot]) for slot in tapped}
        present = {slot: value for slot, value in values.items() if value is not None}
        return self._handed_out(run, present, slots.values())

    def _values_of(self, given: Mapping[str, Any]) -> dict[int, Array]:
        """Return values by slot of tensors of any kind, checked for their types."""
        values = {}
        for name, array in given.items():
            (slot,) = self.tapped([name])
            values[slot] = value_from_given(array, self.graph.tensors[slot].dtype, name)
        return values

    def _check_enough(self, block: Block, slots: Collection[int]) -> None:
        computed = {slot for step in block.steps for slot in step.outs}
        given_anew = computed & set(slots)
        if given_anew:  # a layer with several outputs of which one is given and another is needed
            name = self.graph.tensors[min(given_anew)].name
            raise InputError(f"{name} is given, but its layer has to be computed for another of its outputs")
        fed = {tensor.slot for tensor in self.graph.inputs}
        read = {slot for step in block.steps for slot in step.touched()}
        missing = [self.graph.tensors[slot].name for slot in sorted((read & fed) - set(slots))]
        if missing:
            raise InputError(
                f"{', '.join(missing)} of the network {'is' if len(missing) == 1 else 'are'} needed too",
                fix=f"give {missing[0]} as well",
            )

    def _show(self, run: Run, block: Block, show: Callable[[str, Array], None]) -> None:
        """Walk over a block and show what is tapped; whoever is shown something may raise what they like."""
        for slot in sorted(run.tapped):
            if run.values[slot] is not None:
                show(self.graph.tensors[slot].name, contiguous(run.values[slot]))
        for layer in self._quiet_layers(run, run.walk(block)):
            for tensor in layer.outputs:
                if tensor.slot in run.tapped:
                    show(tensor.name, contiguous(run.values[tensor.slot]))

    def start(
        self, inputs: Mapping[str, Any], tapped: frozenset[int], *, watched: bool = False
    ) -> tuple[Run, Generator[Layer | Exchange, Any, None]]:
        """Return a computation that has not begun; one that is watched yields its layers."""
        plan = self._plan(tapped)
        run = Run(self._values(inputs), tapped, watched)
        return run, run.walk(plan.whole if watched else plan.recall(self._shapes_in(run), run.values))

    def finish(self, run: Run) -> dict[str, Array]:
        """Return what a finished computation kept, outputs first."""
        self._plan(run.tapped).remember(self._shapes_in(run), run)
        tensors = (*self.graph.outputs, *(self.graph.tensors[slot] for slot in sorted(run.tapped)))
        values = {tensor.slot: self._value(run, tensor) for tensor in tensors}
        return self._handed_out(run, {slot: value for slot, value in values.items() if value is not None})

    def _value(self, run: Run, tensor: Tensor) -> Any:
        if tensor.slot in run.kept:
            return run.kept[tensor.slot]
        return self.kernels.constants.get(tensor.slot, run.values[tensor.slot])

    def _handed_out(self, run: Run, held: dict[int, Array], given: Iterable[Array] = ()) -> dict[str, Array]:
        """Return values by name, each in memory that is nobody else's: no input's, no weight's, no other's."""
        fed = (run.values[tensor.slot] for tensor in self.graph.inputs)
        owners = {id(owner(value)) for value in (*fed, *given) if value is not None}
        plan = self._plans.get(run.tapped)
        owners |= self._owners | (plan.owners if plan else set())
        unshared = {}
        for slot, value in held.items():
            is_unshared = id(owner(value)) not in owners
            owners.add(id(owner(value)))
            unshared[self.graph.tensors[slot].name] = contiguous(value) if is_unshared else value.copy()
        return unshared

    def _quiet_layers(self, run: Run, events: Generator[Layer | Exchange, Any, None]) -> Iterator[Layer]:
        """Yield the layers of a computation, quiet only while it computes and not while the caller has its turn."""
        layers = self._layers(run, events)
        while True:
            with quietly():
                layer = next(layers, None)
            if layer is None:
                return
            yield layer

    def _layers(self, run: Run, events: Generator[Layer | Exchange, Any, None]) -> Iterator[Layer]:
        """Yield the layers of a computation that is alone in the world, told what it had when it fails."""
        answer = None
        try:
            while True:
                event = events.send(answer)
                answer = None
                if isinstance(event, Exchange):
                    answer = alone(event, self.collectives)
                else:
                    yield event
        except StopIteration:
            return
        except EvaluationError as err:
            err.partial = self.partial(run)
            raise

    def partial(self, run: Run) -> dict[str, Array]:
        """Return all that is there of a computation that did not end."""
        values = {slot: value for slot, value in enumerate(run.values) if value is not None}
        for slot in (*self.kernels.constants, *(tensor.slot for tensor in self.graph.inputs)):
            values.pop(slot, None)
        return self._handed_out(run, values | run.kept)

    def _shapes_in(self, run: Run) -> tuple[tuple[int, ...], ...]:
        return tuple(run.values[tensor.slot].shape for tensor in self.graph.inputs)

    def _plan(self, tapped: frozenset[int]) -> Plan:
        """Return how to compute the outputs and what is tapped; made once."""
        if tapped not in self._plans:
            targets = {tensor.slot for tensor in self.graph.outputs} | tapped
            with quietly():
                block = Planner(self.graph, self.kernels, targets).block()
            self._plans[tapped] = plan_with_foresight(self.graph, self.kernels, block, targets)
            self._note_constants()
        return self._plans[tapped]

    def _note_constants(self) -> None:
        for slot, value in self.kernels.constants.items():
            self._start[slot] = value
            self._owners.add(id(owner(value)))

    def _values(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the values by slot that a computation starts with: constants and inputs."""
        values = self._start.copy()
        wrong = next((name for name in inputs if name not in self._shapes), None)
        if wrong is not None:
            raise UnknownNameError("input of the network", wrong, self._shapes)
        for tensor in self.graph.inputs:
            if tensor.name not in inputs:
                raise InputError(f"the network's input {tensor.name!r} is not given")
            value = value_from_given(inputs[tensor.name], tensor.dtype, tensor.name)
            declared = self._shapes[tensor.name]
            if not shape_matches(declared, value.shape):
                raise InputError(
                    f"{tensor.name} has shape {list(value.shape)}, but the network wants {list(declared)}"
                )
            values[tensor.slot] = value
        return values

    def tapped(self, taps: Taps) -> frozenset[int]:
        if taps is None:
            return frozenset()
        if taps == "all":
            return frozenset(tensor.slot for layer in self.graph.layers for tensor in layer.outputs)
        slots: set[int] = set()
        for name in [taps] if isinstance(taps, str) else taps:
            if name not in self._names:
                raise UnknownNameError("tensor or layer", name, self._names)
            slots |= self._names[name]
        return frozenset(slots)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Compute without gradients, and without numpy's warnings: a NaN is an answer here."""
    with torch.inference_mode(), np.errstate(all="ignore"):
        yield


def contiguous(array: Array) -> Array:
    return array if array.flags.c_contiguous else array.copy()


def _names(layers: list[Layer], inputs: list[Tensor]) -> dict[str, set[int]]:
    """Return slots by name: a tensor's own, or all outputs of a layer."""
    names = {layer.name: {tensor.slot for tensor in layer.outputs} for layer in layers}
    for tensor in (*inputs, *(tensor for layer in layers for tensor in layer.outputs)):
        names[tensor.name] = {tensor.slot}
    return names
