"""From what `trtdx compare` says to the zoo's words for causes: the one table to fill when a rule page is new.

It was filled from the pages' own words before any answer was looked at. A page that is not here names none of the zoo's
causes, and an answer with it is wrong: DX715 to DX717, DX926 to DX930, DX933 and DX934 name mistakes that are not planted. One page may be right for two causes where the place tells them apart.
"""

from __future__ import annotations

from typing import Any

from .nouns import CAUSES

# Code of a rule page -> causes. The slug is not asked: it may still change.
CODES: dict[str, tuple[str, ...]] = {
    "DX935": ("mask-wrong",),
    "DX947": ("saturation",),
    "DX948": ("quant-scale",),
    "DX949": ("quant-granularity",),
    "DX950": ("quant-zero-point",),
    "DX951": ("int8-backend-saturation",),
    "DX952": ("kv-cache-dtype",),
    "DX953": ("kv-stale",),
    "DX954": ("kv-wrong-page",),
    "DX955": ("expert-routing",),
    "DX956": ("expert-order",),
    "DX957": ("shared-expert-missing",),
    "DX958": ("dropout-on",),
    "DX959": ("rng",),
    "DX961": ("rope-interleaved",),
    "DX962": ("rope-base",),
    "DX963": ("rope-scaling",),
    "DX964": ("rope-share",),
    "DX965": ("position-off-by-one",),
    "DX966": ("position-counts-padding",),
    "DX967": ("attention-scale",),
    "DX968": ("softcap",),
    "DX969": ("mask-missing",),
    "DX970": ("mask-padding",),
    "DX971": ("sliding-window",),
    "DX972": ("kv-head-mapping",),
    "DX973": ("heads-permuted",),
    "DX974": ("softmax-precision",),
    "DX975": ("norm-epsilon",),
    "DX976": ("norm-weight-missing",),
    "DX977": ("other-checkpoint",),
    "DX978": ("norm-kind",),
    "DX979": ("norm-plus-one",),
    "DX980": ("activation-function",),
    "DX981": ("gate-up-swapped",),
    "DX982": ("weight-transposed",),
    "DX983": ("shard-order",),
    "DX984": ("shard-missing",),
    "DX985": ("partial-sum",),
    "DX986": ("reduced-twice",),
    "DX987": ("bias-missing", "norm-bias-missing"),  # the place says whether it is a norm's
    "DX988": ("bias-per-rank",),
    "DX989": ("bias-of-another",),
    "DX990": ("weights-of-another",),
    "DX991": ("embedding-scale",),
    "DX992": ("head-not-tied",),
    "DX993": ("vocabulary-offset",),
    "DX994": ("residual-skipped",),
    "DX995": ("residual-doubled",),
    "DX996": ("residual-normed",),
    "DX997": ("fp16-overflow",),
    "DX998": ("underflow",),
    "DX999": ("low-precision-accumulation",),
}
assert {cause for causes in CODES.values() for cause in causes} <= set(CAUSES)


def causes_of(finding: dict[str, Any]) -> tuple[str, ...]:
    """Return the causes that a finding names; none where its page is not in the table."""
    return CODES.get(str(finding.get("code", "")), ())
