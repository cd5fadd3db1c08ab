"""Tensors that differ and do no harm: what follows has the reference's values again, so they are computed otherwise, not wrongly.

A norm whose weight was folded into the products behind it, neurons in another order, a scale that was moved from one weight
to the next, or a pair that is none. Such a difference is a note. Three things show it:

- A result has the reference's values, though the reference's own operation, given what the candidate gave it, makes
  something else: the operation was changed to match its input.
- A tensor that differs enters a matrix product whose result is of that kind.
- A tensor differs inside a layer, and all that leaves the layer has the reference's values, caches included.

If something that leaves the model differs all the same and nothing else is left to blame, nothing is taken back.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.judge.error_model import rounding
from trtdx.compare.judge.metrics import is_float
from trtdx.compare.layer_paths import layer_of
from trtdx.compare.locate.data_flow import Flow, cache_of, parent_of, place_of
from trtdx.compare.nouns import Judged, Verdict
from trtdx.words import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.nouns import Pair

BAD = (Verdict.WRONG, Verdict.POISONED)
HEALTHY = (Verdict.SAME, Verdict.NOISE)
NEARER = 8.0  # times that a result is nearer to the reference's own than to what its input should have given
GROWTH = {"float32": 8.0, "float64": 8.0}  # of honest differences through one layer
GROWTH_ELSE = 2.0  # where a type's own noise is large
ROUNDINGS = 4.0  # that a healthy tensor is off by at least
STANDS_OUT = 4.0  # times that a tensor differs more than what follows may
LEAST = 0.05  # relative difference of a tensor that is computed otherwise: less may be a small mistake
MOST_NAMED = 3
COMPENSATED = (
    "the result is the reference's, though what it is computed from is not: both were changed together"
)
OTHERWISE = "differs, but all that is computed from it has the reference's values again"
_PRODUCT = re.compile(
    r"(?:^|\.)(?:\w*_proj|c_attn|c_fc|dense\w*|query\w*|key|value|qkv|fc\w*|w[123oqkv]|wqkv|Wqkv|lm_head|gate|up|down|out_lin|\w_lin)$"
)


class Settled(NamedTuple):
    """Verdicts, and what is to be said of those that were taken back."""

    judged: list[Judged]
    notes: tuple[str, ...] = ()


def settle_rewrites(judged: Sequence[Judged]) -> Settled:
    """Return verdicts in which what does no harm is no longer called wrong."""
    if not any(judged_pair.verdict is Verdict.WRONG for judged_pair in judged):
        return Settled(list(judged))
    search = _Rewrites(judged)
    settled_verdicts = search.settled()
    remaining = [judged_pair for judged_pair in settled_verdicts if judged_pair.verdict in BAD]
    if not search.harmless or (
        remaining and not any(judged_pair.verdict is Verdict.WRONG for judged_pair in remaining)
    ):
        return Settled(list(judged))
    names = dict.fromkeys(
        judged_pair.pair.name for judged_pair in judged if id(judged_pair) in search.harmless
    )
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    note = f"computed otherwise, to the same result: {listed(list(names)[:MOST_NAMED])}{more}"
    return Settled(settled_verdicts, (note,))


class _Rewrites:
    def __init__(self, judged: Sequence[Judged]) -> None:
        self.judged = list(judged)
        self.flow = Flow(judged_pair.pair for judged_pair in judged)
        self.by_pair = {id(judged_pair.pair): judged_pair for judged_pair in judged}
        self.harmless: set[int] = set()

    def settled(self) -> list[Judged]:
        compensated = {
            id(judged_pair.pair) for judged_pair in self.judged if self._is_compensated(judged_pair)
        }
        feeding = {
            id(before)
            for judged_pair in self.judged
            if id(judged_pair.pair) in compensated and _is_product(judged_pair.pair)
            for before in self._inputs(judged_pair.pair)
        }
        settled = []
        for judged_pair in self.judged:
            if judged_pair.verdict in BAD and id(judged_pair.pair) in compensated:
                settled.append(
                    _beside_the_reference(self._taken_back(judged_pair, Verdict.NOISE, COMPENSATED))
                )
            elif judged_pair.verdict in BAD and (
                id(judged_pair.pair) in feeding or self._is_left_behind(judged_pair)
            ):
                settled.append(self._taken_back(judged_pair, Verdict.UNKNOWN, OTHERWISE))
            else:
                settled.append(judged_pair)
        return settled

    def _taken_back(self, each: Judged, verdict: Verdict, note: str) -> Judged:
        self.harmless.add(id(each))
        return each._replace(verdict=verdict, note=note, tokens=(), confidence=0.8)

    def _is_compensated(self, each: Judged) -> bool:
        """Whether a result is the reference's own, and not what the reference makes of the candidate's input."""
        if each.verdict is not Verdict.WRONG or not each.basis.startswith("local") or each.difference is None:
            return False
        return _apart(each) * NEARER < each.observed and self._enters_otherwise(each)

    def _enters_otherwise(self, each: Judged) -> bool:
        """Whether something that enters the operation differs far more than its result does."""
        entering = [self.by_pair[id(pair)] for pair in self._inputs(each.pair)]
        return any(_apart(one) > NEARER * _apart(each) and _apart(one) > LEAST for one in entering)

    def _inputs(self, pair: Pair) -> list[Pair]:
        """Return what enters the module that computes a pair, and the tensors that these are the very same as."""
        entering = self._entering(pair)
        same = [
            other for entering_pair in entering if (other := self.flow.handed_on(entering_pair)) is not None
        ]
        hashes = {entering_pair.candidate.first.statistics.hash for entering_pair in entering}
        pairs = self._pairs_of(pair.step)
        twins = [other for other in pairs if other.candidate.first.statistics.hash in hashes]
        return [*entering, *same, *twins]

    def _pairs_of(self, step: int) -> list[Pair]:
        return [pair for pair in self.flow.pairs if pair.step == step]

    def _entering(self, pair: Pair) -> list[Pair]:
        """Return what enters the module that computes a pair; of what is cached, what enters any module of its layer."""
        place = place_of(pair)
        if cache_of(pair):
            layer = [other for other in self._pairs_of(pair.step) if _layer(other) == _layer(pair)]
            return [other for other in layer if place_of(other).port == "in"]
        scope = place.path if place.port == "out" else parent_of(place.path)
        return list(self.flow.entering(pair.step, scope)) if scope else []

    def _is_left_behind(self, each: Judged) -> bool:
        """Whether a tensor differs inside a layer of which nothing that differs leaves."""
        layer, step = _layer(each.pair), each.pair.step
        if layer is None or self._leaves(each.pair):
            return False
        leaving = [self.by_pair[id(pair)] for pair in self._end_of(layer, step)]
        entering = [_apart(self.by_pair[id(pair)]) for pair in self._end_of(layer - 1, step)]
        # What was chosen is whole numbers; how far off a layer may be is told by what leaves it.
        kinds = [
            other.pair.candidate.first.layout.dtype for other in (each, *leaving) if is_float(other.pair)
        ]
        dtype = kinds[0] if kinds else "float32"
        usual = max([ROUNDINGS * rounding(dtype), *entering])
        most = usual * GROWTH.get(dtype, GROWTH_ELSE)
        nearest: dict[str, float] = {}  # of one tensor of the reference, that may be paired twice
        for other in leaving:
            tensor_hash = other.pair.reference.first.statistics.hash
            nearest[tensor_hash] = min(nearest.get(tensor_hash, math.inf), _apart(other))
        agrees = all(apart <= most for apart in nearest.values())
        return bool(leaving) and agrees and _apart(each) > max(LEAST, STANDS_OUT * most)

    def _leaves(self, pair: Pair) -> bool:
        return any(pair is other for other in self._end_of(_layer(pair) or 0, pair.step))

    def _end_of(self, layer: int, step: int) -> list[Pair]:
        """Return what leaves a layer: its output, under whatever name the next one has it, and its caches."""
        pairs = self._pairs_of(step)
        caches = [pair for pair in pairs if cache_of(pair).split(".")[0] == str(layer)]
        layer_outputs = [pair for pair in pairs if _is_end(pair, layer)]
        layer_outputs = layer_outputs or [pair for pair in pairs if _begins(pair, layer + 1)]
        return [*layer_outputs, *caches] if layer_outputs else []


def _apart(each: Judged) -> float:
    """Return how far a candidate's tensor is from the reference's, relative."""
    if each.verdict is Verdict.SAME:
        return 0.0
    return each.difference.relative_l2 if each.difference is not None else 1.0


def _beside_the_reference(each: Judged) -> Judged:
    """Return a verdict with the distance from the reference's own tensor: that from a replay of other inputs says nothing."""
    apart, dtype = _apart(each), each.pair.candidate.first.layout.dtype
    usual = max(ROUNDINGS * rounding(dtype), apart)
    return each._replace(observed=apart, expected=usual, limit=NEARER, basis="the reference's own tensor")


def _layer(pair: Pair) -> int | None:
    cache = cache_of(pair)
    return int(cache.split(".")[0]) if cache else layer_of(f"{place_of(pair).path}.")


def _is_product(pair: Pair) -> bool:
    place = place_of(pair)
    return place.op in ("Linear", "Conv1D") or bool(_PRODUCT.search(place.path))


def _is_end(pair: Pair, layer: int) -> bool:
    place = place_of(pair)
    return (
        place.port == "out"
        and place.path.endswith(f".{layer}")
        and _layer(pair) == layer
        and place.number == 0
    )


def _begins(pair: Pair, layer: int) -> bool:
    """Whether a pair is what enters a layer or its first norm, or what the last layer hands on to the last norm."""
    place = place_of(pair)
    if place.port != "in":
        return False
    if _layer(pair) == layer:
        return bool(re.search(rf"\.{layer}(?:\.(?:input_layernorm|ln_1|attention_norm|norm1))?$", place.path))
    return (
        bool(re.search(r"(?:^|\.)(?:norm|ln_f|final_layernorm|final_layer_norm)$", place.path))
        and _layer(pair) is None
    )
