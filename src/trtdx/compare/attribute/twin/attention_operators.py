"""Attention and rotary embedding as single operators: ONNX's of opset 23, and ONNX Runtime's own.

All come down to `attend`: heads apart, keys and values whole, what is hidden told by a mask.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.twin.quantised_operators import UnknownOperatorError, pad_inputs
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Tensor = Any

MASK_FILTER_VALUE = -10000.0  # ONNX Runtime's mask_filter_value where none is told


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Return [batch, heads, tokens, width] of [batch, tokens, heads * width]."""
    if x.ndim == 4:
        return x
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def attention_of_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """Return attention of heads; keys and values may have fewer of them. The mask is added to scores."""
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, 1) if groups > 1 else tensor for tensor in (key, value))
    scores = query @ key.transpose(-1, -2).to(query.dtype) * (scale or 1 / math.sqrt(query.shape[-1]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    return torch.softmax(scores, -1) @ value.to(scores.dtype)


def mask_bias(visible: Tensor, dtype: Any, low: float = 0.0) -> Tensor:
    """Return what is added to scores so that only what is seen counts."""
    return torch.zeros((), dtype=dtype).masked_fill(~visible, low or float(torch.finfo(dtype).min))


def _causal_visible(new: int, total: int, before: int) -> Tensor:
    return torch.arange(total)[None, :] <= torch.arange(new)[:, None] + before


def onnx_attention(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """Attention of opset 23."""
    query, key, value, mask, past_key, past_value = pad_inputs(inputs)[:6]
    flat = query.ndim == 3
    query = split_heads(query, int(settings.get("q_num_heads", 0)))
    key, value = (split_heads(tensor, int(settings.get("kv_num_heads", 0))) for tensor in (key, value))
    if past_key is not None:
        key, value = torch.cat((past_key, key), -2), torch.cat((past_value, value), -2)
    added = None if mask is None else mask_bias(mask, query.dtype) if mask.dtype == torch.bool else mask
    if settings.get("is_causal"):
        before = 0 if past_key is None else past_key.shape[-2]
        causal = mask_bias(_causal_visible(query.shape[-2], key.shape[-2], before), query.dtype)
        added = causal if added is None else added + causal
    scale, softcap = float(settings.get("scale") or 0.0), float(settings.get("softcap") or 0.0)
    output = attention_of_heads(query, key, value, scale=scale, mask=added, softcap=softcap)
    return (merge_heads(output) if flat else output), key, value


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, *, pairs: bool) -> Tensor:
    """Return heads turned by tables of half their width, [batch, 1, tokens, half]; what is wider stays."""
    wide = 2 * cos.shape[-1]
    turned, rest = x[..., :wide], x[..., wide:]
    half = wide // 2
    a, b = (turned[..., ::2], turned[..., 1::2]) if pairs else (turned[..., :half], turned[..., half:])
    first, second = a * cos - b * sin, b * cos + a * sin
    result = torch.stack((first, second), -1).flatten(-2) if pairs else torch.cat((first, second), -1)
    return torch.cat((result, rest), -1) if rest.shape[-1] else result


def _rotate_in_layout(x: Tensor, cos: Tensor, sin: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Return a tensor turned, in the layout that it has; tables are [batch, tokens, half]."""
    wide, heads = int(settings.get("rotary_embedding_dim") or 0), int(settings.get("num_heads") or 0)
    if x.ndim == 3:
        heads = heads or x.shape[-1] // (wide or 2 * cos.shape[-1])
    half = wide // 2 or cos.shape[-1]
    cos, sin = (table[..., :half].unsqueeze(1) for table in (cos, sin))
    result = apply_rotary(split_heads(x, heads), cos, sin, pairs=bool(settings.get("interleaved")))
    return merge_heads(result) if x.ndim == 3 else result


def onnx_rotary_embedding(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """RotaryEmbedding of opset 23: x, cosines, sines, positions."""
    x, cos, sin, positions = pad_inputs(inputs)[:4]
    if positions is not None:
        cos, sin = cos[positions.long()], sin[positions.long()]
    return _rotate_in_layout(x, cos, sin, settings)


def contrib_rotary_embedding(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """RotaryEmbedding of ONNX Runtime: x, positions (or where they begin), cosines, sines."""
    x, positions, cos, sin = inputs
    if settings.get("is_packed_batching"):
        raise UnknownOperatorError("RotaryEmbedding of packed tokens cannot be computed here")
    tokens = x.shape[1] if x.ndim == 3 else x.shape[2]
    if (positions.numel() == 1 and tokens > 1) or positions.ndim < 2:
        positions = positions.reshape(1, 1) + torch.arange(tokens)[None]
    return _rotate_in_layout(x, cos[positions.long()], sin[positions.long()], settings)


def contrib_attention(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """Attention of ONNX Runtime, which has its projections inside: x, weights, bias, mask, past, what is added."""
    x, weight, bias, mask, past, added = pad_inputs(inputs)[:6]
    if settings.get("do_rotary"):
        raise UnknownOperatorError("Attention with a rotary embedding inside cannot be computed here")
    heads = int(settings["num_heads"])
    projected = x @ weight if bias is None else x @ weight + bias
    widths = [int(width) for width in settings.get("qkv_hidden_sizes") or [projected.shape[-1] // 3] * 3]
    query, key, value = (split_heads(part, heads) for part in projected.split(widths, -1))
    if past is not None:
        key, value = torch.cat((past[0], key), -2), torch.cat((past[1], value), -2)
    score_bias = _score_bias(mask, added, settings, query, key)
    output = attention_of_heads(query, key, value, scale=float(settings.get("scale") or 0.0), mask=score_bias)
    return merge_heads(output), torch.stack((key, value))


def multi_head_attention(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """MultiHeadAttention: query, key, value, bias, padding, what is added, past keys and values."""
    query, key, value, bias, mask, added, past_key, past_value = pad_inputs(inputs)[:8]
    if key is None or query.ndim == 5:
        raise UnknownOperatorError("MultiHeadAttention of packed projections cannot be computed here")
    heads = int(settings["num_heads"])
    if bias is not None:
        parts = bias.split([query.shape[-1], query.shape[-1], bias.shape[-1] - 2 * query.shape[-1]])
        ready = (
            tensor if tensor.ndim == 4 else tensor + part
            for tensor, part in zip((query, key, value), parts, strict=True)
        )
        query, key, value = ready
    query, key, value = (split_heads(tensor, heads) for tensor in (query, key, value))
    if past_key is not None:
        key, value = torch.cat((past_key, key), -2), torch.cat((past_value, value), -2)
    score_bias = _score_bias(mask, added, settings, query, key)
    output = attention_of_heads(query, key, value, scale=float(settings.get("scale") or 0.0), mask=score_bias)
    return merge_heads(output), key, value


def _score_bias(
    mask: Tensor | None, added: Tensor | None, settings: Mapping[str, Any], query: Tensor, key: Tensor
) -> Tensor | None:
    """Return what is added to the scores of ONNX Runtime's attentions."""
    low = float(settings.get("mask_filter_value") or MASK_FILTER_VALUE)
    new, total = query.shape[-2], key.shape[-2]
    parts = [] if added is None else [added]
    if mask is not None:
        visible = _visible_keys(mask, len(query), total)
        parts.append(mask_bias(visible, query.dtype, low))
    if settings.get("unidirectional"):
        visible = _causal_visible(new, total, total - new)
        parts.append(mask_bias(visible, query.dtype))
    return sum(parts[1:], parts[0]) if parts else None


def _visible_keys(mask: Tensor, batch: int, total: int) -> Tensor:
    """Return which keys are seen, [batch, 1, new or 1, total]; a mask has lengths, ones for tokens, or tokens for tokens."""
    if mask.ndim == 1 and mask.numel() == batch:
        return (torch.arange(total)[None] < mask.reshape(-1, 1))[:, None, None]
    if mask.ndim == 2:
        return mask.bool()[:, None, None]
    if mask.ndim == 3:
        return mask.bool()[:, None]
    raise UnknownOperatorError("a mask of this kind cannot be computed with here")


def group_query_attention(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """GroupQueryAttention: query (or all three), key, value, past, lengths, rotary tables, positions, what is added."""
    query, key, value, past_key, past_value, lengths, _total, cos, sin, positions, added, *other = pad_inputs(inputs)
    if any(extra is not None for extra in other) or settings.get("smooth_softmax"):
        raise UnknownOperatorError("GroupQueryAttention with sinks, norms or a quantised cache cannot be computed here")
    heads, fewer = int(settings["num_heads"]), int(settings["kv_num_heads"])
    if key is None:
        width = query.shape[-1] // (heads + 2 * fewer)
        query, key, value = query.split([heads * width, fewer * width, fewer * width], -1)
    query, key, value = split_heads(query, heads), split_heads(key, fewer), split_heads(value, fewer)
    new, ends = query.shape[-2], lengths.reshape(-1).long() + 1
    before = (ends - new).clamp(min=0)
    if settings.get("do_rotary"):
        at = before[:, None] + torch.arange(new)[None] if positions is None else positions.long()
        tables = [table[at].unsqueeze(1) for table in (cos, sin)]
        pairs = bool(settings.get("rotary_interleaved"))
        query, key = (apply_rotary(tensor, *tables, pairs=pairs) for tensor in (query, key))
    past = int(before.max()) if past_key is not None and past_key.shape[-2] else 0
    if past:
        key = torch.cat((past_key[..., :past, :], key), -2)
        value = torch.cat((past_value[..., :past, :], value), -2)
    mask = _group_query_mask(query, key, ends, past, int(settings.get("local_window_size", -1)))
    mask = mask if added is None else mask + added[..., : key.shape[-2]]
    scale, softcap = float(settings.get("scale") or 0.0), float(settings.get("softcap") or 0.0)
    return (
        merge_heads(attention_of_heads(query, key, value, scale=scale, mask=mask, softcap=softcap)),
        key,
        value,
    )


def _group_query_mask(query: Tensor, key: Tensor, ends: Tensor, past: int, window: int) -> Tensor:
    new, total = query.shape[-2], key.shape[-2]
    at, to = torch.arange(new)[:, None] + past, torch.arange(total)[None]
    visible = (to <= at) if window < 0 else (to <= at) & (to > at - window)
    return mask_bias(visible[None, None], query.dtype)
