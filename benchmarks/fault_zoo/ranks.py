"""A model run by two ranks at once, each a thread with its shards, and the mistakes that only such runs can have.

Projections into heads and into the mlp are cut by outputs, those back by inputs; what they give is summed over the ranks, and
the bias is added once afterwards. Every rank writes its own half of the capture.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .models import ARCHITECTURES, layer_of
from .workshop import record

if TYPE_CHECKING:
    from pathlib import Path

    from .nouns import Question

RANKS = 2
WAIT_S = 120
# What a linear layer back to the stream does with its share: (rank, partial sum, bias or None, sum over ranks) -> result
Reduce = Callable[[int, Any, Any, Callable[[Any], Any]], Any]


class Exchange:
    """The sum over ranks; until all are ready each is alone, as engines try a model out one after the other."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(RANKS, timeout=WAIT_S)
        self.parts: list[Any] = [None] * RANKS
        self.together = False

    def ready(self) -> None:
        self.barrier.wait()
        self.together = True

    def total(self, rank: int, part: Any) -> Any:
        if not self.together:
            return part
        self.parts[rank] = part
        self.barrier.wait()
        found = sum(self.parts[1:], self.parts[0])
        self.barrier.wait()
        return found


def honest(rank: int, partial: Any, bias: Any, total: Callable[[Any], Any]) -> Any:
    whole = total(partial)
    return whole if bias is None else whole + bias


def not_summed(rank: int, partial: Any, bias: Any, total: Callable[[Any], Any]) -> Any:
    return partial if bias is None else partial + bias


def summed_twice(rank: int, partial: Any, bias: Any, total: Callable[[Any], Any]) -> Any:
    return honest(rank, total(partial), bias, total)


def bias_on_each(rank: int, partial: Any, bias: Any, total: Callable[[Any], Any]) -> Any:
    return total(partial + bias)


def second_missing(rank: int, partial: Any, bias: Any, total: Callable[[Any], Any]) -> Any:
    return honest(rank, torch.zeros_like(partial) if rank else partial, bias, total)


def _cut(parameter: Any, axis: int, rank: int, parts: int = 1) -> Any:
    """Return a rank's share along an axis; of several parts that lie one after the other, a share of each."""
    shares = [part.chunk(RANKS, axis)[rank] for part in parameter.data.chunk(parts, axis)]
    return torch.nn.Parameter(torch.cat(shares, axis).contiguous(), requires_grad=False)


def _by_outputs(module: Any, rank: int, axis: int = 0, parts: int = 1) -> None:
    module.weight = _cut(module.weight, axis, rank, parts)
    if getattr(module, "bias", None) is not None:
        module.bias = _cut(module.bias, 0, rank, parts)


def sharded(
    model: Any, name: str, rank: int, exchange: Exchange, mistakes: dict[str, Reduce], taken: dict[str, int]
) -> Any:
    """Cut a model for a rank.

    Args:
        model: the whole of it, which is changed.
        name: its architecture.
        rank: whose share.
        exchange: the sum over ranks.
        mistakes: what modules do instead of the honest sum, by path.
        taken: modules of which this rank takes another one's share, by path.
    """
    paths = {id(module): path for path, module in model.named_modules()}

    def share(module: Any) -> int:
        return taken.get(paths[id(module)], rank)

    for number in range(ARCHITECTURES[name].count):
        layer = layer_of(model, number)
        if name == "gpt2":
            _cut_gpt2(layer, share)
        else:
            _cut_rotary(layer, share)
        for module in _back(layer):
            _reduced(module, rank, exchange, mistakes.get(paths[id(module)], honest))
    return model


def _back(layer: Any) -> list[Any]:
    if hasattr(layer, "attn"):
        return [layer.attn.c_proj, layer.mlp.c_proj]
    return [
        layer.self_attn.o_proj,
        layer.mlp.experts if hasattr(layer.mlp, "experts") else layer.mlp.down_proj,
    ]


def _cut_gpt2(layer: Any, share: Callable[[Any], int]) -> None:
    attention = layer.attn
    _by_outputs(attention.c_attn, share(attention.c_attn), 1, parts=3)
    attention.c_attn.nf, attention.split_size = (
        attention.c_attn.weight.shape[1],
        attention.split_size // RANKS,
    )
    attention.num_heads //= RANKS
    _by_outputs(layer.mlp.c_fc, share(layer.mlp.c_fc), 1)
    layer.mlp.c_fc.nf = layer.mlp.c_fc.weight.shape[1]
    for module in _back(layer):
        module.weight = _cut(module.weight, 0, share(module))


def _cut_rotary(layer: Any, share: Callable[[Any], int]) -> None:
    attention = layer.self_attn
    for part in ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj"):
        module = getattr(attention, part, None)
        if module is not None:
            _by_outputs(module, share(module))
    attention.o_proj.weight = _cut(attention.o_proj.weight, 1, share(attention.o_proj))
    if hasattr(layer.mlp, "experts"):
        experts = layer.mlp.experts
        experts.gate_up_proj = _cut(experts.gate_up_proj, 1, share(experts), parts=2)
        experts.down_proj = _cut(experts.down_proj, 2, share(experts))
        return
    for module in (layer.mlp.gate_proj, layer.mlp.up_proj):
        _by_outputs(module, share(module))
    layer.mlp.down_proj.weight = _cut(layer.mlp.down_proj.weight, 1, share(layer.mlp.down_proj))


def _reduced(module: Any, rank: int, exchange: Exchange, reduce: Reduce) -> None:
    bias = getattr(module, "bias", None)
    is_conv1d = type(module).__name__ == "Conv1D"
    honest_forward = module.forward

    def forward(self: Any, x: Any, *more: Any) -> Any:
        weight = None if more else self.weight if is_conv1d else self.weight.T  # none: experts
        partial = honest_forward(x, *more) if weight is None else x @ weight
        return reduce(rank, partial, bias, lambda part: exchange.total(rank, part))

    module.forward = types.MethodType(forward, module)


def run_ranks(
    folder: Path, exchange: Exchange, models: list[Any], question: Question, forced: list[list[int]], run: str
) -> None:
    """Run the ranks side by side, each into its half of one capture."""
    failures: list[BaseException] = []

    def of(rank: int) -> None:
        try:
            record(
                folder,
                models[rank],
                question.rows(),
                forced,
                run,
                rank=rank,
                of_ranks=RANKS,
                ready=exchange.ready,
            )
        except BaseException as error:
            failures.append(error)
            exchange.barrier.abort()  # nobody waits for this one

    threads = [threading.Thread(target=of, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def captured_ranks(shop: Any, name: str, architecture: str, dtype: str, question: Question, *,
                   mistakes: dict[str, Reduce] | None = None, taken: dict[str, int] | None = None) -> Path:  # fmt: skip
    """Return the capture of a sharded run; `taken` is for rank 0, and the other rank gets what it leaves."""
    source = shop.healthy(architecture)

    def make(path: Path) -> None:
        exchange = Exchange()
        swapped = [taken or {}, {key: RANKS - 1 - share for key, share in (taken or {}).items()}]
        models = [
            sharded(shop.loaded(source, dtype), architecture, rank, exchange, mistakes or {}, swapped[rank])
            for rank in range(RANKS)
        ]
        run_ranks(path, exchange, models, question, shop.tokens(source, question), name)

    return shop.once(f"captures/{name}", make)
