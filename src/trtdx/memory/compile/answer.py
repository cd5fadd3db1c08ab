"""`--compile`: activation memory from TensorRT's builder, and how it grows with the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.memory.compile.activation import compiled_activation
from trtdx.memory.ledger.activation import activation_of
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
    from trtdx.memory.run import PlanRequest

SMALLER = (8, 4, 2)  # the step is divided by these for the growth curve
LEAST = 64


def with_compiled(
    host: Host, asked: Asked, wanted: PlanRequest, progress: Callable[[Progress], None] | None = None
) -> PlanRequest:
    """Return what is wanted, with the compiler's figure and its growth curve."""
    setup = setup_from(host, asked).setup
    step = setup.limits.max_num_tokens
    shapes = sorted({step // part for part in SMALLER if step // part >= LEAST})

    found = compiled_activation(setup, tokens=shapes, host=host, progress=progress)
    return msgspec.structs.replace(wanted, activation=found.figure, compiled=(_curve(setup, found),))


def _curve(setup: Setup, found: Compiled) -> Section:
    rows = tuple(
        (each.tokens, gib(each.bytes), gib(_formula(setup, each.tokens)), "yes" if each.cached else "")
        for each in found.points
    )
    columns = ("tokens in a step", "compiled", "formula", "kept from before")
    return Section(
        "compiled", f"activations by the builder of {found.tensorrt}", columns, rows, note=found.why
    )


def _formula(setup: Setup, tokens: int) -> int:
    limits = msgspec.structs.replace(setup.limits, max_num_tokens=tokens)
    return activation_of(msgspec.structs.replace(setup, limits=limits), 0).bytes.value
