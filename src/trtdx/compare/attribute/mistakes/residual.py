"""Residual connections: what is added to the outputs of a layer's parts."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.mistakes.norms import is_norm
from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.attribute.module_copies import scale_output, transform_output
from trtdx.compare.attribute.scalar_fit import fit_scalar
from trtdx.engines.torch.hooks import iterate_tensors
from trtdx.engines.torch.lazy_import import torch
from trtdx.engines.torch.values import tensor_from_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Outputs, Tensor

MOST_PARTS = 10
MOST_LAYERS = 16  # before a layer, from which its residual may be taken
RESIDUAL_MULTIPLIERS = (0.05, 0.1, 0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.5, 2.0, 4.0, 10.0)


class LayerPart(NamedTuple):
    """One part of a layer in a run: what entered it first, and what left it first."""

    name: str
    module: Any
    input_tensor: Tensor
    output_tensor: Tensor


class ResidualBranch(NamedTuple):
    """A residual branch: the part, the residual it is added to, and the residual after the norm before the part."""

    part: LayerPart
    residual: Tensor
    normed_residual: Tensor | None
    factor: float = 1.0  # that its output is multiplied by before it is added
    layer_input: Tensor | None = None  # what entered the layer, where that is something else


def residual_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield residuals that are left out, added twice, or taken from the wrong side of a norm."""
    if not list(bench.module.children()) or bench.main_target != f"{bench.path}:out":
        return
    layer_branches = find_branches(bench)
    for branch in layer_branches:
        yield from _branch_mistakes(bench, branch)
    if layer_branches and not bench.solved:
        yield from _earlier_layer_mistakes(bench, layer_branches)
    yield from _multiplier_mistakes(bench, layer_branches)


def find_branches(bench: ModuleBench) -> list[ResidualBranch]:
    """Return the parts of a layer whose outputs add up, with what came in, to what goes out."""
    parts = _layer_parts(bench)
    start, end = bench.first_float_input(), bench.truth[bench.main_target]
    alike = [part for part in parts if part.output_tensor.shape == end.shape][:MOST_PARTS]
    if start.shape != end.shape:
        return []
    size = float((end.double() ** 2).sum())
    for count in (1, 2, 3):
        for chosen in combinations(alike, count):
            factors = _branch_factors(start, end, chosen)
            total = start + sum(part.output_tensor * factor for part, factor in zip(chosen, factors, strict=True))
            if float(((total - end).double() ** 2).sum()) < 1e-10 * size:
                return _order_branches(start, parts, chosen, factors)
    return []


def _branch_factors(start: Tensor, end: Tensor, chosen: tuple[LayerPart, ...]) -> list[float]:
    """Return the factor on each part's output before it is added: one, or the best fit."""
    plain = start + sum(part.output_tensor for part in chosen)
    if float(((plain - end).double() ** 2).sum()) < 1e-10 * float((end.double() ** 2).sum()):
        return [1.0] * len(chosen)
    columns = torch.stack([part.output_tensor.double().reshape(-1) for part in chosen], 1)
    target = (end - start).double().reshape(-1, 1)
    return [float(factor) for factor in torch.linalg.lstsq(columns, target).solution[:, 0]]


def _order_branches(
    start: Tensor, parts: list[LayerPart], chosen: tuple[LayerPart, ...], factors: list[float]
) -> list[ResidualBranch]:
    result, stream = [], start
    for part, factor in zip(chosen, factors, strict=True):
        normed = next(
            (
                other_part.output_tensor
                for other_part in parts
                if _are_equal(other_part.input_tensor, stream) and other_part is not part
            ),
            None,
        )
        if normed is None and stream is not start:  # both branches leave from the same point
            normed = next(
                (
                    other_part.output_tensor
                    for other_part in parts
                    if _are_equal(other_part.input_tensor, start) and other_part is not part
                ),
                None,
            )
            result.append(ResidualBranch(part, start, normed, factor))
        else:
            result.append(ResidualBranch(part, stream, normed, factor, None if stream is start else start))
        stream = stream + part.output_tensor * factor
    return result


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=1e-6, atol=1e-9))


def _layer_parts(bench: ModuleBench) -> list[LayerPart]:
    """Return the parts of a layer in the order of execution."""
    parts: list[LayerPart] = []
    hooks = []

    def after(name: str, module: Any) -> Any:
        def keep(_: Any, args: Any, kwargs: Any, result: Any) -> None:
            input_tensor = next((tensor for _, _, tensor in iterate_tensors(args, kwargs)), None)
            values = result if isinstance(result, (tuple, list)) else (result,)
            output_tensor = next((tensor for _, _, tensor in iterate_tensors(values, {})), None)
            if input_tensor is not None and output_tensor is not None:
                parts.append(LayerPart(name, module, input_tensor, output_tensor))

        return keep

    for name, module in bench.module.named_children():
        hooks.append(module.register_forward_hook(after(name, module), with_kwargs=True))
    try:
        bench.run()
    finally:
        for hook in hooks:
            hook.remove()
    return parts


def _branch_mistakes(bench: ModuleBench, branch: ResidualBranch) -> Iterator[Mistake]:
    name, stream = branch.part.name, branch.residual
    values = {"part": name}

    def adding(more: Tensor) -> Any:
        with transform_output(branch.part.module, lambda _, output: output + more.to(output.dtype) / branch.factor):
            return bench.run()

    yield Mistake("DX994", adding(-stream), values, f"what {name} gives without what it is added to")
    with transform_output(branch.part.module, lambda _, output: torch.zeros_like(output)):
        lost = bench.run()
    yield Mistake("DX994", lost, {"part": f"the output of {name}"}, f"what {name} gives is left out")
    yield Mistake("DX995", adding(stream), values, f"the residual beside {name} added twice")
    with transform_output(branch.part.module, lambda _, output: 2 * output):
        twice = bench.run()
    yield Mistake("DX995", twice, {"part": f"the output of {name}"}, f"what {name} gives added twice")
    if branch.normed_residual is not None and branch.normed_residual.shape == stream.shape:
        how = f"what {name} gives is added to the normed input"
        yield Mistake("DX996", adding(branch.normed_residual - stream), {**values, "what": how}, how)
    if is_norm(branch.part.module):
        with _norm_of_sum(branch.part.module, stream, branch.factor):
            got = bench.run()
        how = f"{name} is applied to the sum, not to what is added"
        yield Mistake("DX996", got, {**values, "what": how}, how)
    if branch.layer_input is not None:
        what = f"what {name} gives is added to the input of the whole layer, not to what came before {name}"
        yield Mistake("DX927", adding(branch.layer_input - stream), {**values, "what": what}, what)


def _earlier_layer_mistakes(bench: ModuleBench, layer_branches: list[ResidualBranch]) -> Iterator[Mistake]:
    """Yield branches that are added to what entered an earlier layer."""
    side, step = bench.suspect.candidate, bench.suspect.step
    container, _, own_number = bench.path.rpartition(".")
    if side is None or not own_number.isdigit():
        return
    names = [f"{container}.{number}:in" for number in range(int(own_number) - 1, -1, -1)][:MOST_LAYERS]
    for name in names:
        record = next(
            (kept_record for kept_record in side.capture.records(step=step, name=name) if kept_record.kept),
            None,
        )
        array = None if record is None else tensor_from_array(side.capture.values(record))
        if array is None or array.shape != layer_branches[0].residual.shape:
            continue
        for branch in layer_branches:
            gap = (array.to(branch.residual.dtype) - branch.residual) / branch.factor
            with transform_output(branch.part.module, _add_to_output(gap)):
                got = bench.run()
            what = f"what {branch.part.name} gives is added to what entered {name.removesuffix(':in')}"
            yield Mistake("DX927", got, {"part": branch.part.name, "what": what}, what, freedom=0.3)


@contextmanager
def _norm_of_sum(norm: Any, stream: Tensor, factor: float) -> Iterator[None]:
    """Apply a norm to the sum instead of the branch, and pass its result on alone."""

    def before(_: Any, args: Any) -> Any:
        return (args[0] + stream.to(args[0].dtype), *args[1:])

    hook = norm.register_forward_pre_hook(before)
    try:
        with transform_output(norm, lambda _, output: output - stream.to(output.dtype) / factor):
            yield
    finally:
        hook.remove()


def _add_to_output(more: Tensor) -> Callable[[Any, Any], Any]:
    return lambda _, output: output + more.to(output.dtype)


def _multiplier_mistakes(bench: ModuleBench, layer_branches: list[ResidualBranch]) -> Iterator[Mistake]:
    """Yield residual branches all multiplied by another factor."""
    if not layer_branches:
        return
    own_factor = layer_branches[0].factor

    def outputs(factor: float) -> Outputs:
        with ExitStack() as undo:
            for branch in layer_branches:
                undo.enter_context(transform_output(branch.part.module, scale_output(factor / branch.factor)))
            return bench.run()

    tried = {1.0: outputs(1.0)} if abs(own_factor - 1) > 1e-6 else {}
    factor, got = fit_scalar(
        bench,
        [own_factor * multiplier for multiplier in RESIDUAL_MULTIPLIERS],
        outputs,
        exact=[own_factor * 2, own_factor / 2, 0.5, 0.25],
    )
    tried[factor] = got
    for tried_factor, factor_outputs in tried.items():
        what = f"what its parts give is added times {tried_factor:.4g} instead of {own_factor:.4g}"
        values = {"what": what, "expected": f"{own_factor:.4g}", "found": f"{tried_factor:.4g}"}
        yield Mistake("DX928", factor_outputs, values, what, freedom=0.0 if tried_factor == 1.0 else 1.0)
