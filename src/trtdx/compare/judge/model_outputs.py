"""The final check of a comparison: model outputs that are far off are an error, whatever the verdict inside.

Each operation that was compared may be healthy while one that could not be compared is wrong: its border was a guess, its
difference was taken for a rewrite, or a replay cleared it. The answer shows it all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.compare.align.data_flow import cache_part
from trtdx.compare.judge.error_model import dtype_rounding_error
from trtdx.compare.judge.exact_types import is_mask
from trtdx.compare.judge.metrics import is_float_pair
from trtdx.compare.nouns import PairVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.nouns import JudgedPair, TensorPair

# Times its limit: honest runs of the whole model amplify noise themselves, and come nowhere near.
AMPLIFIED_FACTOR = 8.0
ROUNDINGS = 64.0  # relative, that an output must be off by at least
LEAST_OUTPUT_ERROR = 1e-3  # however fine the type
GROSS_FACTOR = 16.0  # times that least, where no honest run tells what the whole model amplifies
VISIBLE_SHARE = 1 / 16  # of an output's difference that shows where it begins
WHOLE_RUN_BASES = ("honest run", "error model")
UNCOMPARED_NOTE = (
    "all that could be compared before it computes as the reference does: what is wrong could not be compared"
)


def is_model_output(pair: TensorPair) -> bool:
    """Whether a pair is what the model answers: logits, or what leaves the graph and is no cache."""
    place = pair.reference.first.place
    if place.port != "out" or not is_float_pair(pair) or is_mask(pair) or cache_part(pair):
        return False
    return not place.path or "logits" in (place.argument or place.tensor)


def judge_model_outputs(judged_pairs: Sequence[JudgedPair], *, quantised: bool) -> list[JudgedPair] | None:
    """Return verdicts in which the first sign of an output that is far off is wrong; None if every output is near.

    Args:
        judged_pairs: verdicts of which none is wrong.
        quantised: whether the candidate has integers inside: what they cost is judged at each operation alone.
    """
    far = [
        judged_pair for judged_pair in judged_pairs if is_model_output(judged_pair.pair) and _is_far_off(judged_pair)
    ]
    if quantised or not far:
        return None
    worst = max(far, key=_relative_error)
    step = min(judged_pair.pair.step for judged_pair in far)
    first = next(
        judged_pair
        for judged_pair in judged_pairs
        if judged_pair.pair.step == step and _shows_output_error(judged_pair, _relative_error(worst))
    )
    return [_mark_wrong(judged_pair) if judged_pair is first else judged_pair for judged_pair in judged_pairs]


def _mark_wrong(judged_pair: JudgedPair) -> JudgedPair:
    return judged_pair._replace(
        verdict=PairVerdict.WRONG, observed=_relative_error(judged_pair), expected=_least_error(judged_pair), limit=1.0, confidence=0.9,
        basis="outputs of the model", note=UNCOMPARED_NOTE,
    )  # fmt: skip


def _shows_output_error(judged_pair: JudgedPair, worst_error: float) -> bool:
    """Whether a tensor is off as much as the output is; tensors that are merely computed differently do not count."""
    if is_model_output(judged_pair.pair):
        return _is_far_off(judged_pair)
    healthy = judged_pair.verdict in (PairVerdict.NOISE, PairVerdict.POISONED) and not judged_pair.note
    amplified = judged_pair.verdict is PairVerdict.NOISE and judged_pair.note.startswith("more than honest runs")
    return (healthy or amplified) and _relative_error(judged_pair) > max(
        _least_error(judged_pair), VISIBLE_SHARE * worst_error
    )


def _is_far_off(judged_pair: JudgedPair) -> bool:
    off, least = _relative_error(judged_pair), _least_error(judged_pair)
    if judged_pair.note == "explained" or off <= least:
        return False
    if judged_pair.basis.startswith(WHOLE_RUN_BASES):
        return judged_pair.ratio > AMPLIFIED_FACTOR * judged_pair.limit
    return off > GROSS_FACTOR * least


def _relative_error(judged_pair: JudgedPair) -> float:
    return judged_pair.difference.relative_l2 if judged_pair.difference is not None else 0.0


def _least_error(judged_pair: JudgedPair) -> float:
    return max(LEAST_OUTPUT_ERROR, ROUNDINGS * dtype_rounding_error(judged_pair.pair.candidate.first.layout.dtype))
