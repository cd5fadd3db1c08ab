"""The ways to compute a float32 graph in lower precision: in a smaller float type, or with its products in int8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.judge.error_model import accumulated_error, dtype_rounding_error
from trtdx.errors import UnknownNameError
from trtdx.formats.onnx.lower_precision import LOWER_DTYPES, convert_precision, list_lowerable_operations
from trtdx.formats.onnx.probes import duplicate_in_lower_precision
from trtdx.formats.onnx.quantise import (
    add_int8_twins,
    list_quantisable_products,
    measure_input_ranges,
    quantise_products,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import onnx_ir as ir

    from trtdx.engines.engine import Array
    from trtdx.formats.onnx.quantise import Ranges

INT8 = "int8"
INT8_SHARE = 0.01  # what a product of well-behaved numbers is off by, each channel with a scale of its own


class Lowering(NamedTuple):
    """One way to compute one model in lower precision."""

    operations: list[str]
    share: float  # what an honest operation is off by, relative
    convert: Callable[[Collection[str]], ir.Model]  # the model in less, but for some operations
    shadow_model: Callable[[], tuple[ir.Model, dict[str, str]]]  # the model with every operation done again in less
    expected_error: Callable[
        [Array], float
    ]  # the relative error that an operation with this result is expected to make


def choose_lowering(model: ir.Model, dtype: str, engine: Any, samples: Sequence[Mapping[str, Array]]) -> Lowering:
    """Return the way that a type means; for int8 the samples tell how large numbers are."""
    if dtype == INT8:
        return _int8_products(model, measure_input_ranges(model, engine, samples))
    if dtype not in LOWER_DTYPES:
        raise UnknownNameError("type to search for", dtype, (*LOWER_DTYPES, INT8))
    return Lowering(
        list_lowerable_operations(model, dtype),
        dtype_rounding_error(dtype),
        convert=lambda keep: convert_precision(model, dtype, keep),
        shadow_model=lambda: duplicate_in_lower_precision(model, dtype),
        expected_error=lambda true: accumulated_error(dtype, true.shape[-1] if true.ndim else 1),
    )


def _int8_products(model: ir.Model, ranges: Ranges) -> Lowering:
    """Return products with constant weights in int8: weights by channel, what is multiplied by one scale."""
    return Lowering(
        [product.operation for product in list_quantisable_products(model)],
        INT8_SHARE,
        convert=lambda keep: quantise_products(model, ranges, keep),
        shadow_model=lambda: add_int8_twins(model, ranges),
        expected_error=lambda true: INT8_SHARE,
    )
