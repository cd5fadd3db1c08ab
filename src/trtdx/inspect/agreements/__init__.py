"""The one declared table of what must agree: each row is a rule page's code, the sides, and the check."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtdx.inspect.agreement import Agreement


@cache
def table() -> tuple[Agreement, ...]:
    """Return every agreement that is checked."""
    from trtdx.inspect.agreements import (
        containers,
        files,
        lora,
        machine,
        model,
        onnx,
        parallel,
        quantization,
        runtime,
        shapes,
        tokens,
        triton,
        triton_tokens,
        weight_files,
    )

    modules = (
        model, tokens, quantization, parallel, runtime, triton, triton_tokens, lora, machine, onnx, shapes, weight_files, files,
        containers,
    )  # fmt: skip
    return tuple(row for module in modules for row in module.ROWS)
