"""Candidates that throw dice: dropout left on, or results that differ from run to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.bench import Idea
from trtdx.engines.lazy import torch
from trtdx.engines.torch_values import tensor_from_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.bench import Bench, Tensor

NAMES = ("attention_dropout", "dropout", "hidden_dropout", "resid_pdrop", "attn_pdrop", "embd_pdrop")


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield dropout, where its zeros are seen, and chance, where the candidate was computed twice."""
    yield from _zeros(bench)
    if bench.suspect.again is None or bench.solved:  # another run of the candidate is dear
        return
    second = {bench._full(name): each for name, each in bench.suspect.again().items()}
    if not all(name in second for name in bench.targets):
        return
    spread = sum(_spread(bench, name, tensor_from_array(second[name]).double()) for name in bench.targets)
    if spread <= 4 * bench.noise:
        return
    other = bench.residual_of({name: tensor_from_array(second[name]).double() for name in bench.targets})
    share = min(1.0, spread / max(bench.residual + other, 1e-300))
    rate = rate_of(bench.module)
    values = {"spread": f"{spread**0.5:.3g}", "rate": f"{rate:g}"}
    how = f"the candidate computed twice differs by {spread**0.5:.3g} relative"
    yield Idea("DX958" if rate else "DX959", bench.truth, values, how, share=share)


def _spread(bench: Bench, name: str, second: Tensor) -> float:
    kept = bench._index(name)
    gap = torch.nan_to_num((bench.targets[name] - second.reshape(bench.targets[name].shape))[kept])
    return float((gap * gap).sum()) / bench._sizes[name]


def rate_of(module: Any) -> float:
    """Return the largest rate of dropout that a module has."""
    rates = [each.p for each in module.modules() if isinstance(each, torch.nn.Dropout)]
    for each in module.modules():
        told = [getattr(each, name, 0.0) for name in NAMES]
        rates += [rate for rate in told if isinstance(rate, float)]
    return float(max(rates, default=0.0))


def _zeros(bench: Bench) -> Iterator[Idea]:
    """Yield outputs of which some are zero and all others are larger by the factor that makes up for them."""
    theirs, truth = bench.targets[bench.main], bench.truth[bench.main]
    real = truth.abs() > 1e-6 * truth.abs().max()
    zero = (theirs == 0) & real
    lost = float(zero.sum()) / max(1, int(real.sum()))
    left = real & ~zero
    if not 0.005 < lost < 0.95 or int(zero.sum()) < 3 or not bool(left.any()):
        return
    factor = float((theirs[left] / truth[left]).median())
    rate = 1 - 1 / factor if factor > 1 else 0.0
    if not 0 < rate < 1 or abs(rate - lost) > 0.1 + 0.5 * lost:
        return
    made = torch.where(theirs == 0, torch.zeros_like(truth), truth * factor)
    values = {"rate": f"{rate:.2g}", "spread": f"{lost:.2g}"}
    how = f"{100 * lost:.2g} % of the outputs are zero, the others larger by {factor:.4g}"
    yield Idea("DX958", bench.changed({bench.main: made}), values, how, freedom=1)
