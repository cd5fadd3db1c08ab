"""A network made with TensorRT's API seen as modules, which its layers' names tell: `layers.3.mlp/fc`.

It has the shape of an ONNX graph (`formats.onnx.module_graph.OnnxGraph`), so that what enters and leaves a module is told by the
same rules.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from trtdx.engines.tensorrt.network.values import dtype_name
from trtdx.formats.onnx.graph import Kind

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import Graph, Layer, Tensor

_NOT_IN_A_PATH = re.compile(r"[^\w-]+")
_FUNCTION = re.compile(r"\w+_L\d+")  # TensorRT-LLM: a function that was called, and the line
_TIMES_ROUND = 2  # what a loop hands to its next iteration is known after one


class Type(NamedTuple):
    name: str


class Value(NamedTuple):
    """A tensor as an ONNX graph would have it."""

    name: str
    dtype: Type
    slot: int
    type: None = None
    shape: None = None


class Node(NamedTuple):
    """A layer as an ONNX graph would have it."""

    name: str
    op_type: str
    outputs: tuple[Value, ...]


class NetworkGraph:
    """A network's layers, in an order that data can flow in, with the attributes of an ONNX graph."""

    def __init__(self, graph: Graph) -> None:
        self.layers = sorted_layers(graph)
        self._values = {tensor.slot: _value(tensor) for tensor in graph.tensors}
        self.inputs = [self._values[tensor.slot] for tensor in graph.inputs]
        self.outputs = [self._values[tensor.slot] for tensor in graph.outputs]
        self.nodes = [
            Node(layer.name, layer.kind, tuple(self._values[tensor.slot] for tensor in layer.outputs))
            for layer in self.layers
        ]
        self.made = {value: at for at, node in enumerate(self.nodes) for value in node.outputs}
        self.reads = [
            [self._values[tensor.slot] for tensor in layer.inputs if tensor is not None]
            for layer in self.layers
        ]
        self.users: dict[Value, list[int]] = {}
        for at, values in enumerate(self.reads):
            for value in values:
                self.users.setdefault(value, []).append(at)
        self.values = {value.name: value for value in (*self.inputs, *self.made)}
        self.scopes = [modules_of(layer.name) for layer in self.layers]
        self.classes: dict[str, str] = {}
        self.inserted: frozenset[int] = frozenset()
        self.bordered = {path for scope in self.scopes for path in scope}

    def kind(self, value: Value) -> Kind:
        return self._kinds.get(value.slot, Kind.CONSTANT)

    @cached_property
    def constant(self) -> set[int]:
        """The slots whose values depend on weights alone."""
        kinds = ((slot, self._kinds.get(slot, Kind.CONSTANT)) for slot in self._values)
        return {slot for slot, kind in kinds if kind is Kind.CONSTANT}

    @cached_property
    def _kinds(self) -> dict[int, Kind]:
        kinds = {value.slot: Kind.DATA for value in self.inputs}
        for _ in range(_TIMES_ROUND):
            for layer in self.layers:
                read = (kinds.get(slot, Kind.CONSTANT) for slot in layer.input_slots())
                kind = Kind.DATA if layer.is_random() else max(read, default=Kind.CONSTANT)
                if layer.kind == "SHAPE":
                    kind = min(kind, Kind.SHAPE)
                kinds |= dict.fromkeys(layer.output_slots(), kind)
        return kinds


def _value(tensor: Tensor) -> Value:
    return Value(tensor.name, Type(dtype_name(tensor.dtype)), tensor.slot)


def path_of(name: str) -> list[str]:
    """Return a layer's or tensor's name as the parts of a path."""
    parts = [_NOT_IN_A_PATH.sub("_", part).strip("_") for part in re.split(r"[/.]", name)]
    return [part for part in parts if part] or ["_"]


def modules_of(name: str) -> tuple[str, ...]:
    """Return the paths of the modules a layer is in, outermost first: "layers.3.mlp/fc" is in two."""
    parts = [part for part in path_of(name)[:-1] if not _FUNCTION.fullmatch(part)]
    inner = [*parts[1:], ""]  # `layers` in `layers.3` is a list, not a module
    ends = (end for end, below in enumerate(inner[: len(parts)], 1) if not below.isdigit())
    return tuple(".".join(parts[:end]) for end in ends)


def sorted_layers(graph: Graph) -> list[Layer]:
    """Return a network's layers so that each comes after those it needs; most networks have them so."""
    makers = {tensor.slot: layer for layer in graph.layers for tensor in layer.outputs}
    done: set[int] = set()
    ordered: list[Layer] = []
    for layer in graph.layers:
        waiting = [layer]
        entered: set[int] = set()
        while waiting:
            top = waiting[-1]
            needs = [] if top.index in entered else _needs(top, makers, done)
            entered.add(top.index)
            if needs:
                waiting += [needed for needed in needs if needed.index not in entered]
                continue
            waiting.pop()
            if top.index not in done:
                done.add(top.index)
                ordered.append(top)
    return ordered


def _needs(layer: Layer, makers: dict[int, Layer], done: set[int]) -> list[Layer]:
    """Return the layers that have to come first; what a loop hands to its next iteration does not."""
    slots = layer.input_slots()[:1] if layer.kind == "RECURRENCE" else layer.input_slots()
    producers = (makers[slot] for slot in slots if slot in makers)
    return [producer for producer in producers if producer.index not in done]
