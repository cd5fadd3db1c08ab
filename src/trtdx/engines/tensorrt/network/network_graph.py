"""A network made with TensorRT's API seen as modules, which its layers' names tell: `layers.3.mlp/fc`.

It has the shape of an ONNX graph (`formats.onnx.module_graph.OnnxGraph`), so that what enters and leaves a module is told by the
same rules.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from trtdx.engines.tensorrt.network.values import dtype_name
from trtdx.formats.onnx.module_graph import ValueKind

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtGraph, TrtLayer, TrtTensor

_NON_PATH_CHARACTERS = re.compile(r"[^\w-]+")
_FUNCTION_SCOPE = re.compile(r"\w+_L\d+")  # TensorRT-LLM: a function that was called, and the line
_LOOP_PASSES = 2  # what a loop hands to its next iteration is known after one


class NetworkValueType(NamedTuple):
    name: str


class NetworkValue(NamedTuple):
    """A tensor as an ONNX graph would have it."""

    name: str
    dtype: NetworkValueType
    slot: int
    type: None = None
    shape: None = None


class NetworkNode(NamedTuple):
    """A layer as an ONNX graph would have it."""

    name: str
    op_type: str
    outputs: tuple[NetworkValue, ...]


class NetworkGraph:
    """A network's layers, in an order that data can flow in, with the attributes of an ONNX graph."""

    def __init__(self, graph: TrtGraph) -> None:
        self.layers = sort_layers(graph)
        self._values = {tensor.slot: _network_value(tensor) for tensor in graph.tensors}
        self.inputs = [self._values[tensor.slot] for tensor in graph.inputs]
        self.outputs = [self._values[tensor.slot] for tensor in graph.outputs]
        self.nodes = [
            NetworkNode(layer.name, layer.kind, tuple(self._values[tensor.slot] for tensor in layer.outputs))
            for layer in self.layers
        ]
        self.producers = {value: at for at, node in enumerate(self.nodes) for value in node.outputs}
        self.reads = [
            [self._values[tensor.slot] for tensor in layer.inputs if tensor is not None] for layer in self.layers
        ]
        self.users: dict[NetworkValue, list[int]] = {}
        for at, values in enumerate(self.reads):
            for value in values:
                self.users.setdefault(value, []).append(at)
        self.values = {value.name: value for value in (*self.inputs, *self.producers)}
        self.scopes = [enclosing_modules(layer.name) for layer in self.layers]
        self.classes: dict[str, str] = {}
        self.inserted: frozenset[int] = frozenset()
        self.modules_with_borders = {path for scope in self.scopes for path in scope}

    def kind(self, value: NetworkValue) -> ValueKind:
        return self._kind_by_slot.get(value.slot, ValueKind.CONSTANT)

    @cached_property
    def constant_slots(self) -> set[int]:
        """The slots whose values depend on weights alone."""
        kinds = ((slot, self._kind_by_slot.get(slot, ValueKind.CONSTANT)) for slot in self._values)
        return {slot for slot, kind in kinds if kind is ValueKind.CONSTANT}

    @cached_property
    def _kind_by_slot(self) -> dict[int, ValueKind]:
        kinds = {value.slot: ValueKind.DATA for value in self.inputs}
        for _ in range(_LOOP_PASSES):
            for layer in self.layers:
                read = (kinds.get(slot, ValueKind.CONSTANT) for slot in layer.input_slots())
                kind = ValueKind.DATA if layer.is_random() else max(read, default=ValueKind.CONSTANT)
                if layer.kind == "SHAPE":
                    kind = min(kind, ValueKind.SHAPE)
                kinds |= dict.fromkeys(layer.output_slots(), kind)
        return kinds


def _network_value(tensor: TrtTensor) -> NetworkValue:
    return NetworkValue(tensor.name, NetworkValueType(dtype_name(tensor.dtype)), tensor.slot)


def path_parts(name: str) -> list[str]:
    """Return a layer's or tensor's name as the parts of a path."""
    parts = [_NON_PATH_CHARACTERS.sub("_", part).strip("_") for part in re.split(r"[/.]", name)]
    return [part for part in parts if part] or ["_"]


def enclosing_modules(name: str) -> tuple[str, ...]:
    """Return the paths of the modules a layer is in, outermost first: "layers.3.mlp/fc" is in two."""
    parts = [part for part in path_parts(name)[:-1] if not _FUNCTION_SCOPE.fullmatch(part)]
    inner = [*parts[1:], ""]  # `layers` in `layers.3` is a list, not a module
    ends = (end for end, below in enumerate(inner[: len(parts)], 1) if not below.isdigit())
    return tuple(".".join(parts[:end]) for end in ends)


def sort_layers(graph: TrtGraph) -> list[TrtLayer]:
    """Return a network's layers so that each comes after those it needs; most networks have them so."""
    makers = {tensor.slot: layer for layer in graph.layers for tensor in layer.outputs}
    done: set[int] = set()
    ordered: list[TrtLayer] = []
    for layer in graph.layers:
        waiting = [layer]
        entered: set[int] = set()
        while waiting:
            top = waiting[-1]
            needs = [] if top.index in entered else _layers_needed_first(top, makers, done)
            entered.add(top.index)
            if needs:
                waiting += [needed for needed in needs if needed.index not in entered]
                continue
            waiting.pop()
            if top.index not in done:
                done.add(top.index)
                ordered.append(top)
    return ordered


def _layers_needed_first(layer: TrtLayer, makers: dict[int, TrtLayer], done: set[int]) -> list[TrtLayer]:
    """Return the layers that have to come first; what a loop hands to its next iteration does not."""
    slots = layer.input_slots()[:1] if layer.kind == "RECURRENCE" else layer.input_slots()
    producers = (makers[slot] for slot in slots if slot in makers)
    return [producer for producer in producers if producer.index not in done]
