"""The messages of onnx.proto that trtdx looks into, each made from a span of the file."""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, NamedTuple

from trtdx.formats.protobuf_wire import (
    LENGTH_DELIMITED,
    WireStream,
    int64_from_varint,
    iter_fields,
    unpack_varints,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# Field numbers (onnx 1.23; a number never changes its meaning).
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP, NODE_ATTRIBUTE, NODE_DOMAIN, NODE_METADATA = 1, 2, 3, 4, 5, 7, 9
TENSOR_DIMS, TENSOR_TYPE, TENSOR_INT32, TENSOR_INT64, TENSOR_NAME, TENSOR_RAW = 1, 2, 5, 7, 8, 9
TENSOR_EXTERNAL = 13
TENSOR_DATA = (4, 5, 6, 7, 9, 10, 11)  # the fields that hold weights

DATA_TYPES = {
    1: ("float32", 32), 2: ("uint8", 8), 3: ("int8", 8), 4: ("uint16", 16), 5: ("int16", 16), 6: ("int32", 32),
    7: ("int64", 64), 8: ("string", 0), 9: ("bool", 8), 10: ("float16", 16), 11: ("float64", 64),
    12: ("uint32", 32), 13: ("uint64", 64), 14: ("complex64", 64), 15: ("complex128", 128),
    16: ("bfloat16", 16), 17: ("float8_e4m3fn", 8), 18: ("float8_e4m3fnuz", 8), 19: ("float8_e5m2", 8),
    20: ("float8_e5m2fnuz", 8), 21: ("uint4", 4), 22: ("int4", 4), 23: ("float4_e2m1", 4),
    24: ("float8_e8m0", 8), 25: ("uint2", 2), 26: ("int2", 2),
}  # fmt: skip
INT32, INT64 = 6, 7
OTHER_TYPES = {4: "sequence", 5: "map", 8: "sparse tensor", 9: "optional"}

MAX_DIMENSIONS = 64
MAX_INDICES = 4096  # of a constant that is looked into
UNKNOWN_RANK = "..."
NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"  # PyTorch 2.13's word for code outside every module
SCOPES = "pkg.torch.onnx.name_scopes"
SCOPES_MARK = b"\x0a" + bytes([len(SCOPES)]) + SCOPES.encode()  # how a metadata entry with this key starts

Dims = tuple[int | str, ...]


class OnnxValue(NamedTuple):
    """An input or output: its type, and its dimensions as numbers or names."""

    name: str
    dtype: str
    dims: Dims


class OnnxWeight(NamedTuple):
    """What a constant's header says; its data is a span of the file that nobody has read."""

    name: str
    type: int
    dims: tuple[int, ...]
    stored_bytes: int  # in this file
    data: tuple[int, int, int] | None  # field number, start, end
    external: dict[str, str] | None

    @property
    def needed_bytes(self) -> int | None:
        return needed_bytes(self.type, self.dims)


def needed_bytes(data_type: int, dims: Sequence[int]) -> int | None:
    """Return how many bytes a tensor of a type and shape needs, None where that cannot be told."""
    bits, count = DATA_TYPES.get(data_type, ("", 0))[1], math.prod(dims)
    return (count * bits + 7) // 8 if bits and 0 <= count < 1 << 60 else None


class OnnxNode(NamedTuple):
    """One operation; its attributes are spans nobody has looked into."""

    name: str
    op: str
    domain: str
    module: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[int, int], ...]

    @property
    def label(self) -> str:
        return self.name or f"{self.op} -> {self.outputs[0] if self.outputs else '?'}"


def parse_node(source: WireStream, start: int, end: int) -> OnnxNode:
    """Return a NodeProto."""
    texts: dict[int, list[str]] = {NODE_INPUT: [], NODE_OUTPUT: []}
    attributes: list[tuple[int, int]] = []
    name = op = domain = module = ""
    for number, kind, first, after in iter_fields(source, start, end):
        if kind != LENGTH_DELIMITED:
            continue
        if number in texts:
            texts[number].append(source.read_text(first, after))
        elif number == NODE_NAME:
            name = source.read_text(first, after)
        elif number == NODE_OP:
            op = source.read_text(first, after)
        elif number == NODE_DOMAIN:
            domain = source.read_text(first, after)
        elif number == NODE_ATTRIBUTE:
            attributes.append((first, after))
        elif number == NODE_METADATA:
            module = module or _module_from_metadata(source, first, after)
    return OnnxNode(name, op, domain, module, tuple(texts[1]), tuple(texts[2]), tuple(attributes))


def _module_from_metadata(source: WireStream, start: int, end: int) -> str:
    """Return the module path that a metadata entry of PyTorch's exporter tells, "" for any other entry."""
    if source.read(start, min(end, start + len(SCOPES_MARK))) != SCOPES_MARK:
        return ""
    return module_from_scopes(next(iter(_parse_entry(source, start, end).values())))


def module_from_scopes(text: str) -> str:
    """Return "model.layers.0.mlp" for "['', 'model', 'model.layers.0', 'model.layers.0.mlp', 'mul_3']"."""
    scopes = parse_scopes(text)
    return scopes[-1] if scopes and scopes[-1] != NO_MODULE else ""


def parse_scopes(text: str) -> list[str]:
    """Return the module paths of such a text, the outermost first; its last entry is the operation itself."""
    return parse_quoted(text)[:-1]


def parse_quoted(text: str) -> list[str]:
    """Return the texts of a list as Python prints it."""
    return re.findall(r"'((?:[^'\\]|\\.)*)'", text)


def module_from_name(name: str) -> str:
    """Return "model.layers.0.mlp" for "/model/layers.0/mlp/Mul", as PyTorch's older exporter names nodes."""
    return ".".join(name.strip("/").split("/")[:-1]) if name.startswith("/") else ""


def parse_value_name(source: WireStream, start: int, end: int) -> str:
    """Return the name of a ValueInfoProto, reading no further."""
    for number, kind, first, after in iter_fields(source, start, end):
        if number == 1 and kind == LENGTH_DELIMITED:
            return source.read_text(first, after)
    return ""


def parse_value(source: WireStream, start: int, end: int) -> OnnxValue:
    """Return what a ValueInfoProto declares."""
    name, dtype = "", "?"
    dims: Dims = (UNKNOWN_RANK,)
    for number, kind, first, after in iter_fields(source, start, end):
        if number == 1 and kind == LENGTH_DELIMITED:
            name = source.read_text(first, after)
        elif number == 2 and kind == LENGTH_DELIMITED:
            dtype, dims = _parse_type(source, first, after)
    return OnnxValue(name, dtype, dims)


def _parse_type(source: WireStream, start: int, end: int) -> tuple[str, Dims]:
    for number, kind, first, after in iter_fields(source, start, end):
        if number == 1 and kind == LENGTH_DELIMITED:
            return _parse_tensor_type(source, first, after)
        if number in OTHER_TYPES:
            return OTHER_TYPES[number], ()
    return "?", (UNKNOWN_RANK,)


def _parse_tensor_type(source: WireStream, start: int, end: int) -> tuple[str, Dims]:
    dtype = "?"
    dims: Dims = (UNKNOWN_RANK,)
    for number, kind, first, after in iter_fields(source, start, end):
        if number == 1 and kind != LENGTH_DELIMITED:
            dtype = DATA_TYPES.get(first, (f"type {first}", 0))[0]
        elif number == 2 and kind == LENGTH_DELIMITED:
            spans = [(x, y) for n, k, x, y in iter_fields(source, first, after) if n == 1 and k == LENGTH_DELIMITED]
            dims = tuple(_parse_dimension(source, x, y) for x, y in spans[:MAX_DIMENSIONS])
    return dtype, dims


def _parse_dimension(source: WireStream, start: int, end: int) -> int | str:
    for number, kind, first, after in iter_fields(source, start, end):
        if number == 1 and kind != LENGTH_DELIMITED and int64_from_varint(first) >= 0:
            return int64_from_varint(first)
        if number == 2 and kind == LENGTH_DELIMITED:
            return source.read_text(first, after) or "?"
    return "?"


def parse_weight(source: WireStream, start: int, end: int) -> OnnxWeight:
    """Return the header of a TensorProto; its data is stepped over."""
    name, kind_of_data, size = "", 0, 0
    dims: list[int] = []
    data: tuple[int, int, int] | None = None
    external: dict[str, str] | None = None
    for number, kind, first, after in iter_fields(source, start, end):
        if number == TENSOR_TYPE and kind != LENGTH_DELIMITED:
            kind_of_data = first
        elif number == TENSOR_DIMS:
            dims += _parse_dimensions(source, kind, first, after)
        elif kind != LENGTH_DELIMITED:
            size += 8 if number in TENSOR_DATA else 0
        elif number == TENSOR_NAME:
            name = source.read_text(first, after)
        elif number in TENSOR_DATA:
            size += after - first
            data = (number, first, after)
        elif number == TENSOR_EXTERNAL:
            external = (external or {}) | _parse_entry(source, first, after)
    return OnnxWeight(name, kind_of_data, tuple(dims[:MAX_DIMENSIONS]), size, data, external)


def _parse_dimensions(source: WireStream, kind: int, first: int, after: int) -> list[int]:
    if kind != LENGTH_DELIMITED:
        return [int64_from_varint(first)]
    return [
        int64_from_varint(number)
        for number in unpack_varints(source.read(first, min(after, first + 1024)), MAX_DIMENSIONS)
    ]


def _parse_entry(source: WireStream, start: int, end: int) -> dict[str, str]:
    texts = {
        number: source.read_text(x, y)
        for number, kind, x, y in iter_fields(source, start, end)
        if kind == LENGTH_DELIMITED
    }
    return {texts.get(1, ""): texts.get(2, "")}


def read_integers(source: WireStream, weight: OnnxWeight) -> list[int]:
    """Return the numbers of a small integer constant, empty if it is large or of another kind."""
    if weight.data is None or weight.type not in (INT32, INT64):
        return []
    number, start, end = weight.data
    if end - start > 10 * MAX_INDICES:
        return []
    data = source.read(start, end)
    if number == TENSOR_RAW:
        width, code = (8, "q") if weight.type == INT64 else (4, "i")
        count = len(data) // width
        return list(struct.unpack(f"<{count}{code}", data[: count * width]))
    if number in (TENSOR_INT32, TENSOR_INT64):
        return [int64_from_varint(value) for value in unpack_varints(data, MAX_INDICES)]
    return []
