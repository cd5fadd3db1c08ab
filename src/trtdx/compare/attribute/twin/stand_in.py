"""A torch stand-in for a reference that is not a torch model, so that mistakes can be tried out in it.

A capture names its model: that is opened again. An ONNX file, on whatever engine, is read: each module of its graph
becomes a torch module that computes the same, its *twin*. Either is used only where it gives, from what entered the
suspect module in the reference, what left it there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.compare.attribute.module_bench import ModuleBench
from trtdx.compare.attribute.twin.graph_reader import (
    GraphEmbedding,
    GraphLinear,
    GraphNorm,
    GraphReader,
    identify_part,
    load_graph,
)
from trtdx.compare.attribute.twin.module_program import PATTERN_KINDS, ModuleProgram
from trtdx.engines.torch.lazy_import import torch
from trtdx.errors import InputError, TrtdxError
from trtdx.formats.onnx.places import ModuleCall, all_taps, module_calls, module_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.compare.attribute.suspect import Suspect
    from trtdx.compare.sides.side import Side, SideSpec
    from trtdx.formats.onnx.module_graph import OnnxGraph

# How far a twin may be from what it stands for: relative, by the reference's precision.
STAND_IN_LIMITS = {"float64": 1e-5, "float32": 2e-4, "float16": 1e-2, "bfloat16": 6e-2}
GRAPH_KINDS = ("onnx", "trt")
KIND_OF_ENGINE = {"torch": "hf", "onnxruntime": "onnx", "tensorrt": "trt"}
# From much known to little: where a part was read wrongly, the module is computed node by node.
TWIN_LEVELS: tuple[tuple[bool, tuple[str, ...]], ...] = (
    (True, PATTERN_KINDS),
    (True, ("attention", "curve")),
    (True, ("attention",)),
    (True, ()),
    (False, ()),
)


class TorchStandIn(NamedTuple):
    """The model in which mistakes are tried out.

    Attributes:
        suspect: the place, with the model on an engine.
        told: in words, what it is and how well it stands for the reference.
    """

    suspect: Suspect
    description: str


def find_stand_in(suspect: Suspect) -> TorchStandIn:
    """Return the stand-in for a reference that is not a torch model.

    Raises:
        InputError: there is nothing that does, and why.
    """
    side = suspect.reference
    spec = None if side is None else find_model_spec(side)
    if side is None or spec is None:
        raise InputError(
            "the reference is not a model, and names none", fix="give the reference as hf:DIR or onnx:FILE"
        )
    return (
        _stand_in_from_graph(suspect, side, spec) if spec.kind in GRAPH_KINDS else _stand_in_from_folder(suspect, spec)
    )


def find_model_spec(side: Side) -> SideSpec | None:
    """Return the model of a side: its own, or that which its capture names, if it is still there."""
    from trtdx.compare.sides.side import SideSpec

    if side.spec.is_model:
        return side.spec
    details = side.capture.header.details
    named, kind = details.get("model"), KIND_OF_ENGINE.get(side.capture.header.engine)
    if not isinstance(named, str) or kind is None or not Path(named).exists():
        return None
    options = {name: str(details[name]) for name in ("dtype", "attention") if kind == "hf" and details.get(name)}
    return SideSpec(kind, named, options)


def _stand_in_from_folder(suspect: Suspect, spec: SideSpec) -> TorchStandIn:
    engine = spec.open("")
    try:
        far = check_stand_in(suspect, engine)
    except TrtdxError:
        engine.close()
        raise
    description = f"in {spec.path}, which the capture names; it gives the captured values within {far:.2g}"
    return TorchStandIn(suspect._replace(engine=engine), description)


def _stand_in_from_graph(suspect: Suspect, side: Side, spec: SideSpec) -> TorchStandIn:
    from trtdx.engines.torch.engine import TorchEngine

    graph = load_graph(spec.path)
    reader = GraphReader(graph, _captured_shapes(graph, side, suspect.step))
    problem = "nothing is captured of it"
    for typed, lifts in TWIN_LEVELS:
        try:
            model = build_twin(reader, suspect.path, typed=typed, pattern_kinds=lifts)
            engine = TorchEngine(model)
            ready = _flatten_product_inputs(suspect, model)
            far = check_stand_in(ready, engine)
        except (TrtdxError, RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as err:
            problem = getattr(err, "message", "") or repr(err)
            continue
        description = f"in a torch twin of it, made from {spec.path}; it gives the reference's values within {far:.2g}"
        return TorchStandIn(ready._replace(engine=engine), description)
    raise InputError(f"no torch twin of {suspect.path or 'the model'} gives what the reference gave: {problem}")


def _captured_shapes(graph: OnnxGraph, side: Side, step: int) -> Mapping[str, Sequence[int]]:
    """Return the shapes of the tensors that are captured of a step, by their names in the graph."""
    records = side.capture.records(step=step, rank=side.capture.ranks[0])
    shapes = {record.name: record.layout.shape for record in records}
    fed = {name: shape for name, shape in shapes.items() if name in graph.values}
    taps = all_taps(graph)
    return fed | {tap.value: shapes[tap.place.name] for tap in taps if tap.place.name in shapes}


def check_stand_in(suspect: Suspect, engine: Any) -> float:
    """Return how far a stand-in is from what the reference gave, relative.

    Raises:
        InputError: it is further than precision explains, or nothing is captured that it could be held against.
    """
    assert suspect.reference is not None
    capture = suspect.reference.capture
    records = {
        record.name: record
        for record in capture.records(step=suspect.step, rank=capture.ranks[0])
        if record.kept and record.name in suspect.candidate_outputs
    }
    outputs = {name: capture.values(record) for name, record in records.items()}
    reference_suspect = suspect._replace(candidate_inputs={}, candidate_outputs=outputs, dtype="")
    if not records:
        raise InputError(f"nothing that left {suspect.path or 'the model'} in the reference is captured")
    with torch.no_grad():
        bench = ModuleBench(reference_suspect, engine)
        far: float = max(bench.tensor_error(name, bench.truth[name]) ** 0.5 for name in bench.targets)
    dtype = min((record.layout.dtype for record in records.values()), key=lambda name: -STAND_IN_LIMITS.get(name, 0.0))
    if not far <= STAND_IN_LIMITS.get(dtype, STAND_IN_LIMITS["float32"]):
        raise InputError(f"what stands for {suspect.path or 'the model'} is {far:.2g} away from the reference")
    return far


def _flatten_product_inputs(suspect: Suspect, model: Any) -> Suspect:
    """Return the suspect with heads that enter a matrix product put together, as such a product takes them."""
    from trtdx.compare.attribute.twin.torch_modules import TwinLinear, flatten_to_width

    module = model.get_submodule(suspect.path)
    if not isinstance(module, TwinLinear):
        return suspect
    width = module.weight.shape[1]
    reference_inputs, candidate_inputs = (
        {name: flatten_to_width(array, width) for name, array in inputs.items()}
        for inputs in (suspect.reference_inputs, suspect.candidate_inputs)
    )
    return suspect._replace(reference_inputs=reference_inputs, candidate_inputs=candidate_inputs)


def build_twin(
    reader: GraphReader, suspect: str, *, typed: bool = True, pattern_kinds: Sequence[str] = PATTERN_KINDS
) -> Any:
    """Return all modules of a graph as torch modules, inside one another as they are in the file.

    Args:
        reader: the graph.
        suspect: the module that is looked at.
        typed: whether that one may be of a kind that torch knows.
        pattern_kinds: which parts are looked for among the nodes of modules.
    """
    from trtdx.compare.attribute.twin.torch_modules import TwinScope

    graph = reader.graph
    parts: dict[str, GraphLinear | GraphNorm | GraphEmbedding | None] = {}
    calls = {path: module_calls(graph, nodes)[0] for path, nodes in module_nodes(graph).items()}
    leaves = {path for path in calls if not any(other.startswith(f"{path}.") for other in calls)}
    for path in leaves:
        parts[path] = identify_part(reader, calls[path]) if typed or path != suspect else None

    def is_typed(path: str) -> bool:
        return parts.get(path) is not None

    everything = ModuleCall(
        list(range(len(graph.nodes))),
        [(value, 0) for value in graph.inputs],
        [value for value in graph.outputs if reader.is_data(value)],
    )
    root = TwinScope(ModuleProgram(reader, "", everything, is_typed=is_typed, pattern_kinds=pattern_kinds))
    modules = {path: _torch_module(part) for path, part in parts.items() if part is not None}
    _tie_weights([module for module in modules.values() if getattr(module, "weight", None) is not None])
    for path in sorted(calls, key=lambda path: (path.count("."), path)):
        if path not in modules:
            modules[path] = TwinScope(
                ModuleProgram(reader, path, calls[path], is_typed=is_typed, pattern_kinds=pattern_kinds)
            )
        _attach_module(root, path, modules[path])
    root.config = _infer_config(reader, modules)
    return root


def _torch_module(part: GraphLinear | GraphNorm | GraphEmbedding) -> Any:
    """Return a part as a torch module."""
    from trtdx.compare.attribute.twin.torch_modules import TwinEmbedding, TwinLinear, TwinNorm

    if isinstance(part, GraphNorm):
        return TwinNorm(part)
    return TwinEmbedding(part) if isinstance(part, GraphEmbedding) else TwinLinear(part)


def _tie_weights(modules: Sequence[Any]) -> None:
    """Tie output heads to the embedding whose values they have; a file keeps two copies."""
    tables = [module for module in modules if isinstance(module, torch.nn.Embedding)]
    for module in modules:
        for table in tables:
            same = module is not table and module.weight.shape == table.weight.shape
            if same and torch.equal(module.weight.float(), table.weight.float()):
                module.weight = table.weight


def _attach_module(root: Any, path: str, module: Any) -> None:
    owner = root
    *above, last = path.split(".")
    for name in above:
        if name not in owner._modules:
            owner.add_module(name, torch.nn.Module())
        owner = owner._modules[name]
    for name, child in (owner._modules.get(last) or torch.nn.Module()).named_children():
        module.add_module(name, child)
    owner.add_module(last, module)


class _TwinConfig(msgspec.Struct):
    """The settings that hypotheses ask a model for."""

    vocab_size: int = 0
    hidden_size: int = 0
    _attn_implementation: str = "eager"

    def to_dict(self) -> dict[str, Any]:
        return {}


def _infer_config(reader: GraphReader, modules: Mapping[str, Any]) -> _TwinConfig:
    """Return the settings that follow from a model's token embedding: the one with a row for each logit."""
    tables = [modules[path].weight for path in sorted(modules) if isinstance(modules[path], torch.nn.Embedding)]
    shapes = [
        reader.shapes.get(str(value.name)) or reader.sizes.value_shape(str(value.name))
        for value in reader.graph.outputs
    ]
    widths = {shape[-1] for shape in shapes if shape}
    likely = [table for table in tables if int(table.shape[0]) in widths] or tables
    return _TwinConfig(int(likely[0].shape[0]), int(likely[0].shape[1])) if likely else _TwinConfig()
