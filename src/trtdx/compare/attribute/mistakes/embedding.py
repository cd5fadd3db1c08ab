"""Embeddings and what stands at the ends of a model: their scale, their rows, the cap on logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtdx.compare.attribute.mistakes.rotary import POSITION_OFFSETS
from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.attribute.module_copies import scale_output, transform_output
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Tensor

MOST_SHIFT = 64


def embedding_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield mistakes in an embedding lookup."""
    if isinstance(bench.module, torch.nn.Embedding) and bench.main_target == f"{bench.path}:out":
        yield from _table_mistakes(bench)
    yield from _embedding_scale_mistakes(bench)
    if not bench.path:
        yield from _logits_mistakes(bench)


def _table_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    ids, truth = next(iter(bench.inputs.values())), bench.truth[bench.main_target]
    table, width = bench.module.weight.detach(), truth.shape[-1]
    plain = table[ids.long()]
    own_scale = float((truth * plain).sum() / (plain * plain).sum())

    def scaled(rows: Tensor, factor: float) -> dict[str, Tensor]:
        return bench.with_main(rows * factor)

    candidate = bench.targets[bench.main_target]
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
            yield Mistake("DX991", scaled(plain, factor), values, "the rows with another factor", freedom=free)
    yield from _row_shift_mistakes(bench, ids, table, own_scale)
    for path, other in bench.model.named_modules():
        weight = getattr(other, "weight", None)
        if path == bench.path or not isinstance(weight, torch.Tensor) or weight.shape != table.shape:
            continue
        if not torch.equal(weight.double(), table.double()):
            got = scaled(weight.to(table.dtype)[ids.long()], own_scale)
            yield Mistake("DX992", got, {"other": path}, f"the rows of {path}")


def _embedding_scale_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
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
        with transform_output(tables[0], scale_output(factor / expected)):
            got = bench.run()
        values = {"found": f"{factor:.5g}", "expected": f"{expected:.5g}"}
        yield Mistake("DX991", got, values, f"embeddings times {factor:.5g}", freedom=free)


def _row_shift_mistakes(bench: ModuleBench, ids: Tensor, table: Tensor, own_scale: float) -> Iterator[Mistake]:
    rows = table.shape[0]
    positional = _are_positions(ids)
    shifts = POSITION_OFFSETS if positional else tuple(shift for k in range(1, MOST_SHIFT + 1) for shift in (k, -k))
    code = "DX965" if positional else "DX993"
    for shift in shifts:
        moved = ids + shift
        got = bench.with_main(table[(moved % rows).long()] * own_scale)
        how = f"rows shifted by {shift:+d}"
        yield Mistake(code, got, {"offset": f"{shift:+d}"}, how, freedom=0.3 if abs(shift) < 3 else 0.8)
    if positional:
        counted_ids = torch.arange(ids.shape[-1]).expand_as(ids) + ids.min()
        if not torch.equal(counted_ids, ids):
            got = bench.with_main(table[counted_ids.long()] * own_scale)
            yield Mistake("DX966", got, {}, "positions counted from the first column, padding included")


def _are_positions(ids: Tensor) -> bool:
    """Whether integers are positions: each one more than the last, apart from padding in front."""
    steps = ids[..., 1:] - ids[..., :-1]
    return ids.shape[-1] > 2 and bool((steps[..., -1] == 1).all()) and bool(((steps >= 0) & (steps <= 1)).all())


def _logits_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield logits without their cap, or times another number."""
    config = getattr(bench.model, "config", None)
    name = next((output_name for output_name in bench.truth if output_name.startswith(":out")), bench.main_target)
    cap, truth = getattr(config, "final_logit_softcapping", None), bench.truth[name]
    if cap:
        plain = cap * torch.atanh((truth / cap).clamp(-1 + 1e-12, 1 - 1e-12))
        got = bench.with_outputs({name: plain})
        yield Mistake("DX968", got, {"expected": f"{cap:g}", "found": "none"}, "logits without their cap")
    candidate = torch.nan_to_num(bench.targets[name])
    factor = float((candidate * truth).sum() / (truth * truth).sum().clamp(min=1e-300))
    if abs(factor - 1) > 1e-4 and factor > 0:
        what = f"logits are {factor:.5g} times the reference's"
        yield Mistake("DX928", bench.with_outputs({name: truth * factor}), {"what": what}, what, freedom=1)
