"""Norms: their epsilon, weight, bias and kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.attribute.module_copies import override_attributes
from trtdx.compare.attribute.scalar_fit import fit_scalar
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Outputs, Tensor

EPSILONS = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
EPSILON_ATTRIBUTES = ("variance_epsilon", "eps", "epsilon", "norm_eps")


class NormParameters(NamedTuple):
    """What a norm computes: (x - mean) / sqrt(variance + eps) * (weight + plus) + bias."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centred: bool
    plus: float = 0.0

    def normalise(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        normed = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)
        if self.weight is not None:
            normed = normed * (self.weight + self.plus)
        return normed if self.bias is None else normed + self.bias


def find_epsilon(module: Any) -> tuple[str, float] | None:
    """Return under which name a module keeps its epsilon, and it."""
    for name in EPSILON_ATTRIBUTES:
        value = getattr(module, name, None)
        if isinstance(value, float):
            return name, value
    return None


def is_norm(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return find_epsilon(module) is not None and (weight is None or weight.ndim == 1) and not list(module.children())


def identify_norm(bench: ModuleBench) -> tuple[NormParameters, Tensor] | None:
    """Return what the bench's module computes, if that is a norm, and its input."""
    module = bench.module
    if not is_norm(module) or bench.main_target != f"{bench.path}:out":
        return None
    x, truth = bench.first_float_input(), bench.truth[bench.main_target]
    named_epsilon = find_epsilon(module)
    if x.shape != truth.shape or named_epsilon is None:
        return None
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    for centred in (False, True):
        for plus in (0.0, 1.0):
            norm = NormParameters(weight, bias, named_epsilon[1], centred, plus)
            gap = norm.normalise(x) - truth
            if float((gap**2).sum()) < 1e-9 * float((truth**2).sum()):
                return norm, x
    return None


def norm_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield what could be wrong with a norm, or with a norm inside the module."""
    norm_and_input = identify_norm(bench)
    if norm_and_input is None:
        yield from _inner_norm_mistakes(bench)
        return
    norm, x = norm_and_input

    def outputs(other: NormParameters) -> Outputs:
        return bench.with_main(other.normalise(x))

    others = [eps for eps in EPSILONS if eps != norm.eps]
    eps, got = fit_scalar(bench, others, lambda eps: outputs(norm._replace(eps=eps)), rounds=20, exact=others)
    free = 0.5 if eps in others else 1.0
    yield Mistake("DX975", got, {"found": f"{eps:.3g}", "expected": f"{norm.eps:.3g}"}, "another epsilon", freedom=free)
    other = "LayerNorm" if norm.centred else "RMSNorm"
    yield from _norm_kind_mistakes(norm, outputs, other)
    yield from _norm_weight_mistakes(bench, norm, outputs)


def folded_norm_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield a norm whose weight lacks the 1 that this family adds; exporters fold it in."""
    norm_and_input = identify_norm(bench)
    if norm_and_input is None or norm_and_input[0].weight is None or norm_and_input[0].plus:
        return
    norm, x = norm_and_input
    how = "one not added to the weight, which has it in the reference"
    yield Mistake("DX979", bench.with_main(norm._replace(plus=-1.0).normalise(x)), {"found": "not added"}, how)


def _norm_kind_mistakes(norm: NormParameters, outputs: Any, own_kind: str) -> Iterator[Mistake]:
    other_kind = "RMSNorm" if norm.centred else "LayerNorm"
    values = {"found": other_kind, "expected": own_kind}
    how = "without the mean taken away" if norm.centred else "with the mean taken away"
    yield Mistake("DX978", outputs(norm._replace(centred=not norm.centred)), values, how)
    if norm.bias is not None and norm.centred:
        yield Mistake("DX978", outputs(norm._replace(centred=False, bias=None)), values, f"{how}, and without the bias")


def _norm_weight_mistakes(bench: ModuleBench, norm: NormParameters, outputs: Any) -> Iterator[Mistake]:
    if norm.weight is not None:
        yield Mistake("DX976", outputs(norm._replace(weight=None)), {}, "without the weight")
        plus = {0.0: "added", 1.0: "not added"}[norm.plus]
        how = f"one {plus} to the weight"
        yield Mistake("DX979", outputs(norm._replace(plus=1.0 - norm.plus)), {"found": plus}, how)
        if norm.plus:
            twice = outputs(norm._replace(plus=2.0))
            how = "one added twice: when converting and when computing"
            yield Mistake("DX979", twice, {"found": "added twice"}, how)
    if norm.bias is not None:
        yield Mistake("DX987", outputs(norm._replace(bias=None)), {}, "the norm without its bias")
    for path, other in (*bench.sibling_modules(), *bench.modules_of_other_layers()):
        weight = getattr(other, "weight", None)
        if norm.weight is None or weight is None or not is_norm(other) or weight.shape != norm.weight.shape:
            continue
        bias = getattr(other, "bias", None)
        got = outputs(norm._replace(weight=weight.double(), bias=None if bias is None else bias.double()))
        yield Mistake("DX990", got, {"other": path}, f"the norm with the weights of {path}", rank=1)
        if bias is not None:
            got = outputs(norm._replace(weight=weight.double()))
            yield Mistake("DX990", got, {"other": path}, f"the norm with the weight of {path}, not its bias", rank=1)


def _inner_norm_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield norms inside the module with another epsilon or without their weight."""
    for name, module in bench.module.named_modules():
        if not is_norm(module) or not name:
            continue
        named_epsilon = find_epsilon(module)
        assert named_epsilon is not None
        attribute, own_epsilon = named_epsilon

        def outputs(eps: float, module: Any = module, attribute: str = attribute) -> Outputs:
            with override_attributes(module, **{attribute: eps}):
                return bench.run()

        eps, got = fit_scalar(bench, EPSILONS, outputs, rounds=6)
        values = {"found": f"{eps:.3g}", "expected": f"{own_epsilon:.3g}", "inner": name}
        yield Mistake("DX975", got, values, f"another epsilon of {name}", freedom=1.5)
        if getattr(module, "weight", None) is not None:
            gemma = _counts_weight_from_one(module)
            blank = torch.zeros_like(module.weight) if gemma else torch.ones_like(module.weight)
            with override_attributes(module, weight=blank):
                yield Mistake("DX976", bench.run(), {"inner": name}, f"{name} without its weight", freedom=0.5)
            with override_attributes(module, weight=module.weight + (-1.0 if gemma else 1.0)):
                told_plus = {"found": "not added" if gemma else "added", "inner": name}
                yield Mistake("DX979", bench.run(), told_plus, f"{name} with another one in its weight", freedom=0.5)


def _counts_weight_from_one(module: Any) -> bool:
    """Whether a norm adds 1 to its weight: with a weight of zero its output is not zero."""
    ones = torch.ones((1, module.weight.shape[0]), dtype=module.weight.dtype)
    ones[0, 0] = 2.0
    blank = {"weight": torch.zeros_like(module.weight)}
    if getattr(module, "bias", None) is not None:
        blank["bias"] = torch.zeros_like(module.bias)
    with torch.no_grad(), override_attributes(module, **blank):
        return float(module(ones).abs().max()) > 0.1
