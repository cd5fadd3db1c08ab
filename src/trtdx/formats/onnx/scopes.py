"""Which module a node belongs to that tells nothing itself, because a quantiser, a converter or an optimiser made it.

Such nodes are looked at in units: a product with the scales and casts around it, a pair of quantiser and dequantiser, or
whatever else hangs together. A unit belongs

- with a product, to the module its operands come from or the one that uses its result, whichever is further inside:
  a projection is part of the attention that uses it or whose result it projects. What comes out of a norm or an
  activation was not multiplied there, and the last product of a model, after the last norm, belongs to no module there is;
- with a quantiser at its beginning, to the modules that use it: quantising what enters is their doing; behind a product
  whose result is used by none, to the product's;
- with a dequantiser or a cast alone, to the module that made what it reads;
- else to the innermost module of all that it is made of and made for (`scopes_between_neighbours`).
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trtdx.formats.onnx.module_graph import OnnxGraph

    Scope = tuple[str, ...]

_PRODUCT = re.compile(r"MatMul|Gemm|Conv")
_CLOSED_CLASS = re.compile(r"Norm|GELU|Gelu|SiLU|ReLU|Sigmoid|Tanh|Activation|Embedding|Dropout|Softmax")
_CLOSED_NAME = re.compile(r"norm|(?:^|_)ln(?:_|\d|$)|(?:^|_)act(?:_|$)|embed|dropout|rotary|softmax", re.IGNORECASE)
QUANTISERS = ("QuantizeLinear", "DynamicQuantizeLinear")
_TYPE_CHANGES = ("DequantizeLinear", "Cast")
_CONVERSION_OPERATORS = {*QUANTISERS, *_TYPE_CHANGES, "Mul", "Add", "Identity", "Reshape"}


def common_scope(scopes: Sequence[Scope]) -> Scope:
    """Return the modules that all scopes begin with."""
    return tuple(paths[0] for paths in takewhile(lambda paths: len(set(paths)) == 1, zip(*scopes, strict=False)))


class ScopeFinder:
    """Finds the modules of nodes that tell nothing."""

    def __init__(self, graph: OnnxGraph) -> None:
        self._nodes, self._reads, self._producers, self._users = (
            graph.nodes,
            graph.reads,
            graph.producers,
            graph.users,
        )
        self._classes = graph.classes

    def find_scopes(self, declared: Sequence[Scope | None]) -> list[Scope]:
        """Return the scope of every node, given those that are told."""
        self._declared = declared
        scopes = dict(enumerate(declared))
        units = self._units()
        for settle in (self._product_scope, self._quantiser_scope, self._type_change_scope):
            for unit in units:
                if scopes[unit[0]] is None and (scope := settle(unit, scopes)) is not None:
                    scopes |= dict.fromkeys(unit, scope)
        return self.scopes_between_neighbours(scopes)

    def _units(self) -> list[tuple[int, ...]]:
        """Return the nodes that tell nothing, those together that hang together."""
        parent: dict[int, int] = {at: at for at, scope in enumerate(self._declared) if scope is None}

        def root(at: int) -> int:
            while parent[at] != at:
                parent[at] = parent[parent[at]]
                at = parent[at]
            return at

        for at in parent:
            for user in self._user_nodes(at):
                if user in parent and self._belong_together(at, user):
                    parent[root(user)] = root(at)
        units: dict[int, list[int]] = {}
        for at in parent:
            units.setdefault(root(at), []).append(at)
        return [tuple(unit) for unit in units.values()]

    def _belong_together(self, node: int, user: int) -> bool:
        first, second = self._nodes[node].op_type, self._nodes[user].op_type
        if first == "DequantizeLinear" or not (is_conversion_operator(first) and is_conversion_operator(second)):
            return False
        if first in QUANTISERS:
            return second == "DequantizeLinear"
        return second not in QUANTISERS and not _PRODUCT.search(second)

    def _user_nodes(self, node: int) -> Iterator[int]:
        return (user for value in self._nodes[node].outputs for user in self._users.get(value, ()))

    def _producer_nodes(self, node: int) -> Iterator[int]:
        return (self._producers[value] for value in self._reads[node] if value in self._producers)

    def _scopes_before(self, unit: Sequence[int], known_scopes: Mapping[int, Scope | None]) -> list[Scope]:
        """Return the scopes of what makes a unit's operands, as far as they are known; changes of type are passed over."""
        return self._scopes_around(unit, known_scopes, self._producer_nodes)

    def _scopes_after(self, unit: Sequence[int], known_scopes: Mapping[int, Scope | None]) -> list[Scope]:
        return self._scopes_around(unit, known_scopes, self._user_nodes)

    def _scopes_around(
        self,
        unit: Sequence[int],
        known_scopes: Mapping[int, Scope | None],
        neighbours: Callable[[int], Iterable[int]],
    ) -> list[Scope]:
        visited, waiting, scopes = set(unit), list(unit), []
        while waiting:
            for other in neighbours(waiting.pop()):
                if other in visited:
                    continue
                visited.add(other)
                scope = known_scopes[other]
                if scope is not None:
                    scopes.append(scope)
                elif self._nodes[other].op_type in (*QUANTISERS, *_TYPE_CHANGES):
                    waiting.append(other)
        return scopes

    def _product_scope(self, unit: Sequence[int], known_scopes: Mapping[int, Scope | None]) -> Scope | None:
        if not any(map(self._is_product, unit)):
            return None
        before, after = self._scopes_before(unit, known_scopes), self._scopes_after(unit, known_scopes)
        if not before and not after:
            return None
        one, other = (
            self._without_closed_modules(common_scope(before)),
            self._without_closed_modules(common_scope(after)),
        )
        if not before:
            return other
        if not after:
            return () if one != common_scope(before) else one
        if other[: len(one)] == one or (one != common_scope(before) and one[: len(other)] != other):
            return other
        return one if one[: len(other)] == other else common_scope([one, other])

    def _quantiser_scope(self, unit: Sequence[int], known_scopes: Mapping[int, Scope | None]) -> Scope | None:
        if self._nodes[unit[0]].op_type not in QUANTISERS:
            return None
        before, after = self._scopes_before(unit, known_scopes), self._scopes_after(unit, known_scopes)
        used = any(self._is_product(user) for at in unit for user in self._user_nodes(at))
        if before and not used and any(self._is_product(maker) for maker in self._producer_nodes(unit[0])):
            return common_scope(before)
        return common_scope(after or before)

    def _is_product(self, node: int) -> bool:
        return bool(_PRODUCT.search(self._nodes[node].op_type))

    def _type_change_scope(self, unit: Sequence[int], known_scopes: Mapping[int, Scope | None]) -> Scope | None:
        if any(self._nodes[at].op_type not in _TYPE_CHANGES for at in unit):
            return None
        before = self._scopes_before(unit, known_scopes)
        return common_scope(before or self._scopes_after(unit, known_scopes))

    def _without_closed_modules(self, scope: Scope) -> Scope:
        """Return a scope without the modules at its end that have no products: norms, activations."""
        while scope and self._is_closed(scope[-1]):
            scope = scope[:-1]
        return scope

    def _is_closed(self, path: str) -> bool:
        kind = self._classes.get(path, "")
        return bool(_CLOSED_CLASS.search(kind) if kind else _CLOSED_NAME.search(path.rpartition(".")[2]))

    def scopes_between_neighbours(self, known_scopes: Mapping[int, Scope | None]) -> list[Scope]:
        """Return the scope of every node, where it is not known by the nearest nodes that it is made of and made for.

        What is made of a layer's results belongs to that layer, whatever else enters it: a residual sum is part of the
        layer whose branch it adds. What is made for other layers as well belongs to what they have in common: a mask,
        rotary tables.
        """
        before: dict[int, frozenset[Scope]] = {}
        after: dict[int, frozenset[Scope]] = {}
        for at in range(len(self._nodes)):
            before[at] = _nearest_scopes(self._producer_nodes(at), known_scopes, before)
            latest = _latest_layer(before[at])
            if latest:
                before[at] = frozenset(scope for scope in before[at] if latest in scope)
        for at in reversed(range(len(self._nodes))):
            after[at] = _nearest_scopes(self._user_nodes(at), known_scopes, after)
        return [
            scope if (scope := known_scopes[at]) is not None else _scope_between(before[at], after[at])
            for at in range(len(self._nodes))
        ]


def is_conversion_operator(op: str) -> bool:
    """Whether an operator is what quantisers and converters write around products."""
    return op in _CONVERSION_OPERATORS or bool(_PRODUCT.search(op))


def _nearest_scopes(
    neighbours: Iterable[int],
    known_scopes: Mapping[int, Scope | None],
    reached: Mapping[int, frozenset[Scope]],
) -> frozenset[Scope]:
    """Return the scopes of neighbours, or of what lies behind those that have none."""
    scopes: set[Scope] = set()
    for neighbour in neighbours:
        scope = known_scopes[neighbour]
        scopes |= reached[neighbour] if scope is None else {scope} if scope else set()
    return frozenset(scopes)


def _scope_between(before: frozenset[Scope], after: frozenset[Scope]) -> Scope:
    layer = _latest_layer(before)
    inside = [scope for scope in after if layer in scope] if layer else list(after)
    around = [*before, *inside]
    common = common_scope(around)
    # What goes into a module, or through which its result goes, is not part of it.
    alone = not (before and inside) and common in around
    return common[:-1] if alone else common


def _latest_layer(scopes: Iterable[Scope]) -> str:
    """Return the last layer that scopes are of, by the number in its path; "" if they are of none."""
    layers = {path for scope in scopes for path in scope if path.rpartition(".")[2].isdigit()}
    outer = {path for path in layers if not any(path.startswith(f"{other}.") for other in layers)}
    return max(outer, key=lambda path: int(path.rpartition(".")[2]), default="")


__all__ = ["QUANTISERS", "ScopeFinder", "common_scope", "is_conversion_operator"]
