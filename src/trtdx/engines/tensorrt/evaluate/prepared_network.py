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
from trtdx.engines.tensorrt.evaluate.collectives import Collective, exchange_on_one_rank
from trtdx.engines.tensorrt.evaluate.kernels import LayerKernels
from trtdx.engines.tensorrt.evaluate.network_run import CollectiveExchange, NetworkRun
from trtdx.engines.tensorrt.evaluate.schedule import StepScheduler
from trtdx.engines.tensorrt.evaluate.shape_values import EvaluationPlan, plan_with_shape_values
from trtdx.engines.tensorrt.network.graph import TrtLayer, TrtTensor, graph_from_network
from trtdx.engines.tensorrt.network.values import Array, memory_owner, shape_matches, value_from_argument
from trtdx.engines.torch.lazy_import import torch
from trtdx.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.evaluate.control_flow import StepBlock

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
    return prepare_network(network, plugins=plugins, collectives=collectives)(inputs, taps)


def iterate_layers(
    network: Any,
    inputs: Mapping[str, Any],
    taps: Taps = None,
    *,
    plugins: Plugins | None = None,
    collectives: Mapping[str, Collective] | None = None,
) -> Iterator[tuple[TrtLayer, dict[str, Array]]]:
    """Yield each layer and its outputs by name, as they are computed; nothing is kept.

    The arrays are those the computation goes on with: whoever writes into one changes what follows. Layers that the network's outputs (or the taps) do not need are left out, and so is what never changes:
    weights and what is computed from them alone.
    """
    return prepare_network(network, plugins=plugins, collectives=collectives).iterate_layers(inputs, taps)


def prepare_network(
    network: Any, *, plugins: Plugins | None = None, collectives: Mapping[str, Collective] | None = None
) -> PreparedNetwork:
    """Return a network ready to be computed many times; it must not be changed afterwards."""
    if isinstance(network, PreparedNetwork):
        if plugins or collectives:
            raise InputError("plugins and collectives are told when a network is prepared, not afterwards")
        return network
    return PreparedNetwork(network, plugins or {}, collectives or {})


class PreparedNetwork:
    """A network with its kernels made, its weights converted and its constants computed."""

    def __init__(self, network: Any, plugins: Plugins, collectives: Mapping[str, Collective]) -> None:
        self.graph = graph_from_network(network)
        self.collectives = collectives
        self._declared_shapes = {
            network.get_input(number).name: tuple(network.get_input(number).shape)
            for number in range(network.num_inputs)
        }
        self.kernels = LayerKernels(self.graph, plugins)
        self._plans: dict[frozenset[int], EvaluationPlan] = {}
        self._initial_values: list[Any] = [None] * len(self.graph.tensors)
        self._constant_owners: set[int] = set()  # of the constants' memory
        self._slots_by_name = _slots_by_name(self.graph.layers, self.graph.inputs)

    def __call__(self, inputs: Mapping[str, Any], taps: Taps = None) -> dict[str, Array]:
        """Return the network's outputs, and the tensors tapped, by name."""
        tapped = self.slots_of_taps(taps)
        run, events = self.start_run(inputs, tapped)
        with inference_without_warnings():
            for _ in self._computed_layers(run, events):
                pass
        return self.finish_run(run)

    def iterate_layers(
        self, inputs: Mapping[str, Any], taps: Taps = None
    ) -> Iterator[tuple[TrtLayer, dict[str, Array]]]:
        """Yield each layer and its outputs by name, as they are computed."""
        run, events = self.start_run(inputs, self.slots_of_taps(taps), watched=True)
        for layer in self._quiet_layers(run, events):
            yield layer, {tensor.name: contiguous_array(run.values[tensor.slot]) for tensor in layer.outputs}

    def watch(self, inputs: Mapping[str, Any], taps: Taps, show: Callable[[str, Array], None]) -> dict[str, Array]:
        """Return the network's outputs; each tensor tapped is shown by name when it is there, and not kept.

        One inside a loop is shown in each iteration. What never changes is shown first.
        """
        tapped = self.slots_of_taps(taps)
        plan = self._plan_of_taps(tapped)
        lasting = frozenset((*plan.remembered_slots, *(tensor.slot for tensor in self.graph.outputs)))
        run = NetworkRun(self._values_from_inputs(inputs), tapped, lasting=lasting)
        self._walk_and_show(run, plan.recall(self._input_shapes(run), run.values), show)
        results = {tensor.name for tensor in self.graph.outputs}
        return {name: value for name, value in self.finish_run(run).items() if name in results}

    def compute_tensors(
        self,
        known_tensors: Mapping[str, Any],
        targets: Taps,
        show: Callable[[str, Array], None] | None = None,
    ) -> dict[str, Array]:
        """Return the tensors wanted, computed from any others that are given by name.

        Raises:
            InputError: what is given does not suffice; the error names what else is needed.
        """
        slots = self._values_by_slot(known_tensors)
        tapped = self.slots_of_taps(targets)
        with inference_without_warnings():
            block = StepScheduler(self.graph, self.kernels, set(tapped), frozenset(slots)).schedule_block()
        self._store_constants()
        self._check_sufficient_inputs(block, slots)
        run = NetworkRun(self._initial_values.copy(), tapped, lasting=tapped)
        for slot, value in slots.items():
            run.values[slot] = value
        self._walk_and_show(run, block, show or (lambda name, value: None))
        values = {slot: self._value_of_tensor(run, self.graph.tensors[slot]) for slot in tapped}
        present = {slot: value for slot, value in values.items() if value is not None}
        return self._unshared_values(run, present, slots.values())

    def _values_by_slot(self, known_tensors: Mapping[str, Any]) -> dict[int, Array]:
        """Return values by slot of tensors of any kind, checked for their types."""
        values = {}
        for name, array in known_tensors.items():
            (slot,) = self.slots_of_taps([name])
            values[slot] = value_from_argument(array, self.graph.tensors[slot].dtype, name)
        return values

    def _check_sufficient_inputs(self, block: StepBlock, slots: Collection[int]) -> None:
        computed = {slot for step in block.steps for slot in step.output_slots}
        given_anew = computed & set(slots)
        if given_anew:  # a layer with several outputs of which one is given and another is needed
            name = self.graph.tensors[min(given_anew)].name
            raise InputError(f"{name} is given, but its layer has to be computed for another of its outputs")
        fed = {tensor.slot for tensor in self.graph.inputs}
        read = {slot for step in block.steps for slot in step.touched_slots()}
        missing = [self.graph.tensors[slot].name for slot in sorted((read & fed) - set(slots))]
        if missing:
            raise InputError(
                f"{', '.join(missing)} of the network {'is' if len(missing) == 1 else 'are'} needed too",
                fix=f"give {missing[0]} as well",
            )

    def _walk_and_show(self, run: NetworkRun, block: StepBlock, show: Callable[[str, Array], None]) -> None:
        """Walk over a block and show what is tapped; whoever is shown something may raise what they like."""
        for slot in sorted(run.tapped):
            if run.values[slot] is not None:
                show(self.graph.tensors[slot].name, contiguous_array(run.values[slot]))
        for layer in self._quiet_layers(run, run.walk_block(block)):
            for tensor in layer.outputs:
                if tensor.slot in run.tapped:
                    show(tensor.name, contiguous_array(run.values[tensor.slot]))

    def start_run(
        self, inputs: Mapping[str, Any], tapped: frozenset[int], *, watched: bool = False
    ) -> tuple[NetworkRun, Generator[TrtLayer | CollectiveExchange, Any, None]]:
        """Return a computation that has not begun; one that is watched yields its layers."""
        plan = self._plan_of_taps(tapped)
        run = NetworkRun(self._values_from_inputs(inputs), tapped, watched)
        return run, run.walk_block(plan.full_block if watched else plan.recall(self._input_shapes(run), run.values))

    def finish_run(self, run: NetworkRun) -> dict[str, Array]:
        """Return what a finished computation kept, outputs first."""
        self._plan_of_taps(run.tapped).remember(self._input_shapes(run), run)
        tensors = (*self.graph.outputs, *(self.graph.tensors[slot] for slot in sorted(run.tapped)))
        values = {tensor.slot: self._value_of_tensor(run, tensor) for tensor in tensors}
        return self._unshared_values(run, {slot: value for slot, value in values.items() if value is not None})

    def _value_of_tensor(self, run: NetworkRun, tensor: TrtTensor) -> Any:
        if tensor.slot in run.kept_values:
            return run.kept_values[tensor.slot]
        return self.kernels.constants.get(tensor.slot, run.values[tensor.slot])

    def _unshared_values(
        self, run: NetworkRun, values: dict[int, Array], fed_values: Iterable[Array] = ()
    ) -> dict[str, Array]:
        """Return values by name, each in memory that is nobody else's: no input's, no weight's, no other's."""
        fed = (run.values[tensor.slot] for tensor in self.graph.inputs)
        owners = {id(memory_owner(value)) for value in (*fed, *fed_values) if value is not None}
        plan = self._plans.get(run.tapped)
        owners |= self._constant_owners | (plan.owners if plan else set())
        unshared = {}
        for slot, value in values.items():
            is_unshared = id(memory_owner(value)) not in owners
            owners.add(id(memory_owner(value)))
            unshared[self.graph.tensors[slot].name] = contiguous_array(value) if is_unshared else value.copy()
        return unshared

    def _quiet_layers(
        self, run: NetworkRun, events: Generator[TrtLayer | CollectiveExchange, Any, None]
    ) -> Iterator[TrtLayer]:
        """Yield the layers of a computation, quiet only while it computes and not while the caller has its turn."""
        layers = self._computed_layers(run, events)
        while True:
            with inference_without_warnings():
                layer = next(layers, None)
            if layer is None:
                return
            yield layer

    def _computed_layers(
        self, run: NetworkRun, events: Generator[TrtLayer | CollectiveExchange, Any, None]
    ) -> Iterator[TrtLayer]:
        """Yield the layers of a computation that is alone in the world, told what it had when it fails."""
        answer = None
        try:
            while True:
                event = events.send(answer)
                answer = None
                if isinstance(event, CollectiveExchange):
                    answer = exchange_on_one_rank(event, self.collectives)
                else:
                    yield event
        except StopIteration:
            return
        except EvaluationError as err:
            err.partial = self.partial_values(run)
            raise

    def partial_values(self, run: NetworkRun) -> dict[str, Array]:
        """Return all that is there of a computation that did not end."""
        values = {slot: value for slot, value in enumerate(run.values) if value is not None}
        for slot in (*self.kernels.constants, *(tensor.slot for tensor in self.graph.inputs)):
            values.pop(slot, None)
        return self._unshared_values(run, values | run.kept_values)

    def _input_shapes(self, run: NetworkRun) -> tuple[tuple[int, ...], ...]:
        return tuple(run.values[tensor.slot].shape for tensor in self.graph.inputs)

    def _plan_of_taps(self, tapped: frozenset[int]) -> EvaluationPlan:
        """Return how to compute the outputs and what is tapped; made once."""
        if tapped not in self._plans:
            targets = {tensor.slot for tensor in self.graph.outputs} | tapped
            with inference_without_warnings():
                block = StepScheduler(self.graph, self.kernels, targets).schedule_block()
            self._plans[tapped] = plan_with_shape_values(self.graph, self.kernels, block, targets)
            self._store_constants()
        return self._plans[tapped]

    def _store_constants(self) -> None:
        for slot, value in self.kernels.constants.items():
            self._initial_values[slot] = value
            self._constant_owners.add(id(memory_owner(value)))

    def _values_from_inputs(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the values by slot that a computation starts with: constants and inputs."""
        values = self._initial_values.copy()
        wrong = next((name for name in inputs if name not in self._declared_shapes), None)
        if wrong is not None:
            raise UnknownNameError("input of the network", wrong, self._declared_shapes)
        for tensor in self.graph.inputs:
            if tensor.name not in inputs:
                raise InputError(f"the network's input {tensor.name!r} is not given")
            value = value_from_argument(inputs[tensor.name], tensor.dtype, tensor.name)
            declared = self._declared_shapes[tensor.name]
            if not shape_matches(declared, value.shape):
                raise InputError(f"{tensor.name} has shape {list(value.shape)}, but the network wants {list(declared)}")
            values[tensor.slot] = value
        return values

    def slots_of_taps(self, taps: Taps) -> frozenset[int]:
        if taps is None:
            return frozenset()
        if taps == "all":
            return frozenset(tensor.slot for layer in self.graph.layers for tensor in layer.outputs)
        slots: set[int] = set()
        for name in [taps] if isinstance(taps, str) else taps:
            if name not in self._slots_by_name:
                raise UnknownNameError("tensor or layer", name, self._slots_by_name)
            slots |= self._slots_by_name[name]
        return frozenset(slots)


@contextlib.contextmanager
def inference_without_warnings() -> Iterator[None]:
    """Compute without gradients, and without numpy's warnings: a NaN is an answer here."""
    with torch.inference_mode(), np.errstate(all="ignore"):
        yield


def contiguous_array(array: Array) -> Array:
    return array if array.flags.c_contiguous else array.copy()


def _slots_by_name(layers: list[TrtLayer], inputs: list[TrtTensor]) -> dict[str, set[int]]:
    """Return slots by name: a tensor's own, or all outputs of a layer."""
    names = {layer.name: {tensor.slot for tensor in layer.outputs} for layer in layers}
    for tensor in (*inputs, *(tensor for layer in layers for tensor in layer.outputs)):
        names[tensor.name] = {tensor.slot}
    return names
