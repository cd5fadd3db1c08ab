"""The whole zoo: all faults and healthy pairs of a variant."""

from __future__ import annotations

from . import healthy, planted_onnx, planted_torch
from .bed import Bed
from .nouns import Fault, Healthy


def faults(variant: int) -> list[Fault]:
    bed = Bed(variant)
    planted_torch.plant(bed)
    planted_onnx.plant(bed)
    return bed.faults


def pairs(variant: int) -> list[Healthy]:
    return healthy.grown(variant)
