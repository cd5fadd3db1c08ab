"""Residual connections: what is added to the outputs of a layer's parts."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.bench import Idea, giving
from trtdx.engines.lazy import torch
from trtdx.engines.torch import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.bench import Bench, Tensor

MOST_PARTS = 10


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


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield residuals that are left out, added twice, or taken on the other side of a norm."""
    if not list(bench.module.children()) or bench.main != f"{bench.path}:out":
        return
    for branch in branches(bench):
        yield from _of_branch(bench, branch)


def branches(bench: Bench) -> list[Branch]:
    """Return the parts of a layer whose outputs add up, with what came in, to what goes out."""
    parts = _parts(bench)
    start, end = bench.first_input(), bench.truth[bench.main]
    alike = [each for each in parts if each.made.shape == end.shape][:MOST_PARTS]
    if start.shape != end.shape:
        return []
    size = float((end.double() ** 2).sum())
    for count in (1, 2, 3):
        for chosen in combinations(alike, count):
            total = start + sum(each.made for each in chosen)
            if float(((total - end).double() ** 2).sum()) < 1e-10 * size:
                return _branches(start, parts, chosen)
    return []


def _branches(start: Tensor, parts: list[Part], chosen: tuple[Part, ...]) -> list[Branch]:
    found, stream = [], start
    for part in chosen:
        normed = next((each.made for each in parts if _same(each.given, stream) and each is not part), None)
        if normed is None and stream is not start:  # both branches leave from the same point
            normed = next(
                (each.made for each in parts if _same(each.given, start) and each is not part), None
            )
            found.append(Branch(part, start, normed))
        else:
            found.append(Branch(part, stream, normed))
        stream = stream + part.made
    return found


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=1e-6, atol=1e-9))


def _parts(bench: Bench) -> list[Part]:
    """Return the parts of a layer in the order in which they are done."""
    found: list[Part] = []
    hooks = []

    def after(name: str, module: Any) -> Any:
        def keep(_: Any, args: Any, kwargs: Any, result: Any) -> None:
            given = next((each for _, _, each in tensors_in(args, kwargs)), None)
            values = result if isinstance(result, (tuple, list)) else (result,)
            made = next((each for _, _, each in tensors_in(values, {})), None)
            if given is not None and made is not None:
                found.append(Part(name, module, given, made))

        return keep

    for name, module in bench.module.named_children():
        hooks.append(module.register_forward_hook(after(name, module), with_kwargs=True))
    try:
        bench.run()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _of_branch(bench: Bench, branch: Branch) -> Iterator[Idea]:
    name, stream = branch.part.name, branch.stream
    told = {"part": name}

    def adding(more: Tensor) -> Any:
        with giving(branch.part.module, lambda _, made: made + more.to(made.dtype)):
            return bench.run()

    yield Idea("DX994", adding(-stream), told, f"what {name} gives without what it is added to")
    with giving(branch.part.module, lambda _, made: torch.zeros_like(made)):
        lost = bench.run()
    yield Idea("DX994", lost, {"part": f"the output of {name}"}, f"what {name} gives is left out")
    yield Idea("DX995", adding(stream), told, f"the residual beside {name} added twice")
    with giving(branch.part.module, lambda _, made: 2 * made):
        twice = bench.run()
    yield Idea("DX995", twice, {"part": f"the output of {name}"}, f"what {name} gives added twice")
    if branch.normed is not None and branch.normed.shape == stream.shape:
        how = f"what {name} gives added to the normed input"
        yield Idea("DX996", adding(branch.normed - stream), told, how)
