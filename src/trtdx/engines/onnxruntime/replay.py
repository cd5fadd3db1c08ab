"""One module of a model computed alone, with inputs that were captured or made up.

Only what enters the module as data has to be given. Numbers that tell shapes are computed from the shapes of what
is given, and weights are where they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.engine import Array, ClosedOnExit, Sink, TappedTensor, find_module_path
from trtdx.engines.onnxruntime.segments import ValueSizes
from trtdx.engines.torch.lazy_import import numpy as np
from trtdx.errors import InputError
from trtdx.formats.onnx.module_graph import OnnxGraph, ValueKind
from trtdx.formats.onnx.places import (
    ModuleCall,
    OnnxTap,
    declared_input,
    module_calls,
    module_nodes,
    value_dtype,
)
from trtdx.tensors.dtypes import numpy_dtype
from trtdx.tensors.feeds import ModelInput, check_feeds
from trtdx.tensors.taps import Place, path_matches
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx_ir as ir


_INPUT_PORT = re.compile(r"(?:(.*):)?in(?:\[(\d+)\])?")


class PartialEngine(ClosedOnExit):
    """An engine that computes parts of a graph: ONNX Runtime, or TensorRT's evaluation.

    Attributes:
        graph: the file's graph, or a network's own with the same attributes; places are told by it.
        taps: what is watched.
        all_taps: every place there is.
    """

    graph: Any
    taps: Sequence[OnnxTap]
    all_taps: Sequence[OnnxTap]
    sink: Sink | None

    def compute_tensors(self, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return some tensors of the graph, computed from others."""
        raise NotImplementedError

    def places(self) -> list[Place]:
        """Return every place there is, in the order of the data's flow."""
        return list(dict.fromkeys(tap.place for tap in self.all_taps))

    def replay_inputs(self, scope: str, call: int = 0) -> dict[str, ModelInput]:
        """Return what has to be given to replay a module."""
        return {name: declared_input(self.graph.values[name]) for name in plan_module_replay(self, scope, call).inputs}

    def replay(self, scope: str, inputs: Mapping[str, Any], *, call: int = 0, step: int = 0) -> dict[str, Array]:
        """Return what leaves a module that is given its inputs; see `replay_onnx_module`."""
        return replay_onnx_module(self, scope, inputs, call=call, step=step)

    def emit_taps(self, taps: Sequence[OnnxTap], values: Mapping[str, Array], step: int) -> None:
        """Hand the values of some taps to the sink."""
        if self.sink is not None:
            for tap in taps:
                self.sink(TappedTensor(tap.place, values[tap.value], step, tap.call))


class ModuleReplay(NamedTuple):
    """What a module needs and gives: names of tensors, and of those of which only the shape matters."""

    path: str
    inputs: list[str]
    shape_inputs: list[str]
    outputs: list[str]
    taps: list[OnnxTap]


def replay_onnx_module(
    engine: PartialEngine, scope: str, inputs: Mapping[str, Any], *, call: int = 0, step: int = 0
) -> dict[str, Array]:
    """Return what leaves a module, by tensor name; selected tensors inside it go to the engine's sink.

    Args:
        engine: the model.
        scope: the module's path, or its end: "layers.3", "layers.3.mlp".
        inputs: an array for each tensor that enters, called by its own name ("add_460"), as a capture calls it
            ("model.layers.3:in", "model.layers.3:in[1]") or by its number alone ("in", "in[1]").
        call: which call of a module that is called several times.
        step: the number of the step that the sink is told.

    Raises:
        InputError: there is no such module, or something that enters it is missing or not as declared.
        EvaluationError: the engine cannot compute a node.
    """
    graph = engine.graph
    module = plan_module_replay(engine, scope, call)
    named_inputs = {_input_tensor_name(name, module, engine): array for name, array in inputs.items()}
    needed = dict.fromkeys((*module.inputs, *(name for name in module.shape_inputs if name in named_inputs)))
    arrays = check_feeds({name: declared_input(graph.values[name]) for name in needed}, named_inputs)
    feeds = arrays | _zeros_for_shape_inputs(
        graph, [name for name in module.shape_inputs if name not in needed], arrays
    )
    tapped = [tap.value for tap in module.taps if tap.value not in feeds]
    names = list(dict.fromkeys((*module.outputs, *tapped)))
    values = feeds | engine.compute_tensors(names, feeds)
    engine.emit_taps(module.taps, values, step)
    return {name: values[name] for name in module.outputs}


def plan_module_replay(engine: PartialEngine, scope: str, call: int = 0) -> ModuleReplay:
    """Return what replaying a module takes and gives."""
    graph = engine.graph
    modules = module_nodes(graph)
    path = find_module_path(scope, modules, engine.places(), "module of the graph")
    calls = module_calls(graph, modules[path])
    if call >= len(calls):
        raise InputError(f"{path} is called {format_count(len(calls), 'time')}; there is no call {call}")
    chosen = calls[call]
    inputs = [str(value.name) for value, _ in chosen.inputs]
    nodes = set(chosen.nodes)
    outputs = dict.fromkeys((*chosen.outputs, *_model_outputs_of_call(graph, chosen)))
    shapes = [name for name in _shape_only_tensors(graph, nodes) if name not in inputs]
    taps = [tap for tap in engine.taps if _is_tap_in_module(tap, path, nodes, call)]
    return ModuleReplay(path, inputs, shapes, [str(value.name) for value in outputs], taps)


def _model_outputs_of_call(graph: OnnxGraph, call: ModuleCall) -> Iterable[ir.Value]:
    """Return the model's own outputs that come from a module, such as its part of the cache."""
    results = set(graph.outputs)
    return (value for at in call.nodes for value in graph.nodes[at].outputs if value in results)


def _is_tap_in_module(tap: OnnxTap, path: str, nodes: set[int], call: int) -> bool:
    if tap.node_index not in nodes:
        return False
    inner = tap.place.path == path or tap.place.path.startswith(f"{path}.")
    return inner and (tap.place.path != path or tap.call == call)


def _shape_only_tensors(graph: OnnxGraph, nodes: set[int]) -> list[str]:
    """Return the tensors outside of which only the shapes reach these nodes."""
    waiting = [value for at in nodes for value in graph.reads[at] if graph.kind(value) is ValueKind.SHAPE]
    visited: set[ir.Value] = set()
    tensors: dict[str, None] = {}
    while waiting:
        value = waiting.pop()
        at = graph.producers[value]
        if value in visited or at in nodes:
            continue
        visited.add(value)
        for read in graph.reads[at]:
            if graph.kind(read) is ValueKind.SHAPE:
                waiting.append(read)
            elif graph.kind(read) is ValueKind.DATA:
                tensors[str(read.name)] = None
    return list(tensors)


def _input_tensor_name(name: str, module: ModuleReplay, engine: PartialEngine) -> str:
    """Return the tensor that a name means: its own, or that of a place where it enters."""
    if name in module.inputs or name in module.shape_inputs:
        return name
    port = _INPUT_PORT.fullmatch(name)
    if port is None or (port[1] and not path_matches(port[1], module.path, {})):
        declarations = "; ".join(
            f"{input_name}: {declared_input(engine.graph.values[input_name])}" for input_name in module.inputs
        )
        raise InputError(f"nothing that enters {module.path} is called {name!r}", fix=f"these enter it: {declarations}")
    number = int(port[2] or 0)
    if number >= len(module.inputs):
        raise InputError(f"{module.path} has {format_count(len(module.inputs), 'input')}, so there is no {name!r}")
    return module.inputs[number]


def _zeros_for_shape_inputs(graph: OnnxGraph, names: Sequence[str], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return arrays of zeros in the place of tensors of which only the shape matters."""
    sizes = ValueSizes(graph, {name: array.shape for name, array in arrays.items()})
    zeros = {}
    for name in names:
        shape = sizes.value_shape(name)
        if shape is None:
            raise InputError(f"the shape of {name} is needed too and is not known", fix=f"give {name} as well")
        zeros[name] = np.zeros(shape, numpy_dtype(value_dtype(graph.values[name])))
    return zeros
