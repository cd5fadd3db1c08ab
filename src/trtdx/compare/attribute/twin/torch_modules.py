"""The modules of a twin: torch's own kinds where a part is known, else the graph's nodes computed on torch.

Imported only where a twin is built: the classes here need torch.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.mistakes.attention_core import ATTENTION_NAME, attention_interface, causal_mask
from trtdx.compare.attribute.twin.attention_operators import attention_of_heads, mask_bias
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.compare.attribute.twin.graph_reader import GraphEmbedding, GraphLinear, GraphNorm
    from trtdx.compare.attribute.twin.module_program import ModuleProgram
    from trtdx.compare.attribute.twin.subgraph_patterns import AttentionPattern

    Tensor = Any


def _frozen_parameter(tensor: Tensor | None) -> Any:
    return None if tensor is None else torch.nn.Parameter(tensor.contiguous(), requires_grad=False)


class TwinLinear(torch.nn.Module):  # type: ignore[misc]
    """A matrix product; what enters it may still be in heads."""

    def __init__(self, part: GraphLinear) -> None:
        super().__init__()
        self.weight, self.bias = _frozen_parameter(part.weight), _frozen_parameter(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, self.weight.dtype)
        rows = flatten_to_width(x, self.weight.shape[1])
        return torch.nn.functional.linear(
            rows.to(wide), self.weight.to(wide), None if self.bias is None else self.bias.to(wide)
        )


def flatten_to_width(x: Tensor, width: int) -> Tensor:
    """Return a tensor with its last axes put together until they are as wide as is wanted."""
    for axis in range(x.ndim - 1, -1, -1):
        if math.prod(x.shape[axis:]) == width:
            return x.reshape(*x.shape[:axis], width)
    return x


class TwinNorm(torch.nn.Module):  # type: ignore[misc]
    """RMS norm, or LayerNorm where it is centred."""

    def __init__(self, part: GraphNorm) -> None:
        super().__init__()
        self.weight, self.bias = _frozen_parameter(part.weight), _frozen_parameter(part.bias)
        self.eps, self.centred = part.eps, part.centred

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype.itemsize > 2 else x.float()  # as all norms are computed
        wide = wide - wide.mean(-1, keepdim=True) if self.centred else wide
        normed = (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.eps)).to(x.dtype)
        normed = normed if self.weight is None else normed * self.weight
        return normed if self.bias is None else normed + self.bias


class TwinEmbedding(torch.nn.Embedding):  # type: ignore[misc]
    """Rows that are looked up."""

    def __init__(self, part: GraphEmbedding) -> None:
        super().__init__(*part.weight.shape, _weight=part.weight, _freeze=True)
        self.scale = part.scale

    def forward(self, ids: Tensor) -> Tensor:
        return torch.nn.functional.embedding(ids.long(), self.weight) * self.scale


def apply_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    axis: int = 1,
    input_layout: str = "halves",
    output_layout: str = "halves",
) -> tuple[Tensor, Tensor]:
    """Turn queries and keys; called so that hypotheses about rotary embeddings find it, as in transformers."""
    cos, sin = cos.unsqueeze(axis), sin.unsqueeze(axis)
    return tuple(_rotate_tensor(tensor, cos, sin, input_layout, output_layout) for tensor in (q, k))


def _rotate_tensor(x: Tensor, cos: Tensor, sin: Tensor, input_layout: str, output_layout: str) -> Tensor:
    (a, b), (c1, c2), (s1, s2) = (
        _split_in_two(x, input_layout),
        _split_in_two(cos, output_layout),
        _split_in_two(sin, output_layout),
    )
    first, second = a * c1 - b * s1, b * c2 + a * s2
    if output_layout == "halves":
        return torch.cat((first, second), -1)
    return torch.stack((first, second), -1).flatten(-2)


def _split_in_two(x: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    half = x.shape[-1] // 2
    return (x[..., :half], x[..., half:]) if layout == "halves" else (x[..., ::2], x[..., 1::2])


class TwinScope(torch.nn.Module):  # type: ignore[misc]
    """A module of the graph, computed node by node; modules inside it are called.

    Attributes:
        program: what is computed; shared by copies.
        extra_names: names of values to keep besides what leaves, in `extra_values`.
        act_fn: the activation among its own nodes, if there is one.
        config: where the kind of attention is told, as in transformers.
    """

    def __init__(self, program: ModuleProgram) -> None:
        super().__init__()
        self.program, self.extra_names, self.extra_values = program, frozenset[str](), {}  # type: ignore[var-annotated]
        self.register_buffer("_kind", torch.zeros(()), persistent=False)
        for name, tensor in program.weights.items():
            self.register_parameter(name, _frozen_parameter(tensor))
        if program.rotary_frequencies is not None:
            self.register_buffer("inv_freq", program.rotary_frequencies, persistent=False)
        if program.has_attention:
            self.config: Any = SimpleNamespace(_attn_implementation="eager")
            self.head_dim = program.head_dim
        if program.activation is not None:
            self.act_fn = program.activation

    def forward(self, *inputs: Tensor) -> Any:
        """Compute what leaves the module from what enters it, in the order in which a capture has it."""
        outputs, self.extra_values = self.program.run_module(self, inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def rotate_query_key(
        self, inputs: Sequence[Tensor], taken: str, put: str, *, single: bool
    ) -> tuple[Tensor, Tensor]:
        """Turn queries and keys by tables as the graph has them."""
        q, k, cos, sin = inputs
        cos, sin, axis = *_squeeze_head_axis(cos, sin), 2 if cos.ndim == 4 and cos.shape[1] != 1 else 1
        if single and put == "halves":
            cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
        elif single:
            cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        return apply_rotary_pos_emb(q, k, cos, sin, axis=axis, input_layout=taken, output_layout=put)

    def compute_attention(self, part: AttentionPattern, inputs: Sequence[Tensor]) -> Tensor:
        """Compute attention between its projections."""
        query, key, value, *masks = inputs
        key = key.transpose(-1, -2) if part.is_key_transposed else key
        mask = _combine_masks(masks, [masking.kind for masking in part.masks], query)
        scale = part.scale or query.shape[-1] ** -0.5
        if part.is_causal:
            low = mask_bias(causal_mask(query.shape[-2], key.shape[-2]), query.dtype, _lowest_number(query.dtype))
            mask = low if mask is None else mask + low
        if self.config._attn_implementation == ATTENTION_NAME and query.ndim == 4:
            output, _ = attention_interface(
                self, query, key, value, mask, scaling=scale, softcap=part.softcap, is_causal=False
            )
            return output.transpose(1, 2)
        return attention_of_heads(query, key, value, scale=scale, mask=mask, softcap=part.softcap or 0.0)


def _squeeze_head_axis(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return tables without the axis of heads, [batch, sequence, width]."""
    axis = 2 if cos.ndim == 4 and cos.shape[1] != 1 else 1
    tables = [table.squeeze(axis) if table.ndim == 4 else table for table in (cos, sin)]
    return tuple(table[None] if table.ndim == 2 else table for table in tables)


def _combine_masks(masks: Sequence[Tensor], kinds: Sequence[str], query: Tensor) -> Tensor | None:
    """Return what is added to scores, [batch, heads, new, all]; very small where a key is hidden."""
    total: Tensor | None = None
    for mask, kind in zip(masks, kinds, strict=True):
        added = mask
        if kind != "add":
            visible = mask.bool() if kind == "seen" else ~mask.bool()
            added = mask_bias(visible, query.dtype, _lowest_number(query.dtype))
        total = added if total is None else total + added
    if total is not None:
        total = total.clamp(min=_lowest_number(total.dtype))
        total = total.reshape((*(1,) * (query.ndim - total.ndim), *total.shape))
    return total


def _lowest_number(dtype: Any) -> float:
    """Return the number that hides a key: float32's smallest also in float64, as graphs do."""
    return float(torch.finfo(torch.float32 if dtype.itemsize > 2 else dtype).min)
