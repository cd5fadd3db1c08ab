"""Matrix products: weights transposed, cut, ordered, summed or taken from elsewhere, and biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.mistakes import sharding
from trtdx.compare.attribute.mistakes.attention import common_permutations
from trtdx.compare.attribute.mistakes.mlp import GATE_PAIRS, INTERLEAVED
from trtdx.compare.attribute.mistakes.product import (
    MatrixProduct,
    identify_product,
    is_embedding_module,
    is_vocabulary_head,
)
from trtdx.compare.attribute.mistakes.sharding import RANK_COUNTS
from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.attribute.module_copies import override_attributes
from trtdx.compare.attribute.scalar_fit import fit_scalar
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Outputs

MOST_INNER = 16  # products inside a larger module that are tried
CLIP_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
GATE_PARTNERS = [set(gate_pair) for gate_pair in GATE_PAIRS]


def linear_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield what could be wrong with a matrix product, or with one inside the module."""
    product = identify_product(bench)
    if product is None:
        yield from _inner_product_mistakes(bench)
        return
    yield from _zero_weight_mistakes(bench, product)
    yield from _transposed_weight_mistakes(bench, product)
    yield from _clipped_weight_mistakes(bench, product)
    yield from _interleaved_gate_mistakes(bench, product)
    yield from _bias_mistakes(bench, product)
    yield from _other_weight_mistakes(bench, product)
    yield from sharding.sharding_mistakes(bench, product)


def _zero_weight_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield a weight that is zero everywhere."""
    nothing = product.with_own_bias(torch.zeros_like(product.weight))
    values = {"what": "its weight is zero everywhere"}
    yield Mistake("DX933", bench.with_main(nothing), values, "the weight zero everywhere", rank=-1)


def _clipped_weight_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield weights clipped at a limit."""
    weight, peak = product.weight, float(product.weight.abs().max())

    def outputs(limit: float) -> Outputs:
        return bench.with_main(product.with_own_bias(weight.clamp(-limit, limit)))

    limit, got = fit_scalar(bench, [peak * share for share in CLIP_SHARES], outputs)
    clipped_share = float((weight.abs() > limit).double().mean())
    values = {"limit": f"{limit:.4g}", "held": f"{100 * clipped_share:.2g} %"}
    yield Mistake("DX929", got, values, f"weights held at {limit:.4g}", freedom=1)


def _interleaved_gate_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield gate and up that were stored interleaved and split as if they were concatenated."""
    own_name = bench.path.rpartition(".")[2]
    for path, other in bench.sibling_modules():
        name, weight = path.rpartition(".")[2], getattr(other, "weight", None)
        order = next((pair for pair in GATE_PAIRS if {own_name, name} == set(pair)), None)
        if order is None or not isinstance(weight, torch.Tensor) or product.is_transposed:
            continue
        both = (product.weight, weight.to(product.x.dtype))
        if product.weight.shape != weight.shape:
            continue
        woven = torch.stack(both if own_name == order[0] else both[::-1], 1).flatten(0, 1)
        half = woven[: len(weight)] if own_name == order[0] else woven[len(weight) :]
        values, how = {"how": INTERLEAVED}, f"rows of {order[0]} and {order[1]} in turn"
        yield Mistake("DX981", bench.with_main(product.with_own_bias(half)), values, how)


def _transposed_weight_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    weight = product.weight
    if weight.shape[0] == weight.shape[1]:
        yield Mistake("DX982", bench.with_main(product.with_own_bias(weight.T)), {}, "the weight transposed")
        return
    rows, columns = weight.shape
    read = weight.T.contiguous().reshape(rows, columns)
    how = "the weight's memory read in the other order"
    yield Mistake("DX982", bench.with_main(product.with_own_bias(read)), {}, how)
    read = weight.contiguous().reshape(columns, rows).T
    yield Mistake("DX982", bench.with_main(product.with_own_bias(read)), {}, how)


def _bias_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    plain = product.compute(product.weight)
    if product.bias is not None:
        yield Mistake("DX987", bench.with_main(plain), {}, "the product without its bias")
        for ranks in RANK_COUNTS:
            many = bench.with_main(plain + ranks * product.bias)
            yield Mistake("DX988", many, {"ranks": str(ranks)}, f"the bias added {ranks} times")
    for path, other in (*bench.sibling_modules(), *bench.modules_of_other_layers()):
        bias = getattr(other, "bias", None)
        if isinstance(bias, torch.Tensor) and bias.shape == product.weight.shape[:1]:
            got = bench.with_main(plain + bias.double())
            yield Mistake("DX989", got, {"other": path}, f"with the bias of {path}")


def _other_weight_mistakes(bench: ModuleBench, product: MatrixProduct) -> Iterator[Mistake]:
    """Yield the product with the weights of another module: of the same parent, of other layers, the embedding."""
    own_parent, _, own_name = bench.path.rpartition(".")
    for path, other in (
        *bench.sibling_modules(),
        *bench.modules_of_other_layers(),
        *_embedding_modules(bench),
    ):
        weight = getattr(other, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
            continue
        other_weight = weight.T if product.is_transposed and not is_embedding_module(other) else weight
        if other_weight.shape != product.weight.shape or torch.equal(other_weight.double(), product.weight.double()):
            continue
        parent, _, name = path.rpartition(".")
        are_partners = {own_name, name} in GATE_PARTNERS and parent == own_parent
        code = "DX992" if is_embedding_module(other) else "DX981" if are_partners else "DX990"
        other_weight, bias = other_weight.to(product.x.dtype), getattr(other, "bias", None)
        if bias is not None:
            got = bench.with_main(product.compute(other_weight, bias.to(product.x.dtype)))
            yield Mistake(code, got, {"other": path}, f"with the weights of {path}")
        got = bench.with_main(product.with_own_bias(other_weight))
        yield Mistake(code, got, {"other": path}, f"with the weight of {path}")


def _embedding_modules(bench: ModuleBench) -> Iterator[tuple[str, Any]]:
    if is_vocabulary_head(bench):
        yield from ((path, module) for path, module in bench.model.named_modules() if is_embedding_module(module))


def _inner_product_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield matrix products inside a larger module that have a plain mistake."""
    inner = [(name, module) for name, module in bench.module.named_modules() if name and _is_matrix_product(module)]
    yield from _other_layer_mistakes(bench)
    if bench.solved:
        return
    for name, module in inner[:MOST_INNER]:
        weight, values = module.weight, {"inner": name}
        if weight.shape[0] == weight.shape[1]:
            with override_attributes(module, weight=weight.T):
                yield Mistake("DX982", bench.run(), values, f"the weight of {name} transposed", freedom=0.5)
        bias = getattr(module, "bias", None)
        if bias is not None:
            with override_attributes(module, bias=torch.zeros_like(bias)):
                yield Mistake("DX987", bench.run(), values, f"{name} without its bias", freedom=0.5)
            with override_attributes(module, bias=2 * bias):
                how = f"the bias of {name} added twice"
                yield Mistake("DX988", bench.run(), {**values, "ranks": "2"}, how, freedom=0.5)
        yield from _inner_shard_mistakes(bench, name, module)


def _inner_shard_mistakes(bench: ModuleBench, name: str, module: Any) -> Iterator[Mistake]:
    for ranks in (2, 4):
        for axis in (0, 1):
            if module.weight.shape[axis] % ranks:
                continue
            chunks = module.weight.chunk(ranks, axis)
            for description, order in list(common_permutations(ranks))[:6]:
                with override_attributes(module, weight=torch.cat([chunks[index] for index in order], axis)):
                    values = {"inner": name, "ranks": str(ranks), "order": " ".join(map(str, order))}
                    yield Mistake("DX983", bench.run(), values, f"shards of {name}: {description}", freedom=1.5, rank=1)
            for lost in range(ranks):
                shards = [torch.zeros_like(chunk) if at == lost else chunk for at, chunk in enumerate(chunks)]
                with override_attributes(module, weight=torch.cat(shards, axis)):
                    values = {"inner": name, "ranks": str(ranks), "missing": str(lost)}
                    how = f"shard {lost} of {ranks} of {name} is missing"
                    yield Mistake("DX984", bench.run(), values, how, freedom=1)


def _is_matrix_product(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.ndim == 2 and not is_embedding_module(module)


def _other_layer_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield the module with all its weights, or one part's, of the same module in another layer."""
    own_parameters = dict(bench.module.named_parameters())
    for path, other in list(bench.modules_of_other_layers())[:12]:
        other_parameters = dict(other.named_parameters())
        if (
            own_parameters.keys() != other_parameters.keys()
            or any(own_parameters[name].shape != other_parameters[name].shape for name in own_parameters)
            or not own_parameters
        ):
            continue
        original_data = {name: parameter.data for name, parameter in own_parameters.items()}
        try:
            for name, parameter in own_parameters.items():
                parameter.data = other_parameters[name].data.to(original_data[name].dtype)
            yield Mistake("DX990", bench.run(), {"other": path}, f"with all weights of {path}")
        finally:
            for name, parameter in own_parameters.items():
                parameter.data = original_data[name]
