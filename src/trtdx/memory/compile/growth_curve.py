"""`--compile`: activation memory from TensorRT's builder, and how it grows with the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from trtdx.memory.compile.activation import compile_activation
from trtdx.memory.ledger.plan import formula_activation
from trtdx.memory.question.setup import resolve_setup
from trtdx.memory.report.figures import render_gib
from trtdx.model import Section

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtdx.engines.tensorrt.build.nouns import BuildProgress
    from trtdx.host import Host
    from trtdx.memory.compile.activation import CompiledActivation
    from trtdx.memory.nouns import Setup
    from trtdx.memory.question.setup import MemoryRequest
    from trtdx.memory.run import PlanRequest

STEP_DIVISORS = (8, 4, 2)  # the step is divided by these for the growth curve
SMALLEST_STEP = 64


def with_compiled_activation(
    host: Host,
    request: MemoryRequest,
    options: PlanRequest,
    progress: Callable[[BuildProgress], None] | None = None,
) -> PlanRequest:
    """Return what is wanted, with the compiler's figure and its growth curve."""
    setup = resolve_setup(host, request).setup
    step = setup.limits.max_num_tokens
    shapes = sorted({step // part for part in STEP_DIVISORS if step // part >= SMALLEST_STEP})
    compiled = compile_activation(setup, tokens=shapes, host=host, progress=progress)
    return replace(options, activation=compiled.figure, compiled=(_growth_curve_section(setup, compiled),))


def _growth_curve_section(setup: Setup, compiled: CompiledActivation) -> Section:
    rows = tuple(
        (
            point.tokens,
            render_gib(point.bytes),
            render_gib(_formula_bytes(setup, point.tokens)),
            "yes" if point.cached else "",
        )
        for point in compiled.points
    )
    columns = ("tokens in a step", "compiled", "formula", "kept from before")
    return Section("compiled", f"activations by the builder of {compiled.tensorrt}", columns, rows, note=compiled.why)


def _formula_bytes(setup: Setup, tokens: int) -> int:
    limits = replace(setup.limits, max_num_tokens=tokens)
    return formula_activation(replace(setup, limits=limits), 0).bytes.value
