"""How severe a difference is: whether the answer changes, and which numbers are not finite on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.align.pair_rows import iterate_row_pieces
from trtdx.compare.judge.error_model import tensor_role
from trtdx.compare.judge.exact_types import is_mask
from trtdx.compare.judge.metrics import is_float_pair
from trtdx.compare.nouns import PairVerdict

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trtdx.compare.nouns import JudgedPair, TensorPair
    from trtdx.compare.sides.side import Side

NEAR_TIE_FACTOR = 4.0  # times the error that the precision explains: so near two logits may change places
SAME_KIND_FACTOR = 4.0  # times as far off as the first: the same tolerated step in another layer


class ChangedAnswers(NamedTuple):
    """How many tokens the candidate would choose differently, near ties aside."""

    changed: int
    compared: int


def count_changed_answers(judged_pairs: Sequence[JudgedPair], reference: Side, candidate: Side) -> ChangedAnswers:
    """Return for how many tokens the top logit changes, counting only logits off by more than precision explains."""
    import numpy as np

    changed = compared = 0
    for judged_pair in judged_pairs:
        if not _are_logits(judged_pair.pair) or not judged_pair.pair.has_values:
            continue
        for reference_rows, candidate_rows in iterate_row_pieces(judged_pair.pair, reference, candidate):
            reference_logits, candidate_logits = reference_rows.astype("f8"), candidate_rows.astype("f8")
            compared += len(reference_logits)
            if judged_pair.verdict not in (PairVerdict.WRONG, PairVerdict.POISONED):
                continue
            rows = np.arange(len(reference_logits))
            not_finite = ~np.isfinite(candidate_logits).all(1)
            gap = (
                reference_logits[rows, reference_logits.argmax(1)]
                - reference_logits[rows, np.nan_to_num(candidate_logits).argmax(1)]
            )
            tie = NEAR_TIE_FACTOR * judged_pair.expected * np.sqrt((reference_logits**2).mean(1))
            changed += int((not_finite | (gap > tie)).sum())
    return ChangedAnswers(changed, compared)


def _are_logits(pair: TensorPair) -> bool:
    place = pair.reference.first.place
    return is_float_pair(pair) and place.port == "out" and "logits" in (place.argument or place.tensor)


def find_first_not_finite(judged_pairs: Sequence[JudgedPair]) -> JudgedPair | None:
    """Return the first tensor that holds NaN or infinities in the candidate, whatever the reference has; masks may."""
    for judged_pair in judged_pairs:
        pair = judged_pair.pair
        if not is_float_pair(pair) or is_mask(pair):
            continue
        statistics = pair.candidate.first.statistics
        leaves = pair.reference.first.place.port == "out"
        if statistics.nan or (leaves and (statistics.pos_inf or statistics.neg_inf)):
            return judged_pair
    return None


def find_same_kind_errors(judged_pairs: Sequence[JudgedPair], first: JudgedPair) -> set[tuple[int, str]]:
    """Return step and name of tensors wrong in the same way as the first: the same one in other layers, not much worse."""
    kind, most = tensor_role(first.pair.name), SAME_KIND_FACTOR * first.ratio
    return {
        (judged_pair.pair.step, judged_pair.pair.name)
        for judged_pair in judged_pairs
        if judged_pair.verdict is PairVerdict.WRONG
        and tensor_role(judged_pair.pair.name) == kind
        and judged_pair.ratio <= most
    }


def tolerate_explained(judged_pairs: Sequence[JudgedPair], explained: Collection[tuple[int, str]]) -> list[JudgedPair]:
    """Return the verdicts with tensors that are explained and tolerated counted as noise."""
    return [
        judged_pair._replace(verdict=PairVerdict.NOISE, note="explained")
        if (judged_pair.pair.step, judged_pair.pair.name) in explained
        else judged_pair
        for judged_pair in judged_pairs
    ]
