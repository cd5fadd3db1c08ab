"""Where two graphs differ in one module: operators lost and new, settings, constants; nodes matched by their order."""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.files.weight_differences import relation
from trtdx.compare.attribute.twin.graph import Reader, graph_of, is_in_scope
from trtdx.compare.attribute.twin.operators import settings_of
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import onnx_ir as ir

    from trtdx.formats.onnx.graph import Graph

    Tensor = Any

MOST_NODES = 600  # that are matched one by one once what is the same at both ends is left out
MAX_HOPS = 6  # from a node to what comes of it
NEAR = 8  # nodes on each side that tell what a change is in
BORDERS = {"MatMul", "Gemm", "Softmax", "Gather", "Attention"}
SIGNIFICANT = 1e-5  # by how much a single number must differ, relative


class View:
    """The nodes of one module of a file that compute with data."""

    def __init__(self, path: str, scope: str) -> None:
        self.graph = graph_of(path)
        self.reader = Reader(self.graph, {})
        self.scope = scope
        numbers = [
            at for at, scopes in enumerate(self.graph.scopes) if not scope or is_in_scope(scopes, scope)
        ]
        used = _used(self.graph)
        self.nodes = self.reader.data_nodes(at for at in numbers if at in used)
        self.all_ops = {node.op_type for node in self.nodes}
        self.ops = set(self.all_ops)  # narrowed to what is near where the graph tells no modules

    def near(self, changed: Iterable[ir.Node]) -> list[ir.Node]:
        """Return the nodes around some, up to the next matrix product: of a graph that tells no modules."""
        numbers = {id(node): at for at, node in enumerate(self.nodes)}
        places = [numbers[id(node)] for node in changed if id(node) in numbers]
        if not places:
            return []
        first, last = min(places), max(places)
        before = _until_product(self.nodes[max(0, first - NEAR) : first][::-1])
        after = _until_product(self.nodes[last + 1 : last + 1 + NEAR])
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
                constant = (
                    self.reader.constant(value)
                    if value is not None and self.reader.is_weight(value)
                    else None
                )
            except (InputError, RuntimeError, ValueError, TypeError):  # made by an operator not known here
                constant = None
            constants.append(constant)
        return constants


def _until_product(nodes: Sequence[ir.Node]) -> Sequence[ir.Node]:
    at = next((at for at, node in enumerate(nodes) if node.op_type in BORDERS), len(nodes))
    return nodes[:at]


def _used(graph: Graph) -> set[int]:
    """Return the nodes that something comes of."""
    used: set[int] = set()
    needed = set(graph.outputs)
    for at in reversed(range(len(graph.nodes))):
        if any(value in needed for value in graph.nodes[at].outputs):
            used.add(at)
            needed |= set(graph.reads[at])
    return used


class Difference(NamedTuple):
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
    own: ir.Node
    other: ir.Node
    name: str = ""
    before: Any = None
    after: Any = None


def differences(ours: View, theirs: View) -> list[Difference]:
    """Return how a module of the candidate differs from the reference's."""
    one, other = [node.op_type for node in ours.nodes], [node.op_type for node in theirs.nodes]
    start = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    changes = list(_along(ours, theirs, range(start), range(start)))
    rest = range(start, len(one)), range(start, len(other))
    if len(rest[0]) + len(rest[1]) > 2 * MOST_NODES:
        return [*changes, *(Difference("lost", ours.nodes[at], ours.nodes[at]) for at in rest[0])]
    matcher = SequenceMatcher(None, one[start:], other[start:], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        mine, yours = range(start + a, start + b), range(start + c, start + d)
        if tag == "equal":
            changes += _along(ours, theirs, mine, yours)
        changes += [Difference("lost", ours.nodes[at], ours.nodes[at]) for at in mine if tag != "equal"]
        changes += [Difference("new", theirs.nodes[at], theirs.nodes[at]) for at in yours if tag != "equal"]
    return changes


def _along(ours: View, theirs: View, mine: range, yours: range) -> Iterator[Difference]:
    for at, by in zip(mine, yours, strict=True):
        one, other = ours.nodes[at], theirs.nodes[by]
        before, after = settings_of(one), settings_of(other)
        for name in sorted(before.keys() | after.keys()):
            if str(before.get(name)) != str(after.get(name)):
                yield Difference("setting", one, other, name, before.get(name), after.get(name))
        for left, right in zip(ours.constants(one), theirs.constants(other), strict=False):
            if left is not None and right is not None and not same(left, right):
                yield Difference("constant", one, other, "", left, right)


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two constants are one, but for the precision they are kept in."""
    if one.shape != other.shape:
        return False
    left, right = one.double(), other.double()
    coarse = max(_step(one), _step(other))
    apart, size = float((left - right).norm()), float(left.norm())
    return apart <= max(coarse, SIGNIFICANT) * size if size else not apart


def _step(tensor: Tensor) -> float:
    if not tensor.is_floating_point():
        return 0.0
    return {2: 0.01 if "bf" in str(tensor.dtype) else 2e-3}.get(tensor.dtype.itemsize, 0.0)


def describe_changes(changes: Sequence[Difference]) -> list[str]:
    """Return in words how two modules differ: in their operators, or else in attributes and constants."""
    lost, new = (
        Counter(each.own.op_type for each in changes if each.kind == kind) for kind in ("lost", "new")
    )
    if lost or new:
        words = [" ".join(operators.elements()) or "none" for operators in (lost - new, new - lost)]
        return [f"operators: {words[0]} lost, {words[1]} new"]
    return [line for change in changes if (line := describe_change(change))]


def describe_change(change: Difference) -> str:
    """Return a changed attribute or constant in words; "" where a constant differs by its precision alone."""
    operator, before, after = change.own.op_type, change.before, change.after
    if change.kind == "setting":
        return f"{operator}: {change.name} is {after}, not {before}"
    if before.numel() == after.numel() == 1:
        return f"{operator}: a constant is {float(after):.5g}, not {float(before):.5g}"
    found = relation(before, after)
    return "" if found.kind == "same" else f"{operator}: a constant is {found.told}"
