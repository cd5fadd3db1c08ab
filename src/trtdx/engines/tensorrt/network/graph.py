"""A network definition as plain records: tensors, layers, and which of them form loops and conditionals."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_SLOT = 0  # the slot of an input that is not there
LAYER_CLASSES = {
    "LRN": "ILRNLayer", "NMS": "INMSLayer", "MOE": "IMoELayer", "TOPK": "ITopKLayer", "SOFTMAX": "ISoftMaxLayer",
    "ELEMENTWISE": "IElementWiseLayer", "RAGGED_SOFTMAX": "IRaggedSoftMaxLayer",
    "PARAMETRIC_RELU": "IParametricReLULayer", "KV_CACHE_UPDATE": "IKVCacheUpdateLayer",
    "CONDITIONAL_INPUT": "IIfConditionalInputLayer", "CONDITIONAL_OUTPUT": "IIfConditionalOutputLayer",
}  # fmt: skip
LOOP_KINDS = ("TRIP_LIMIT", "RECURRENCE", "ITERATOR", "LOOP_OUTPUT")
CONDITIONAL_KINDS = ("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT")


class TrtTensor(msgspec.Struct, frozen=True):
    """One tensor of a network and the slot that holds its value."""

    name: str
    dtype: str  # TensorRT's name: "FLOAT", "BF16", "INT4"
    slot: int


class TrtLayer(msgspec.Struct, frozen=True, eq=False):
    """One layer of a network."""

    index: int
    name: str
    kind: str  # TensorRT's name: "MATRIX_MULTIPLY"
    inputs: tuple[TrtTensor | None, ...]
    outputs: tuple[TrtTensor, ...]
    metadata: str
    trt: Any  # TensorRT's own layer
    bindings: Any  # the module it comes from

    def input_slots(self) -> tuple[int, ...]:
        return tuple(tensor.slot if tensor else NO_SLOT for tensor in self.inputs)

    def output_slots(self) -> tuple[int, ...]:
        return tuple(tensor.slot for tensor in self.outputs)

    def has_input(self, number: int) -> bool:
        return len(self.inputs) > number and self.inputs[number] is not None

    def is_random(self) -> bool:
        """Whether the layer gives other values in each run."""
        if self.kind != "FILL":
            return False
        with self.with_layer_class() as trt:
            return bool(trt.operation.name != "LINSPACE")

    @contextlib.contextmanager
    def with_layer_class(self) -> Iterator[Any]:
        """Give TensorRT's layer the class of its kind, so that its attributes can be read, and take it back.

        The bindings hand out a plain ILayer, and the same object to everyone who asks.
        """
        before = type(self.trt)
        layer_class = getattr(self.bindings, _layer_class_name(self.kind), before)
        self.trt.__class__ = layer_class
        try:
            yield self.trt
        finally:
            self.trt.__class__ = before


class TrtLoop(msgspec.Struct, eq=False):
    """The layers at the border of one loop."""

    name: str
    limits: list[tuple[str, TrtTensor]] = []  # ("COUNT" or "WHILE", its tensor)
    recurrences: list[TrtLayer] = []
    iterators: list[tuple[TrtLayer, int, bool]] = []  # layer, axis, reverse
    outputs: list[tuple[TrtLayer, str, int]] = []  # layer, kind, axis

    def entry_layers(self) -> list[TrtLayer]:
        """Return the layers whose outputs the loop itself puts in place."""
        return [*self.recurrences, *(layer for layer, _, _ in self.iterators)]

    def condition_slots(self) -> list[int]:
        return [tensor.slot for kind, tensor in self.limits if kind == "WHILE"]

    def input_slots(self) -> list[int]:
        """Return all that the border of the loop takes in."""
        layers = [*self.entry_layers(), *(layer for layer, _, _ in self.outputs)]
        limits = [tensor.slot for _, tensor in self.limits]
        return [*limits, *(slot for layer in layers for slot in layer.input_slots())]

    def output_slots(self) -> tuple[int, ...]:
        return tuple(layer.outputs[0].slot for layer, _, _ in self.outputs)

    def target_slots(self) -> list[int]:
        """Return what an iteration has to compute: whether it goes on, the next values, and what goes out."""
        following = [layer.input_slots()[1] for layer in self.recurrences]
        return [
            *self.condition_slots(),
            *following,
            *(layer.input_slots()[0] for layer, _, _ in self.outputs),
        ]


class TrtConditional(msgspec.Struct, eq=False):
    """The layers at the border of one conditional."""

    name: str
    conditions: list[TrtTensor] = []
    inputs: list[TrtLayer] = []
    outputs: list[TrtLayer] = []

    def input_slots(self) -> list[int]:
        """Return what decides on the branch and what goes into either."""
        conditions = [tensor.slot for tensor in self.conditions]
        return [*conditions, *(slot for layer in self.inputs for slot in layer.input_slots())]

    def output_slots(self) -> tuple[int, ...]:
        return tuple(layer.outputs[0].slot for layer in self.outputs)


class TrtGraph(msgspec.Struct, eq=False):
    """A network: its layers by number, its tensors by slot."""

    network: Any  # keeps the weights' memory alive
    layers: list[TrtLayer]
    tensors: list[TrtTensor]  # tensors[0] stands for an input that is not there
    inputs: list[TrtTensor]
    outputs: list[TrtTensor]
    loops: list[TrtLoop]
    conditionals: list[TrtConditional]


def graph_from_network(network: Any) -> TrtGraph:
    """Return the records of an INetworkDefinition of whichever TensorRT it comes from."""
    bindings = sys.modules.get(type(network).__module__)
    if not hasattr(bindings, "ILayer"):
        raise InputError(f"{type(network).__name__} is not a network definition of TensorRT")
    return _NetworkReader(network, bindings).read_graph()


def _layer_class_name(kind: str) -> str:
    return LAYER_CLASSES.get(kind) or f"I{''.join(part.capitalize() for part in kind.split('_'))}Layer"


class _NetworkReader:
    def __init__(self, network: Any, bindings: Any) -> None:
        self.network = network
        self.bindings = bindings
        # Subclasses hide it: an activation's `type` is another thing.
        self.kind_of = bindings.ILayer.type.fget
        # By TensorRT's object, which is the same as long as someone holds it.
        self.slots: dict[Any, TrtTensor] = {}
        self.tensors = [TrtTensor("", "FLOAT", NO_SLOT)]
        self.loops: dict[Any, TrtLoop] = {}
        self.conditionals: dict[Any, TrtConditional] = {}

    def read_graph(self) -> TrtGraph:
        network = self.network
        inputs = [self.read_tensor(network.get_input(number)) for number in range(network.num_inputs)]
        layers = [self.read_layer(number) for number in range(network.num_layers)]
        outputs = [self.read_tensor(network.get_output(number)) for number in range(network.num_outputs)]
        for layer in layers:
            if layer.kind in LOOP_KINDS or layer.kind in CONDITIONAL_KINDS:
                with layer.with_layer_class() as trt:
                    note = self.add_loop_layer if layer.kind in LOOP_KINDS else self.add_conditional_layer
                    note(layer, trt)
        loops, conditionals = list(self.loops.values()), list(self.conditionals.values())
        return TrtGraph(network, layers, self.tensors, inputs, outputs, loops, conditionals)

    def read_tensor(self, trt_tensor: Any) -> TrtTensor:
        if trt_tensor not in self.slots:
            tensor = TrtTensor(trt_tensor.name, trt_tensor.dtype.name, len(self.tensors))
            self.tensors.append(tensor)
            self.slots[trt_tensor] = tensor
        return self.slots[trt_tensor]

    def read_layer(self, number: int) -> TrtLayer:
        trt_layer = self.network.get_layer(number)
        inputs = [trt_layer.get_input(index) for index in range(trt_layer.num_inputs)]
        outputs = [trt_layer.get_output(index) for index in range(trt_layer.num_outputs)]
        return TrtLayer(
            number,
            trt_layer.name,
            self.kind_of(trt_layer).name,
            tuple(self.read_tensor(tensor) if tensor is not None else None for tensor in inputs),
            tuple(self.read_tensor(tensor) for tensor in outputs),
            getattr(trt_layer, "metadata", ""),
            trt_layer,
            self.bindings,
        )

    def add_loop_layer(self, layer: TrtLayer, trt: Any) -> None:
        loop = self.loops.setdefault(trt.loop, TrtLoop(trt.loop.name))
        if layer.kind == "TRIP_LIMIT":
            loop.limits.append((trt.kind.name, _required_input(layer, 0)))
        elif layer.kind == "RECURRENCE":
            loop.recurrences.append(layer)
        elif layer.kind == "ITERATOR":
            loop.iterators.append((layer, trt.axis, trt.reverse))
        else:
            loop.outputs.append((layer, trt.kind.name, trt.axis))

    def add_conditional_layer(self, layer: TrtLayer, trt: Any) -> None:
        conditional = self.conditionals.setdefault(trt.conditional, TrtConditional(trt.conditional.name))
        if layer.kind == "CONDITION":
            conditional.conditions.append(_required_input(layer, 0))
        elif layer.kind == "CONDITIONAL_INPUT":
            conditional.inputs.append(layer)
        else:
            conditional.outputs.append(layer)


def _required_input(layer: TrtLayer, number: int) -> TrtTensor:
    tensor = layer.inputs[number]
    if tensor is None:
        raise InputError(f"layer {layer.name!r} ({layer.kind}) has no input {number}")
    return tensor
