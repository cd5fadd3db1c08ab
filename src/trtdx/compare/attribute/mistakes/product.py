"""One matrix product: what it is computed from, and what the candidate gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.compare.attribute.module_bench import ModuleBench, Tensor

HEADLESS_PROJECTIONS = {
    "o_proj",
    "out_proj",
    "dense",
    "c_proj",
    "wo",
    "output",
}  # what heads enter, and none leave


class MatrixProduct(NamedTuple):
    """What a module computes: x W^T + b, a row for each token."""

    x: Tensor  # [tokens, in]
    weight: Tensor  # [out, in]
    bias: Tensor | None
    is_transposed: bool  # whether the module keeps its weight as [in, out]
    shape: tuple[int, ...]

    def compute(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        result = self.x @ weight.T
        return (result if bias is None else result + bias).reshape(self.shape)

    def with_own_bias(self, weight: Tensor | None = None, x: Tensor | None = None) -> Tensor:
        """Return the product of another weight or other inputs, and its own bias."""
        product = self if x is None else self._replace(x=x)
        return product.compute(self.weight if weight is None else weight, self.bias)

    def add_bias(self, tensor: Tensor) -> Tensor:
        """Return what a product is, of whatever kind, with the bias added."""
        shaped = tensor.reshape(self.shape)
        return shaped if self.bias is None else shaped + self.bias


def identify_product(bench: ModuleBench) -> MatrixProduct | None:
    """Return what the bench's module computes, if that is one matrix product."""
    weight = getattr(bench.module, "weight", None)
    if weight is None or weight.ndim != 2 or bench.main_target != f"{bench.path}:out" or not bench.inputs:
        return None
    x, truth = next(iter(bench.inputs.values())), bench.truth[bench.main_target]
    if not x.is_floating_point():
        return None
    bias = getattr(bench.module, "bias", None)
    rows = x.reshape(-1, x.shape[-1])
    for turned in (False, True):
        oriented_weight = weight.T if turned else weight
        if oriented_weight.shape[1] != rows.shape[1] or oriented_weight.shape[0] != truth.shape[-1]:
            continue
        product = MatrixProduct(
            rows,
            oriented_weight.detach(),
            None if bias is None else bias.detach(),
            turned,
            tuple(truth.shape),
        )
        gap = product.with_own_bias() - truth
        if float((gap**2).sum()) <= 1e-9 * float((truth**2).sum()):
            return product
    return None


def counted_targets(bench: ModuleBench) -> tuple[Tensor, Tensor]:
    """Return what the candidate and the reference gave, the rows that count."""
    rows = bench.row_index(bench.main_target)
    candidate, reference = bench.targets[bench.main_target][rows], bench.truth[bench.main_target][rows]
    width = reference.shape[-1]
    return torch.nan_to_num(candidate.reshape(-1, width)), reference.reshape(-1, width).double()


def is_embedding_module(module: Any) -> bool:
    return isinstance(module, torch.nn.Embedding)


def is_vocabulary_head(bench: ModuleBench) -> bool:
    size = getattr(getattr(bench.model, "config", None), "vocab_size", None)
    return bool(bench.truth[bench.main_target].shape[-1] == size)


def head_widths(bench: ModuleBench) -> set[int]:
    """Return the widths that a head may have in what leaves the module; empty if no heads leave it."""
    parent, _, own_name = bench.path.lower().rpartition(".")
    if "att" not in parent or own_name in HEADLESS_PROJECTIONS or "_a_" in own_name:
        return set()
    config = getattr(bench.model, "config", None)
    owner = bench.model.get_submodule(bench.path.rpartition(".")[0])
    names = ("head_dim", "qk_head_dim", "v_head_dim", "qk_rope_head_dim")
    declared_widths = {getattr(holder, name, None) for holder in (owner, config) for name in names}
    heads, width = getattr(config, "num_attention_heads", 0), getattr(config, "hidden_size", 0)
    if heads and width % heads == 0:
        declared_widths.add(width // heads)
    return {width for width in declared_widths if isinstance(width, int) and width > 0}
