"""Which format each module has where a checkpoint mixes them."""

from __future__ import annotations

import re
from typing import Any

from trtdx.memory.model.exclusions import LAYER_MODULES, Exclusions

# Experts and shared experts are told as one module, whichever of their matrices a file names.
_EXPERTS = re.compile(r"^(.*?\.(?:shared_experts?|experts))\..*$")
HEAD_MODULE = "lm_head"


def formats_by_module(per_layer: dict[str, Any], layers: int) -> tuple[tuple[str, str], ...]:
    """Return the format of each module; empty if layers differ, for then no one format says it."""
    names: dict[str, set[str]] = {}
    for path, algo in per_layer.items():
        if isinstance(algo, str) and algo != "NO_QUANT":
            match = _EXPERTS.match(path)
            names.setdefault(algo, set()).add(match[1] if match else path)
    matchers = {algo: Exclusions(tuple(paths)) for algo, paths in names.items()}
    formats: dict[str, str] = {}
    for module in LAYER_MODULES:
        algos = {
            algo for algo, stated in matchers.items() if any(stated.is_excluded(at, module) for at in range(layers))
        }
        if len(algos) > 1:
            return ()
        formats.update(dict.fromkeys([module] if algos else [], "".join(algos)))
    head = per_layer.get(HEAD_MODULE)
    if formats and isinstance(head, str) and head != "NO_QUANT":
        formats[HEAD_MODULE] = head
    return tuple(formats.items())
