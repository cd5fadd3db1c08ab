"""Weighs two kinds of evidence for a cause: how well it explains the numbers when tried out, and what differs in the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.compare.attribute.run import EXPLAINED_SHARE
from trtdx.compare.nouns import CauseHypothesis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.attribute.files.constant_causes import FileCause

EQUAL_SHARE_TOLERANCE = 0.01  # share by which two causes may differ and still explain as much
FILES_ONLY_CONFIDENCE = 0.7  # how sure a cause is that nothing but the files tells
AGREED, ALONE = "agrees", "alone"
WRONG_SCALE, SUMMED_TWICE = "DX948", "DX986"
OTHER_WEIGHTS = "DX977"  # explains whatever is wrong with a weight, and does not say what


def prefer_scale_cause(causes: Sequence[CauseHypothesis]) -> list[CauseHypothesis]:
    """Return the causes of a difference in a quantised product: a factor of two is more likely a scale than a sum reduced twice."""
    ordered = list(causes)
    scale = next((cause for cause in ordered if cause.code == WRONG_SCALE), None)
    if (
        scale is not None
        and ordered[0].code == SUMMED_TWICE
        and scale.share >= ordered[0].share - EQUAL_SHARE_TOLERANCE
    ):
        ordered.remove(scale)
        values = {name: value for name, value in scale.values.items() if name != "alike"}
        return [msgspec.structs.replace(scale, values=values), *ordered]
    return ordered


def merge_file_cause(causes: Sequence[CauseHypothesis], files: FileCause | None) -> list[CauseHypothesis]:
    """Return the causes with what the files say taken into account.

    Where they name one that explains as much as the first, it comes first. Where nothing that was tried out explains the
    difference, theirs is the cause, and less sure. In `values["files"]` is what they say, in `values["witness"]` whether
    they agree or stand alone.
    """
    ordered = list(causes)
    if files is None:
        return ordered
    best = ordered[0].share if ordered else 0.0
    agreeing = next((cause for cause in ordered if cause.code == files.code), None)
    if agreeing is not None and agreeing.share >= min(best - EQUAL_SHARE_TOLERANCE, EXPLAINED_SHARE):
        ordered.remove(agreeing)
        values = {**agreeing.values, "files": files.description, "witness": AGREED}
        values.pop("alike", None)  # the files tell them apart
        return [msgspec.structs.replace(agreeing, values=values), *ordered]
    if best >= EXPLAINED_SHARE and ordered[0].code == OTHER_WEIGHTS:  # tried out with these very weights
        values = {**ordered[0].values, **files.values, "files": files.description, "witness": AGREED}
        return [msgspec.structs.replace(ordered[0], code=files.code, values=values), *ordered]
    if best >= EXPLAINED_SHARE:
        return ordered
    values = {**files.values, "files": files.description, "witness": ALONE}
    return [CauseHypothesis(files.code, FILES_ONLY_CONFIDENCE, values, files.description), *ordered]
