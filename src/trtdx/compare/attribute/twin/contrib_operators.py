"""ONNX Runtime's own operators on torch, as its contrib_ops define them: what optimised and quantised graphs are made of.

Held against ONNX Runtime itself by tests/compare/test_twin_ops.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.twin import attention_operators
from trtdx.compare.attribute.twin import operators as plain
from trtdx.compare.attribute.twin.norm_operators import embed_norm_operator, skip_norm_operator
from trtdx.compare.attribute.twin.quantised_operators import (
    QUANTISED_CONTRIB_OPERATORS,
    UnknownOperatorError,
    pad_inputs,
)
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.compare.attribute.twin.quantised_operators import Operator

    Tensor = Any


def _fused_matmul(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    if settings.get("transBatchA") or settings.get("transBatchB"):
        raise UnknownOperatorError("FusedMatMul with batches put elsewhere cannot be computed here")
    one, other = inputs[0], inputs[1]
    one = one.transpose(-1, -2) if settings.get("transA") and one.ndim > 1 else one
    other = other.transpose(-1, -2) if settings.get("transB") and other.ndim > 1 else other
    return torch.matmul(one, other.to(one.dtype)) * float(settings.get("alpha", 1.0))


def _with_bias(function: Callable[[Any], Any]) -> Operator:
    def run(inputs: Sequence[Any], _: Any, __: Any) -> Any:
        bias = pad_inputs(inputs)[1]
        return function(inputs[0] if bias is None else inputs[0] + bias)

    return run


def _fused_gemm(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
    product = plain.OPERATORS["Gemm"](inputs, settings, dtype)
    named = {
        name.removeprefix("activation_"): value for name, value in settings.items() if name.startswith("activation_")
    }
    return plain.OPERATORS[str(settings["activation"])]([product], named, dtype)


CONTRIB_OPERATORS: dict[str, Operator] = {
    "FusedMatMul": _fused_matmul, "FusedGemm": _fused_gemm, "BiasGelu": _with_bias(lambda x: torch.nn.functional.gelu(x)),
    "FastGelu": _with_bias(lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "Gelu": _with_bias(lambda x: torch.nn.functional.gelu(x)),
    "QuickGelu": lambda inputs, settings, _: inputs[0] * torch.sigmoid(float(settings.get("alpha", 1.702)) * inputs[0]),
    "SkipLayerNormalization": skip_norm_operator(centred=True), "SkipSimplifiedLayerNormalization": skip_norm_operator(centred=False),
    "EmbedLayerNormalization": embed_norm_operator, **QUANTISED_CONTRIB_OPERATORS,
    "RotaryEmbedding": attention_operators.contrib_rotary_embedding, "Attention": attention_operators.contrib_attention,
    "MultiHeadAttention": attention_operators.multi_head_attention, "GroupQueryAttention": attention_operators.group_query_attention,
}  # fmt: skip
