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

from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Outputs, Tensor

ATTENTION_NAME = "trtdx_bench"
_current_core: ContextVar[AttentionCore | None] = ContextVar("core", default=None)


class AttentionCall(NamedTuple):
    """What attention is computed from: heads before the groups of keys are repeated."""

    query: Tensor  # [batch, heads, new, width]
    key: Tensor  # [batch, key heads, all, width]
    value: Tensor
    allowed: Tensor  # bool, [batch or 1, heads or 1, new, all]
    bias: Tensor | None
    scale: float
    softcap: float | None
    sinks: Tensor | None = None  # a score for each head that takes weight and gives nothing


class AttentionCore:
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
        prepare: Callable[[AttentionCall], AttentionCall] | None = None,
        *,
        repeat: Callable[[Tensor, int], Tensor] | None = None,
        softmax: Callable[[Tensor], Tensor] | None = None,
        finish: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.calls: list[AttentionCall] = []
        self.weights: Tensor = None
        self.prepare, self.repeat = prepare, repeat or _repeat_heads
        self.softmax = softmax or (lambda scores: torch.softmax(scores, -1))
        self.finish = finish

    def __call__(self, call: AttentionCall) -> Tensor:
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
            scores = torch.cat((scores, _sink_column(call.sinks, scores)), -1)
        weights = self.softmax(scores).to(value.dtype)
        self.weights = weights if call.sinks is None else weights[..., :-1]
        output = self.weights @ value
        return output if self.finish is None else self.finish(output)


def _sink_column(sinks: Tensor, scores: Tensor) -> Tensor:
    return sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[-2], 1)


def _repeat_heads(tensor: Tensor, groups: int) -> Tensor:
    return tensor.repeat_interleave(groups, dim=1) if groups > 1 else tensor


def tile_heads(tensor: Tensor, groups: int) -> Tensor:
    return tensor.repeat(1, groups, 1, 1)


def attention_interface(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any
) -> tuple[Tensor, Tensor]:
    """Act as an attention function of transformers."""
    core = _current_core.get() or AttentionCore()
    causal = more.get("is_causal")
    call = _make_call(
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


def _make_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    *,
    causal: bool,
    scale: float | None,
    softcap: float | None = None,
) -> AttentionCall:
    new, total = query.shape[-2], key.shape[-2]
    bias = None
    if mask is None:
        allowed = causal_mask(new, total) if causal and new > 1 else torch.ones((1, 1, new, total), dtype=torch.bool)
    elif mask.dtype == torch.bool:
        allowed = mask[..., :total]
    else:
        allowed = mask[..., :total] > -1e4
        bias = torch.where(allowed, mask[..., :total], torch.zeros_like(mask[..., :total])).to(query.dtype)
        bias = bias if bool(bias.any()) else None
    return AttentionCall(query, key, value, allowed, bias, scale or 1 / math.sqrt(query.shape[-1]), softcap)


def causal_mask(new: int, total: int, window: int = 0) -> Tensor:
    """Return which keys a query may see: none after it, and with a window only that many up to it."""
    behind = torch.arange(total - new, total)[:, None] - torch.arange(total)[None, :]
    visible = behind >= 0
    return (visible & (behind < window) if window else visible)[None, None]


@contextmanager
def _intercept_sdpa() -> Iterator[None]:
    """Redirect torch's scaled_dot_product_attention to the core."""
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = _sdpa_replacement
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original


def _sdpa_replacement(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    core = _current_core.get() or AttentionCore()
    return core(_make_call(query, key, value, attn_mask, causal=is_causal, scale=scale))


@contextmanager
def use_attention_core(bench: ModuleBench, core: AttentionCore) -> Iterator[None]:
    """Let the bench's module compute its attention by this core inside the block."""
    configs = {id(module.config): module.config for module in bench.module.modules() if hasattr(module, "config")}
    before = {key: getattr(config, "_attn_implementation", None) for key, config in configs.items()}
    _register_attention()
    token = _current_core.set(core)
    try:
        for config in configs.values():
            config._attn_implementation = ATTENTION_NAME
        with _intercept_sdpa():
            yield
    finally:
        _current_core.reset(token)
        for key, config in configs.items():
            config._attn_implementation = before[key]


def _register_attention() -> None:
    utils: Any = sys.modules.get("transformers.modeling_utils")
    if utils is None:  # a model of other code, which calls torch's function
        return
    if ATTENTION_NAME not in utils.ALL_ATTENTION_FUNCTIONS:
        utils.ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, attention_interface)


def run_with_core(bench: ModuleBench, core: AttentionCore, **inputs: Any) -> Outputs:
    """Return what the bench's module gives with this core."""
    with use_attention_core(bench, core):
        return bench.run(**inputs)


def attention_call_of(bench: ModuleBench) -> AttentionCall | None:
    """Return what the module's attention is computed from; None if its attention cannot be intercepted."""
    if "call" not in bench.shared_results:
        bench.shared_results["call"] = _find_attention_call(bench)
    call: AttentionCall | None = bench.shared_results["call"]
    return call


def _find_attention_call(bench: ModuleBench) -> AttentionCall | None:
    core = AttentionCore()
    try:
        outputs = run_with_core(bench, core)
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as err:
        _note_failure(bench, f"{type(err).__name__}: {err}")
        return None
    if len(core.calls) != 1:
        if core.calls:
            _note_failure(bench, f"{len(core.calls)} attentions are in it")
        return None
    gap = sum(
        float(((outputs[name] - bench.truth[name]).double() ** 2).sum())
        / max(1e-300, float((expected.double() ** 2).sum()))
        for name, expected in bench.truth.items()
        if name in outputs
    )
    padded = bench.suspect.counted_tokens is not None
    limit = 1e-9 if bench.exact_dtype == torch.float64 else 1e-5
    if gap > limit and not (padded and _matches_in_counted_rows(bench, outputs, limit)):
        _note_failure(bench, "computed apart it gives something else")
        return None
    return core.calls[0]


def _note_failure(bench: ModuleBench, why: str) -> None:
    bench.failures.append(f"attention of {bench.path or 'the model'}: {why}")


def _matches_in_counted_rows(bench: ModuleBench, outputs: Outputs, limit: float) -> bool:
    for name, expected in bench.truth.items():
        rows = bench.row_index(name)
        gap = (outputs[name][rows] - expected[rows]).double()
        if float((gap**2).sum()) > limit * float((expected[rows].double() ** 2).sum()):
            return False
    return True
