"""Norms on torch, alone and with what ONNX Runtime fuses into them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.twin.quantised_operators import pad_inputs
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtdx.compare.attribute.twin.quantised_operators import Operator

    Tensor = Any


def normalise_tensor(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, *, axis: int, centred: bool
) -> Tensor:
    """Return RMS norm, or LayerNorm where it is centred, over all axes from one on."""
    axes = list(range(axis % x.ndim, x.ndim))
    x = x - x.mean(axes, keepdim=True) if centred else x
    result = x * torch.rsqrt((x * x).mean(axes, keepdim=True) + epsilon)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def norm_operator(*, centred: bool) -> Operator:
    def run(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
        epsilon, axis = float(settings.get("epsilon", 1e-5)), int(settings.get("axis", -1))
        bias = [*inputs, None][2] if centred else None
        return normalise_tensor(inputs[0], inputs[1], bias, epsilon, axis=axis, centred=centred)

    return run


def skip_norm_operator(*, centred: bool) -> Operator:
    def run(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
        x, skip, weight, *rest = pad_inputs(inputs)
        beta, bias = (rest[0], rest[1]) if centred else (None, rest[0])
        total = x + skip if bias is None else x + skip + bias
        epsilon = float(settings.get("epsilon", 1e-12 if centred else 1e-5))
        result = normalise_tensor(total, weight, beta, epsilon, axis=-1, centred=centred)
        return result, None, None, total

    return run


def embed_norm_operator(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    ids, segments, words, positions, kinds, weight, bias, mask, at = pad_inputs(inputs)[:9]
    at = torch.arange(ids.shape[1])[None] if at is None else at
    total = words[ids.long()] + positions[at.long()]
    if segments is not None and kinds is not None:
        total = total + kinds[segments.long()]
    result = normalise_tensor(total, weight, bias, float(settings.get("epsilon", 1e-12)), axis=-1, centred=True)
    lengths = torch.zeros(len(ids), dtype=torch.int32) if mask is None else mask.sum(1).to(torch.int32)
    return result, lengths, total
