"""Attention, rotary position embedding and the update of a KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.engines.errors import LayerError
from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    compute_in_float32,
    register_torch_kernel,
)
from trtdx.engines.tensorrt.layers.quantization import quantize_scaled
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer


@register_torch_kernel("ATTENTION_INPUT")
def attention_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    """Return the kernel of a whole attention; its output layer passes the result on."""
    trt_attention = trt.attention
    if getattr(trt_attention, "num_ranks", 1) > 1:
        raise LayerError(f"layer {layer.name!r} is split over ranks, which is not computed", layer=layer.name)
    rules = _AttentionRules(layer, trt_attention)
    packed = [
        getattr(trt_attention, name, None) is not None and getattr(trt_attention, name).name == "PACKED_NHD"
        for name in ("query_form", "key_value_form")
    ]

    def compute(
        query: Any,
        key: Any,
        value: Any,
        mask: Any = None,
        scale: Any = None,
        starts: Any = None,
        lengths: Any = None,
    ) -> Any:
        if not any(packed):
            limits = None if lengths is None else lengths.reshape(-1, 1, 1, 1)
            return rules.attend(query, key, value, mask, scale, limits)
        return rules.attend_packed(query, key, value, mask, scale, starts, lengths, packed)

    return compute_in_float32(compute, layer)


class _AttentionRules:
    """What an attention does between its two products."""

    def __init__(self, layer: TrtLayer, attention: Any) -> None:
        kind = getattr(attention, "causal_kind", None)
        self.causal = kind.name if kind is not None else "UPPER_LEFT" if attention.causal else "NONE"
        self.has_softmax = attention.norm_op.name == "SOFTMAX"
        self.quantized_type = attention.normalization_quantize_to_type.name if layer.has_input(4) else ""

    def attend(self, query: Any, key: Any, value: Any, mask: Any, scale: Any, limits: Any) -> Any:
        """Return the attention of padded queries; several query heads may share one key and value head."""
        batch, heads, count, width = query.shape
        shared = heads // key.shape[1]
        grouped = query.reshape(batch, key.shape[1], shared * count, width)
        scores = torch.matmul(grouped, key.transpose(-1, -2)).reshape(batch, heads, count, key.shape[2])
        allowed = self.allowed_positions(count, key.shape[2], limits)
        if mask is not None and mask.dtype == torch.bool:
            allowed = mask if allowed is None else mask & allowed
        elif mask is not None:
            scores = scores + mask
        weights = self.attention_weights(scores, allowed, scale)
        weights = weights.reshape(batch, key.shape[1], shared * count, key.shape[2])
        return torch.matmul(weights, value).reshape(batch, heads, count, value.shape[-1])

    def allowed_positions(self, count: int, total: int, limits: Any) -> Any:
        """Return where a query may look, or None for everywhere."""
        places = torch.arange(total)
        allowed = None if limits is None else places < limits
        if self.causal == "NONE":
            return allowed
        ahead = 0 if self.causal == "UPPER_LEFT" else (total if limits is None else limits) - count
        causal = places <= torch.arange(count).unsqueeze(1) + ahead
        return causal if allowed is None else causal & allowed

    def attention_weights(self, scores: Any, allowed: Any, scale: Any) -> Any:
        """Return scores after mask, normalisation and quantisation; a query that sees nothing gets zeros."""
        if self.has_softmax:
            if allowed is not None:
                scores = scores.masked_fill(~allowed, -torch.inf)
            scores = torch.softmax(scores, -1)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, 0)
        if self.quantized_type:
            scores = quantize_scaled(scores / scale, self.quantized_type).to(torch.float32) * scale
        return scores

    def attend_packed(
        self,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        scale: Any,
        starts: Any,
        lengths: Any,
        packed: list[bool],
    ) -> Any:
        """Return the attention of sequences laid end to end, one after the other."""
        count = (len(starts) if packed[0] else len(lengths)) - 1 if any(packed) else query.shape[0]
        result = torch.zeros_like(query)
        for number in range(count):
            queries = _unpack_sequence(query, number, starts, packed[0])
            keys, values = (_unpack_sequence(part, number, lengths, packed[1]) for part in (key, value))
            limit = lengths[number].reshape(1, 1, 1, 1) if lengths is not None and not packed[1] else None
            sequence_mask = None if mask is None else mask[min(number, mask.shape[0] - 1)].unsqueeze(0)
            sequence_mask = None if sequence_mask is None else sequence_mask[..., : queries.shape[2], : keys.shape[2]]
            done = self.attend(queries, keys, values, sequence_mask, scale, limit)[0]
            if packed[0]:
                result[int(starts[number]) : int(starts[number + 1])] = done.transpose(0, 1)
            else:
                result[number] = done
        return result


def _unpack_sequence(value: Any, number: int, starts: Any, packed: bool) -> Any:
    """Return one sequence as [1, heads, tokens, width]."""
    if not packed:
        return value[number].unsqueeze(0)
    return value[int(starts[number]) : int(starts[number + 1])].transpose(0, 1).unsqueeze(0)


@register_torch_kernel("ROTARY_EMBEDDING")
def rotary_embedding_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    interleaved, width = trt.interleaved, trt.rotary_embedding_dim

    def compute(value: Any, cosine: Any, sine: Any, positions: Any = None) -> Any:
        if positions is not None:
            cosine, sine = cosine[positions.to(torch.int64)], sine[positions.to(torch.int64)]
        cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
        turned = value[..., : width or value.shape[-1]]
        first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
        real, imaginary = first * cosine - second * sine, first * sine + second * cosine
        if interleaved:
            done = torch.stack([real, imaginary], -1).reshape(turned.shape)
        else:
            done = torch.cat([real, imaginary], -1)
        return torch.cat([done, value[..., width:]], -1) if width and width < value.shape[-1] else done

    return compute_in_float32(compute, layer)


@register_torch_kernel("KV_CACHE_UPDATE")
def kv_cache_update_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    """Return the layer's kernel; TensorRT writes into the cache, here a new one comes back."""
    form = getattr(trt, "update_form", None)
    packed = form is not None and form.name == "PACKED_NHD"

    def compute(cache: Any, update: Any, where: Any, starts: Any = None) -> Any:
        result = cache.clone()
        for number, begin in enumerate(where.tolist()):
            new = _unpack_sequence(update, number, starts, packed)[0]
            if begin >= 0 and begin + new.shape[1] <= cache.shape[2]:  # TensorRT ignores others
                result[number, :, begin : begin + new.shape[1]] = new
        return result

    return compute
