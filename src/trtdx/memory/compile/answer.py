"""`--compile`: activation memory from TensorRT's builder, and how it grows with the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from trtdx.memory.compile.activation import compiled_activation
from trtdx.memory.ledger.plan import formula_activation
from trtdx.memory.question.setup import setup_from
from trtdx.memory.report.figures import gib
from trtdx.model import Section

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.engines.tensorrt.build.nouns import Progress
    from trtdx.host import Host
    from trtdx.memory.compile.activation import Compiled
    from trtdx.memory.nouns import Setup
    from trtdx.memory.question.setup import Asked
    from trtdx.memory.run import Wanted

SMALLER = (8, 4, 2)  # the step is divided by these for the growth curve
LEAST = 64


def with_compiled(
    host: Host, asked: Asked, wanted: Wanted, progress: Callable[[Progress], None] | None = None
) -> Wanted:
    """Return what is wanted, with the compiler's figure and its growth curve."""
    setup = setup_from(host, asked).setup
    step = setup.limits.max_num_tokens
    shapes = sorted({step // part for part in SMALLER if step // part >= LEAST})
    compiled = compiled_activation(setup, tokens=shapes, host=host, progress=progress)
    return replace(wanted, activation=compiled.figure, compiled=(_curve(setup, compiled),))


def _curve(setup: Setup, found: Compiled) -> Section:
    rows = tuple(
        (point.tokens, gib(point.bytes), gib(_formula(setup, point.tokens)), "yes" if point.cached else "")
        for point in found.points
    )
    columns = ("tokens in a step", "compiled", "formula", "kept from before")
    return Section(
        "compiled", f"activations by the builder of {found.tensorrt}", columns, rows, note=found.why
    )


def _formula(setup: Setup, tokens: int) -> int:
    limits = replace(setup.limits, max_num_tokens=tokens)
    return formula_activation(replace(setup, limits=limits), 0).bytes.value
