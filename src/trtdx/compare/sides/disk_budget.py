"""How much a comparison may write: captures of both sides and of re-runs of the reference are kept until it ends.

Where the values of all module borders do not fit, fewer are captured: the parts of each layer, layers alone, some of the
layers. What is suspicious is then run again with finer taps (locate/first_divergence.py).
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from trtdx.compare.layer_paths import LAYER_PATH, layer_number
from trtdx.compare.sides.side import MODULE_BORDERS, open_side
from trtdx.words import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtdx.compare.sides.side import ComparisonQuestion, Side, SideSpec
    from trtdx.host import Host
    from trtdx.tensors.taps import Place

DISK_SHARE = 0.5  # of the free disk
CAPTURES = 10  # as large as one side's: both, and six runs of the reference, two of them in float64


class CaptureLevel(NamedTuple):
    """How much of a model is captured."""

    text: str
    depth: int  # parts of a path below its layer; -1: no layers
    layer_stride: int = 1  # layer
    with_inputs: bool = True

    def includes_place(self, place: Place) -> bool:
        layer = LAYER_PATH.match(place.path)
        if not self.with_inputs and place.port != "out":
            return False
        if layer is None:
            return True
        number, below = layer_number(place.path) or 0, place.path[layer.end() :].count(".")
        return below <= self.depth and (number + 1) % self.layer_stride == 0


LEVELS = (
    CaptureLevel("all modules", 99),
    CaptureLevel("layers and their parts", 1),
    CaptureLevel("layers", 0),
    CaptureLevel("every fourth layer", 0, 4, with_inputs=False),
    CaptureLevel("every sixteenth layer", 0, 16, with_inputs=False),
    CaptureLevel("what stands outside of layers", -1, with_inputs=False),
)


class DiskBudget:
    """What may be written for one comparison."""

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        """Set a limit.

        By itself it is a share of what is free in the folder.
        """
        self.total_bytes = limit_bytes if limit_bytes is not None else int(DISK_SHARE * shutil.disk_usage(folder).free)
        self.bytes_per_capture = self.total_bytes // CAPTURES
        self.level = 0
        self.notes: list[str] = []

    def open_side(
        self,
        host: Host,
        spec: SideSpec,
        question: ComparisonQuestion,
        folder: Path,
        *,
        forced: list[list[int]] | None = None,
    ) -> Side:
        """Return a side with values of as many tensors as fit; see side.open_side."""
        if not spec.is_model:
            return open_side(host, spec, question, folder, forced=forced)
        while True:
            selector = selector_at_level(spec, self.level)
            side = open_side(
                host,
                spec,
                question,
                folder,
                forced=forced,
                selector=selector,
                budget_bytes=self.bytes_per_capture,
            )
            side.selector = selector if self.level else ""
            needed = _bytes_needed(side, LEVELS[self.level :])
            if needed[0] <= self.bytes_per_capture or self.level == len(LEVELS) - 1:
                return side
            self._go_coarser(spec, needed)
            shutil.rmtree(folder)

    def _go_coarser(self, spec: SideSpec, needed: Sequence[int]) -> None:
        fits = next((number for number, size in enumerate(needed) if size <= self.bytes_per_capture), len(needed) - 1)
        self.level += max(1, fits)
        self.notes.append(
            f"{spec.text}: {LEVELS[self.level - max(1, fits)].text} would take {format_bytes(needed[0])} of the "
            f"{format_bytes(self.bytes_per_capture)} that one of {CAPTURES} captures may have (--budget): values are of "
            f"{LEVELS[self.level].text}, and where something is wrong it is run again with finer taps"
        )


def _bytes_needed(side: Side, levels: Sequence[CaptureLevel]) -> list[int]:
    """Return the bytes that each level would take, as the layouts tell; the same values are kept once."""
    sizes: dict[str, tuple[int, list[Place]]] = {}
    for record in side.capture.records():
        if not record.place.tensor and record.place.path:
            same_values = sizes.setdefault(record.statistics.hash, (record.layout.bytes, []))
            same_values[1].append(record.place)
    return [sum(size for size, places in sizes.values() if any(map(level.includes_place, places))) for level in levels]


def selector_at_level(spec: SideSpec, level: int) -> str:
    """Return what to capture of a model at a level."""
    if not level:
        return MODULE_BORDERS
    engine = spec.open("")
    try:
        places = [place for place in engine.places() if place.path and not place.tensor]
    finally:
        engine.close()
    chosen = dict.fromkeys(f".{place.path}:{place.port}" for place in places if LEVELS[level].includes_place(place))
    return ", ".join(_merge_layer_names(list(chosen)))


def _merge_layer_names(names: list[str]) -> list[str]:
    """Return names with those of several layers as one: ".model.layers[3,7]:out"."""
    numbers_of: dict[tuple[str, str], list[str]] = {}
    for name in names:
        match = LAYER_PATH.match(name[1:])
        head, _, number = (match[0] if match else "").rpartition(".")
        rest = name[1 + len(match[0]) :] if match else name
        numbers_of.setdefault((head, rest), []).append(number)
    return [f".{head}[{','.join(numbers)}]{rest}" if head else rest for (head, rest), numbers in numbers_of.items()]
