"""A TensorRT network, from an ONNX file or made with the API, watched while the CPU computes it.

    engine = TrtEngine("model.onnx", "layers.*.mlp:out", sink=show)
    engine.run({"input_ids": ids, ...})             # one step; `show` gets every selected tensor
    for step in generate_tokens(engine, ids, 16): ...  # many steps with a KV cache
    engine.replay("layers.3", captured)             # one module with captured inputs

What is computed is the network definition, layer by layer in the types it states. No plan is executed: what a
builder would fuse or round otherwise is not in these values, and watching changes none of them.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.engines.engine import Array, Read, Sink, Tapped
from trtdx.engines.errors import EvaluationError
from trtdx.engines.onnxruntime.replay import InParts
from trtdx.engines.onnxruntime.segments import extracted
from trtdx.engines.tensorrt.bindings import bindings_of
from trtdx.engines.tensorrt.evaluate.network import Plugins, Prepared, prepare
from trtdx.engines.tensorrt.evaluate.ordered_sink import Line, unsure_tensors
from trtdx.engines.tensorrt.network.parse_onnx import Parsed, parsed
from trtdx.engines.tensorrt.network.places import Spot, places_of_network
from trtdx.engines.tensorrt.network.scopes import NetworkGraph
from trtdx.engines.tensorrt.network.values import dtype_name
from trtdx.formats.onnx.graph import Graph
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.places import declared
from trtdx.tensors.feeds import Input, checked_feeds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.engines.tensorrt.evaluate.collectives import Collective
    from trtdx.tensors.taps import Place, Selector

COMPUTED = "on the CPU from the network definition; no plan was executed"
NOTE = "the network definition is computed layer by layer, as it stands; watching changed nothing"


class TrtEngine(InParts):
    """A network, what to watch in it, and where what is seen goes."""

    kind = "tensorrt"

    def __init__(
        self,
        source: Any,
        selector: Selector | str = "",
        *,
        sink: Sink | None = None,
        plugins: Plugins | None = None,
        collectives: Mapping[str, Collective] | None = None,
    ) -> None:
        """Open a network; nothing is computed yet.

        Args:
            source: the path of an ONNX file, its external data beside it, or an INetworkDefinition of `tensorrt` or
                `tensorrt_rtx`. A network must not be changed afterwards.
            selector: what to watch; nothing where it is empty.
            sink: called with each selected tensor, in the order of the data's flow, as soon as it is computed. Do
                not write to the array: the computation goes on with it.
            plugins: reference functions for plugins, and
            collectives: what collective layers do, both as `evaluate` takes them.

        Raises:
            InputError: there is no such file, it is no ONNX model, or the selector hits nothing.
            EvaluationError: TensorRT's parser does not take the model.
        """
        self.path = Path(source) if isinstance(source, (str, Path)) else None
        self.sink = sink
        self.step = 0  # the number that the next run has
        self._told = (plugins or {}, collectives or {})
        if self.path is None:
            self._parsed: Parsed | None = Parsed(source, None, None)
            self._prepared: Prepared | None = prepare(source, plugins=plugins, collectives=collectives)
            self.graph = NetworkGraph(self._prepared.graph)
        else:
            self.graph = Graph(open_model(self.path))
            self._parsed = self._prepared = None
        prepared = self._ready()
        self.placed = places_of_network(prepared.graph, self.graph)
        trt = bindings_of(prepared.graph.network)
        self._package = f"{trt.__name__} {getattr(trt, '__version__', '')}".strip()
        self.inputs = self._inputs(prepared)
        self._results = self._named_results(prepared)
        self.outputs = list(self._results)
        self._unsure = unsure_tensors(prepared.graph, prepared.kernels)
        self.all_taps = [spot.tap for spot in self.placed.spots]
        self._select(selector)

    def _select(self, selector: Selector | str) -> None:
        self.spots: list[Spot] = self.placed.select(selector) if selector else []
        self.taps = [spot.tap for spot in self.spots]

    def _ready(self) -> Prepared:
        """Return the network with its kernels made; a file is parsed again after `close`."""
        if self._parsed is None:
            self._parsed = parsed(self.graph, file=self.path)
        if self._prepared is None:
            plugins, collectives = self._told
            self._prepared = prepare(self._parsed.network, plugins=plugins, collectives=collectives)
        return self._prepared

    def _inputs(self, ready: Prepared) -> dict[str, Input]:
        """Return what is fed: sizes as the file names them, types as TensorRT has them."""
        network = ready.graph.network
        inputs = {}
        for number, tensor in enumerate(ready.graph.inputs):
            dtype = dtype_name(tensor.dtype)
            if self.path is None:
                inputs[tensor.name] = Input(tensor.name, dtype, _dims(network.get_input(number)))
            else:
                inputs[tensor.name] = declared(self.graph.values[tensor.name])._replace(dtype=dtype)
        return inputs

    def _named_results(self, ready: Prepared) -> dict[str, str]:
        """Return the outputs by the names the file gives them, and TensorRT's names for these."""
        tensor_names = [tensor.name for tensor in ready.graph.outputs]
        output_names = [str(value.name) for value in self.graph.outputs]
        return (
            dict(zip(output_names, tensor_names, strict=True))
            if len(output_names) == len(tensor_names)
            else dict(zip(tensor_names, tensor_names, strict=True))
        )

    @property
    def details(self) -> dict[str, Any]:
        """What a reader of the capture has to know to repeat the run."""
        model = str(self.path) if self.path is not None else self._ready().graph.network.name
        details: dict[str, Any] = {
            "tensorrt": self._package,
            "model": model,
            "computed": COMPUTED,
            "optimisation": "none",
        }
        renamed, lost = self.placed.renamed, self.placed.lost
        return details | ({"renamed": renamed} if renamed else {}) | ({"lost": lost} if lost else {})

    @property
    def tapped(self) -> Tapped:
        """What watching changed: nothing."""
        return Tapped(False, len({spot.tensor for spot in self.spots}), NOTE)

    def reads(self, place: Place) -> list[Read]:
        """Return what the layer behind a place reads; nothing for what is fed."""
        name = next((spot.tensor for spot in self.placed.spots if spot.place == place), "")
        prepared = self._ready()
        layer = next(
            (
                candidate
                for candidate in prepared.graph.layers
                if name in {output.name for output in candidate.outputs}
            ),
            None,
        )
        if layer is None or place.port != "out":
            return []
        values = prepared.kernels.constants
        return [Read(tensor.name, values.get(tensor.slot)) for tensor in layer.inputs if tensor is not None]

    def watching(self, selector: Selector | str, sink: Sink) -> TrtEngine:
        """Return the same network with another selector and sink; weights and kernels are shared."""
        self._ready()
        other = copy.copy(self)
        other.sink, other.step = sink, 0
        other._select(selector)
        return other

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Compute one step: returns the network's outputs, and hands each selected tensor to the sink.

        Raises:
            InputError: something fed is missing, unknown, or of another type or shape than the network declares.
            EvaluationError: a layer cannot be computed; what was selected before it has reached the sink.
        """
        arrays = checked_feeds(self.inputs, feeds)
        prepared = self._ready()
        step, self.step = self.step, self.step + 1
        if self.sink is None or not self.spots:
            values = prepared(arrays)
        else:
            values = self._watched(prepared, arrays, Line(self.spots, self._unsure, self.sink, step))
        return {name: values[tensor] for name, tensor in self._results.items()}

    def _watched(self, ready: Prepared, arrays: Mapping[str, Array], line: Line) -> dict[str, Array]:
        taps = {spot.tensor for spot in self.spots}
        try:
            values = ready.watch(arrays, taps, line.show)
        except EvaluationError:
            line.end()
            raise
        line.end()
        return values

    def part(self, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return some tensors of the graph, computed from others."""
        prepared = self._ready()
        if self.path is None:
            return prepared.compute(feeds, names)
        piece = parsed(self.graph, extracted(self.graph, feeds, names))
        plugins, collectives = self._told
        part = prepare(piece.network, plugins=plugins, collectives=collectives)
        tensor_names = [piece.network.get_output(number).name for number in range(piece.network.num_outputs)]
        values = part({name: feeds[name] for name in _fed(piece.network)})
        return {name: values[tensor] for name, tensor in zip(names, tensor_names, strict=True)}

    def close(self) -> None:
        """Let go of weights and kernels; a later run makes them again."""
        self._prepared = None
        if self.path is not None:
            self._parsed = None


def _fed(network: Any) -> list[str]:
    return [network.get_input(number).name for number in range(network.num_inputs)]


def _dims(tensor: Any) -> tuple[int | str, ...]:
    """Return an input's sizes; one that may vary by its name, or by its number where it has none."""
    return tuple(
        size if size >= 0 else tensor.get_dimension_name(axis) or f"dim{axis}"
        for axis, size in enumerate(tensor.shape)
    )
