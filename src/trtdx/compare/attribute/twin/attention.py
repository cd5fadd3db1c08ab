"""Attention and rotary embedding as single operators: ONNX's of opset 23, and ONNX Runtime's own.

All come down to `attend`: heads apart, keys and values whole, what is hidden told by a mask.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.twin.quantised import UnknownOperatorError, filled
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Tensor = Any

HIDDEN = -10000.0  # ONNX Runtime's mask_filter_value where none is told


def in_heads(x: Tensor, heads: int) -> Tensor:
    """Return [batch, heads, tokens, width] of [batch, tokens, heads * width]."""
    if x.ndim == 4:
        return x
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def put_together(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def attend(
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


def hidden(seen: Tensor, dtype: Any, low: float = 0.0) -> Tensor:
    """Return what is added to scores so that only what is seen counts."""
    return torch.zeros((), dtype=dtype).masked_fill(~seen, low or float(torch.finfo(dtype).min))


def _up_to_itself(new: int, total: int, before: int) -> Tensor:
    return torch.arange(total)[None, :] <= torch.arange(new)[:, None] + before


def standard(given: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """Attention of opset 23."""
    query, key, value, mask, past_key, past_value = filled(given)[:6]
    flat = query.ndim == 3
    query = in_heads(query, int(settings.get("q_num_heads", 0)))
    key, value = (in_heads(tensor, int(settings.get("kv_num_heads", 0))) for tensor in (key, value))
    if past_key is not None:
        key, value = torch.cat((past_key, key), -2), torch.cat((past_value, value), -2)
    added = None if mask is None else hidden(mask, query.dtype) if mask.dtype == torch.bool else mask
    if settings.get("is_causal"):
        before = 0 if past_key is None else past_key.shape[-2]
        causal = hidden(_up_to_itself(query.shape[-2], key.shape[-2], before), query.dtype)
        added = causal if added is None else added + causal
    scale, softcap = float(settings.get("scale") or 0.0), float(settings.get("softcap") or 0.0)
    output = attend(query, key, value, scale=scale, mask=added, softcap=softcap)
    return (put_together(output) if flat else output), key, value


def rotated(x: Tensor, cos: Tensor, sin: Tensor, *, pairs: bool) -> Tensor:
    """Return heads turned by tables of half their width, [batch, 1, tokens, half]; what is wider stays."""
    wide = 2 * cos.shape[-1]
    turned, rest = x[..., :wide], x[..., wide:]
    half = wide // 2
    a, b = (turned[..., ::2], turned[..., 1::2]) if pairs else (turned[..., :half], turned[..., half:])
    first, second = a * cos - b * sin, b * cos + a * sin
    result = torch.stack((first, second), -1).flatten(-2) if pairs else torch.cat((first, second), -1)
    return torch.cat((result, rest), -1) if rest.shape[-1] else result


def _turned_as_given(x: Tensor, cos: Tensor, sin: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Return a tensor turned, in the layout that it has; tables are [batch, tokens, half]."""
    wide, heads = int(settings.get("rotary_embedding_dim") or 0), int(settings.get("num_heads") or 0)
    if x.ndim == 3:
        heads = heads or x.shape[-1] // (wide or 2 * cos.shape[-1])
    half = wide // 2 or cos.shape[-1]
    cos, sin = (table[..., :half].unsqueeze(1) for table in (cos, sin))
    result = rotated(in_heads(x, heads), cos, sin, pairs=bool(settings.get("interleaved")))
    return put_together(result) if x.ndim == 3 else result


def rotary_of_onnx(given: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """RotaryEmbedding of opset 23: x, cosines, sines, positions."""
    x, cos, sin, positions = filled(given)[:4]
    if positions is not None:
        cos, sin = cos[positions.long()], sin[positions.long()]
    return _turned_as_given(x, cos, sin, settings)


def rotary_of_microsoft(given: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """RotaryEmbedding of ONNX Runtime: x, positions (or where they begin), cosines, sines."""
    x, positions, cos, sin = given
    if settings.get("is_packed_batching"):
        raise UnknownOperatorError("RotaryEmbedding of packed tokens cannot be computed here")
    tokens = x.shape[1] if x.ndim == 3 else x.shape[2]
    if (positions.numel() == 1 and tokens > 1) or positions.ndim < 2:
        positions = positions.reshape(1, 1) + torch.arange(tokens)[None]
    return _turned_as_given(x, cos[positions.long()], sin[positions.long()], settings)


def attention_with_weights(given: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """Attention of ONNX Runtime, which has its projections inside: x, weights, bias, mask, past, what is added."""
    x, weight, bias, mask, past, added = filled(given)[:6]
    if settings.get("do_rotary"):
        raise UnknownOperatorError("Attention with a rotary embedding inside cannot be computed here")
    heads = int(settings["num_heads"])
    projected = x @ weight if bias is None else x @ weight + bias
    widths = [int(width) for width in settings.get("qkv_hidden_sizes") or [projected.shape[-1] // 3] * 3]
    query, key, value = (in_heads(part, heads) for part in projected.split(widths, -1))
    if past is not None:
        key, value = torch.cat((past[0], key), -2), torch.cat((past[1], value), -2)
    score_bias = _masked(mask, added, settings, query, key)
    output = attend(query, key, value, scale=float(settings.get("scale") or 0.0), mask=score_bias)
    return put_together(output), torch.stack((key, value))


def multi_head(given: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """MultiHeadAttention: query, key, value, bias, padding, what is added, past keys and values."""
    query, key, value, bias, mask, added, past_key, past_value = filled(given)[:8]
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
    query, key, value = (in_heads(tensor, heads) for tensor in (query, key, value))
    if past_key is not None:
        key, value = torch.cat((past_key, key), -2), torch.cat((past_value, value), -2)
    score_bias = _masked(mask, added, settings, query, key)
    output = attend(query, key, value, scale=float(settings.get("scale") or 0.0), mask=score_bias)
    return put_together(output), key, value


def _masked(
    mask: Tensor | None, added: Tensor | None, settings: Mapping[str, Any], query: Tensor, key: Tensor
) -> Tensor | None:
    """Return what is added to the scores of ONNX Runtime's attentions."""
    low = float(settings.get("mask_filter_value") or HIDDEN)
    new, total = query.shape[-2], key.shape[-2]
    parts = [] if added is None else [added]
    if mask is not None:
        visible = _seen(mask, len(query), total)
        parts.append(hidden(visible, query.dtype, low))
    if settings.get("unidirectional"):
        visible = _up_to_itself(new, total, total - new)
        parts.append(hidden(visible, query.dtype))
    return sum(parts[1:], parts[0]) if parts else None


def _seen(mask: Tensor, batch: int, total: int) -> Tensor:
    """Return which keys are seen, [batch, 1, new or 1, total]; a mask has lengths, ones for tokens, or tokens for tokens."""
    if mask.ndim == 1 and mask.numel() == batch:
        return (torch.arange(total)[None] < mask.reshape(-1, 1))[:, None, None]
    if mask.ndim == 2:
        return mask.bool()[:, None, None]
    if mask.ndim == 3:
        return mask.bool()[:, None]
    raise UnknownOperatorError("a mask of this kind cannot be computed with here")


def grouped(given: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    """GroupQueryAttention: query (or all three), key, value, past, lengths, rotary tables, positions, what is added."""
    query, key, value, past_key, past_value, lengths, _total, cos, sin, positions, added, *other = filled(
        given
    )
    if any(extra is not None for extra in other) or settings.get("smooth_softmax"):
        raise UnknownOperatorError(
            "GroupQueryAttention with sinks, norms or a quantised cache cannot be computed here"
        )
    heads, fewer = int(settings["num_heads"]), int(settings["kv_num_heads"])
    if key is None:
        width = query.shape[-1] // (heads + 2 * fewer)
        query, key, value = query.split([heads * width, fewer * width, fewer * width], -1)
    query, key, value = in_heads(query, heads), in_heads(key, fewer), in_heads(value, fewer)
    new, ends = query.shape[-2], lengths.reshape(-1).long() + 1
    before = (ends - new).clamp(min=0)
    if settings.get("do_rotary"):
        at = before[:, None] + torch.arange(new)[None] if positions is None else positions.long()
        tables = [table[at].unsqueeze(1) for table in (cos, sin)]
        pairs = bool(settings.get("rotary_interleaved"))
        query, key = (rotated(tensor, *tables, pairs=pairs) for tensor in (query, key))
    past = int(before.max()) if past_key is not None and past_key.shape[-2] else 0
    if past:
        key = torch.cat((past_key[..., :past, :], key), -2)
        value = torch.cat((past_value[..., :past, :], value), -2)
    mask = _of_groups(query, key, ends, past, int(settings.get("local_window_size", -1)))
    mask = mask if added is None else mask + added[..., : key.shape[-2]]
    scale, softcap = float(settings.get("scale") or 0.0), float(settings.get("softcap") or 0.0)
    return put_together(attend(query, key, value, scale=scale, mask=mask, softcap=softcap)), key, value


def _of_groups(query: Tensor, key: Tensor, ends: Tensor, past: int, window: int) -> Tensor:
    new, total = query.shape[-2], key.shape[-2]
    at, to = torch.arange(new)[:, None] + past, torch.arange(total)[None]
    visible = (to <= at) if window < 0 else (to <= at) & (to > at - window)
    return hidden(visible[None, None], query.dtype)
