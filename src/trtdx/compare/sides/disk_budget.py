"""How much a comparison may write: captures of both sides, and of the reference run again, are kept until it is done.

Where the values of all module borders do not fit, fewer are captured: the parts of each layer, layers alone, some of the
layers. What is suspicious is then run again with finer taps (locate/first_divergence.py).
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.layer_paths import LAYER_PATH, layer_of
from trtdx.compare.sides.side import BORDERS, open_side
from trtdx.words import size_in_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtdx.compare.sides.side import Question, Side, Spec
    from trtdx.host import Host
    from trtdx.tensors.taps import Place

SHARE = 0.5  # of the free disk
CAPTURES = 10  # as large as one side's: both, and six runs of the reference, two of them in float64


class Level(NamedTuple):
    """How much of a model is captured."""

    text: str
    depth: int  # parts of a path below its layer; -1: no layers
    every: int = 1  # layer
    inputs: bool = True

    def has(self, place: Place) -> bool:
        layer = LAYER_PATH.match(place.path)
        if not self.inputs and place.port != "out":
            return False
        if layer is None:
            return True
        number, below = layer_of(place.path) or 0, place.path[layer.end() :].count(".")
        return below <= self.depth and (number + 1) % self.every == 0


LEVELS = (
    Level("all modules", 99),
    Level("layers and their parts", 1),
    Level("layers", 0),
    Level("every fourth layer", 0, 4, inputs=False),
    Level("every sixteenth layer", 0, 16, inputs=False),
    Level("what stands outside of layers", -1, inputs=False),
)


class Budget:
    """What may be written for one comparison."""

    def __init__(self, folder: Path, asked: int | None = None) -> None:
        """Set a limit.

        By itself it is a share of what is free in the folder.
        """
        self.total = asked if asked is not None else int(SHARE * shutil.disk_usage(folder).free)
        self.each = self.total // CAPTURES
        self.level = 0
        self.notes: list[str] = []

    def open_side(
        self,
        host: Host,
        spec: Spec,
        question: Question,
        folder: Path,
        *,
        forced: list[list[int]] | None = None,
    ) -> Side:
        """Return a side with values of as many tensors as fit; see side.open_side."""
        if not spec.is_model:
            return open_side(host, spec, question, folder, forced=forced)
        while True:
            selector = selector_of(spec, self.level)
            side = open_side(
                host, spec, question, folder, forced=forced, selector=selector, budget_bytes=self.each
            )
            side.selector = selector if self.level else ""
            needed = _needed(side, LEVELS[self.level :])
            if needed[0] <= self.each or self.level == len(LEVELS) - 1:
                return side
            self._go_coarser(spec, needed)
            shutil.rmtree(folder)

    def _go_coarser(self, spec: Spec, needed: Sequence[int]) -> None:
        fits = next((number for number, size in enumerate(needed) if size <= self.each), len(needed) - 1)
        self.level += max(1, fits)
        self.notes.append(
            f"{spec.text}: {LEVELS[self.level - max(1, fits)].text} would take {size_in_words(needed[0])} of the "
            f"{size_in_words(self.each)} that one of {CAPTURES} captures may have (--budget): values are of "
            f"{LEVELS[self.level].text}, and where something is wrong it is run again with finer taps"
        )


def _needed(side: Side, levels: Sequence[Level]) -> list[int]:
    """Return the bytes that each level would take, as the layouts tell; the same values are kept once."""
    sizes: dict[str, tuple[int, list[Place]]] = {}
    for record in side.capture.records():
        if not record.place.tensor and record.place.path:
            same_values = sizes.setdefault(record.statistics.hash, (record.layout.bytes, []))
            same_values[1].append(record.place)
    return [sum(size for size, places in sizes.values() if any(map(level.has, places))) for level in levels]


def selector_of(spec: Spec, level: int) -> str:
    """Return what to capture of a model at a level."""
    if not level:
        return BORDERS
    engine = spec.open("")
    try:
        places = [place for place in engine.places() if place.path and not place.tensor]
    finally:
        engine.close()
    chosen = dict.fromkeys(f".{place.path}:{place.port}" for place in places if LEVELS[level].has(place))
    return ", ".join(_together(list(chosen)))


def _together(names: list[str]) -> list[str]:
    """Return names with those of several layers as one: ".model.layers[3,7]:out"."""
    numbers_of: dict[tuple[str, str], list[str]] = {}
    for name in names:
        match = LAYER_PATH.match(name[1:])
        head, _, number = (match[0] if match else "").rpartition(".")
        rest = name[1 + len(match[0]) :] if match else name
        numbers_of.setdefault((head, rest), []).append(number)
    return [
        f".{head}[{','.join(numbers)}]{rest}" if head else rest
        for (head, rest), numbers in numbers_of.items()
    ]
