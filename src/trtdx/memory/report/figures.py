"""Figures of a plan in words: the same rounding everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.memory.nouns import GIB, MIB

if TYPE_CHECKING:
    from trtdx.memory.nouns import Figure, Setup


def render_gib(size: float) -> str:
    """Return bytes as GiB; what is far below one in MiB."""
    if abs(size) < 0.095 * GIB:
        return f"{size / MIB:.0f} MiB"
    return f"{size / GIB:.1f} GiB"


def render_gib_cell(size: float) -> str:
    """Return a number of GiB for a column of them."""
    return f"{size / GIB:.2f}"


def render_band(figure: Figure) -> str:
    """Return how far off a figure may be; nothing where it is exact."""
    if figure.low == figure.high:
        return ""
    digits = 1 if figure.high >= 9.95 * GIB else 2
    return f"{figure.low / GIB:.{digits}f}-{figure.high / GIB:.{digits}f}"


def render_count(number: float) -> str:
    """Return a count in three digits: 337k, 1.24M."""
    if number < 10_000:
        return f"{number:.0f}"
    if number < 999_500:
        return f"{number / 1000:.0f}k"
    return f"{number / 1e6:.2f}M"


def render_gpus(setup: Setup) -> str:
    """Return the GPUs in words: "2 x H100 80GB"."""
    if setup.device is None:
        return ""
    world = setup.layout.world
    return setup.device.name if world == 1 else f"{world} x {setup.device.name}"


def render_layout(setup: Setup) -> str:
    layout = setup.layout
    sizes = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep}
    parts = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    return ", ".join([*parts, *(["attention dp"] if layout.attention_dp else [])])


def render_formats(setup: Setup) -> str:
    formats = setup.formats
    return f"weights {formats.weights or formats.dtype}, cache {formats.kv or formats.dtype}"
