"""Tensors inside a mixture of experts, whose rows are the tokens of one expert after the other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtdx.compare.align.side_tensors import SideTensors

_IN_EXPERTS = re.compile(r"(.*?)\.experts\.\D")  # a module that is called with the tokens of all experts


def is_in_experts(name: str) -> bool:
    return bool(_IN_EXPERTS.match(name))


def has_same_experts(reference: SideTensors, candidate: SideTensors, name: str, steps: tuple[int, int]) -> bool:
    """Whether both sides sent the same tokens to the same experts, and one kind of engine put them in order."""
    if reference.capture.header.engine != candidate.capture.header.engine:
        return False
    inside = _IN_EXPERTS.match(name)
    block = inside[1] if inside else ""
    return _expert_choice_hashes(reference, block, steps[0]) == _expert_choice_hashes(candidate, block, steps[1])


def _expert_choice_hashes(side: SideTensors, block: str, step: int) -> list[str]:
    return [
        records[0].statistics.hash
        for name, records in side.steps.get(step, {}).items()
        if name.startswith((f"{block}.gate:out", f"{block}.router:out"))
        and records[0].layout.dtype in ("int32", "int64")
    ]
