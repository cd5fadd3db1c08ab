"""ONNX Runtime's own operators on torch, as its contrib_ops define them: what optimised and quantised graphs are made of.

Held against ONNX Runtime itself by tests/compare/test_twin_ops.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.twin import attention
from trtdx.compare.attribute.twin import operators as plain
from trtdx.compare.attribute.twin.norms import embed_norm, skip_norm
from trtdx.compare.attribute.twin.quantised import QUANTISED_BY_MICROSOFT, UnknownOperatorError, filled
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.compare.attribute.twin.quantised import Operator

    Tensor = Any


def _fused_matmul(given: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    if settings.get("transBatchA") or settings.get("transBatchB"):
        raise UnknownOperatorError("FusedMatMul with batches put elsewhere cannot be computed here")
    one, other = given[0], given[1]
    one = one.transpose(-1, -2) if settings.get("transA") and one.ndim > 1 else one
    other = other.transpose(-1, -2) if settings.get("transB") and other.ndim > 1 else other
    return torch.matmul(one, other.to(one.dtype)) * float(settings.get("alpha", 1.0))


def _with_bias(function: Callable[[Any], Any]) -> Operator:
    def run(inputs: Sequence[Any], _: Any, __: Any) -> Any:
        bias = filled(inputs)[1]
        return function(inputs[0] if bias is None else inputs[0] + bias)

    return run


def _fused_gemm(given: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
    product = plain.OPERATORS["Gemm"](given, settings, dtype)
    named = {
        name.removeprefix("activation_"): value
        for name, value in settings.items()
        if name.startswith("activation_")
    }
    return plain.OPERATORS[str(settings["activation"])]([product], named, dtype)


CONTRIB: dict[str, Operator] = {
    "FusedMatMul": _fused_matmul, "FusedGemm": _fused_gemm, "BiasGelu": _with_bias(lambda x: torch.nn.functional.gelu(x)),
    "FastGelu": _with_bias(lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "Gelu": _with_bias(lambda x: torch.nn.functional.gelu(x)),
    "QuickGelu": lambda inputs, settings, _: inputs[0] * torch.sigmoid(float(settings.get("alpha", 1.702)) * inputs[0]),
    "SkipLayerNormalization": skip_norm(centred=True), "SkipSimplifiedLayerNormalization": skip_norm(centred=False),
    "EmbedLayerNormalization": embed_norm, **QUANTISED_BY_MICROSOFT,
    "RotaryEmbedding": attention.rotary_of_microsoft, "Attention": attention.attention_with_weights,
    "MultiHeadAttention": attention.multi_head, "GroupQueryAttention": attention.grouped,
}  # fmt: skip
