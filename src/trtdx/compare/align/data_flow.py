"""What a tensor was computed from, as module borders tell it: the pairs that stand before it in the data flow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.compare.layer_paths import LAYER_PATH, layer_number
from trtdx.tensors.cache_names import cache_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.compare.nouns import TensorPair
    from trtdx.tensors.taps import Place


_ATTENTION = re.compile(LAYER_PATH.pattern + r"\.(?:self_attn|self_attention|attention|attn)\b")


class DataFlow:
    """The pairs of a comparison in data-flow order."""

    def __init__(self, pairs: Iterable[TensorPair]) -> None:
        self.pairs = sorted(pairs, key=lambda pair: (pair.step, pair.position))
        self._order = {id(pair): number for number, pair in enumerate(self.pairs)}
        self._by_module: dict[tuple[int, str, str], list[TensorPair]] = {}
        self._below: dict[tuple[int, str], list[TensorPair]] = {}
        self._by_hash: dict[tuple[int, str], TensorPair] = {}
        self._attention = _attention_paths(self.pairs)
        for pair in self.pairs:
            place = reference_place(pair)
            cache = cache_part(pair)
            around = self.module_of(pair) if cache else parent_path(place.path)
            self._by_module.setdefault((pair.step, place.path, place.port), []).append(pair)
            self._below.setdefault((pair.step, around), []).append(pair)
            self._by_hash.setdefault((pair.step, pair.reference.first.statistics.hash), pair)

    def module_of(self, pair: TensorPair) -> str:
        """Return the path of the module that computes a tensor, as far as borders tell; of the cache, its attention."""
        place = reference_place(pair)
        cache = cache_part(pair)
        if cache:
            return self._attention.get(int(cache.split(".")[0]), "")
        return place.path if place.port == "out" else parent_path(place.path)

    def order_of(self, pair: TensorPair) -> int:
        """Return where a pair stands in the order."""
        return self._order[id(pair)]

    def inputs_of(self, step: int, path: str) -> list[TensorPair]:
        """Return what enters a module."""
        return self._by_module.get((step, path, "in"), [])

    def passed_on_from(self, pair: TensorPair) -> TensorPair | None:
        """Return the earlier tensor that a pair is identical to: a layer's input is the previous layer's output."""
        first = self._by_hash.get((pair.step, pair.reference.first.statistics.hash))
        return first if first is not None and self.order_of(first) < self.order_of(pair) else None

    def computed_from(self, pair: TensorPair) -> list[TensorPair]:
        """Return what a pair was computed from, as far as is known."""
        same = self.passed_on_from(pair)
        if same is not None:
            return [same]
        place, cache = reference_place(pair), cache_part(pair)
        if cache:
            inside, part = self._earlier_below(pair, self.module_of(pair)), cache.split(".")[1][:1]
            same_part = [inner for inner in inside if reference_place(inner).path.rpartition(".")[2].startswith(part)]
            return (same_part or inside) if self.module_of(pair) else []
        if place.port == "out" and place.path:
            return self._earlier_below(pair, place.path)[-3:] + self.inputs_of(pair.step, place.path)
        parent = parent_path(place.path)
        around = self._earlier_below(pair, parent)
        return [*self.inputs_of(pair.step, parent), *around] if parent or around else []

    def _earlier_below(self, pair: TensorPair, path: str) -> list[TensorPair]:
        """Return what passes the borders of a module's own parts, up to a pair."""
        return [inner for inner in self._below.get((pair.step, path), ()) if self.order_of(inner) < self.order_of(pair)]


def cache_part(pair: TensorPair) -> str:
    """Return which part of the cache a pair is, "3.key"; "" if it is none."""
    name = pair.name.removeprefix(":out.").removesuffix(":new")
    return cache_key(name) if name.startswith(("present", "past")) else ""


def pair_layer(pair: TensorPair) -> int | None:
    """Return the layer that a pair is in, or whose cache it is."""
    cache = cache_part(pair)
    return int(cache.split(".")[0]) if cache else layer_number(f"{reference_place(pair).path}.")


def _attention_paths(pairs: Iterable[TensorPair]) -> dict[int, str]:
    """Return the module of each layer that fills the cache, or the layer where that is not known."""
    paths: dict[int, str] = {}
    for pair in pairs:
        path = reference_place(pair).path
        layer = layer_number(path)
        if layer is None:
            continue
        layer_path = LAYER_PATH.match(path)
        inner = _ATTENTION.match(path)
        if inner is not None and layer_path is not None:
            paths[layer] = inner[0]
        elif layer_path is not None:
            paths.setdefault(layer, layer_path[0])
    return paths


def reference_place(pair: TensorPair) -> Place:
    """Return where the reference has a pair."""
    return pair.reference.first.place


def parent_path(path: str) -> str:
    """Return the path of the module around one; containers that only number their parts are passed over."""
    above = path.rpartition(".")[0]
    last = path.rpartition(".")[2].partition("#")[0]
    return above.rpartition(".")[0] if last.isdigit() else above


def is_inside(path: str, module: str) -> bool:
    """Whether a path is of a module inside another."""
    return bool(path) and (not module or path.startswith(f"{module}."))
