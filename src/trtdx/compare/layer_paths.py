"""Where a layer stands in a module's path, by any of the names that lists of layers have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LAYERS = r"(?:layers|h|blocks?|layer)"
LAYER_PATH = re.compile(rf"(?:.*?\.)?{LAYERS}\.\d+")
_LAYER = re.compile(rf"(?:^|\.){LAYERS}\.(\d+)(?:\.|$)")


def count_layers(paths: Iterable[str]) -> int:
    """Return how many layers some paths tell of."""
    numbers = map(layer_number, paths)
    return max((number + 1 for number in numbers if number is not None), default=0)


def layer_number(path: str) -> int | None:
    """Return the number of the layer that a path is in."""
    match = _LAYER.search(path)
    return int(match[1]) if match else None
