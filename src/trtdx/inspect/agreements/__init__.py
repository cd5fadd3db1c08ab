"""The one declared table of what must agree: each row is a rule page's code, the sides, and the check."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtdx.inspect.agreements.agreement import Agreement


@cache
def table() -> tuple[Agreement, ...]:
    """Return every agreement that is checked."""
    from trtdx.inspect.agreements.engine import machine, parallel, shapes
    from trtdx.inspect.agreements.model import (
        files,
        lineage_agrees,
        lora,
        onnx,
        quantization,
        tokens,
        weight_files,
    )
    from trtdx.inspect.agreements.server import containers, runtime, triton, triton_tokens

    modules = (
        lineage_agrees, tokens, quantization, parallel, runtime, triton, triton_tokens, lora, machine, onnx, shapes, weight_files, files,
        containers,
    )  # fmt: skip
    return tuple(row for module in modules for row in module.ROWS)
