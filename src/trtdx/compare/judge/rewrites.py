"""Tensors that differ harmlessly: what follows has the reference's values again, so they are computed differently, not wrongly.

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

from trtdx.compare.align.data_flow import DataFlow, cache_part, parent_path, reference_place
from trtdx.compare.judge.error_model import dtype_rounding_error
from trtdx.compare.judge.metrics import is_float_pair
from trtdx.compare.layer_paths import layer_number
from trtdx.compare.nouns import JudgedPair, PairVerdict
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.nouns import TensorPair

BAD_VERDICTS = (PairVerdict.WRONG, PairVerdict.POISONED)
NEARER_FACTOR = 8.0  # times that a result is nearer to the reference's own than to what its input should have given
LAYER_GROWTH = {"float32": 8.0, "float64": 8.0}  # of honest differences through one layer
DEFAULT_LAYER_GROWTH = 2.0  # where a type's own noise is large
ROUNDINGS = 4.0  # that a healthy tensor is off by at least
STANDS_OUT_FACTOR = 4.0  # times that a tensor differs more than what follows may
LEAST_REWRITE_DISTANCE = 0.05  # relative difference of a tensor that is computed otherwise: less may be a small mistake
MOST_NAMED = 3
COMPENSATED_NOTE = "the result is the reference's, though what it is computed from is not: both were changed together"
REWRITTEN_NOTE = "differs, but all that is computed from it has the reference's values again"
_PRODUCT_PATH = re.compile(
    r"(?:^|\.)(?:\w*_proj|c_attn|c_fc|dense\w*|query\w*|key|value|qkv|fc\w*|w[123oqkv]|wqkv|Wqkv|lm_head|gate|up|down|out_lin|\w_lin)$"
)


class SettledPairs(NamedTuple):
    """Verdicts, and notes on those that were taken back."""

    judged_pairs: list[JudgedPair]
    notes: tuple[str, ...] = ()


def settle_rewrites(judged_pairs: Sequence[JudgedPair]) -> SettledPairs:
    """Return verdicts in which harmless differences are no longer called wrong."""
    if not any(judged_pair.verdict is PairVerdict.WRONG for judged_pair in judged_pairs):
        return SettledPairs(list(judged_pairs))
    search = _HarmlessRewrites(judged_pairs)
    settled_verdicts = search.settle_pairs()
    remaining = [judged_pair for judged_pair in settled_verdicts if judged_pair.verdict in BAD_VERDICTS]
    if not search.harmless or (
        remaining and not any(judged_pair.verdict is PairVerdict.WRONG for judged_pair in remaining)
    ):
        return SettledPairs(list(judged_pairs))
    names = dict.fromkeys(judged_pair.pair.name for judged_pair in judged_pairs if id(judged_pair) in search.harmless)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    note = f"computed otherwise, to the same result: {abbreviate_list(list(names)[:MOST_NAMED])}{more}"
    return SettledPairs(settled_verdicts, (note,))


class _HarmlessRewrites:
    def __init__(self, judged_pairs: Sequence[JudgedPair]) -> None:
        self.judged_pairs = list(judged_pairs)
        self.flow = DataFlow(judged_pair.pair for judged_pair in judged_pairs)
        self.judged_by_pair = {id(judged_pair.pair): judged_pair for judged_pair in judged_pairs}
        self.harmless: set[int] = set()

    def settle_pairs(self) -> list[JudgedPair]:
        compensated = {id(judged_pair.pair) for judged_pair in self.judged_pairs if self._is_compensated(judged_pair)}
        feeding = {
            id(before)
            for judged_pair in self.judged_pairs
            if id(judged_pair.pair) in compensated and _is_product_pair(judged_pair.pair)
            for before in self._module_inputs(judged_pair.pair)
        }
        settled = []
        for judged_pair in self.judged_pairs:
            if judged_pair.verdict in BAD_VERDICTS and id(judged_pair.pair) in compensated:
                settled.append(
                    _compare_to_reference_tensor(
                        self._withdraw_verdict(judged_pair, PairVerdict.NOISE, COMPENSATED_NOTE)
                    )
                )
            elif judged_pair.verdict in BAD_VERDICTS and (
                id(judged_pair.pair) in feeding or self._stays_inside_layer(judged_pair)
            ):
                settled.append(self._withdraw_verdict(judged_pair, PairVerdict.UNKNOWN, REWRITTEN_NOTE))
            else:
                settled.append(judged_pair)
        return settled

    def _withdraw_verdict(self, judged_pair: JudgedPair, verdict: PairVerdict, note: str) -> JudgedPair:
        self.harmless.add(id(judged_pair))
        return judged_pair._replace(verdict=verdict, note=note, tokens=(), confidence=0.8)

    def _is_compensated(self, judged_pair: JudgedPair) -> bool:
        """Whether a result is the reference's own, and not what the reference makes of the candidate's input."""
        if (
            judged_pair.verdict is not PairVerdict.WRONG
            or not judged_pair.basis.startswith("local")
            or judged_pair.difference is None
        ):
            return False
        return _relative_distance(judged_pair) * NEARER_FACTOR < judged_pair.observed and self._has_changed_input(
            judged_pair
        )

    def _has_changed_input(self, judged_pair: JudgedPair) -> bool:
        """Whether something that enters the operation differs far more than its result does."""
        entering = [self.judged_by_pair[id(pair)] for pair in self._module_inputs(judged_pair.pair)]
        return any(
            _relative_distance(one) > NEARER_FACTOR * _relative_distance(judged_pair)
            and _relative_distance(one) > LEAST_REWRITE_DISTANCE
            for one in entering
        )

    def _module_inputs(self, pair: TensorPair) -> list[TensorPair]:
        """Return what enters the module that computes a pair, and the tensors that these are the very same as."""
        entering = self._entering_pairs(pair)
        same = [other for entering_pair in entering if (other := self.flow.passed_on_from(entering_pair)) is not None]
        hashes = {entering_pair.candidate.first.statistics.hash for entering_pair in entering}
        pairs = self._pairs_of(pair.step)
        twins = [other for other in pairs if other.candidate.first.statistics.hash in hashes]
        return [*entering, *same, *twins]

    def _pairs_of(self, step: int) -> list[TensorPair]:
        return [pair for pair in self.flow.pairs if pair.step == step]

    def _entering_pairs(self, pair: TensorPair) -> list[TensorPair]:
        """Return what enters the module that computes a pair; of what is cached, what enters any module of its layer."""
        place = reference_place(pair)
        if cache_part(pair):
            layer = [other for other in self._pairs_of(pair.step) if _layer_number(other) == _layer_number(pair)]
            return [other for other in layer if reference_place(other).port == "in"]
        scope = place.path if place.port == "out" else parent_path(place.path)
        return list(self.flow.inputs_of(pair.step, scope)) if scope else []

    def _stays_inside_layer(self, judged_pair: JudgedPair) -> bool:
        """Whether a tensor differs inside a layer of which nothing that differs leaves."""
        layer, step = _layer_number(judged_pair.pair), judged_pair.pair.step
        if layer is None or self._leaves_layer(judged_pair.pair):
            return False
        leaving = [self.judged_by_pair[id(pair)] for pair in self._layer_ends(layer, step)]
        entering = [_relative_distance(self.judged_by_pair[id(pair)]) for pair in self._layer_ends(layer - 1, step)]
        # What was chosen is whole numbers; how far off a layer may be is told by what leaves it.
        kinds = [
            other.pair.candidate.first.layout.dtype for other in (judged_pair, *leaving) if is_float_pair(other.pair)
        ]
        dtype = kinds[0] if kinds else "float32"
        usual = max([ROUNDINGS * dtype_rounding_error(dtype), *entering])
        most = usual * LAYER_GROWTH.get(dtype, DEFAULT_LAYER_GROWTH)
        nearest: dict[str, float] = {}  # of one tensor of the reference, that may be paired twice
        for other in leaving:
            tensor_hash = other.pair.reference.first.statistics.hash
            nearest[tensor_hash] = min(nearest.get(tensor_hash, math.inf), _relative_distance(other))
        agrees = all(apart <= most for apart in nearest.values())
        return (
            bool(leaving)
            and agrees
            and _relative_distance(judged_pair) > max(LEAST_REWRITE_DISTANCE, STANDS_OUT_FACTOR * most)
        )

    def _leaves_layer(self, pair: TensorPair) -> bool:
        return any(pair is other for other in self._layer_ends(_layer_number(pair) or 0, pair.step))

    def _layer_ends(self, layer: int, step: int) -> list[TensorPair]:
        """Return what leaves a layer: its output, under whatever name the next one has it, and its caches."""
        pairs = self._pairs_of(step)
        caches = [pair for pair in pairs if cache_part(pair).split(".")[0] == str(layer)]
        layer_outputs = [pair for pair in pairs if _is_layer_output(pair, layer)]
        layer_outputs = layer_outputs or [pair for pair in pairs if _enters_layer(pair, layer + 1)]
        return [*layer_outputs, *caches] if layer_outputs else []


def _relative_distance(judged_pair: JudgedPair) -> float:
    """Return how far a candidate's tensor is from the reference's, relative."""
    if judged_pair.verdict is PairVerdict.SAME:
        return 0.0
    return judged_pair.difference.relative_l2 if judged_pair.difference is not None else 1.0


def _compare_to_reference_tensor(judged_pair: JudgedPair) -> JudgedPair:
    """Return a verdict with the distance from the reference's own tensor: that from a replay of other inputs says nothing."""
    apart, dtype = _relative_distance(judged_pair), judged_pair.pair.candidate.first.layout.dtype
    usual = max(ROUNDINGS * dtype_rounding_error(dtype), apart)
    return judged_pair._replace(observed=apart, expected=usual, limit=NEARER_FACTOR, basis="the reference's own tensor")


def _layer_number(pair: TensorPair) -> int | None:
    cache = cache_part(pair)
    return int(cache.split(".")[0]) if cache else layer_number(f"{reference_place(pair).path}.")


def _is_product_pair(pair: TensorPair) -> bool:
    place = reference_place(pair)
    return place.op in ("Linear", "Conv1D") or bool(_PRODUCT_PATH.search(place.path))


def _is_layer_output(pair: TensorPair, layer: int) -> bool:
    place = reference_place(pair)
    return (
        place.port == "out" and place.path.endswith(f".{layer}") and _layer_number(pair) == layer and place.number == 0
    )


def _enters_layer(pair: TensorPair, layer: int) -> bool:
    """Whether a pair is what enters a layer or its first norm, or what the last layer hands on to the last norm."""
    place = reference_place(pair)
    if place.port != "in":
        return False
    if _layer_number(pair) == layer:
        return bool(re.search(rf"\.{layer}(?:\.(?:input_layernorm|ln_1|attention_norm|norm1))?$", place.path))
    return (
        bool(re.search(r"(?:^|\.)(?:norm|ln_f|final_layernorm|final_layer_norm)$", place.path))
        and _layer_number(pair) is None
    )
