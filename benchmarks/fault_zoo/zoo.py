"""The whole zoo: all faults and healthy pairs of a variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import healthy, planted_attention, planted_onnx, planted_weights
from .bed import Bed

if TYPE_CHECKING:
    from .nouns import Fault, Healthy


def faults(variant: int) -> list[Fault]:
    bed = Bed(variant)
    planted_attention.plant(bed)
    planted_weights.plant(bed)
    planted_onnx.plant(bed)
    return bed.faults


def pairs(variant: int) -> list[Healthy]:
    return healthy.grown(variant)
