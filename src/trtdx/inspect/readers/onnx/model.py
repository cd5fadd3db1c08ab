"""ONNX files: what goes in and out, what is inside, and what cannot be right, without loading weights."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.formats.documents import LFS_MARK
from trtdx.formats.onnx.proto import Value, integers
from trtdx.formats.onnx.walk import MODEL_GRAPH, MODEL_IR, MOST_DEPTH, Gather, Graph, Walker
from trtdx.formats.tensorrt.nouns import TensorSpec
from trtdx.formats.wire import SPAN, VARINT, Source, TooMuchError, WireError, fields
from trtdx.inspect.facts.artifact import Artifact, Facts
from trtdx.inspect.readers import Found, Reader
from trtdx.inspect.readers.onnx.external_data import put_external

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.host import Host

NEWEST_OPSET = 28  # onnx 1.23.2: onnx.defs.onnx_opset_version()
NEWEST_IR = 14  # onnx 1.23.2: onnx.IR_VERSION
MOST_TOLD = 50  # entries of a list of faults
MOST_GATHERS = 10_000  # that are looked into


def recognise(_: Host, found: Found) -> bool:
    """Return whether a file is called .onnx or starts as a ModelProto does."""
    return not found.is_directory and (found.path.lower().endswith(".onnx") or _is_model(found.start))


def _is_model(start: bytes) -> bool:
    """Return whether bytes hold a small ir_version and then, after a few texts, a graph."""
    try:
        for count, field in enumerate(fields(Source(BytesIO(start), len(start)), 0, len(start), clip=True)):
            number, kind, value, _ = field
            if count == 0 and not (number == MODEL_IR and kind == VARINT and 0 < value < 64):
                return False
            if number == MODEL_GRAPH or count > 8:
                return number == MODEL_GRAPH and kind == SPAN
    except WireError:
        pass
    return False


def read(host: Host, path: str) -> Artifact:
    """Return the model's facts, inputs and outputs; a damaged file gives those before the damage."""
    facts, graph = Facts(), Graph()
    try:
        unread = _read(host, path, graph, facts)
    except (InputError, OSError, WireError, TooMuchError) as err:
        unread = [f"not read to its end: {err}"]
    _put_model(graph, path, facts)
    if graph.found:
        _put_graph(graph, path, facts)
        put_external(host, path, graph.external, facts)
    return Artifact("onnx", path, facts.done(), tensors=tuple(_tensors(graph)), unread=tuple(unread))


def _read(host: Host, path: str, graph: Graph, facts: Facts) -> list[str]:
    """Fill the graph and put what only the bytes tell; return what was not looked at."""
    with host.open(path) as stream:
        size = host.size(path)
        source = Source(stream, size)
        facts.put("onnx.bytes", size, path)
        if source.read(0, min(size, len(LFS_MARK))) == LFS_MARK:
            facts.add("weights.lfs_pointers", path, path)
            return []
        unread = list(_walk(source, graph, path, facts))
        out_of_range = list(_out_of_range(source, graph))[:MOST_TOLD]
    facts.put("onnx.gather_out_of_range", out_of_range or None, f"{path}: graph.node")
    # A file that was not read to its end is not empty, whatever it seems to lack.
    empty = not (unread or facts.has("onnx.truncated") or graph.nodes or graph.outputs)
    facts.put("onnx.empty", empty or None, f"{path}: graph")
    return unread


def _walk(source: Source, graph: Graph, path: str, facts: Facts) -> Iterator[str]:
    try:
        Walker(source, graph).model()
    except WireError as err:
        name = "onnx.truncated" if err.truncated else "onnx.corrupt"
        facts.put(name, f"at byte {err.at:,} of {source.size:,}: {err.problem}", path)
    except TooMuchError:
        yield "the graph is larger than any in use; it was looked at only in part"
    if graph.too_deep:
        yield f"bodies of If and Loop inside one another were looked at to a depth of {MOST_DEPTH}"


def _put_model(graph: Graph, path: str, facts: Facts) -> None:
    facts.put("onnx.ir_version", graph.ir_version or None, f"{path}: ir_version")
    facts.put("onnx.producer", " ".join(filter(None, graph.producer)) or None, f"{path}: producer_name")
    facts.put("onnx.opset", graph.opsets or None, f"{path}: opset_import")


def _put_graph(graph: Graph, path: str, facts: Facts) -> None:
    where = f"{path}: graph.node"
    facts.put("onnx.nodes", graph.nodes, where)
    facts.put("onnx.operators", dict(graph.operators.most_common()) or None, f"{where}.op_type")
    facts.put("onnx.domains", sorted(graph.domains) or None, f"{where}.domain")
    facts.put("onnx.functions", graph.functions or None, f"{path}: functions")
    facts.put("onnx.modules", graph.modules or None, f"{where}.metadata_props")
    facts.put("onnx.weights_bytes", graph.weights_bytes, f"{path}: graph.initializer")
    shapes = {value.name: list(value.dims) for value in _inputs(graph)}
    facts.put("onnx.inputs", shapes or None, f"{path}: graph.input")
    nodes = [name for name, count in graph.node_names.items() if count > 1]
    tensors = list(dict.fromkeys(graph.repeated))
    dangling = [f"{name} (used by {node})" for name, node in graph.dangling.items()]
    facts.put("onnx.duplicate_nodes", nodes[:MOST_TOLD] or None, f"{where}.name")
    facts.put("onnx.duplicate_names", tensors[:MOST_TOLD] or None, f"{path}: graph")
    facts.put("onnx.dangling", dangling[:MOST_TOLD] or None, f"{where}.input")


def _inputs(graph: Graph) -> Iterator[Value]:
    """Yield the inputs that must be given: one with an initializer of its name has a default."""
    return (value for name, value in graph.inputs.items() if name not in graph.weights)


def _tensors(graph: Graph) -> Iterator[TensorSpec]:
    for mode, values in (("in", _inputs(graph)), ("out", iter(graph.outputs.values()))):
        for value in values:
            yield TensorSpec(value.name, mode, value.dtype, value.dims)


def _out_of_range(source: Source, graph: Graph) -> Iterator[str]:
    """Yield the look-ups by a constant index that is not there; TensorRT compiles them without a word."""
    for gather in graph.gathers[:MOST_GATHERS]:
        weight, length = graph.weights.get(gather.indices), _length(graph, gather)
        if weight is None or length is None:
            continue
        wrong = [index for index in integers(source, weight) if not -length <= index < length]
        if wrong:
            yield f"{gather.node}: index {wrong[0]} into {gather.data}, which has {length} along axis {gather.axis}"


def _length(graph: Graph, gather: Gather) -> int | None:
    """Return how many entries the looked-up tensor has along the axis, None where that is not fixed."""
    dims = _dims(graph, gather.data)
    if gather.data in graph.shapes:
        around = _dims(graph, graph.shapes[gather.data])
        dims = (len(around),) if around and "..." not in around else ()
    if not -len(dims) <= gather.axis < len(dims):
        return None
    length = dims[gather.axis]
    return length if isinstance(length, int) and length > 0 else None


def _dims(graph: Graph, name: str) -> tuple[int | str, ...]:
    if name in graph.weights:
        return graph.weights[name].dims
    if name in graph.inputs:
        return graph.inputs[name].dims
    return graph.declared.get(name, ())


READER = Reader("onnx", "an ONNX model (model.onnx, with or without external data)", recognise, read)
