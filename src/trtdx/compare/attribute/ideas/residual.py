"""Residual connections: what is added to the outputs of a layer's parts."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.experiment import Idea
from trtdx.compare.attribute.ideas.norms import is_norm
from trtdx.compare.attribute.module_copies import giving, scale_output
from trtdx.compare.attribute.scalar_fit import best
from trtdx.engines.torch.hooks import tensors_in
from trtdx.engines.torch.lazy import torch
from trtdx.engines.torch.values import tensor_from_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.experiment import Bench, Outputs, Tensor

MOST_PARTS = 10
MOST_LAYERS = 16  # before a layer, from which its residual may be taken
MULTIPLIERS = (0.05, 0.1, 0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.5, 2.0, 4.0, 10.0)


class Part(NamedTuple):
    """One part of a layer in a run: what entered it first, and what left it first."""

    name: str
    module: Any
    given: Tensor
    made: Tensor


class Branch(NamedTuple):
    """A part whose output is added, what it is added to, and that after the norm before the part."""

    part: Part
    stream: Tensor
    normed: Tensor | None
    factor: float = 1.0  # that its output is multiplied by before it is added
    start: Tensor | None = None  # what entered the layer, where that is something else


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield residuals that are left out, added twice, or taken on the other side of a norm."""
    if not list(bench.module.children()) or bench.main != f"{bench.path}:out":
        return
    layer_branches = branches(bench)
    for branch in layer_branches:
        yield from _of_branch(bench, branch)
    if layer_branches and not bench.solved:
        yield from _of_other_layers(bench, layer_branches)
    yield from _multipliers(bench, layer_branches)


def branches(bench: Bench) -> list[Branch]:
    """Return the parts of a layer whose outputs add up, with what came in, to what goes out."""
    parts = _parts(bench)
    start, end = bench.first_input(), bench.truth[bench.main]
    alike = [part for part in parts if part.made.shape == end.shape][:MOST_PARTS]
    if start.shape != end.shape:
        return []
    size = float((end.double() ** 2).sum())
    for count in (1, 2, 3):
        for chosen in combinations(alike, count):
            factors = _factors(start, end, chosen)
            total = start + sum(part.made * factor for part, factor in zip(chosen, factors, strict=True))
            if float(((total - end).double() ** 2).sum()) < 1e-10 * size:
                return _branches(start, parts, chosen, factors)
    return []


def _factors(start: Tensor, end: Tensor, chosen: tuple[Part, ...]) -> list[float]:
    """Return by what each part's output is multiplied before it is added: one, or what fits best."""
    plain = start + sum(part.made for part in chosen)
    if float(((plain - end).double() ** 2).sum()) < 1e-10 * float((end.double() ** 2).sum()):
        return [1.0] * len(chosen)
    columns = torch.stack([part.made.double().reshape(-1) for part in chosen], 1)
    target = (end - start).double().reshape(-1, 1)
    return [float(factor) for factor in torch.linalg.lstsq(columns, target).solution[:, 0]]


def _branches(
    start: Tensor, parts: list[Part], chosen: tuple[Part, ...], factors: list[float]
) -> list[Branch]:
    result, stream = [], start
    for part, factor in zip(chosen, factors, strict=True):
        normed = next(
            (
                other_part.made
                for other_part in parts
                if _same(other_part.given, stream) and other_part is not part
            ),
            None,
        )
        if normed is None and stream is not start:  # both branches leave from the same point
            normed = next(
                (
                    other_part.made
                    for other_part in parts
                    if _same(other_part.given, start) and other_part is not part
                ),
                None,
            )
            result.append(Branch(part, start, normed, factor))
        else:
            result.append(Branch(part, stream, normed, factor, None if stream is start else start))
        stream = stream + part.made * factor
    return result


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=1e-6, atol=1e-9))


def _parts(bench: Bench) -> list[Part]:
    """Return the parts of a layer in the order in which they are done."""
    parts: list[Part] = []
    hooks = []

    def after(name: str, module: Any) -> Any:
        def keep(_: Any, args: Any, kwargs: Any, result: Any) -> None:
            input_tensor = next((tensor for _, _, tensor in tensors_in(args, kwargs)), None)
            values = result if isinstance(result, (tuple, list)) else (result,)
            output_tensor = next((tensor for _, _, tensor in tensors_in(values, {})), None)
            if input_tensor is not None and output_tensor is not None:
                parts.append(Part(name, module, input_tensor, output_tensor))

        return keep

    for name, module in bench.module.named_children():
        hooks.append(module.register_forward_hook(after(name, module), with_kwargs=True))
    try:
        bench.run()
    finally:
        for hook in hooks:
            hook.remove()
    return parts


def _of_branch(bench: Bench, branch: Branch) -> Iterator[Idea]:
    name, stream = branch.part.name, branch.stream
    values = {"part": name}

    def adding(more: Tensor) -> Any:
        with giving(branch.part.module, lambda _, output: output + more.to(output.dtype) / branch.factor):
            return bench.run()

    yield Idea("DX994", adding(-stream), values, f"what {name} gives without what it is added to")
    with giving(branch.part.module, lambda _, output: torch.zeros_like(output)):
        lost = bench.run()
    yield Idea("DX994", lost, {"part": f"the output of {name}"}, f"what {name} gives is left out")
    yield Idea("DX995", adding(stream), values, f"the residual beside {name} added twice")
    with giving(branch.part.module, lambda _, output: 2 * output):
        twice = bench.run()
    yield Idea("DX995", twice, {"part": f"the output of {name}"}, f"what {name} gives added twice")
    if branch.normed is not None and branch.normed.shape == stream.shape:
        how = f"what {name} gives is added to the normed input"
        yield Idea("DX996", adding(branch.normed - stream), {**values, "what": how}, how)
    if is_norm(branch.part.module):
        with _summed_before(branch.part.module, stream, branch.factor):
            got = bench.run()
        how = f"{name} is applied to the sum, not to what is added"
        yield Idea("DX996", got, {**values, "what": how}, how)
    if branch.start is not None:
        what = f"what {name} gives is added to the input of the whole layer, not to what came before {name}"
        yield Idea("DX927", adding(branch.start - stream), {**values, "what": what}, what)


def _of_other_layers(bench: Bench, found: list[Branch]) -> Iterator[Idea]:
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
        if array is None or array.shape != found[0].stream.shape:
            continue
        for branch in found:
            gap = (array.to(branch.stream.dtype) - branch.stream) / branch.factor
            with giving(branch.part.module, _plus(gap)):
                got = bench.run()
            what = f"what {branch.part.name} gives is added to what entered {name.removesuffix(':in')}"
            yield Idea("DX927", got, {"part": branch.part.name, "what": what}, what, freedom=0.3)


@contextmanager
def _summed_before(norm: Any, stream: Tensor, factor: float) -> Iterator[None]:
    """Let a norm whose result is added be given the sum instead, and its result be all there is."""

    def before(_: Any, args: Any) -> Any:
        return (args[0] + stream.to(args[0].dtype), *args[1:])

    hook = norm.register_forward_pre_hook(before)
    try:
        with giving(norm, lambda _, output: output - stream.to(output.dtype) / factor):
            yield
    finally:
        hook.remove()


def _plus(more: Tensor) -> Callable[[Any, Any], Any]:
    return lambda _, output: output + more.to(output.dtype)


def _multipliers(bench: Bench, found: list[Branch]) -> Iterator[Idea]:
    """Yield branches that are added times another number, all alike."""
    if not found:
        return
    own_factor = found[0].factor

    def outputs(factor: float) -> Outputs:
        with ExitStack() as undo:
            for branch in found:
                undo.enter_context(giving(branch.part.module, scale_output(factor / branch.factor)))
            return bench.run()

    tried = {1.0: outputs(1.0)} if abs(own_factor - 1) > 1e-6 else {}
    factor, got = best(
        bench,
        [own_factor * multiplier for multiplier in MULTIPLIERS],
        outputs,
        exact=[own_factor * 2, own_factor / 2, 0.5, 0.25],
    )
    tried[factor] = got
    for tried_factor, factor_outputs in tried.items():
        what = f"what its parts give is added times {tried_factor:.4g} instead of {own_factor:.4g}"
        values = {"what": what, "expected": f"{own_factor:.4g}", "found": f"{tried_factor:.4g}"}
        yield Idea("DX928", factor_outputs, values, what, freedom=0.0 if tried_factor == 1.0 else 1.0)
