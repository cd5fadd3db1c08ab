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

from trtdx.engines.engine import Array, OperatorInput, Sink, TapEffect
from trtdx.engines.errors import EvaluationError
from trtdx.engines.onnxruntime.replay import PartialEngine
from trtdx.engines.onnxruntime.segments import extract_subgraph
from trtdx.engines.tensorrt.bindings import bindings_of_object
from trtdx.engines.tensorrt.evaluate.ordered_sink import OrderedSink, find_unsure_tensors
from trtdx.engines.tensorrt.evaluate.prepared_network import Plugins, PreparedNetwork, prepare_network
from trtdx.engines.tensorrt.network.network_graph import NetworkGraph
from trtdx.engines.tensorrt.network.parse_onnx import ParsedNetwork, parse_graph
from trtdx.engines.tensorrt.network.places import TensorPlace, places_of_network
from trtdx.engines.tensorrt.network.values import dtype_name
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.module_graph import OnnxGraph
from trtdx.formats.onnx.places import declared_input
from trtdx.tensors.feeds import ModelInput, check_feeds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.engines.tensorrt.evaluate.collectives import Collective
    from trtdx.tensors.taps import Place, Selector

COMPUTED_ON_CPU = "on the CPU from the network definition; no plan was executed"
TAP_EFFECT_NOTE = "the network definition is computed layer by layer, as it stands; watching changed nothing"


class TrtEngine(PartialEngine):
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
        self._references = (plugins or {}, collectives or {})
        if self.path is None:
            self._parsed: ParsedNetwork | None = ParsedNetwork(source, None, None)
            self._prepared: PreparedNetwork | None = prepare_network(source, plugins=plugins, collectives=collectives)
            self.graph = NetworkGraph(self._prepared.graph)
        else:
            self.graph = OnnxGraph(open_model(self.path))
            self._parsed = self._prepared = None
        prepared = self._prepare()
        self.network_places = places_of_network(prepared.graph, self.graph)
        trt = bindings_of_object(prepared.graph.network)
        self._package = f"{trt.__name__} {getattr(trt, '__version__', '')}".strip()
        self.inputs = self._declared_inputs(prepared)
        self._output_tensors = self._output_tensor_names(prepared)
        self.outputs = list(self._output_tensors)
        self._unsure = find_unsure_tensors(prepared.graph, prepared.kernels)
        self.all_taps = [spot.tap for spot in self.network_places.tensor_places]
        self._select(selector)

    def _select(self, selector: Selector | str) -> None:
        self.tensor_places: list[TensorPlace] = self.network_places.select_places(selector) if selector else []
        self.taps = [spot.tap for spot in self.tensor_places]

    def _prepare(self) -> PreparedNetwork:
        """Return the network with its kernels made; a file is parsed again after `close`."""
        if self._parsed is None:
            self._parsed = parse_graph(self.graph, file=self.path)
        if self._prepared is None:
            plugins, collectives = self._references
            self._prepared = prepare_network(self._parsed.network, plugins=plugins, collectives=collectives)
        return self._prepared

    def _declared_inputs(self, prepared: PreparedNetwork) -> dict[str, ModelInput]:
        """Return what is fed: sizes as the file names them, types as TensorRT has them."""
        network = prepared.graph.network
        inputs = {}
        for number, tensor in enumerate(prepared.graph.inputs):
            dtype = dtype_name(tensor.dtype)
            if self.path is None:
                inputs[tensor.name] = ModelInput(tensor.name, dtype, _input_dims(network.get_input(number)))
            else:
                inputs[tensor.name] = declared_input(self.graph.values[tensor.name])._replace(dtype=dtype)
        return inputs

    def _output_tensor_names(self, prepared: PreparedNetwork) -> dict[str, str]:
        """Return the outputs by the names the file gives them, and TensorRT's names for these."""
        tensor_names = [tensor.name for tensor in prepared.graph.outputs]
        output_names = [str(value.name) for value in self.graph.outputs]
        return (
            dict(zip(output_names, tensor_names, strict=True))
            if len(output_names) == len(tensor_names)
            else dict(zip(tensor_names, tensor_names, strict=True))
        )

    @property
    def details(self) -> dict[str, Any]:
        """What a reader of the capture has to know to repeat the run."""
        model = str(self.path) if self.path is not None else self._prepare().graph.network.name
        details: dict[str, Any] = {
            "tensorrt": self._package,
            "model": model,
            "computed": COMPUTED_ON_CPU,
            "optimisation": "none",
        }
        renamed, lost = self.network_places.renamed, self.network_places.lost
        return details | ({"renamed": renamed} if renamed else {}) | ({"lost": lost} if lost else {})

    @property
    def tap_effect(self) -> TapEffect:
        """What watching changed: nothing."""
        return TapEffect(False, len({spot.tensor for spot in self.tensor_places}), TAP_EFFECT_NOTE)

    def operator_inputs(self, place: Place) -> list[OperatorInput]:
        """Return what the layer behind a place reads; nothing for what is fed."""
        name = next((spot.tensor for spot in self.network_places.tensor_places if spot.place == place), "")
        prepared = self._prepare()
        layer = next(
            (candidate for candidate in prepared.graph.layers if name in {output.name for output in candidate.outputs}),
            None,
        )
        if layer is None or place.port != "out":
            return []
        values = prepared.kernels.constants
        return [OperatorInput(tensor.name, values.get(tensor.slot)) for tensor in layer.inputs if tensor is not None]

    def with_selector(self, selector: Selector | str, sink: Sink) -> TrtEngine:
        """Return the same network with another selector and sink; weights and kernels are shared."""
        self._prepare()
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
        arrays = check_feeds(self.inputs, feeds)
        prepared = self._prepare()
        step, self.step = self.step, self.step + 1
        if self.sink is None or not self.tensor_places:
            values = prepared(arrays)
        else:
            values = self._run_watched(prepared, arrays, OrderedSink(self.tensor_places, self._unsure, self.sink, step))
        return {name: values[tensor] for name, tensor in self._output_tensors.items()}

    def _run_watched(
        self, prepared: PreparedNetwork, arrays: Mapping[str, Array], ordered_sink: OrderedSink
    ) -> dict[str, Array]:
        taps = {spot.tensor for spot in self.tensor_places}
        try:
            values = prepared.watch(arrays, taps, ordered_sink.show)
        except EvaluationError:
            ordered_sink.flush()
            raise
        ordered_sink.flush()
        return values

    def compute_tensors(self, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return some tensors of the graph, computed from others."""
        prepared = self._prepare()
        if self.path is None:
            return prepared.compute_tensors(feeds, names)
        piece = parse_graph(self.graph, extract_subgraph(self.graph, feeds, names))
        plugins, collectives = self._references
        part = prepare_network(piece.network, plugins=plugins, collectives=collectives)
        tensor_names = [piece.network.get_output(number).name for number in range(piece.network.num_outputs)]
        values = part({name: feeds[name] for name in _network_input_names(piece.network)})
        return {name: values[tensor] for name, tensor in zip(names, tensor_names, strict=True)}

    def close(self) -> None:
        """Let go of weights and kernels; a later run makes them again."""
        self._prepared = None
        if self.path is not None:
            self._parsed = None


def _network_input_names(network: Any) -> list[str]:
    return [network.get_input(number).name for number in range(network.num_inputs)]


def _input_dims(tensor: Any) -> tuple[int | str, ...]:
    """Return an input's sizes; one that may vary by its name, or by its number where it has none."""
    return tuple(
        size if size >= 0 else tensor.get_dimension_name(axis) or f"dim{axis}" for axis, size in enumerate(tensor.shape)
    )
