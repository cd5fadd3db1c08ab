"""Mistakes in the weights, the config and the modules of a torch model that is already loaded."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable


def weight(module: Any, change: Callable[[Any], Any]) -> None:
    with torch.no_grad():
        module.weight.copy_(change(module.weight.clone()))


def weights_at(path: str, change: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda model: weight(model.get_submodule(path), change)


def bias(module: Any, factor: float) -> None:
    with torch.no_grad():
        module.bias.mul_(factor)


def transposed(weight_: Any) -> Any:
    return weight_.T


def halves_swapped(axis: int) -> Callable[[Any], Any]:
    return lambda weight_: weight_.roll(weight_.shape[axis] // 2, axis)


def part_missing(axis: int, part: int, parts: int) -> Callable[[Any], Any]:
    def change(weight_: Any) -> Any:
        size = weight_.shape[axis] // parts
        weight_.narrow(axis, part * size, size).zero_()
        return weight_

    return change


def rows_rolled(count: int) -> Callable[[Any], Any]:
    return lambda weight_: weight_.roll(count, 0)


def ones(weight_: Any) -> Any:
    return torch.ones_like(weight_)


def zeros(weight_: Any) -> Any:
    return torch.zeros_like(weight_)


def permuted_for_interleaved(heads: int) -> Callable[[Any], Any]:
    """Rows as the checkpoints of Meta have them: halves of each head woven together."""

    def change(weight_: Any) -> Any:
        rows, columns = weight_.shape
        split = weight_.view(heads, 2, rows // heads // 2, columns)
        return split.transpose(1, 2).reshape(rows, columns)

    return change


def heads_of_rows(heads: int, order: list[int]) -> Callable[[Any], Any]:
    def change(weight_: Any) -> Any:
        return weight_.view(heads, -1, weight_.shape[-1])[order].reshape(weight_.shape)

    return change


def swapped(first: Any, second: Any) -> None:
    with torch.no_grad():
        kept = first.weight.clone()
        first.weight.copy_(second.weight)
        second.weight.copy_(kept)


def experts_swapped(experts: Any) -> None:
    """Gate and up of every expert, which lie in one tensor."""
    with torch.no_grad():
        size = experts.gate_up_proj.shape[1] // 2
        experts.gate_up_proj.copy_(experts.gate_up_proj.roll(size, 1).clone())


def epsilon(norm: Any, value: float) -> None:
    setattr(norm, "variance_epsilon" if hasattr(norm, "variance_epsilon") else "eps", value)


def _weight_of(norm: Any) -> Any:
    return norm.weight + 1 if "Gemma" in type(norm).__name__ else norm.weight


def _forward(module: Any, function: Callable[[Any, Any], Any]) -> None:
    module.forward = types.MethodType(function, module)


def as_layer_norm(norm: Any) -> None:
    """The mean is taken away too, where only the size should be divided by."""

    def forward(self: Any, x: Any) -> Any:
        wide = x.float()
        wide = functional.layer_norm(wide, wide.shape[-1:], eps=getattr(self, "variance_epsilon", None) or self.eps)
        return (_weight_of(self).float() * wide).to(x.dtype)

    _forward(norm, forward)


def as_rms_norm(norm: Any) -> None:
    """The mean stays, where it should be taken away."""

    def forward(self: Any, x: Any) -> Any:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight.float() + self.bias.float()).to(x.dtype)

    _forward(norm, forward)


def squares_in_half(norm: Any) -> None:
    """The mean of squares is computed in fp16: what is beyond 256 overflows."""

    def forward(self: Any, x: Any) -> Any:
        mean = (x.half() * x.half()).mean(-1, keepdim=True).to(x.dtype)
        return _weight_of(self) * (x * torch.rsqrt(mean + self.variance_epsilon))

    _forward(norm, forward)


def activation(module: Any, function: Callable[[Any], Any]) -> None:
    _forward(module, lambda self, x: function(x))


def quick_gelu(x: Any) -> Any:
    return x * torch.sigmoid(1.702 * x)


def gelu(x: Any) -> Any:
    return functional.gelu(x)


def gelu_tanh(x: Any) -> Any:
    return functional.gelu(x, approximate="tanh")


def clipped(module: Any, limit: float) -> None:
    """What enters a module is cut at a limit inside of it."""
    honest = module.forward
    module.forward = lambda x: honest(x.clamp(-limit, limit))


def accumulated(linear: Any, dtype: Any, block: int) -> None:
    """Products are summed block by block in a small type."""

    def forward(self: Any, x: Any) -> Any:
        total = torch.zeros((*x.shape[:-1], self.weight.shape[0]), dtype=dtype)
        for at in range(0, x.shape[-1], block):
            part = x[..., at : at + block].float() @ self.weight[:, at : at + block].float().T
            total = total + part.to(dtype)
        total = total.to(x.dtype)
        return total if self.bias is None else total + self.bias

    _forward(linear, forward)


def dropping(module: Any, share: float) -> None:
    """Dropout works although nobody trains; the same every time a process begins."""
    generator = torch.Generator().manual_seed(11)

    def forward(self: Any, x: Any) -> Any:
        kept = torch.rand(x.shape, generator=generator) >= share
        return x * kept.to(x.dtype) / (1 - share)

    _forward(module, forward)


def jittered(module: Any, share: float) -> None:
    """What enters a module is multiplied by random numbers around 1, as routers do in training."""
    generator, honest = torch.Generator().manual_seed(12), module.forward

    def forward(x: Any) -> Any:
        noise = 1 + share * (2 * torch.rand(x.shape, generator=generator) - 1)
        return honest(x * noise.to(x.dtype))

    module.forward = forward


def embedding_scaled(module: Any, factor: float) -> None:
    honest = module.forward
    module.forward = lambda ids: honest(ids) * factor


def moved_positions(rotary: Any, by: int, *, decode_only: bool) -> None:
    honest = rotary.forward

    def forward(x: Any, position_ids: Any, *more: Any, **named: Any) -> Any:
        if not decode_only or x.shape[1] == 1:
            position_ids = position_ids + by
        return honest(x, position_ids, *more, **named)

    rotary.forward = forward


def positions_from_padding(rotary: Any) -> None:
    """Positions count from the first column, whatever is padding."""
    honest = rotary.forward
    before = [0]

    def forward(x: Any, position_ids: Any, *more: Any, **named: Any) -> Any:
        before[0] = 0 if x.shape[1] > 1 else before[0]
        whole = torch.arange(before[0], before[0] + x.shape[1]).expand_as(position_ids)
        before[0] += x.shape[1]
        return honest(x, whole, *more, **named)

    rotary.forward = forward


def experts_moved(experts: Any, order: list[int]) -> None:
    with torch.no_grad():
        for each in (experts.gate_up_proj, experts.down_proj):
            each.copy_(each[order].clone())


def weights_of(module: Any, other: Any) -> None:
    with torch.no_grad():
        module.weight.copy_(other.weight)


def bias_of(module: Any, other: Any) -> None:
    with torch.no_grad():
        module.bias.copy_(other.bias)


def noisy_weight(share: float) -> Callable[[Any], Any]:
    """Weights as another training run left them."""
    generator = torch.Generator().manual_seed(17)
    return lambda w: w + share * w.std() * torch.randn(w.shape, generator=generator)


def frequencies(rotary: Any, change: Callable[[Any], Any]) -> None:
    rotary.inv_freq = change(rotary.inv_freq.clone())


def residual(layer: Any, attention: float = 1.0, mlp: float = 1.0) -> None:
    """Add the residual stream another number of times than once, before or after the mlp, in a layer like Llama's."""

    def forward(self: Any, hidden_states: Any, **kwargs: Any) -> Any:
        stream = hidden_states
        hidden_states, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        if hasattr(self, "pre_feedforward_layernorm"):
            hidden_states = stream * attention + self.post_attention_layernorm(hidden_states)
            out = self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(hidden_states)))
        else:
            hidden_states = stream * attention + hidden_states
            out = self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states * mlp + out

    layer.forward = types.MethodType(forward, layer)


def huge_inside(layer: Any, factor: float) -> None:
    """Healthy weights whose values between up and down are large: more than fp16 can hold."""
    weight(layer.mlp.up_proj, lambda w: w * factor)
    weight(layer.mlp.down_proj, lambda w: w / factor)


def tiny_inside(layer: Any, factor: float) -> None:
    """Healthy weights whose values between up and down are small: less than fp16 can tell apart. A norm follows."""
    for part in (layer.mlp.gate_proj, layer.mlp.up_proj):
        weight(part, lambda w: w * factor)
    weight(layer.mlp.down_proj, lambda w: w * 2e4)


def saturating_int8(linear: Any, *, saturate: bool) -> None:
    """Compute a linear layer in int8 (U8S8, per channel), as x86 without VNNI does it or exactly.

    There the products of two neighbours are added in 16 bits, and what does not fit is cut off.
    """
    scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
    whole = (linear.weight.detach() / scale).round()

    def forward(self: Any, x: Any) -> Any:
        low, high = x.amin().clamp_max(0), x.amax().clamp_min(0)
        step = (high - low) / 255
        zero = (-low / step).round()
        codes = ((x / step).round() + zero).clamp(0, 255)
        pairs = codes.unsqueeze(-2) * whole  # [..., outputs, inputs]
        pairs = pairs[..., ::2] + pairs[..., 1::2]
        if saturate:
            pairs = pairs.clamp(-32768, 32767)
        total = pairs.double().sum(-1) - zero * whole.double().sum(1)
        total = (total * step * scale.squeeze(1)).to(x.dtype)
        return total if self.bias is None else total + self.bias

    _forward(linear, forward)
