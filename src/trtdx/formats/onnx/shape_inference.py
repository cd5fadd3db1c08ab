"""An ONNX model opened with the `onnx` package, without its weights, and what shape inference says of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtdx.formats.onnx.strip import strip_weights
from trtdx.formats.protobuf_wire import WireStream
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtdx.host import Host

MAX_EXPANDED_NODES = 200_000  # nodes, each function counted where it is called: inference goes into every call
MAX_CALL_DEPTH = 100  # of functions inside one another
MAX_NODE_OUTPUTS = 10_000  # of one Split: inference allocates as many as the node claims
PURPOSE = "check types and shapes inside the graph"


class ShapesUnknownError(Exception):
    """Why shapes cannot be inferred at all."""


def open_without_weights(host: Host, path: str) -> tuple[Any, Any]:
    """Return the onnx package and the model, without what it declares of its outputs, as TensorRT ignores it."""
    package = import_optional("onnx", extra="onnx", purpose=PURPOSE)
    import_optional("onnx.shape_inference", extra="onnx", purpose=PURPOSE)
    with host.open(path) as stream:
        data = strip_weights(WireStream(stream, host.size(path)))
    try:
        model = package.ModelProto.FromString(data)
    except Exception as err:  # protobuf's own error class is private to its backend
        raise ShapesUnknownError(f"the onnx package cannot parse it: {err}") from err
    for output in model.graph.output:
        output.ClearField("type")
    _check_expansion(model)
    return package, model


def _check_expansion(model: Any) -> None:
    """Raise for a graph that is small in the file and would be huge in inference."""
    costs: dict[tuple[str, str], int] = {}
    called = {(function.domain, function.name): function.node for function in model.functions}

    def expanded(nodes: Iterable[Any], depth: int) -> int:
        if depth > MAX_CALL_DEPTH:
            raise ShapesUnknownError("its functions call themselves or one another too deeply")
        return sum(cost((node.domain, node.op_type), depth) for node in _iter_nodes_with_bodies(nodes))

    def cost(key: tuple[str, str], depth: int) -> int:
        if key not in called:
            return 1
        if key not in costs:
            costs[key] = expanded(called[key], depth + 1)
        return costs[key]

    bodies = [model.graph.node, *(function.node for function in model.functions)]
    if expanded(model.graph.node, 0) > MAX_EXPANDED_NODES:
        raise ShapesUnknownError("its functions unfold to too many nodes")
    claims = (
        attribute.i
        for body in bodies
        for node in _iter_nodes_with_bodies(body)
        for attribute in node.attribute
        if attribute.name == "num_outputs"
    )
    if any(claim > MAX_NODE_OUTPUTS for claim in claims):
        raise ShapesUnknownError("a node claims more outputs than any real one has")


def _iter_nodes_with_bodies(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield nodes and those of the bodies of If and Loop in them; protobuf bounds how deep these can be."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _iter_nodes_with_bodies(body.node)


def shape_inference_error(package: Any, model: Any) -> str:
    """Return what strict shape inference says, "" when all fits."""
    try:
        package.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except Exception as err:  # InferenceError, and what C++ throws besides
        return str(err)
    return ""


def parse_inference_error(message: str) -> dict[str, str]:
    """Return the first node and reason of an error such as "(op_type:Add, node name: add): [...] why"."""
    match = re.search(r"op_type: ?([^\s,)]+)(?:, node name: ?([^)]*))?\)(?:: ?\[(\w+)\] ?(.*))?", message)
    if not match or not match[3]:
        return {}
    return {"node": match[2] or "", "operator": match[1], "kind": match[3], "why": match[4].strip()[:200]}
