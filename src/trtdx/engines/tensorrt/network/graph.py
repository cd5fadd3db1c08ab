"""A network definition as plain records: tensors, layers, and which of them form loops and conditionals."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTHING = 0  # the slot of an input that is not there
CLASSES = {
    "LRN": "ILRNLayer", "NMS": "INMSLayer", "MOE": "IMoELayer", "TOPK": "ITopKLayer", "SOFTMAX": "ISoftMaxLayer",
    "ELEMENTWISE": "IElementWiseLayer", "RAGGED_SOFTMAX": "IRaggedSoftMaxLayer",
    "PARAMETRIC_RELU": "IParametricReLULayer", "KV_CACHE_UPDATE": "IKVCacheUpdateLayer",
    "CONDITIONAL_INPUT": "IIfConditionalInputLayer", "CONDITIONAL_OUTPUT": "IIfConditionalOutputLayer",
}  # fmt: skip
IN_LOOP = ("TRIP_LIMIT", "RECURRENCE", "ITERATOR", "LOOP_OUTPUT")
IN_CONDITIONAL = ("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT")


class Tensor(msgspec.Struct, frozen=True):
    """One tensor of a network and the slot that holds its value."""

    name: str
    dtype: str  # TensorRT's name: "FLOAT", "BF16", "INT4"
    slot: int


class Layer(msgspec.Struct, frozen=True, eq=False):
    """One layer of a network."""

    index: int
    name: str
    kind: str  # TensorRT's name: "MATRIX_MULTIPLY"
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    metadata: str
    trt: Any  # TensorRT's own layer
    bindings: Any  # the module it comes from

    def input_slots(self) -> tuple[int, ...]:
        return tuple(tensor.slot if tensor else NOTHING for tensor in self.inputs)

    def output_slots(self) -> tuple[int, ...]:
        return tuple(tensor.slot for tensor in self.outputs)

    def has_input(self, number: int) -> bool:
        return len(self.inputs) > number and self.inputs[number] is not None

    def is_random(self) -> bool:
        """Whether the layer gives other values in each run."""
        if self.kind != "FILL":
            return False
        with self.typed() as trt:
            return bool(trt.operation.name != "LINSPACE")

    @contextlib.contextmanager
    def typed(self) -> Iterator[Any]:
        """Give TensorRT's layer the class of its kind, so that its attributes can be read, and take it back.

        The bindings hand out a plain ILayer, and the same object to everyone who asks.
        """
        before = type(self.trt)
        layer_class = getattr(self.bindings, _class_name(self.kind), before)
        self.trt.__class__ = layer_class
        try:
            yield self.trt
        finally:
            self.trt.__class__ = before


class Loop(msgspec.Struct, eq=False):
    """The layers at the border of one loop."""

    name: str
    limits: list[tuple[str, Tensor]] = []  # ("COUNT" or "WHILE", its tensor)
    recurrences: list[Layer] = []
    iterators: list[tuple[Layer, int, bool]] = []  # layer, axis, reverse
    outputs: list[tuple[Layer, str, int]] = []  # layer, kind, axis

    def given(self) -> list[Layer]:
        """Return the layers whose outputs the loop itself puts in place."""
        return [*self.recurrences, *(layer for layer, _, _ in self.iterators)]

    def conditions(self) -> list[int]:
        return [tensor.slot for kind, tensor in self.limits if kind == "WHILE"]

    def input_slots(self) -> list[int]:
        """Return all that the border of the loop takes in."""
        layers = [*self.given(), *(layer for layer, _, _ in self.outputs)]
        limits = [tensor.slot for _, tensor in self.limits]
        return [*limits, *(slot for layer in layers for slot in layer.input_slots())]

    def output_slots(self) -> tuple[int, ...]:
        return tuple(layer.outputs[0].slot for layer, _, _ in self.outputs)

    def targets(self) -> list[int]:
        """Return what an iteration has to compute: whether it goes on, the next values, and what goes out."""
        following = [layer.input_slots()[1] for layer in self.recurrences]
        return [*self.conditions(), *following, *(layer.input_slots()[0] for layer, _, _ in self.outputs)]


class Conditional(msgspec.Struct, eq=False):
    """The layers at the border of one conditional."""

    name: str
    conditions: list[Tensor] = []
    inputs: list[Layer] = []
    outputs: list[Layer] = []

    def input_slots(self) -> list[int]:
        """Return what decides on the branch and what goes into either."""
        conditions = [tensor.slot for tensor in self.conditions]
        return [*conditions, *(slot for layer in self.inputs for slot in layer.input_slots())]

    def output_slots(self) -> tuple[int, ...]:
        return tuple(layer.outputs[0].slot for layer in self.outputs)


class Graph(msgspec.Struct, eq=False):
    """A network: its layers by number, its tensors by slot."""

    network: Any  # keeps the weights' memory alive
    layers: list[Layer]
    tensors: list[Tensor]  # tensors[0] stands for an input that is not there
    inputs: list[Tensor]
    outputs: list[Tensor]
    loops: list[Loop]
    conditionals: list[Conditional]


def graph_from_network(network: Any) -> Graph:
    """Return the records of an INetworkDefinition of whichever TensorRT it comes from."""
    bindings = sys.modules.get(type(network).__module__)
    if not hasattr(bindings, "ILayer"):
        raise InputError(f"{type(network).__name__} is not a network definition of TensorRT")
    return _Reader(network, bindings).graph()


def _class_name(kind: str) -> str:
    return CLASSES.get(kind) or f"I{''.join(part.capitalize() for part in kind.split('_'))}Layer"


class _Reader:
    def __init__(self, network: Any, bindings: Any) -> None:
        self.network = network
        self.bindings = bindings
        # Subclasses hide it: an activation's `type` is another thing.
        self.kind_of = bindings.ILayer.type.fget
        # By TensorRT's object, which is the same as long as someone holds it.
        self.slots: dict[Any, Tensor] = {}
        self.tensors = [Tensor("", "FLOAT", NOTHING)]
        self.loops: dict[Any, Loop] = {}
        self.conditionals: dict[Any, Conditional] = {}

    def graph(self) -> Graph:
        network = self.network
        inputs = [self.tensor(network.get_input(number)) for number in range(network.num_inputs)]
        layers = [self.layer(number) for number in range(network.num_layers)]
        outputs = [self.tensor(network.get_output(number)) for number in range(network.num_outputs)]
        for layer in layers:
            if layer.kind in IN_LOOP or layer.kind in IN_CONDITIONAL:
                with layer.typed() as trt:
                    note = self.note_loop if layer.kind in IN_LOOP else self.note_conditional
                    note(layer, trt)
        loops, conditionals = list(self.loops.values()), list(self.conditionals.values())
        return Graph(network, layers, self.tensors, inputs, outputs, loops, conditionals)

    def tensor(self, found: Any) -> Tensor:
        if found not in self.slots:
            tensor = Tensor(found.name, found.dtype.name, len(self.tensors))
            self.tensors.append(tensor)
            self.slots[found] = tensor
        return self.slots[found]

    def layer(self, number: int) -> Layer:
        trt_layer = self.network.get_layer(number)
        inputs = [trt_layer.get_input(index) for index in range(trt_layer.num_inputs)]
        outputs = [trt_layer.get_output(index) for index in range(trt_layer.num_outputs)]
        return Layer(
            number,
            trt_layer.name,
            self.kind_of(trt_layer).name,
            tuple(self.tensor(tensor) if tensor is not None else None for tensor in inputs),
            tuple(self.tensor(tensor) for tensor in outputs),
            getattr(trt_layer, "metadata", ""),
            trt_layer,
            self.bindings,
        )

    def note_loop(self, layer: Layer, trt: Any) -> None:
        loop = self.loops.setdefault(trt.loop, Loop(trt.loop.name))
        if layer.kind == "TRIP_LIMIT":
            loop.limits.append((trt.kind.name, _present(layer, 0)))
        elif layer.kind == "RECURRENCE":
            loop.recurrences.append(layer)
        elif layer.kind == "ITERATOR":
            loop.iterators.append((layer, trt.axis, trt.reverse))
        else:
            loop.outputs.append((layer, trt.kind.name, trt.axis))

    def note_conditional(self, layer: Layer, trt: Any) -> None:
        conditional = self.conditionals.setdefault(trt.conditional, Conditional(trt.conditional.name))
        if layer.kind == "CONDITION":
            conditional.conditions.append(_present(layer, 0))
        elif layer.kind == "CONDITIONAL_INPUT":
            conditional.inputs.append(layer)
        else:
            conditional.outputs.append(layer)


def _present(layer: Layer, number: int) -> Tensor:
    tensor = layer.inputs[number]
    if tensor is None:
        raise InputError(f"layer {layer.name!r} ({layer.kind}) has no input {number}")
    return tensor
