"""ONNX models as bytes without their weights, whatever their size: for shape inference, or with references to them."""

from __future__ import annotations

from functools import partial

from trtdx.formats.onnx.graph_summary import (
    ATTRIBUTE_T,
    GRAPH_INITIALIZER,
    GRAPH_INPUT,
    GRAPH_NAME,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    MODEL_FUNCTION,
    MODEL_GRAPH,
    MODEL_IR,
    MODEL_OPSET,
)
from trtdx.formats.onnx.proto import NODE_ATTRIBUTE, TENSOR_DATA, TENSOR_EXTERNAL, TENSOR_RAW, parse_weight
from trtdx.formats.protobuf_wire import (
    WireLimitError,
    WireStream,
    encode_bytes_field,
    encode_varint_field,
    rewrite_message,
)

SMALL_BYTES = 1 << 10  # a constant up to this size keeps its values: they may be a shape
LARGEST_PART = 1 << 20  # of a function, or of a body inside a node
LARGEST_GRAPH = 32 << 20
NODE_LEFT_OUT = (6, 9, 10)  # documentation, metadata, device placement
TENSOR_LOCATION, EXTERNAL = 14, 1


def reference_weights(source: WireStream, location: str) -> bytes:
    """Return the model with references into its own file, which is at `location`, in the place of large weights."""
    tensor = partial(_reference_tensor, location=location)
    graph = partial(rewrite_message, rewrites={GRAPH_INITIALIZER: tensor})
    return rewrite_message(source, 0, source.size, {MODEL_GRAPH: graph})


def _reference_tensor(source: WireStream, start: int, end: int, location: str) -> bytes:
    number, first, after = parse_weight(source, start, end).data or (0, 0, 0)
    if end - start <= SMALL_BYTES or number != TENSOR_RAW:
        return source.read(start, end)
    span = {"location": location, "offset": str(first), "length": str(after - first)}
    return _tensor_elsewhere(source, start, end, (TENSOR_RAW,), span)


def strip_weights(source: WireStream) -> bytes:
    """Return the model with small constants and without large ones, metadata and intermediate shapes."""
    kept = {
        MODEL_IR: _copy_part,
        MODEL_OPSET: _copy_part,
        MODEL_FUNCTION: _copy_part,
        MODEL_GRAPH: _strip_graph,
    }
    return rewrite_message(source, 0, source.size, kept, others=None)


def _strip_graph(source: WireStream, start: int, end: int) -> bytes:
    kept = dict.fromkeys((GRAPH_NAME, GRAPH_INPUT, GRAPH_OUTPUT), _copy_part)
    kept |= {GRAPH_NODE: _strip_node, GRAPH_INITIALIZER: _strip_tensor}
    graph = rewrite_message(source, start, end, kept, others=None)
    if len(graph) > LARGEST_GRAPH:
        raise WireLimitError
    return graph


def _strip_node(source: WireStream, start: int, end: int) -> bytes:
    rewrites = {NODE_ATTRIBUTE: _strip_attribute, **dict.fromkeys(NODE_LEFT_OUT)}
    return rewrite_message(source, start, end, rewrites, _copy_part)


def _strip_attribute(source: WireStream, start: int, end: int) -> bytes:
    return rewrite_message(source, start, end, {ATTRIBUTE_T: _strip_tensor}, _copy_part)


def _strip_tensor(source: WireStream, start: int, end: int) -> bytes:
    if end - start <= SMALL_BYTES:
        return source.read(start, end)
    # The data is "elsewhere": inference then goes by the shape alone.
    return _tensor_elsewhere(source, start, end, TENSOR_DATA, {"location": "stripped"})


def _tensor_elsewhere(
    source: WireStream, start: int, end: int, data_fields: tuple[int, ...], external: dict[str, str]
) -> bytes:
    """Return a tensor without its data, and with where that lies."""
    left_out = dict.fromkeys((*data_fields, TENSOR_EXTERNAL, TENSOR_LOCATION))
    entries = (
        encode_bytes_field(1, key.encode()) + encode_bytes_field(2, text.encode()) for key, text in external.items()
    )
    return b"".join(
        (
            rewrite_message(source, start, end, left_out, _copy_part),
            *(encode_bytes_field(TENSOR_EXTERNAL, entry) for entry in entries),
            encode_varint_field(TENSOR_LOCATION, EXTERNAL),
        )
    )


def _copy_part(source: WireStream, start: int, end: int) -> bytes:
    if end - start > LARGEST_PART:
        raise WireLimitError
    return source.read(start, end)
