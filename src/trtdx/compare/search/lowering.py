"""The ways to compute a float32 graph in less: in a smaller float, or its products in int8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from trtdx.compare.judge.error_model import accumulated, rounding
from trtdx.errors import UnknownNameError
from trtdx.formats.onnx.casts import TYPES, convert, lowered
from trtdx.formats.onnx.probes import shadowed
from trtdx.formats.onnx.quantise import quantisable, quantised, quantised_twins, ranges_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import onnx_ir as ir

    from trtdx.engines.engine import Array
    from trtdx.formats.onnx.quantise import Ranges

INT8 = "int8"
INT8_SHARE = (
    0.01  # what a product of well-behaved numbers is off by, each channel of its weights with its own scale
)


class Lowering(Protocol):
    """One way, of one model."""

    operations: list[str]
    share: float  # what an honest operation is off by, relative

    def convert(self, keep: Collection[str]) -> ir.Model:
        """Return the model in less, but for some operations."""

    def shadowed(self) -> tuple[ir.Model, dict[str, str]]:
        """Return the model with every operation done a second time in less."""

    def own(self, true: Array) -> float:
        """Return the relative error that an operation with this result is expected to make."""


class Floats:
    """All operations in a smaller float."""

    def __init__(self, model: ir.Model, dtype: str) -> None:
        self._model, self._dtype = model, dtype
        self.operations, self.share = lowered(model, dtype), rounding(dtype)

    def convert(self, keep: Collection[str]) -> ir.Model:
        return convert(self._model, self._dtype, keep)

    def shadowed(self) -> tuple[ir.Model, dict[str, str]]:
        return shadowed(self._model, self._dtype)

    def own(self, true: Array) -> float:
        return accumulated(self._dtype, true.shape[-1] if true.ndim else 1)


class Integers:
    """Products with constant weights in int8: weights by channel, what is multiplied by one scale."""

    def __init__(self, model: ir.Model, ranges: Ranges) -> None:
        self._model, self._ranges = model, ranges
        self.operations, self.share = [product.operation for product in quantisable(model)], INT8_SHARE

    def convert(self, keep: Collection[str]) -> ir.Model:
        return quantised(self._model, self._ranges, keep)

    def shadowed(self) -> tuple[ir.Model, dict[str, str]]:
        return quantised_twins(self._model, self._ranges)

    def own(self, true: Array) -> float:
        return self.share


def lowering_of(model: ir.Model, dtype: str, engine: Any, samples: Sequence[Mapping[str, Array]]) -> Lowering:
    """Return the way that a type means; for int8 the samples tell how large numbers are."""
    if dtype == INT8:
        return Integers(model, ranges_of(model, engine, samples))
    if dtype not in TYPES:
        raise UnknownNameError("type to search for", dtype, (*TYPES, INT8))
    return Floats(model, dtype)
