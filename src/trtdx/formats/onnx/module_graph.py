"""An ONNX graph seen as the modules it was exported from: which node belongs where, and what its values are.

Where a node belongs is told by PyTorch's exporter in the node's metadata, and by its predecessor (and those who
learned from it) in node names such as `/model/layers.0/mlp/down_proj/MatMul`. Where a node belongs that tells nothing,
because a quantiser or an optimiser made it, is found by those around it (scopes.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.formats.onnx.edit import iter_body_nodes
from trtdx.formats.onnx.fused_nodes import split_fused_node
from trtdx.formats.onnx.module_names import MODULE_BY_WEIGHT_KEY
from trtdx.formats.onnx.proto import NO_MODULE, SCOPES, parse_quoted, parse_scopes
from trtdx.formats.onnx.scopes import ScopeFinder

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

CLASSES = "pkg.torch.onnx.class_hierarchy"
_SOURCES_OF_DATA = {"RandomNormal", "RandomUniform"}


class ValueKind(IntEnum):
    """What a value depends on: weights alone, shapes as well, or what is fed."""

    CONSTANT = 0
    SHAPE = 1
    DATA = 2


class OnnxGraph:
    """A model's own graph, its nodes numbered in the order in which they can be computed.

    A node that adds and then normalises is two of these (fused_nodes.py).

    Attributes:
        scopes: for each node, the paths of the modules it is in, outermost first.
        classes: the class of each module, where it is told.
        inserted: the nodes that do not tell where they belong, as no exporter made them.
        bordered: the modules whose ends are known: those that the file tells, and those of single weights.
        reads: for each node, the values it uses, also inside its bodies.
        users: for each value, the nodes that read it.
        made: for each value, the node it comes from.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.nodes: list[ir.Node] = [piece for node in _sorted_nodes(model.graph) for piece in split_fused_node(node)]
        self.inputs = [graph_input for graph_input in model.graph.inputs if not graph_input.is_initializer()]
        self.outputs = list(model.graph.outputs)
        self.producers = {value: at for at, node in enumerate(self.nodes) for value in node.outputs}
        self.reads = [list(_values_read_by(node, model.graph)) for node in self.nodes]
        self.users: dict[ir.Value, list[int]] = {}
        for at, values in enumerate(self.reads):
            for value in values:
                self.users.setdefault(value, []).append(at)
        self.values = {value.name: value for value in (*self.inputs, *self.producers) if value.name}
        self.classes: dict[str, str] = {}
        by_path = sum("/" in (node.name or "") for node in self.nodes)
        self._named_by_path = 2 * by_path > len(self.nodes)  # else a few whose makers like the sign
        self.scopes = self._find_scopes()
        self._kinds = self._value_kinds()

    def kind(self, value: ir.Value) -> ValueKind:
        return self._kinds.get(value, ValueKind.CONSTANT)

    def node_name(self, index: int) -> str:
        return self.nodes[index].name or f"{self.nodes[index].op_type} number {index}"

    def _find_scopes(self) -> list[tuple[str, ...]]:
        declared = [self._declared_scope(node) for node in self.nodes]
        self.inserted = frozenset(at for at, scope in enumerate(declared) if scope is None)
        by_weight = [node.metadata_props.get(MODULE_BY_WEIGHT_KEY, "") for node in self.nodes]
        self.modules_with_borders = {
            path
            for scope, module in zip(declared, by_weight, strict=True)
            for path in (scope or ())[-1 if module else 0 :]
        }
        return ScopeFinder(self).find_scopes(declared)

    def _declared_scope(self, node: ir.Node) -> tuple[str, ...] | None:
        scopes = node.metadata_props.get(SCOPES)
        if scopes:
            paths = parse_scopes(scopes)
            names = parse_quoted(node.metadata_props.get(CLASSES, ""))
            classes = [name.rpartition(".")[2] for name in names]
            self.classes |= dict(zip(paths, classes, strict=False))
            return tuple(path for path in paths if path and path != NO_MODULE)
        if "/" in (node.name or "") and (self._named_by_path or str(node.name).startswith("/")):
            parts = str(node.name).strip("/").split("/")[:-1]
            return tuple(".".join(parts[: count + 1]) for count in range(len(parts)))
        return None

    def _value_kinds(self) -> dict[ir.Value, ValueKind]:
        kinds = dict.fromkeys(self.inputs, ValueKind.DATA)
        for node, reads in zip(self.nodes, self.reads, strict=True):
            kind = max((kinds.get(value, ValueKind.CONSTANT) for value in reads), default=ValueKind.CONSTANT)
            if node.op_type in _SOURCES_OF_DATA:
                kind = ValueKind.DATA
            elif node.op_type in ("Shape", "Size"):
                kind = min(kind, ValueKind.SHAPE)
            kinds |= dict.fromkeys(node.outputs, kind)
        return kinds


def _sorted_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return a graph's nodes so that each comes after those it needs; most files have them so."""
    produced: set[ir.Value] = set()
    for node in graph:
        if any(value.producer() is not None and value not in produced for value in _values_read_by(node, graph)):
            break
        produced |= set(node.outputs)
    else:
        return list(graph)
    try:
        graph.sort()
    except ValueError as err:
        raise InputError(f"the nodes of the graph form a cycle: {err}") from err
    return list(graph)


def _values_read_by(node: ir.Node, graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values of a graph that a node uses, itself or inside its bodies."""
    yield from (value for value in node.inputs if value is not None)
    for inner in iter_body_nodes(node):
        yield from (value for value in inner.inputs if value is not None and value.graph is graph)
