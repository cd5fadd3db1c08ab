"""What a quantised model leaves in 16 bit, and whether its configuration says so."""

from __future__ import annotations

import re
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import quoted_path
from trtdx.knowledge.violation import Violation
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Deployment


@make_agreement("DX567", "hf")
def plain_modules_excluded(deployment: Deployment) -> Iterator[Violation]:
    """A module that is stored in 16 bit in a quantised model is among those excluded from quantisation.

    Otherwise its weights are cast to FP8 without a scale (`copy_weight` in linear.py, 1.2.1).
    """
    for model in deployment.of_kinds("hf"):
        if model.text("quant.algo") not in FULL_QUANTIZATIONS or model.get("multimodal"):
            continue
        patterns = [str(pattern) for pattern in model.items("quant.excluded")]
        layers = model.integer("num_layers") or 0
        plain = [str(module) for module in model.items("weights.unquantised")]
        forgotten = [module for module in plain if not is_excluded(module, patterns) and _layer_number(module) < layers]
        if forgotten:
            values = {
                "modules": abbreviate_list(forgotten, 4),
                "algo": model.text("quant.algo"),
                "path": quoted_path(model),
            }
            values |= {"first": forgotten[0], "file": model.text("quant.source") or "config.json"}
            yield Violation(model.evidence("weights.unquantised", "quant.excluded"), values, confidence=0.9)


FULL_QUANTIZATIONS = ("FP8", "FP8_BLOCK_SCALES", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4")
# Modules under the names TensorRT-LLM fuses them to.
FUSED_MODULES = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"} | {
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


def is_excluded(module: str, patterns: list[str]) -> bool:
    """Return whether a pattern names a module: as a wildcard, an expression ("re:..."), or a part of its path."""
    stem, _, last = module.rpartition(".")
    names = [module, *([f"{stem}.{FUSED_MODULES[last]}"] if last in FUSED_MODULES else [])]
    return any(_matches_pattern(pattern, name) for pattern in patterns for name in names)


def _matches_pattern(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        with suppress(re.error):
            return re.match(pattern[3:], module[:500]) is not None
        return True  # an expression nobody can read excludes nothing for certain
    return fnmatchcase(module, pattern) or fnmatchcase(module, f"*{pattern}*")


def _layer_number(module: str) -> int:
    match = re.search(r"layers\.(\d{1,5})\.", module)
    return int(match[1]) if match else 0
