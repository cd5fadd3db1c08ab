"""Mistakes inside the attention of a torch model: what happens between the projections.

Each is put into the layers told, in a model that is already loaded. What enters and leaves the projections is not touched, so that
the first wrong tensor is what enters the output projection.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Change = Callable[..., dict[str, Any]]
_COUNT = [0]


def attention_of(layer: Any) -> Any:
    return layer.attn if hasattr(layer, "attn") else layer.self_attn


def _honest(module: Any) -> Any:
    return sys.modules[type(module).__module__].eager_attention_forward


def instead(layers: Iterable[Any], function: Callable[..., Any]) -> None:
    """Let the attention of layers be computed by a function that is given what is to be called honestly."""
    _COUNT[0] += 1
    name = f"zoo_{_COUNT[0]}"

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
        return function(_honest(module), module, query, key, value, mask, more)

    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    for layer in layers:
        module = attention_of(layer)
        module.config = copy.copy(module.config)
        module.config._attn_implementation_internal = name


def scaled(layers: Iterable[Any], factor: float) -> None:
    def run(honest: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, more: Any) -> Any:
        return honest(module, q, k, v, mask, **{**more, "scaling": more["scaling"] * factor})

    instead(layers, run)


def masked(layers: Iterable[Any], change: Callable[[Any], Any]) -> None:
    """Change the mask: [batch, 1, queries, keys], 0 or a large negative number."""

    def run(honest: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, more: Any) -> Any:
        return honest(module, q, k, v, change(mask), **more)

    instead(layers, run)


def no_mask(mask: Any) -> Any:
    return torch.zeros_like(mask)


def sees_next(mask: Any) -> Any:
    """Each token also sees the one after it."""
    open_, shifted = mask.clone(), torch.zeros_like(mask)
    if mask.shape[-2] > 1:
        shifted[..., :-1, :] = mask[..., 1:, :]
        shifted[..., -1, :] = mask[..., -1, :]
        return torch.maximum(open_, shifted)
    return open_


def blind_to_itself(mask: Any) -> Any:
    """No token but the first sees itself: an `<` that should be `<=`."""
    closed = mask.clone()
    queries, keys = mask.shape[-2:]
    for row in range(queries):
        column = keys - queries + row
        if column and float(mask[0, 0, row, column - 1]) == 0:
            closed[..., row, column] = torch.finfo(mask.dtype).min
    return closed


def too_weak(mask: Any) -> Any:
    """What is hidden keeps a part of its weight: a number is taken away, where it should be all there is."""
    return mask.clamp_min(-3.0)


def other_side(mask: Any) -> Any:
    """Padding is taken to be on the right, where it is on the left."""
    queries, keys = mask.shape[-2:]
    hidden = (mask[:, :, -1:] < -1).flip(-1)  # the last token sees all that is not padding
    low = torch.finfo(mask.dtype).min
    return padding_seen(mask).masked_fill(hidden.expand(-1, -1, queries, keys), low)


def padding_seen(mask: Any) -> Any:
    """Padding is attended to: causal only."""
    queries, keys = mask.shape[-2:]
    causal = torch.full((queries, keys), torch.finfo(mask.dtype).min, dtype=mask.dtype).triu(keys - queries + 1)
    return causal.expand_as(mask).clone()


def windowed(width: int) -> Callable[[Any], Any]:
    def change(mask: Any) -> Any:
        queries, keys = mask.shape[-2:]
        far = torch.arange(keys)[None] <= torch.arange(keys - queries, keys)[:, None] - width
        return mask.masked_fill(far, torch.finfo(mask.dtype).min)

    return change


def kv_heads_tiled(layers: Iterable[Any]) -> None:
    """Query head h reads KV head h modulo their number, where it should be h divided by the group."""

    def run(honest: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, more: Any) -> Any:
        groups = q.shape[1] // k.shape[1]
        fake = SimpleNamespace(num_key_value_groups=1, training=False, head_dim=q.shape[-1])
        return honest(fake, q, k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1), mask, **more)

    instead(layers, run)


def heads_permuted(layers: Iterable[Any], order: list[int]) -> None:
    def run(honest: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, more: Any) -> Any:
        out, weights = honest(module, q, k, v, mask, **more)  # [batch, tokens, heads, width]
        return out[:, :, order], weights

    instead(layers, run)


def softmax_in(layers: Iterable[Any], dtype: Any) -> None:
    """Scores and probabilities are of a small type."""

    def run(honest: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, more: Any) -> Any:
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = (q @ k.transpose(2, 3) * more["scaling"]).to(dtype)
        if more.get("softcap"):
            scores = torch.tanh(scores / more["softcap"]) * more["softcap"]
        low = torch.finfo(dtype).min
        scores = scores + mask.clamp_min(low).to(dtype) if mask is not None else scores
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = (weights / weights.sum(-1, keepdim=True)).to(q.dtype)
        return (weights @ v).transpose(1, 2).contiguous(), weights

    instead(layers, run)


def dropout_left_on(layers: Iterable[Any], share: float) -> None:
    def run(honest: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, more: Any) -> Any:
        fake = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=True, head_dim=q.shape[-1])
        return honest(fake, q, k, v, mask, **{**more, "dropout": share})

    instead(layers, run)


def cache_read(layers: Iterable[Any], change: Callable[[Any], Any]) -> None:
    """Change what is read from the cache at decode steps: keys and values [batch, heads, tokens, width], also the new one."""

    def run(honest: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, more: Any) -> Any:
        if q.shape[2] == 1 and k.shape[2] > 1:
            k, v = change(k), change(v)
        return honest(module, q, k, v, mask, **more)

    instead(layers, run)


def in_float8(states: Any) -> Any:
    """The old tokens are as an fp8 cache without scales keeps them."""
    old = states[..., :-1, :].clamp(-448, 448).to(torch.float8_e4m3fn).to(states.dtype)
    return torch.cat([old, states[..., -1:, :]], 2)


def in_int8(states: Any) -> Any:
    """The old tokens are as an int8 cache with one scale for all keeps them."""
    old = states[..., :-1, :]
    scale = old.abs().amax() / 127
    return torch.cat([(old / scale).round().clamp(-127, 127) * scale, states[..., -1:, :]], 2)


def stale_last(states: Any) -> Any:
    """The token before the new one was never written: its place still holds the one before it."""
    changed = states.clone()
    changed[..., -2, :] = states[..., -3, :]
    return changed


def stale_new(states: Any) -> Any:
    """The new token's place is read before it is written."""
    changed = states.clone()
    changed[..., -1, :] = 0
    return changed


def page_twice(page: int, read: int, instead_of: int) -> Callable[[Any], Any]:
    """The block table names one page twice."""

    def change(states: Any) -> Any:
        changed = states.clone()
        changed[..., instead_of * page : (instead_of + 1) * page, :] = states[..., read * page : (read + 1) * page, :]
        return changed

    return change


def page_of_other_row(page: int, number: int) -> Callable[[Any], Any]:
    """A page of the first row is another request's."""

    def change(states: Any) -> Any:
        changed = states.clone()
        part = slice(number * page, (number + 1) * page)
        changed[0, :, part] = states[1, :, part]
        return changed

    return change


def rotated(layers: Iterable[Any], apply: Callable[..., Any]) -> None:
    """Rotate the queries and keys of layers by another function of (honest, q, k, cos, sin)."""
    for layer in layers:
        module = attention_of(layer)
        source = sys.modules[type(module).__module__]
        module.forward = _with_rotary(module.forward, source, apply)


def _with_rotary(forward: Any, source: Any, apply: Callable[..., Any]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        honest = source.apply_rotary_pos_emb

        def rotary(q: Any, k: Any, cos: Any, sin: Any, *more: Any, **named: Any) -> Any:
            return apply(honest, q, k, cos, sin)

        source.apply_rotary_pos_emb = rotary
        try:
            return forward(*args, **kwargs)
        finally:
            source.apply_rotary_pos_emb = honest

    return run


def interleaved(honest: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """Neighbours are rotated as pairs, where it should be the two halves."""

    def regrouped(x: Any) -> Any:
        return torch.cat([x[..., ::2], x[..., 1::2]], -1)

    def back(x: Any) -> Any:
        half = x.shape[-1] // 2
        return torch.stack([x[..., :half], x[..., half:]], -1).flatten(-2)

    q, k = honest(regrouped(q), regrouped(k), cos, sin)
    return back(q), back(k)


def query_one_on(honest: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """Queries are rotated for the position after their own."""
    step = (cos[..., -1:, :], sin[..., -1:, :])
    if cos.shape[-2] > 1:  # the angle between two positions, from the positions themselves
        turn_cos = cos[..., 1:2, :] * cos[..., :1, :] + sin[..., 1:2, :] * sin[..., :1, :]
        turn_sin = sin[..., 1:2, :] * cos[..., :1, :] - cos[..., 1:2, :] * sin[..., :1, :]
        query_one_on.turn = (turn_cos, turn_sin)  # type: ignore[attr-defined]
    turn_cos, turn_sin = getattr(query_one_on, "turn", step)
    moved = (cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin)
    return honest(q, k, *moved)[0], honest(q, k, cos, sin)[1]


def keys_alone(honest: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """Queries are not rotated."""
    return q, honest(q, k, cos, sin)[1]


def half_of_head(honest: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """Only the first half of each head is rotated, with the speeds that its numbers would have."""
    size = q.shape[-1] // 2
    near = torch.arange(size // 2)
    both = torch.cat((near, near))
    turned = honest(q[..., :size], k[..., :size], cos[..., both], sin[..., both])
    return tuple(torch.cat((new, old[..., size:]), -1) for new, old in zip(turned, (q, k), strict=True))
