"""An ONNX model without its weights, as bytes: enough for shape inference, small whatever the model's size."""

from __future__ import annotations

from trtdx.formats.onnx.proto import NODE_ATTRIBUTE, TENSOR_DATA, TENSOR_EXTERNAL
from trtdx.formats.onnx.walk import (
    ATTRIBUTE_T,
    GRAPH_INITIALIZER,
    GRAPH_INPUT,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    MODEL_FUNCTION,
    MODEL_GRAPH,
    MODEL_IR,
    MODEL_OPSET,
)
from trtdx.formats.wire import SPAN, VARINT, Source, TooMuchError, encoded_number, encoded_span, fields

SMALL_CONSTANT = 1 << 10  # kept with its values: they may be a shape
LARGEST_PART = 1 << 20  # of a function, or of a body inside a node
MOST_BYTES = 32 << 20
NODE_LEFT_OUT = (6, 9, 10)  # documentation, metadata, device placement
TENSOR_LOCATION, EXTERNAL = 14, 1
# The data is "elsewhere": inference then goes by the shape alone.
ELSEWHERE = b"\x0a\x08location\x12\x08stripped"


def stripped(source: Source) -> bytes:
    """Return the model with small constants and without large ones, metadata and intermediate shapes."""
    parts: list[bytes] = []
    for number, kind, start, end in fields(source, 0, source.size):
        if number == MODEL_IR and kind == VARINT:
            parts.append(encoded_number(number, start))
        elif kind == SPAN and number in (MODEL_OPSET, MODEL_FUNCTION):
            parts.append(_copied(source, number, start, end))
        elif kind == SPAN and number == MODEL_GRAPH:
            parts.append(encoded_span(number, _graph(source, start, end)))
    return b"".join(parts)


def _graph(source: Source, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    for number, kind, first, after in fields(source, start, end):
        if kind != SPAN:
            continue
        if number == GRAPH_NODE:
            parts.append(encoded_span(number, _node(source, first, after)))
        elif number == GRAPH_INITIALIZER:
            parts.append(encoded_span(number, _tensor(source, first, after)))
        elif number in (GRAPH_INPUT, GRAPH_OUTPUT, 2):  # 2: the graph's name
            parts.append(_copied(source, number, first, after))
        else:
            continue
        size += len(parts[-1])
        if size > MOST_BYTES:
            raise TooMuchError
    return b"".join(parts)


def _node(source: Source, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    for number, kind, first, after in fields(source, start, end):
        if kind != SPAN or number in NODE_LEFT_OUT:
            continue
        if number == NODE_ATTRIBUTE and after - first > SMALL_CONSTANT:
            parts.append(encoded_span(number, _attribute(source, first, after)))
        else:
            parts.append(_copied(source, number, first, after))
    return b"".join(parts)


def _attribute(source: Source, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    for number, kind, first, after in fields(source, start, end):
        if kind == VARINT:
            parts.append(encoded_number(number, first))
        elif kind == SPAN and number == ATTRIBUTE_T:
            parts.append(encoded_span(number, _tensor(source, first, after)))
        elif kind == SPAN:
            parts.append(_copied(source, number, first, after))
    return b"".join(parts)


def _tensor(source: Source, start: int, end: int) -> bytes:
    if end - start <= SMALL_CONSTANT:
        return source.read(start, end)
    parts: list[bytes] = []
    for number, kind, first, after in fields(source, start, end):
        if number in (*TENSOR_DATA, TENSOR_EXTERNAL, TENSOR_LOCATION):
            continue
        parts.append(
            encoded_number(number, first) if kind == VARINT else _copied(source, number, first, after)
        )
    return b"".join(
        (*parts, encoded_span(TENSOR_EXTERNAL, ELSEWHERE), encoded_number(TENSOR_LOCATION, EXTERNAL))
    )


def _copied(source: Source, number: int, start: int, end: int) -> bytes:
    if end - start > LARGEST_PART:
        raise TooMuchError
    return encoded_span(number, source.read(start, end))
