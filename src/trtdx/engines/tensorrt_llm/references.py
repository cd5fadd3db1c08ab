"""References for the few plugins of TensorRT-LLM that compute what their names say; a user's own go before them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.errors import LayerError
from trtdx.engines.tensorrt_llm.plugins import Plugin, PluginFields, load_rtx_bindings

if TYPE_CHECKING:
    from collections.abc import Sequence


UNSUPPORTED_GEMM_OPTIONS = ("pad_ldb", "use_fp8")  # options of Gemm that nobody taught us


def known_references() -> dict[str, Plugin]:
    """Return the references there are, by plugin."""
    return {
        "CumsumLastDim": Plugin(_cumulative_sum),
        "Gemm": Plugin(_gemm_reference, _gemm_outputs),
        "Identity": Plugin(lambda value: value),
        "TopkLastDim": Plugin(_top_k_reference, _top_k_outputs),
    }


def _field_number(fields: PluginFields, name: str) -> int:
    return int(np.reshape(fields[name], -1)[0]) if name in fields else 0


def _cumulative_sum(value: Any) -> Any:
    exact = value if value.dtype.kind in "iu" else value.astype(np.float64)
    return np.cumsum(exact, axis=-1).astype(value.dtype)


def _gemm_outputs(fields: PluginFields, inputs: Sequence[Any]) -> list[tuple[Any, Sequence[int]]]:
    left, right = (tuple(tensor.shape) for tensor in inputs)
    unsupported = [name for name in UNSUPPORTED_GEMM_OPTIONS if _field_number(fields, name)]
    if unsupported or (_field_number(fields, "transa") and (len(left) != 2 or _field_number(fields, "pad_lda"))):
        raise LayerError(
            f"the plugin Gemm was asked for {', '.join(unsupported) or 'transa'}, which its reference does not know so",
            fix="pass plugins={'Gemm': Plugin(function, outputs)}",
        )
    rows = (left[1],) if _field_number(fields, "transa") else left[:-1]
    dtype = type(inputs[0].dtype)(_field_number(fields, "type_id"))
    columns = right[0] if _field_number(fields, "transb") else right[1]
    return [(dtype, (*rows, columns + _field_number(fields, "pad_ldc") if columns >= 0 else -1))]


def _gemm_reference(left: Any, right: Any, fields: PluginFields) -> Any:
    """Return the product; columns that only pad are not used of the input, and are NaN in the output."""
    first, second = left.astype(np.float32), right.astype(np.float32)
    first = (
        first.T if _field_number(fields, "transa") else first[..., : left.shape[-1] - _field_number(fields, "pad_lda")]
    )
    second = second.T if _field_number(fields, "transb") else second
    product = np.matmul(first, second)
    padding = np.full((*product.shape[:-1], _field_number(fields, "pad_ldc")), np.nan, np.float32)
    return np.concatenate([product, padding], axis=-1).astype(left.dtype)


def _top_k_outputs(fields: PluginFields, inputs: Sequence[Any]) -> list[tuple[Any, Sequence[int]]]:
    shape = (*tuple(inputs[0].shape)[:-1], _field_number(fields, "k"))
    return [(inputs[0].dtype, shape), (load_rtx_bindings().DataType.INT32, shape)]


def _top_k_reference(value: Any, fields: PluginFields) -> Any:
    """Return the first k in order, and where they are; of equals the earlier goes first."""
    keys = value.astype(np.float64) if value.dtype.kind not in "iu" else value.astype(np.int64)
    order = np.argsort(-keys if _field_number(fields, "is_largest") else keys, axis=-1, kind="stable")
    where = order[..., : _field_number(fields, "k")]
    return np.take_along_axis(value, where, axis=-1), where.astype(np.int32)
