"""The ways to compute a float32 graph in less: in a smaller float, or its products in int8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.judge.error_model import accumulated, rounding
from trtdx.errors import UnknownNameError
from trtdx.formats.onnx.casts import TYPES, convert, lowered
from trtdx.formats.onnx.probes import shadowed
from trtdx.formats.onnx.quantise import quantisable, quantised, quantised_twins, ranges_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import onnx_ir as ir

    from trtdx.engines.engine import Array
    from trtdx.formats.onnx.quantise import Ranges

INT8 = "int8"
INT8_SHARE = 0.01  # what a product of well-behaved numbers is off by, each channel with a scale of its own


class Lowering(NamedTuple):
    """One way to compute one model in less."""

    operations: list[str]
    share: float  # what an honest operation is off by, relative
    convert: Callable[[Collection[str]], ir.Model]  # the model in less, but for some operations
    shadowed: Callable[
        [], tuple[ir.Model, dict[str, str]]
    ]  # the model with every operation done again in less
    own: Callable[[Array], float]  # the relative error that an operation with this result is expected to make


def lowering_of(model: ir.Model, dtype: str, engine: Any, samples: Sequence[Mapping[str, Array]]) -> Lowering:
    """Return the way that a type means; for int8 the samples tell how large numbers are."""
    if dtype == INT8:
        return _int8_products(model, ranges_of(model, engine, samples))
    if dtype not in TYPES:
        raise UnknownNameError("type to search for", dtype, (*TYPES, INT8))
    return Lowering(
        lowered(model, dtype),
        rounding(dtype),
        convert=lambda keep: convert(model, dtype, keep),
        shadowed=lambda: shadowed(model, dtype),
        own=lambda true: accumulated(dtype, true.shape[-1] if true.ndim else 1),
    )


def _int8_products(model: ir.Model, ranges: Ranges) -> Lowering:
    """Return products with constant weights in int8: weights by channel, what is multiplied by one scale."""
    return Lowering(
        [product.operation for product in quantisable(model)],
        INT8_SHARE,
        convert=lambda keep: quantised(model, ranges, keep),
        shadowed=lambda: quantised_twins(model, ranges),
        own=lambda true: INT8_SHARE,
    )
