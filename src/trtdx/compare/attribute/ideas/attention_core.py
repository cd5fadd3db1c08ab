"""Attention between its projections, computed here so that each part of it can be changed.

Modules of transformers ask a registry for the function that does it, other code calls torch's: both are led here
while a bench's module is computed. It is used only where, unchanged, it gives what the module itself gives.
"""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.experiment import Bench, Outputs, Tensor

NAME = "trtdx_bench"
_current: ContextVar[Core | None] = ContextVar("core", default=None)


class Call(NamedTuple):
    """What attention is computed from: heads before the groups of keys are repeated."""

    query: Tensor  # [batch, heads, new, width]
    key: Tensor  # [batch, key heads, all, width]
    value: Tensor
    allowed: Tensor  # bool, [batch or 1, heads or 1, new, all]
    bias: Tensor | None
    scale: float
    softcap: float | None
    sinks: Tensor | None = None  # a score for each head that takes weight and gives nothing


class Core:
    """Attention with parts of it changed.

    Attributes:
        calls: what was computed from, each time.
        weights: of the last time, [batch, heads, new, all].
        prepare: changes what goes in.
        repeat: makes as many heads of keys or values as there are of queries.
        softmax: from scores to weights.
        finish: changes what comes out, [batch, heads, new, width].
    """

    def __init__(
        self,
        prepare: Callable[[Call], Call] | None = None,
        *,
        repeat: Callable[[Tensor, int], Tensor] | None = None,
        softmax: Callable[[Tensor], Tensor] | None = None,
        finish: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.calls: list[Call] = []
        self.weights: Tensor = None
        self.prepare, self.repeat = prepare, repeat or _repeated
        self.softmax = softmax or (lambda scores: torch.softmax(scores, -1))
        self.finish = finish

    def __call__(self, call: Call) -> Tensor:
        self.calls.append(call)
        if self.prepare is not None:
            call = self.prepare(call)
        groups = call.query.shape[1] // call.key.shape[1]
        key, value = self.repeat(call.key, groups), self.repeat(call.value, groups)
        scores = call.query @ key.transpose(-1, -2) * call.scale
        if call.softcap:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        if call.bias is not None:
            scores = scores + call.bias
        scores = scores.masked_fill(~call.allowed, torch.finfo(scores.dtype).min)
        if call.sinks is not None:
            scores = torch.cat((scores, _as_column(call.sinks, scores)), -1)
        weights = self.softmax(scores).to(value.dtype)
        self.weights = weights if call.sinks is None else weights[..., :-1]
        output = self.weights @ value
        return output if self.finish is None else self.finish(output)


def _as_column(sinks: Tensor, scores: Tensor) -> Tensor:
    return sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[-2], 1)


def _repeated(tensor: Tensor, groups: int) -> Tensor:
    return tensor.repeat_interleave(groups, dim=1) if groups > 1 else tensor


def tiled(tensor: Tensor, groups: int) -> Tensor:
    return tensor.repeat(1, groups, 1, 1)


def _interface(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any
) -> tuple[Tensor, Tensor]:
    """Be an attention function of transformers."""
    core = _current.get() or Core()
    causal = more.get("is_causal")
    call = _call(
        query,
        key,
        value,
        attention_mask,
        causal=bool(getattr(module, "is_causal", True) if causal is None else causal),
        scale=more.get("scaling"),
        softcap=more.get("softcap"),
    )
    call = call._replace(sinks=more.get("s_aux"))
    return core(call).transpose(1, 2).contiguous(), core.weights


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    *,
    causal: bool,
    scale: float | None,
    softcap: float | None = None,
) -> Call:
    new, total = query.shape[-2], key.shape[-2]
    bias = None
    if mask is None:
        allowed = (
            causal_mask(new, total)
            if causal and new > 1
            else torch.ones((1, 1, new, total), dtype=torch.bool)
        )
    elif mask.dtype == torch.bool:
        allowed = mask[..., :total]
    else:
        allowed = mask[..., :total] > -1e4
        bias = torch.where(allowed, mask[..., :total], torch.zeros_like(mask[..., :total])).to(query.dtype)
        bias = bias if bool(bias.any()) else None
    return Call(query, key, value, allowed, bias, scale or 1 / math.sqrt(query.shape[-1]), softcap)


def causal_mask(new: int, total: int, window: int = 0) -> Tensor:
    """Return which keys a query may see: none after it, and with a window only that many up to it."""
    behind = torch.arange(total - new, total)[:, None] - torch.arange(total)[None, :]
    visible = behind >= 0
    return (visible & (behind < window) if window else visible)[None, None]


@contextmanager
def _caught() -> Iterator[None]:
    """Lead torch's own attention function here."""
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = _as_torch
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original


def _as_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    core = _current.get() or Core()
    return core(_call(query, key, value, attn_mask, causal=is_causal, scale=scale))


@contextmanager
def attending(bench: Bench, core: Core) -> Iterator[None]:
    """Let the bench's module compute its attention by this core inside the block."""
    configs = {
        id(module.config): module.config for module in bench.module.modules() if hasattr(module, "config")
    }
    before = {key: getattr(config, "_attn_implementation", None) for key, config in configs.items()}
    _register()
    token = _current.set(core)
    try:
        for config in configs.values():
            config._attn_implementation = NAME
        with _caught():
            yield
    finally:
        _current.reset(token)
        for key, config in configs.items():
            config._attn_implementation = before[key]


def _register() -> None:
    utils: Any = sys.modules.get("transformers.modeling_utils")
    if utils is None:  # a model of other code, which calls torch's function
        return
    if NAME not in utils.ALL_ATTENTION_FUNCTIONS:
        utils.ALL_ATTENTION_FUNCTIONS.register(NAME, _interface)


def attended(bench: Bench, core: Core, **inputs: Any) -> Outputs:
    """Return what the bench's module gives with this core."""
    with attending(bench, core):
        return bench.run(**inputs)


def own_call(bench: Bench) -> Call | None:
    """Return what the module's attention is computed from; none if it has no attention that can be led here."""
    if "call" not in bench.known:
        bench.known["call"] = _own_call(bench)
    call: Call | None = bench.known["call"]
    return call


def _own_call(bench: Bench) -> Call | None:
    core = Core()
    try:
        outputs = attended(bench, core)
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as err:
        _note(bench, f"{type(err).__name__}: {err}")
        return None
    if len(core.calls) != 1:
        if core.calls:
            _note(bench, f"{len(core.calls)} attentions are in it")
        return None
    gap = sum(
        float(((outputs[name] - bench.truth[name]).double() ** 2).sum())
        / max(1e-300, float((expected.double() ** 2).sum()))
        for name, expected in bench.truth.items()
        if name in outputs
    )
    padded = bench.suspect.counts is not None
    limit = 1e-9 if bench.exact == torch.float64 else 1e-5
    if gap > limit and not (padded and _same_where_it_counts(bench, outputs, limit)):
        _note(bench, "computed apart it gives something else")
        return None
    return core.calls[0]


def _note(bench: Bench, why: str) -> None:
    bench.failures.append(f"attention of {bench.path or 'the model'}: {why}")


def _same_where_it_counts(bench: Bench, found: Outputs, limit: float) -> bool:
    for name, expected in bench.truth.items():
        rows = bench._index(name)
        gap = (found[name][rows] - expected[rows]).double()
        if float((gap**2).sum()) > limit * float((expected[rows].double() ** 2).sum()):
            return False
    return True
