"""The places of a TensorRT network: what enters and leaves each module, and every tensor by its own name.

A network parsed from ONNX has the places of the file, so that `layers.3.mlp:out` is the same tensor as on ONNX
Runtime and torch. TensorRT's parser keeps the file's names. Where it had to choose another (two bodies that use
one name), the layer's metadata tells the node, and `NetworkPlaces.renamed` tells both names; a tensor of the file that is
not in the network is in `NetworkPlaces.lost` with the reason. What the parser added (arithmetic on shapes, broadcasts) has
places of its own below `tensorrt`, outside of every module: `tensorrt.ONNXTRT_Broadcast_304_output`.

A network made with the API has the places that its layers' names tell:

    layers.3.mlp/fc                                         layers.3.mlp.fc:in, :out, in the module layers.3.mlp
    Linear/multiply_L286/matmul_L1102/MATRIX_MULTIPLY_0     in the module Linear (TensorRT-LLM: functions have lines)

Weights, and what only repeats them, are no places.
"""

from __future__ import annotations

import re
from heapq import merge
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.tensorrt.network.graph import TrtGraph, TrtLayer, TrtTensor, graph_from_network
from trtdx.engines.tensorrt.network.network_graph import NetworkGraph, path_parts, sort_layers
from trtdx.engines.tensorrt.network.values import dtype_name
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.module_graph import OnnxGraph as OnnxGraph
from trtdx.formats.onnx.places import OnnxTap, all_taps
from trtdx.tensors.taps import Place, Selector, parse_selector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


ADDED_PATH = "tensorrt"  # the path that what the parser added is below
NO_NODE_INDEX = -2


class TensorPlace(NamedTuple):
    """A place and TensorRT's name of the tensor that passes it."""

    place: Place
    tensor: str
    tap: OnnxTap  # the same place in the ONNX file, or among the layers of a network made with the API

    @property
    def call(self) -> int:
        """Return which call of a module that is called several times."""
        return self.tap.call


class NetworkPlaces(NamedTuple):
    """All places of a network in the order of the data's flow, and what became of those an ONNX file has."""

    tensor_places: list[TensorPlace]
    renamed: dict[str, str]  # the file's name -> TensorRT's
    lost: dict[str, str]  # the file's name -> why there is no such tensor

    def places(self) -> list[Place]:
        return list(dict.fromkeys(spot.place for spot in self.tensor_places))

    def select_places(self, selector: Selector | str) -> list[TensorPlace]:
        """Return the spots selected, or raise with the nearest names when there is none."""
        parsed = parse_selector(selector) if isinstance(selector, str) else selector
        chosen = set(parsed.select_or_raise([spot.place for spot in self.tensor_places]))
        return [spot for spot in self.tensor_places if spot.place in chosen]


def places_of_network(network: Any, onnx: str | Path | OnnxGraph | NetworkGraph | None = None) -> NetworkPlaces:
    """Return every place of a network.

    Args:
        network: an INetworkDefinition, or the records of one.
        onnx: the file it was parsed from, or that file's graph; nothing for a network made with the API.
    """
    graph = network if isinstance(network, TrtGraph) else graph_from_network(network)
    if onnx is None or isinstance(onnx, NetworkGraph):
        return NetworkPlaces(list(_places_from_layers(onnx or NetworkGraph(graph))), {}, {})
    return _places_from_onnx(graph, onnx if isinstance(onnx, OnnxGraph) else OnnxGraph(open_model(onnx)))


# From an ONNX file


def _places_from_onnx(graph: TrtGraph, onnx: Any) -> NetworkPlaces:
    matches = _OnnxTensorMatches(graph, onnx)
    spots: list[TensorPlace] = []
    for tap in all_taps(onnx):
        tensor = matches.match_tensor(tap.value)
        if tensor is not None:  # the type is TensorRT's, which has no float64
            tap = tap._replace(place=tap.place._replace(dtype=dtype_name(tensor.dtype)))
            spots.append(TensorPlace(tap.place, tensor.name, tap))
    layers = sort_layers(graph)
    at = {tensor.name: number for number, layer in enumerate(layers) for tensor in layer.outputs}
    reached = accumulate((at.get(spot.tensor, -1) for spot in spots), max)
    added = list(_places_added_by_parser(layers, {spot.tensor for spot in spots}, matches.constant))
    merged = merge(
        zip(reached, spots, strict=True),
        ((at[spot.tensor], spot) for spot in added),
        key=lambda pair: pair[0],
    )
    return NetworkPlaces([spot for _, spot in merged], matches.renamed, matches.lost)


def _places_added_by_parser(layers: list[TrtLayer], named: set[str], constant: set[int]) -> Iterator[TensorPlace]:
    """Yield what is in the network and not in the file; weights and their copies are left out."""
    for layer in layers:
        for number, tensor in enumerate(layer.outputs):
            if tensor.name not in named and tensor.slot not in constant:
                path = f"{ADDED_PATH}.{path_parts(tensor.name)[-1]}"
                place = Place(path, "out", number, "", layer.kind, tensor.name, dtype_name(tensor.dtype))
                yield TensorPlace(place, tensor.name, OnnxTap(place, tensor.name, NO_NODE_INDEX, (1, 0)))


class _OnnxTensorMatches:
    """Which tensor of a network is which value of the file it was parsed from."""

    def __init__(self, graph: TrtGraph, onnx: OnnxGraph) -> None:
        self.onnx = onnx
        self.renamed: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self.tensors = {tensor.name: tensor for tensor in graph.tensors if tensor.name}
        self.makers = {tensor.slot: layer for layer in graph.layers for tensor in layer.outputs}
        self.constant = NetworkGraph(graph).constant_slots
        self._tensor_by_value: dict[str, TrtTensor | None] = dict(self._output_pairs(graph))

    def _output_pairs(self, graph: TrtGraph) -> Iterator[tuple[str, TrtTensor]]:
        """Yield the outputs, which are in the order of the file whatever they are called."""
        ends = self.onnx.outputs
        if len(ends) == len(graph.outputs):
            yield from ((str(end.name), tensor) for end, tensor in zip(ends, graph.outputs, strict=True))

    def match_tensor(self, value: str) -> TrtTensor | None:
        if value not in self._tensor_by_value:
            self._tensor_by_value[value] = self._find_tensor(value)
        tensor = self._tensor_by_value[value]
        if tensor is not None and tensor.name != value:
            self.renamed[value] = tensor.name
        return tensor

    def _find_tensor(self, value: str) -> TrtTensor | None:
        exact = self.tensors.get(value)
        node = self._producing_node(value)
        if exact is not None and self._may_come_from(exact, node):
            return exact
        other = re.compile(rf"{re.escape(value)}_\d+")
        likely = [tensor for name, tensor in self.tensors.items() if other.fullmatch(name)]
        likely = [
            tensor for tensor in likely if tensor.name not in self.onnx.values and self._may_come_from(tensor, node)
        ]
        if len(likely) == 1:
            return likely[0]
        self.lost[value] = self._loss_reason(value, node, exact, likely)
        return None

    def _producing_node(self, value: str) -> Any:
        at = self.onnx.producers.get(self.onnx.values[value])
        return None if at is None else self.onnx.nodes[at]

    def _may_come_from(self, tensor: TrtTensor, node: Any) -> bool:
        """Whether a tensor may come from a node; layers tell theirs in their metadata, those added do not."""
        layer = self.makers.get(tensor.slot)
        if layer is None or node is None:
            return (layer is None) == (node is None)  # both are fed
        return not layer.metadata or not node.name or _is_layer_of_node(layer, node.name)

    def _loss_reason(self, value: str, node: Any, exact: TrtTensor | None, likely: list[TrtTensor]) -> str:
        what = f"{node.op_type} {node.name!r}" if node is not None else f"the input {value}"
        if exact is not None:
            origin = self.makers[exact.slot].metadata if exact.slot in self.makers else "an input"
            return f"the network's {value} comes from {origin}, not from {what}"
        if likely:
            return f"{what} may be any of {', '.join(tensor.name for tensor in likely)}"
        return f"TensorRT's parser made no tensor of {what}"


def _is_layer_of_node(layer: TrtLayer, name: str) -> bool:
    return any(f"[ONNX Layer: {name}{end}" in layer.metadata for end in ("]", " |"))


# Made with the API


def _places_from_layers(network: NetworkGraph) -> Iterator[TensorPlace]:
    taps = [*all_taps(network), *_layer_input_taps(network)]  # type: ignore[arg-type]
    for tap in sorted(taps, key=lambda tap: (tap.node_index, tap.order, tap.place.number)):
        if tap.place.tensor and tap.node_index >= 0:
            if network.layers[tap.node_index].outputs[0].slot in network.constant_slots:
                continue
            path = ".".join(path_parts(network.layers[tap.node_index].name))
            tap = tap._replace(place=tap.place._replace(path=path))
        yield TensorPlace(tap.place, tap.value, tap)


def _layer_input_taps(network: NetworkGraph) -> Iterator[OnnxTap]:
    """Yield what enters each layer that has a name of its own."""
    for at, layer in enumerate(network.layers):
        if layer.name.startswith("(Unnamed"):
            continue
        path = path_parts(layer.name)
        data = [tensor for tensor in layer.inputs if tensor is not None and tensor.slot not in network.constant_slots]
        for number, tensor in enumerate(data):
            place = Place(".".join(path), "in", number, dtype=dtype_name(tensor.dtype))
            yield OnnxTap(place, tensor.name, at, (0, len(path)))


def places_by_tensor(network_places: NetworkPlaces, selector: Selector | str) -> Mapping[str, list[Place]]:
    """Return the tensors selected, by TensorRT's name, each with its places."""
    places: dict[str, list[Place]] = {}
    for spot in network_places.select_places(selector):
        places.setdefault(spot.tensor, []).append(spot.place)
    return places
