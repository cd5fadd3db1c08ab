"""ONNX files: what goes in and out, what is inside, and what cannot be right, without loading weights."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.formats.documents import GIT_LFS_MAGIC
from trtdx.formats.onnx.graph_summary import (
    MAX_BODY_DEPTH,
    MODEL_GRAPH,
    MODEL_IR,
    GatherNode,
    GraphSummary,
    GraphWalker,
)
from trtdx.formats.onnx.proto import OnnxValue, read_integers
from trtdx.formats.protobuf_wire import (
    LENGTH_DELIMITED,
    VARINT,
    WireError,
    WireLimitError,
    WireStream,
    iter_fields,
)
from trtdx.formats.tensorrt.nouns import TensorSpec
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.readers import ArtifactReader, PathProbe
from trtdx.inspect.readers.onnx.external_data import put_external_data

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

NEWEST_OPSET = 28  # onnx 1.23.2: onnx.defs.onnx_opset_version()
NEWEST_IR = 14  # onnx 1.23.2: onnx.IR_VERSION
MAX_LISTED_FAULTS = 50  # entries of a list of faults
MAX_GATHERS = 10_000  # that are looked into


def is_onnx_file(_: Host, probe: PathProbe) -> bool:
    """Return whether a file is called .onnx or starts as a ModelProto does."""
    return not probe.is_directory and (probe.path.lower().endswith(".onnx") or _starts_as_model(probe.start))


def _starts_as_model(start: bytes) -> bool:
    """Return whether bytes hold a small ir_version and then, after a few texts, a graph."""
    try:
        for count, field in enumerate(iter_fields(WireStream(BytesIO(start), len(start)), 0, len(start), clip=True)):
            number, kind, value, _ = field
            if count == 0 and not (number == MODEL_IR and kind == VARINT and 0 < value < 64):
                return False
            if number == MODEL_GRAPH or count > 8:
                return number == MODEL_GRAPH and kind == LENGTH_DELIMITED
    except WireError:
        pass
    return False


def read_onnx_file(host: Host, path: str) -> Artifact:
    """Return the model's facts, inputs and outputs; a damaged file gives those before the damage."""
    facts, graph = FactCollector(), GraphSummary()
    try:
        unread = _read_graph(host, path, graph, facts)
    except (InputError, OSError, WireError, WireLimitError) as err:
        unread = [f"not read to its end: {err}"]
    _put_model_header(graph, path, facts)
    if graph.has_graph:
        _put_graph_facts(graph, path, facts)
        put_external_data(host, path, graph.external, facts)
    return Artifact("onnx", path, facts.to_dict(), tensors=tuple(_io_tensors(graph)), unread=tuple(unread))


def _read_graph(host: Host, path: str, graph: GraphSummary, facts: FactCollector) -> list[str]:
    """Fill the graph and put what only the bytes tell; return what was not looked at."""
    with host.open(path) as stream:
        size = host.size(path)
        source = WireStream(stream, size)
        facts.put("onnx.bytes", size, path)
        if source.read(0, min(size, len(GIT_LFS_MAGIC))) == GIT_LFS_MAGIC:
            facts.add("weights.lfs_pointers", path, path)
            return []
        unread = list(_walk_graph(source, graph, path, facts))
        out_of_range = list(_out_of_range_gathers(source, graph))[:MAX_LISTED_FAULTS]
    facts.put("onnx.gather_out_of_range", out_of_range or None, f"{path}: graph.node")
    # A file that was not read to its end is not empty, whatever it seems to lack.
    empty = not (unread or facts.has("onnx.truncated") or graph.node_count or graph.outputs)
    facts.put("onnx.empty", empty or None, f"{path}: graph")
    return unread


def _walk_graph(source: WireStream, graph: GraphSummary, path: str, facts: FactCollector) -> Iterator[str]:
    try:
        GraphWalker(source, graph).walk_model()
    except WireError as err:
        name = "onnx.truncated" if err.is_truncated else "onnx.corrupt"
        facts.put(name, f"at byte {err.offset:,} of {source.size:,}: {err.problem}", path)
    except WireLimitError:
        yield "the graph is larger than any in use; it was looked at only in part"
    if graph.too_deep:
        yield f"bodies of If and Loop inside one another were looked at to a depth of {MAX_BODY_DEPTH}"


def _put_model_header(graph: GraphSummary, path: str, facts: FactCollector) -> None:
    facts.put("onnx.ir_version", graph.ir_version or None, f"{path}: ir_version")
    facts.put("onnx.producer", " ".join(filter(None, graph.producer)) or None, f"{path}: producer_name")
    facts.put("onnx.opset", graph.opsets or None, f"{path}: opset_import")


def _put_graph_facts(graph: GraphSummary, path: str, facts: FactCollector) -> None:
    where = f"{path}: graph.node"
    facts.put("onnx.nodes", graph.node_count, where)
    facts.put("onnx.operators", dict(graph.operators.most_common()) or None, f"{where}.op_type")
    facts.put("onnx.domains", sorted(graph.domains) or None, f"{where}.domain")
    facts.put("onnx.functions", graph.functions or None, f"{path}: functions")
    facts.put("onnx.modules", graph.modules or None, f"{where}.metadata_props")
    facts.put("onnx.weights_bytes", graph.weights_bytes, f"{path}: graph.initializer")
    shapes = {value.name: list(value.dims) for value in _required_inputs(graph)}
    facts.put("onnx.inputs", shapes or None, f"{path}: graph.input")
    nodes = [name for name, count in graph.node_names.items() if count > 1]
    tensors = list(dict.fromkeys(graph.repeated_names))
    dangling = [f"{name} (used by {node})" for name, node in graph.undefined_names.items()]
    facts.put("onnx.duplicate_nodes", nodes[:MAX_LISTED_FAULTS] or None, f"{where}.name")
    facts.put("onnx.duplicate_names", tensors[:MAX_LISTED_FAULTS] or None, f"{path}: graph")
    facts.put("onnx.dangling", dangling[:MAX_LISTED_FAULTS] or None, f"{where}.input")


def _required_inputs(graph: GraphSummary) -> Iterator[OnnxValue]:
    """Yield the inputs that must be given: one with an initializer of its name has a default."""
    return (value for name, value in graph.inputs.items() if name not in graph.weights)


def _io_tensors(graph: GraphSummary) -> Iterator[TensorSpec]:
    for mode, values in (("in", _required_inputs(graph)), ("out", iter(graph.outputs.values()))):
        for value in values:
            yield TensorSpec(value.name, mode, value.dtype, value.dims)


def _out_of_range_gathers(source: WireStream, graph: GraphSummary) -> Iterator[str]:
    """Yield the look-ups by a constant index that is not there; TensorRT compiles them without a word."""
    for gather in graph.gathers[:MAX_GATHERS]:
        weight, length = graph.weights.get(gather.indices), _axis_length(graph, gather)
        if weight is None or length is None:
            continue
        wrong = [index for index in read_integers(source, weight) if not -length <= index < length]
        if wrong:
            yield f"{gather.node}: index {wrong[0]} into {gather.data}, which has {length} along axis {gather.axis}"


def _axis_length(graph: GraphSummary, gather: GatherNode) -> int | None:
    """Return how many entries the looked-up tensor has along the axis, None where that is not fixed."""
    dims = _tensor_dims(graph, gather.data)
    if gather.data in graph.shape_sources:
        around = _tensor_dims(graph, graph.shape_sources[gather.data])
        dims = (len(around),) if around and "..." not in around else ()
    if not -len(dims) <= gather.axis < len(dims):
        return None
    length = dims[gather.axis]
    return length if isinstance(length, int) and length > 0 else None


def _tensor_dims(graph: GraphSummary, name: str) -> tuple[int | str, ...]:
    if name in graph.weights:
        return graph.weights[name].dims
    if name in graph.inputs:
        return graph.inputs[name].dims
    return graph.declared_shapes.get(name, ())


READER = ArtifactReader(
    "onnx", "an ONNX model (model.onnx, with or without external data)", is_onnx_file, read_onnx_file
)
