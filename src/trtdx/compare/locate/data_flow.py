"""What a tensor was computed from, as module borders tell it: the pairs that stand before it in the data flow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.compare.layer_paths import LAYER_PATH, layer_of
from trtdx.tensors.cache_names import cache_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.compare.nouns import Pair
    from trtdx.tensors.taps import Place


_ATTENTION = re.compile(LAYER_PATH.pattern + r"\.(?:self_attn|self_attention|attention|attn)\b")


class Flow:
    """The pairs of a comparison in data-flow order."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self.pairs = sorted(pairs, key=lambda pair: (pair.step, pair.position))
        self._order = {id(pair): number for number, pair in enumerate(self.pairs)}
        self._by_module: dict[tuple[int, str, str], list[Pair]] = {}
        self._below: dict[tuple[int, str], list[Pair]] = {}
        self._by_hash: dict[tuple[int, str], Pair] = {}
        self._attention = _attention_paths(self.pairs)
        for pair in self.pairs:
            place = place_of(pair)
            cache = cache_of(pair)
            around = self.module_of(pair) if cache else parent_of(place.path)
            self._by_module.setdefault((pair.step, place.path, place.port), []).append(pair)
            self._below.setdefault((pair.step, around), []).append(pair)
            self._by_hash.setdefault((pair.step, pair.reference.first.statistics.hash), pair)

    def module_of(self, pair: Pair) -> str:
        """Return the path of the module that computes a tensor, as far as borders tell; of the cache, its attention."""
        place = place_of(pair)
        cache = cache_of(pair)
        if cache:
            return self._attention.get(int(cache.split(".")[0]), "")
        return place.path if place.port == "out" else parent_of(place.path)

    def at(self, pair: Pair) -> int:
        """Return where a pair stands in the order."""
        return self._order[id(pair)]

    def entering(self, step: int, path: str) -> list[Pair]:
        """Return what enters a module."""
        return self._by_module.get((step, path, "in"), [])

    def handed_on(self, pair: Pair) -> Pair | None:
        """Return the tensor that a pair is the very same as, further up: a layer's input is the output before it."""
        first = self._by_hash.get((pair.step, pair.reference.first.statistics.hash))
        return first if first is not None and self.at(first) < self.at(pair) else None

    def before(self, pair: Pair) -> list[Pair]:
        """Return what a pair was computed from, as far as is known."""
        same = self.handed_on(pair)
        if same is not None:
            return [same]
        place, cache = place_of(pair), cache_of(pair)
        if cache:
            inside, part = self._earlier_below(pair, self.module_of(pair)), cache.split(".")[1][:1]
            same_part = [
                inner for inner in inside if place_of(inner).path.rpartition(".")[2].startswith(part)
            ]
            return (same_part or inside) if self.module_of(pair) else []
        if place.port == "out" and place.path:
            return self._earlier_below(pair, place.path)[-3:] + self.entering(pair.step, place.path)
        parent = parent_of(place.path)
        around = self._earlier_below(pair, parent)
        return [*self.entering(pair.step, parent), *around] if parent or around else []

    def _earlier_below(self, pair: Pair, path: str) -> list[Pair]:
        """Return what passes the borders of a module's own parts, up to a pair."""
        return [inner for inner in self._below.get((pair.step, path), ()) if self.at(inner) < self.at(pair)]


def cache_of(pair: Pair) -> str:
    """Return which part of the cache a pair is, "3.key"; "" where it is none."""
    name = pair.name.removeprefix(":out.").removesuffix(":new")
    return cache_key(name) if name.startswith(("present", "past")) else ""


def layer_of_pair(pair: Pair) -> int | None:
    """Return the layer that a pair is in, or whose cache it is."""
    cache = cache_of(pair)
    return int(cache.split(".")[0]) if cache else layer_of(f"{place_of(pair).path}.")


def _attention_paths(pairs: Iterable[Pair]) -> dict[int, str]:
    """Return the module of each layer that fills the cache, or the layer where that is not known."""
    paths: dict[int, str] = {}
    for pair in pairs:
        path = place_of(pair).path
        layer = layer_of(path)
        if layer is None:
            continue
        layer_path = LAYER_PATH.match(path)
        inner = _ATTENTION.match(path)
        if inner is not None and layer_path is not None:
            paths[layer] = inner[0]
        elif layer_path is not None:
            paths.setdefault(layer, layer_path[0])
    return paths


def place_of(pair: Pair) -> Place:
    """Return where the reference has a pair."""
    return pair.reference.first.place


def parent_of(path: str) -> str:
    """Return the path of the module around one; containers that only number their parts are passed over."""
    above = path.rpartition(".")[0]
    last = path.rpartition(".")[2].partition("#")[0]
    return above.rpartition(".")[0] if last.isdigit() else above


def is_inside(path: str, module: str) -> bool:
    """Whether a path is of a module inside another."""
    return bool(path) and (not module or path.startswith(f"{module}."))
