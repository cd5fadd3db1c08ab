"""The one declared table of what must agree: each row is a rule page's code, the sides, and the check."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from trtdx.inspect.agreements.agreement import Agreement


@cache
def agreement_table() -> tuple[Agreement, ...]:
    """Return every agreement that is checked; of findings that are equally grave the first row's come first."""
    from trtdx.inspect.agreements.engine import conflicts, lengths, limits, machine, parallel, plans, shapes
    from trtdx.inspect.agreements.model import (
        conversion,
        excluded_modules,
        files,
        lora,
        onnx,
        positions,
        quantization,
        tokens,
        weight_files,
        weights,
    )
    from trtdx.inspect.agreements.server import (
        containers,
        launch,
        runtime,
        runtime_engine,
        triton,
        triton_tokens,
        unknown_options,
    )
    from trtdx.inspect.agreements.server import limits as server_limits

    modules = (
        positions, weights, conversion, tokens, quantization, excluded_modules, parallel, unknown_options, runtime,
        runtime_engine, launch, triton, triton_tokens, lora, machine, plans, conflicts, onnx, lengths, shapes, limits,
        server_limits, weight_files, files, containers,
    )  # fmt: skip
    return agreements_in(*modules)


def agreements_in(*modules: ModuleType) -> tuple[Agreement, ...]:
    """Return the agreements of modules, in the order in which they are written."""
    from trtdx.inspect.agreements.agreement import Agreement

    return tuple(row for module in modules for row in vars(module).values() if isinstance(row, Agreement))
