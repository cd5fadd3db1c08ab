"""The last word on a comparison: outputs of the model that are far off are an error, whatever was said of what is inside.

Each operation that was compared may be healthy while one that could not be compared is wrong: its border was a guess, its
difference was taken for a rewrite, or a replay cleared it. The answer shows it all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.compare.judge.error_model import rounding
from trtdx.compare.judge.exact_types import is_mask
from trtdx.compare.judge.metrics import is_float
from trtdx.compare.locate.data_flow import cache_of
from trtdx.compare.nouns import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.nouns import Judged, Pair

# Times its limit: honest runs of the whole model amplify noise themselves, and come nowhere near.
AMPLIFIED = 8.0
ROUNDINGS = 64.0  # relative, that an output must be off by at least
LEAST = 1e-3  # however fine the type
GROSS = 16.0  # times that least, where no honest run tells what the whole model amplifies
SHARE = 1 / 16  # of an output's difference that shows where it begins
WHOLE_RUN = ("honest run", "error model")
NOTE = (
    "all that could be compared before it computes as the reference does: what is wrong could not be compared"
)


def is_model_output(pair: Pair) -> bool:
    """Whether a pair is what the model answers: logits, or what leaves the graph and is no cache."""
    place = pair.reference.first.place
    if place.port != "out" or not is_float(pair) or is_mask(pair) or cache_of(pair):
        return False
    return not place.path or "logits" in (place.argument or place.tensor)


def with_outputs_judged(judged: Sequence[Judged], *, quantised: bool) -> list[Judged] | None:
    """Return verdicts in which the first sign of an output that is far off is wrong; none where every output is near.

    Args:
        judged: verdicts of which none is wrong.
        quantised: whether the candidate has integers inside: what they cost is judged at each operation alone.
    """
    far = [
        judged_pair for judged_pair in judged if is_model_output(judged_pair.pair) and _is_far(judged_pair)
    ]
    if quantised or not far:
        return None
    worst = max(far, key=_relative)
    step = min(judged_pair.pair.step for judged_pair in far)
    first = next(
        judged_pair
        for judged_pair in judged
        if judged_pair.pair.step == step and _shows(judged_pair, _relative(worst))
    )
    return [_as_wrong(judged_pair) if judged_pair is first else judged_pair for judged_pair in judged]


def _as_wrong(each: Judged) -> Judged:
    return each._replace(
        verdict=Verdict.WRONG, observed=_relative(each), expected=_least(each), limit=1.0, confidence=0.9,
        basis="outputs of the model", note=NOTE,
    )  # fmt: skip


def _shows(each: Judged, worst: float) -> bool:
    """Whether a tensor is off as the output is; what is only computed otherwise has no verdict or a note of it."""
    if is_model_output(each.pair):
        return _is_far(each)
    healthy = each.verdict in (Verdict.NOISE, Verdict.POISONED) and not each.note
    amplified = each.verdict is Verdict.NOISE and each.note.startswith("more than honest runs")
    return (healthy or amplified) and _relative(each) > max(_least(each), SHARE * worst)


def _is_far(each: Judged) -> bool:
    off, least = _relative(each), _least(each)
    if each.note == "explained" or off <= least:
        return False
    if each.basis.startswith(WHOLE_RUN):
        return each.ratio > AMPLIFIED * each.limit
    return off > GROSS * least


def _relative(each: Judged) -> float:
    return each.difference.relative_l2 if each.difference is not None else 0.0


def _least(each: Judged) -> float:
    return max(LEAST, ROUNDINGS * rounding(each.pair.candidate.first.layout.dtype))
