"""Norms: their epsilon, weight, bias and kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.experiment import Idea
from trtdx.compare.attribute.module_copies import put
from trtdx.compare.attribute.scalar_fit import best
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.experiment import Bench, Outputs, Tensor

EPSILONS = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
ATTRIBUTES = ("variance_epsilon", "eps", "epsilon", "norm_eps")


class Norm(NamedTuple):
    """What a norm computes: (x - mean) / sqrt(variance + eps) * (weight + plus) + bias."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centred: bool
    plus: float = 0.0

    def of(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        normed = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)
        if self.weight is not None:
            normed = normed * (self.weight + self.plus)
        return normed if self.bias is None else normed + self.bias


def epsilon_of(module: Any) -> tuple[str, float] | None:
    """Return under which name a module keeps its epsilon, and it."""
    for name in ATTRIBUTES:
        value = getattr(module, name, None)
        if isinstance(value, float):
            return name, value
    return None


def is_norm(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return (
        epsilon_of(module) is not None
        and (weight is None or weight.ndim == 1)
        and not list(module.children())
    )


def norm_of(bench: Bench) -> tuple[Norm, Tensor] | None:
    """Return what the bench's module computes, if that is a norm, and its input."""
    module = bench.module
    if not is_norm(module) or bench.main != f"{bench.path}:out":
        return None
    x, truth = bench.first_input(), bench.truth[bench.main]
    named_epsilon = epsilon_of(module)
    if x.shape != truth.shape or named_epsilon is None:
        return None
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    for centred in (False, True):
        for plus in (0.0, 1.0):
            norm = Norm(weight, bias, named_epsilon[1], centred, plus)
            gap = norm.of(x) - truth
            if float((gap**2).sum()) < 1e-9 * float((truth**2).sum()):
                return norm, x
    return None


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield what could be wrong with a norm, or with a norm inside the module."""
    norm_and_input = norm_of(bench)
    if norm_and_input is None:
        yield from _inside(bench)
        return
    norm, x = norm_and_input

    def outputs(other: Norm) -> Outputs:
        return bench.with_main(other.of(x))

    others = [eps for eps in EPSILONS if eps != norm.eps]
    eps, got = best(bench, others, lambda eps: outputs(norm._replace(eps=eps)), rounds=20, exact=others)
    free = 0.5 if eps in others else 1.0
    yield Idea(
        "DX975", got, {"found": f"{eps:.3g}", "expected": f"{norm.eps:.3g}"}, "another epsilon", freedom=free
    )
    other = "LayerNorm" if norm.centred else "RMSNorm"
    yield from _kinds(norm, outputs, other)
    yield from _weights(bench, norm, outputs)


def folded_norm_mistakes(bench: Bench) -> Iterator[Idea]:
    """Yield a norm whose weight lacks the one that is added to it: exporters add it beforehand."""
    norm_and_input = norm_of(bench)
    if norm_and_input is None or norm_and_input[0].weight is None or norm_and_input[0].plus:
        return
    norm, x = norm_and_input
    how = "one not added to the weight, which has it in the reference"
    yield Idea("DX979", bench.with_main(norm._replace(plus=-1.0).of(x)), {"found": "not added"}, how)


def _kinds(norm: Norm, outputs: Any, own: str) -> Iterator[Idea]:
    other_kind = "RMSNorm" if norm.centred else "LayerNorm"
    values = {"found": other_kind, "expected": own}
    how = "without the mean taken away" if norm.centred else "with the mean taken away"
    yield Idea("DX978", outputs(norm._replace(centred=not norm.centred)), values, how)
    if norm.bias is not None and norm.centred:
        yield Idea(
            "DX978", outputs(norm._replace(centred=False, bias=None)), values, f"{how}, and without the bias"
        )


def _weights(bench: Bench, norm: Norm, outputs: Any) -> Iterator[Idea]:
    if norm.weight is not None:
        yield Idea("DX976", outputs(norm._replace(weight=None)), {}, "without the weight")
        plus = {0.0: "added", 1.0: "not added"}[norm.plus]
        how = f"one {plus} to the weight"
        yield Idea("DX979", outputs(norm._replace(plus=1.0 - norm.plus)), {"found": plus}, how)
        if norm.plus:
            twice = outputs(norm._replace(plus=2.0))
            how = "one added twice: when converting and when computing"
            yield Idea("DX979", twice, {"found": "added twice"}, how)
    if norm.bias is not None:
        yield Idea("DX987", outputs(norm._replace(bias=None)), {}, "the norm without its bias")
    for path, other in (*bench.siblings(), *bench.twins()):
        weight = getattr(other, "weight", None)
        if norm.weight is None or weight is None or not is_norm(other) or weight.shape != norm.weight.shape:
            continue
        bias = getattr(other, "bias", None)
        got = outputs(norm._replace(weight=weight.double(), bias=None if bias is None else bias.double()))
        yield Idea("DX990", got, {"other": path}, f"the norm with the weights of {path}", rank=1)
        if bias is not None:
            got = outputs(norm._replace(weight=weight.double()))
            yield Idea(
                "DX990", got, {"other": path}, f"the norm with the weight of {path}, not its bias", rank=1
            )


def _inside(bench: Bench) -> Iterator[Idea]:
    """Yield norms inside the module with another epsilon or without their weight."""
    for name, module in bench.module.named_modules():
        if not is_norm(module) or not name:
            continue
        named_epsilon = epsilon_of(module)
        assert named_epsilon is not None
        attribute, own_epsilon = named_epsilon

        def outputs(eps: float, module: Any = module, attribute: str = attribute) -> Outputs:
            with put(module, **{attribute: eps}):
                return bench.run()

        eps, got = best(bench, EPSILONS, outputs, rounds=6)
        values = {"found": f"{eps:.3g}", "expected": f"{own_epsilon:.3g}", "inner": name}
        yield Idea("DX975", got, values, f"another epsilon of {name}", freedom=1.5)
        if getattr(module, "weight", None) is not None:
            gemma = _from_one(module)
            blank = torch.zeros_like(module.weight) if gemma else torch.ones_like(module.weight)
            with put(module, weight=blank):
                yield Idea("DX976", bench.run(), {"inner": name}, f"{name} without its weight", freedom=0.5)
            with put(module, weight=module.weight + (-1.0 if gemma else 1.0)):
                told_plus = {"found": "not added" if gemma else "added", "inner": name}
                yield Idea(
                    "DX979", bench.run(), told_plus, f"{name} with another one in its weight", freedom=0.5
                )


def _from_one(module: Any) -> bool:
    """Whether a norm counts its weight from one: with a weight of zero it still gives something."""
    ones = torch.ones((1, module.weight.shape[0]), dtype=module.weight.dtype)
    ones[0, 0] = 2.0
    blank = {"weight": torch.zeros_like(module.weight)}
    if getattr(module, "bias", None) is not None:
        blank["bias"] = torch.zeros_like(module.bias)
    with torch.no_grad(), put(module, **blank):
        return float(module(ones).abs().max()) > 0.1
