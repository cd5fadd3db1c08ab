"""Module borders of an ONNX graph that are guesses, because an optimiser put a node there that names no module.

A fused node may hold the end of one module and the beginning of the next. Which tensors enter and leave is then guessed
from the nodes around it, and only values can tell whether the guess is right.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.errors import TrtdxError
from trtdx.formats.onnx.graph import Graph, Kind
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.names import BY_WEIGHT
from trtdx.formats.onnx.places import Call, calls_of, module_nodes
from trtdx.formats.onnx.scopes import is_about_numbers

if TYPE_CHECKING:
    from trtdx.compare.sides.side import Side


def guessed_borders(side: Side) -> frozenset[str]:
    """Return the modules of a side whose borders are a guess: "layers.0.mlp:out"."""
    if side.spec.kind not in ("onnx", "trt"):
        return frozenset()
    try:
        at = Path(side.spec.path).stat()
        return _guessed(side.spec.path, at.st_mtime_ns, at.st_size)
    except (OSError, TrtdxError):
        return frozenset()


@lru_cache(maxsize=4)
def _guessed(path: str, _changed: int, _size: int) -> frozenset[str]:
    graph = Graph(open_model(path))
    odd = {
        at
        for at in graph.inserted
        if (hasattr(graph.nodes[at], "whole") or not is_about_numbers(graph.nodes[at].op_type))
        and any(graph.kind(value) is Kind.DATA for value in graph.nodes[at].outputs)
    }
    by_weight = {node.metadata_props.get(BY_WEIGHT) for node in graph.nodes} - {None}
    borders: set[str] = set()
    modules = module_nodes(graph)
    around = {path.rpartition(".")[0] for path in modules}
    around |= {path.rpartition(".")[0] for path in around}  # a list of layers is no module
    for module, nodes in modules.items():
        if module not in graph.bordered:
            borders |= {f"{module}:in", f"{module}:out"}
        for call in calls_of(graph, nodes) if odd or by_weight else ():
            ports = (_touched(graph, call, odd) if module in around else set()) | (
                _scaled(graph, call) if module in by_weight else set()
            )
            borders |= {f"{module}:{port}" for port in ports}
        if any(_has_factor(graph.nodes[at]) for at in nodes):
            borders.add(f"{module}:out")
    return frozenset(borders)


def _has_factor(node: Any) -> bool:
    """Whether a product has a factor inside that may have been a module's or what stood behind it."""
    return bool(node.op_type == "FusedMatMul" and node.attributes.get_float("alpha", 1.0) != 1.0)


def _scaled(graph: Graph, call: Call) -> set[str]:
    """Return the ports at which a scalar is added or multiplied that may belong to the module, which only its weight names."""
    makers = [graph.nodes[graph.made[value]] for value, _ in call.inputs if value in graph.made]
    users = [graph.nodes[at] for value in call.outputs for at in _reads(graph, value)]
    return {port for port, nodes in (("in", makers), ("out", users)) if any(map(_with_number, nodes))}


def _with_number(node: Any) -> bool:
    """Whether a node computes one value with a single number."""
    constants = [
        value.const_value for value in node.inputs if value is not None and value.const_value is not None
    ]
    return node.op_type in ("Add", "Sub", "Mul", "Div") and len(constants) == 1 and constants[0].size == 1


def _touched(graph: Graph, call: Call, odd: set[int]) -> set[str]:
    """Return the ports of a module that have a fused node on either side."""
    inside = set(call.nodes)
    values = [("in", value, odd & inside) for value, _ in call.inputs]
    values += [("out", value, odd - inside) for value in call.outputs]
    return {
        port
        for port, value, readers in values
        if graph.made.get(value) in odd or _reads(graph, value) & readers
    }


def _reads(graph: Graph, value: object) -> set[int]:
    return set(graph.users.get(value, ()))  # type: ignore[call-overload]
