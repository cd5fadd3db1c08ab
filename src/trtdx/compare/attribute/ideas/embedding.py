"""Embeddings and what stands at the ends of a model: their scale, their rows, the cap on logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtdx.compare.attribute.experiment import Idea
from trtdx.compare.attribute.ideas.rotary import OFFSETS
from trtdx.compare.attribute.module_copies import giving, scale_output
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.experiment import Bench, Tensor

MOST_SHIFT = 64


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield a table looked up otherwise."""
    if isinstance(bench.module, torch.nn.Embedding) and bench.main == f"{bench.path}:out":
        yield from _of_table(bench)
    yield from _multiplied(bench)
    if not bench.path:
        yield from _of_logits(bench)


def _of_table(bench: Bench) -> Iterator[Idea]:
    ids, truth = next(iter(bench.inputs.values())), bench.truth[bench.main]
    table, width = bench.module.weight.detach(), truth.shape[-1]
    plain = table[ids.long()]
    own_scale = float((truth * plain).sum() / (plain * plain).sum())

    def scaled(rows: Tensor, factor: float) -> dict[str, Tensor]:
        return bench.with_main(rows * factor)

    candidate = bench.targets[bench.main]
    fitted = float((torch.nan_to_num(candidate) * plain).sum() / (plain * plain).sum())
    for factor, free in (
        (1.0, 0.0),
        (math.sqrt(width), 0.0),
        (1 / math.sqrt(width), 0.0),
        (width, 0.0),
        (fitted, 1.0),
    ):
        if abs(factor - own_scale) > 1e-6 * own_scale:
            values = {"found": f"{factor:.5g}", "expected": f"{own_scale:.5g}"}
            yield Idea("DX991", scaled(plain, factor), values, "the rows with another factor", freedom=free)
    yield from _shifts(bench, ids, table, own_scale)
    for path, other in bench.model.named_modules():
        weight = getattr(other, "weight", None)
        if path == bench.path or not isinstance(weight, torch.Tensor) or weight.shape != table.shape:
            continue
        if not torch.equal(weight.double(), table.double()):
            got = scaled(weight.to(table.dtype)[ids.long()], own_scale)
            yield Idea("DX992", got, {"other": path}, f"the rows of {path}")


def _multiplied(bench: Bench) -> Iterator[Idea]:
    """Yield embeddings that the model itself multiplies by another number before its first layer."""
    tables = [child for child in bench.module.children() if isinstance(child, torch.nn.Embedding)]
    entering = next((name for name in bench.wrong_targets if name.endswith(".0:in")), "")
    ids = next((tensor for tensor in bench.inputs.values() if not tensor.is_floating_point()), None)
    if len(tables) != 1 or not entering or ids is None:
        return
    reference, plain = bench.truth[entering], tables[0](ids.long())
    if reference.shape != plain.shape:
        return
    expected = float((reference * plain).sum() / (plain * plain).sum())
    candidate = torch.nan_to_num(bench.targets[entering])
    fitted = float((candidate * reference).sum() / (reference * reference).sum()) * expected
    for factor, free in ((1.0, 0.0), (fitted, 1.0)):
        if abs(factor - expected) <= 1e-6 * abs(expected):
            continue
        with giving(tables[0], scale_output(factor / expected)):
            got = bench.run()
        values = {"found": f"{factor:.5g}", "expected": f"{expected:.5g}"}
        yield Idea("DX991", got, values, f"embeddings times {factor:.5g}", freedom=free)


def _shifts(bench: Bench, ids: Tensor, table: Tensor, own: float) -> Iterator[Idea]:
    rows = table.shape[0]
    positional = _counts_up(ids)
    shifts = OFFSETS if positional else tuple(shift for k in range(1, MOST_SHIFT + 1) for shift in (k, -k))
    code = "DX965" if positional else "DX993"
    for shift in shifts:
        moved = ids + shift
        got = bench.with_main(table[(moved % rows).long()] * own)
        how = f"rows shifted by {shift:+d}"
        yield Idea(code, got, {"offset": f"{shift:+d}"}, how, freedom=0.3 if abs(shift) < 3 else 0.8)
    if positional:
        counted_ids = torch.arange(ids.shape[-1]).expand_as(ids) + ids.min()
        if not torch.equal(counted_ids, ids):
            got = bench.with_main(table[counted_ids.long()] * own)
            yield Idea("DX966", got, {}, "positions counted from the first column, padding included")


def _counts_up(ids: Tensor) -> bool:
    """Whether numbers are positions: each one more than that before it, but for padding in front."""
    steps = ids[..., 1:] - ids[..., :-1]
    return (
        ids.shape[-1] > 2 and bool((steps[..., -1] == 1).all()) and bool(((steps >= 0) & (steps <= 1)).all())
    )


def _of_logits(bench: Bench) -> Iterator[Idea]:
    """Yield logits without their cap, or times another number."""
    config = getattr(bench.model, "config", None)
    name = next((output_name for output_name in bench.truth if output_name.startswith(":out")), bench.main)
    cap, truth = getattr(config, "final_logit_softcapping", None), bench.truth[name]
    if cap:
        plain = cap * torch.atanh((truth / cap).clamp(-1 + 1e-12, 1 - 1e-12))
        got = bench.changed({name: plain})
        yield Idea("DX968", got, {"expected": f"{cap:g}", "found": "none"}, "logits without their cap")
    candidate = torch.nan_to_num(bench.targets[name])
    factor = float((candidate * truth).sum() / (truth * truth).sum().clamp(min=1e-300))
    if abs(factor - 1) > 1e-4 and factor > 0:
        what = f"logits are {factor:.5g} times the reference's"
        yield Idea("DX928", bench.changed({name: truth * factor}), {"what": what}, what, freedom=1)
