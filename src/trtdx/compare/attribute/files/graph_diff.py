"""Where two graphs differ in one module: operators lost and new, settings, constants; nodes matched by their order."""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.files.weight_differences import relate_weights
from trtdx.compare.attribute.twin.graph_reader import GraphReader, is_in_scope, load_graph
from trtdx.compare.attribute.twin.operators import node_settings
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import onnx_ir as ir

    from trtdx.formats.onnx.module_graph import OnnxGraph

    Tensor = Any

MAX_MATCHED_NODES = 600  # that are matched one by one once what is the same at both ends is left out
MAX_HOPS = 6  # from a node to what comes of it
NEIGHBOUR_NODES = 8  # nodes on each side that tell what a change is in
BORDER_OPERATORS = {"MatMul", "Gemm", "Softmax", "Gather", "Attention"}
SIGNIFICANT_CHANGE = 1e-5  # by how much a single number must differ, relative


class GraphModule:
    """The nodes of one module of a file that compute with data."""

    def __init__(self, path: str, scope: str) -> None:
        self.graph = load_graph(path)
        self.reader = GraphReader(self.graph, {})
        self.scope = scope
        numbers = [at for at, scopes in enumerate(self.graph.scopes) if not scope or is_in_scope(scopes, scope)]
        used = _used_nodes(self.graph)
        self.nodes = self.reader.data_nodes(at for at in numbers if at in used)
        self.all_ops = {node.op_type for node in self.nodes}
        self.ops = set(self.all_ops)  # narrowed to what is near where the graph tells no modules

    def nodes_near(self, changed: Iterable[ir.Node]) -> list[ir.Node]:
        """Return the nodes around some nodes, up to the next matrix product; for graphs without module names."""
        numbers = {id(node): at for at, node in enumerate(self.nodes)}
        places = [numbers[id(node)] for node in changed if id(node) in numbers]
        if not places:
            return []
        first, last = min(places), max(places)
        before = _until_product(self.nodes[max(0, first - NEIGHBOUR_NODES) : first][::-1])
        after = _until_product(self.nodes[last + 1 : last + 1 + NEIGHBOUR_NODES])
        return [*before, *self.nodes[first : last + 1], *after]

    def users(self, node: ir.Node) -> list[ir.Node]:
        return [self.graph.nodes[at] for value in node.outputs for at in self.graph.users.get(value, ())]

    def nodes_after(self, node: ir.Node, through: Collection[str] | None = None) -> list[ir.Node]:
        """Return the nodes that a few steps lead to from a node, by way of some operators alone where they are named."""
        reached, now = [], [node]
        for _ in range(MAX_HOPS):
            now = [user for before in now for user in self.users(before)]
            reached += now
            now = [user for user in now if through is None or user.op_type in through]
        return reached

    def constants(self, node: ir.Node) -> list[Tensor | None]:
        """Return the constants a node reads, in the places of its inputs."""
        constants: list[Tensor | None] = []
        for value in node.inputs:
            try:
                constant = self.reader.constant(value) if value is not None and self.reader.is_weight(value) else None
            except (InputError, RuntimeError, ValueError, TypeError):  # made by an operator not known here
                constant = None
            constants.append(constant)
        return constants


def _until_product(nodes: Sequence[ir.Node]) -> Sequence[ir.Node]:
    at = next((at for at, node in enumerate(nodes) if node.op_type in BORDER_OPERATORS), len(nodes))
    return nodes[:at]


def _used_nodes(graph: OnnxGraph) -> set[int]:
    """Return the nodes whose results are used."""
    used: set[int] = set()
    needed = set(graph.outputs)
    for at in reversed(range(len(graph.nodes))):
        if any(value in needed for value in graph.nodes[at].outputs):
            used.add(at)
            needed |= set(graph.reads[at])
    return used


class GraphChange(NamedTuple):
    """One difference.

    Attributes:
        kind: "lost", "new", "setting" or "constant".
        own: the reference's node; of what is new, the candidate's.
        other: the candidate's node.
        name: of the setting.
        before: the reference's setting or constant.
        after: the candidate's.
    """

    kind: str
    node: ir.Node
    candidate_node: ir.Node
    attribute: str = ""
    before: Any = None
    after: Any = None


def diff_graphs(reference: GraphModule, candidate: GraphModule) -> list[GraphChange]:
    """Return how a module of the candidate differs from the reference's."""
    one, other = [node.op_type for node in reference.nodes], [node.op_type for node in candidate.nodes]
    start = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    changes = list(_diff_matched_nodes(reference, candidate, range(start), range(start)))
    rest = range(start, len(one)), range(start, len(other))
    if len(rest[0]) + len(rest[1]) > 2 * MAX_MATCHED_NODES:
        return [*changes, *(GraphChange("lost", reference.nodes[at], reference.nodes[at]) for at in rest[0])]
    matcher = SequenceMatcher(None, one[start:], other[start:], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        mine, yours = range(start + a, start + b), range(start + c, start + d)
        if tag == "equal":
            changes += _diff_matched_nodes(reference, candidate, mine, yours)
        changes += [GraphChange("lost", reference.nodes[at], reference.nodes[at]) for at in mine if tag != "equal"]
        changes += [GraphChange("new", candidate.nodes[at], candidate.nodes[at]) for at in yours if tag != "equal"]
    return changes


def _diff_matched_nodes(
    reference: GraphModule, candidate: GraphModule, reference_range: range, candidate_range: range
) -> Iterator[GraphChange]:
    for at, by in zip(reference_range, candidate_range, strict=True):
        one, other = reference.nodes[at], candidate.nodes[by]
        before, after = node_settings(one), node_settings(other)
        for name in sorted(before.keys() | after.keys()):
            if str(before.get(name)) != str(after.get(name)):
                yield GraphChange("setting", one, other, name, before.get(name), after.get(name))
        for left, right in zip(reference.constants(one), candidate.constants(other), strict=False):
            if left is not None and right is not None and not constants_agree(left, right):
                yield GraphChange("constant", one, other, "", left, right)


def constants_agree(one: Tensor, other: Tensor) -> bool:
    """Whether two constants are the same except for the precision they are stored in."""
    if one.shape != other.shape:
        return False
    left, right = one.double(), other.double()
    coarse = max(_relative_step(one), _relative_step(other))
    apart, size = float((left - right).norm()), float(left.norm())
    return apart <= max(coarse, SIGNIFICANT_CHANGE) * size if size else not apart


def _relative_step(tensor: Tensor) -> float:
    if not tensor.is_floating_point():
        return 0.0
    return {2: 0.01 if "bf" in str(tensor.dtype) else 2e-3}.get(tensor.dtype.itemsize, 0.0)


def describe_changes(changes: Sequence[GraphChange]) -> list[str]:
    """Return in words how two modules differ: in their operators, or else in attributes and constants."""
    lost, new = (Counter(change.node.op_type for change in changes if change.kind == kind) for kind in ("lost", "new"))
    if lost or new:
        words = [" ".join(operators.elements()) or "none" for operators in (lost - new, new - lost)]
        return [f"operators: {words[0]} lost, {words[1]} new"]
    return [line for change in changes if (line := describe_change(change))]


def describe_change(change: GraphChange) -> str:
    """Return a changed attribute or constant in words; "" if a constant differs by its precision alone."""
    operator, before, after = change.node.op_type, change.before, change.after
    if change.kind == "setting":
        return f"{operator}: {change.attribute} is {after}, not {before}"
    if before.numel() == after.numel() == 1:
        return f"{operator}: a constant is {float(after):.5g}, not {float(before):.5g}"
    relation = relate_weights(before, after)
    return "" if relation.kind == "same" else f"{operator}: a constant is {relation.description}"
