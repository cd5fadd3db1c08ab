"""Module borders of an ONNX graph that are guesses, because an optimiser left a node there that names no module.

A fused node may hold the end of one module and the beginning of the next. Which tensors enter and leave is then guessed
from the nodes around it, and only values can tell whether the guess is right.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.errors import TrtdxError
from trtdx.formats.onnx.model import open_model
from trtdx.formats.onnx.module_graph import OnnxGraph, ValueKind
from trtdx.formats.onnx.module_names import MODULE_BY_WEIGHT_KEY
from trtdx.formats.onnx.places import ModuleCall, module_calls, module_nodes
from trtdx.formats.onnx.scopes import is_conversion_operator

if TYPE_CHECKING:
    from trtdx.compare.sides.side import Side


def guessed_borders(side: Side) -> frozenset[str]:
    """Return the modules of a side whose borders are a guess: "layers.0.mlp:out"."""
    if side.spec.kind not in ("onnx", "trt"):
        return frozenset()
    try:
        at = Path(side.spec.path).stat()
        return _find_guessed_borders(side.spec.path, at.st_mtime_ns, at.st_size)
    except (OSError, TrtdxError):
        return frozenset()


@lru_cache(maxsize=4)
def _find_guessed_borders(path: str, _changed: int, _size: int) -> frozenset[str]:
    graph = OnnxGraph(open_model(path))
    odd = {
        at
        for at in graph.inserted
        if (hasattr(graph.nodes[at], "whole") or not is_conversion_operator(graph.nodes[at].op_type))
        and any(graph.kind(value) is ValueKind.DATA for value in graph.nodes[at].outputs)
    }
    by_weight = {node.metadata_props.get(MODULE_BY_WEIGHT_KEY) for node in graph.nodes} - {None}
    borders: set[str] = set()
    modules = module_nodes(graph)
    around = {path.rpartition(".")[0] for path in modules}
    around |= {path.rpartition(".")[0] for path in around}  # a list of layers is no module
    for module, nodes in modules.items():
        if module not in graph.modules_with_borders:
            borders |= {f"{module}:in", f"{module}:out"}
        for call in module_calls(graph, nodes) if odd or by_weight else ():
            ports = (_ports_at_fused_nodes(graph, call, odd) if module in around else set()) | (
                _scaled_ports(graph, call) if module in by_weight else set()
            )
            borders |= {f"{module}:{port}" for port in ports}
        if any(_has_factor(graph.nodes[at]) for at in nodes):
            borders.add(f"{module}:out")
    return frozenset(borders)


def _has_factor(node: Any) -> bool:
    """Whether a product has a factor inside that may have been a module's or what stood behind it."""
    return bool(node.op_type == "FusedMatMul" and node.attributes.get_float("alpha", 1.0) != 1.0)


def _scaled_ports(graph: OnnxGraph, call: ModuleCall) -> set[str]:
    """Return the ports at which a scalar is added or multiplied that may belong to the module, which only its weight names."""
    makers = [graph.nodes[graph.producers[value]] for value, _ in call.inputs if value in graph.producers]
    users = [graph.nodes[at] for value in call.outputs for at in _reader_nodes(graph, value)]
    return {port for port, nodes in (("in", makers), ("out", users)) if any(map(_has_scalar_operand, nodes))}


def _has_scalar_operand(node: Any) -> bool:
    """Whether a node computes one value with a single number."""
    constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
    return node.op_type in ("Add", "Sub", "Mul", "Div") and len(constants) == 1 and constants[0].size == 1


def _ports_at_fused_nodes(graph: OnnxGraph, call: ModuleCall, odd: set[int]) -> set[str]:
    """Return the ports of a module that have a fused node on either side."""
    inside = set(call.nodes)
    values = [("in", value, odd & inside) for value, _ in call.inputs]
    values += [("out", value, odd - inside) for value in call.outputs]
    return {
        port
        for port, value, readers in values
        if graph.producers.get(value) in odd or _reader_nodes(graph, value) & readers
    }


def _reader_nodes(graph: OnnxGraph, value: object) -> set[int]:
    return set(graph.users.get(value, ()))  # type: ignore[call-overload]
