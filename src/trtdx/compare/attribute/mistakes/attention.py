"""Attention's scale, cap, heads and softmax; masks and windows are in masks.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.mistakes import masks
from trtdx.compare.attribute.mistakes.attention_core import (
    AttentionCall,
    AttentionCore,
    attention_call_of,
    run_with_core,
    tile_heads,
)
from trtdx.compare.attribute.module_bench import LOW_PRECISION_DTYPES, Mistake
from trtdx.compare.attribute.scalar_fit import fit_scalar
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Outputs, Tensor

SCALE_FACTORS = (0.01, 0.03, 0.0625, 0.125, 0.25, 0.354, 0.5, 0.707, 0.84, 0.93, 0.97, 1.03, 1.07, 1.2, 1.41, 2, 2.83, 4, 8, 16, 64)  # fmt: skip
SOFTCAPS = (5.0, 10.0, 20.0, 30.0, 50.0)
MOST_SWAPS = 66


def attention_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield what could be wrong between the projections of an attention module."""
    call = attention_call_of(bench)
    if call is None:
        yield from _scale_attribute_mistakes(bench)
        return
    yield from _scale_mistakes(bench, call)
    yield from _softcap_mistakes(bench, call)
    yield from masks.mask_mistakes(bench, call)
    yield from _head_group_mistakes(bench, call)
    yield from _head_merge_mistakes(bench)
    yield from _softmax_axis_mistakes(bench, call)
    yield from _sink_mistakes(bench, call)
    yield from _softmax_dtype_mistakes(bench)
    if not bench.solved:
        yield from _head_order_mistakes(bench, call)


def _head_merge_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield heads interleaved channel by channel instead of concatenated."""

    def untransposed(got: Tensor) -> Tensor:
        batch, heads, new, width = got.shape
        return got.contiguous().reshape(batch, new, heads, width).transpose(1, 2)

    def by_number(got: Tensor) -> Tensor:
        batch, heads, new, width = got.shape
        turned = got.permute(0, 2, 3, 1).contiguous()
        return turned.reshape(batch, new, heads, width).transpose(1, 2)

    for finish, order in (
        (untransposed, "merged without changing heads and tokens back"),
        (by_number, "merged number by number instead of head by head"),
    ):
        values = {"which": "heads of the result", "order": order}
        yield Mistake("DX973", run_with_core(bench, AttentionCore(finish=finish)), values, f"heads {order}")


def _softmax_axis_mistakes(bench: ModuleBench, call: AttentionCall) -> Iterator[Mistake]:
    """Yield a softmax over something else than the keys."""
    axes = ((-2, "the queries"), (1, "the heads"), (0, "the batch"))
    for axis, over in axes:
        if call.query.shape[axis] == 1:
            continue

        def softmax(scores: Tensor, axis: int = axis) -> Tensor:
            return torch.softmax(scores, axis)

        yield Mistake(
            "DX926",
            run_with_core(bench, AttentionCore(softmax=softmax)),
            {"over": over},
            f"softmax over {over}",
        )


def _sink_mistakes(bench: ModuleBench, call: AttentionCall) -> Iterator[Mistake]:
    """Yield attention without its sinks."""
    if call.sinks is not None:
        got = run_with_core(bench, AttentionCore(lambda attn: attn._replace(sinks=None)))
        yield Mistake("DX934", got, {"found": "left out"}, "attention without its sinks")
        got = run_with_core(bench, AttentionCore(lambda attn: attn._replace(sinks=torch.zeros_like(call.sinks))))
        yield Mistake("DX934", got, {"found": "all zero"}, "attention whose sinks are all zero")


def _scale_attribute_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Change the scale where the module keeps it, if its attention cannot be computed here."""
    from trtdx.compare.attribute.module_copies import override_attributes

    owner = next(
        (module for module in bench.module.modules() if isinstance(getattr(module, "scaling", None), float)),
        None,
    )
    if owner is None:
        return
    own_scale = owner.scaling

    def outputs(factor: float) -> Outputs:
        with override_attributes(owner, scaling=own_scale * factor):
            return bench.run()

    factor, best_outputs = fit_scalar(bench, SCALE_FACTORS, outputs)
    yield _scale_mistake(own_scale, own_scale * factor, best_outputs)


def _scale_mistake(expected: float, actual: float, outputs: Outputs) -> Mistake:
    values = {"expected": f"{expected:.5g}", "found": f"{actual:.5g}", "factor": f"{actual / expected:.4g}"}
    return Mistake("DX967", outputs, values, "scores of the reference multiplied by another scale", freedom=1)


def _scale_mistakes(bench: ModuleBench, call: AttentionCall) -> Iterator[Mistake]:
    def outputs(factor: float) -> Outputs:
        return run_with_core(bench, AttentionCore(lambda attn: attn._replace(scale=attn.scale * factor)))

    factor, best_outputs = fit_scalar(bench, SCALE_FACTORS, outputs)
    yield _scale_mistake(call.scale, call.scale * factor, best_outputs)
    width = call.query.shape[-1]
    for scale in {1.0, width**-0.5, 1 / width}:
        if abs(scale - call.scale) > 1e-6 * scale:
            got = run_with_core(bench, AttentionCore(_with_scale(scale)))
            yield _scale_mistake(call.scale, scale, got)._replace(freedom=0)


def _with_scale(scale: float) -> Callable[[AttentionCall], AttentionCall]:
    return lambda attn: attn._replace(scale=scale)


def _softcap_mistakes(bench: ModuleBench, call: AttentionCall) -> Iterator[Mistake]:
    def capped(cap: float | None) -> Outputs:
        return run_with_core(bench, AttentionCore(lambda attn: attn._replace(softcap=cap)))

    expected = f"{call.softcap:g}" if call.softcap else "none"
    if call.softcap:
        values = {"expected": expected, "found": "none"}
        yield Mistake("DX968", capped(None), values, "attention computed without its cap on scores")
    own_caps = [call.softcap * factor for factor in (0.1, 0.2, 0.5, 2, 5)] if call.softcap else []
    cap, best_outputs = fit_scalar(bench, [*SOFTCAPS, *own_caps], capped, rounds=14, exact=SOFTCAPS)
    values, how = (
        {"expected": expected, "found": f"{cap:.4g}"},
        f"attention computed with a cap of {cap:.4g} on scores",
    )
    yield Mistake("DX968", best_outputs, values, how, freedom=1.0 if call.softcap else 1.5)


def _head_group_mistakes(bench: ModuleBench, call: AttentionCall) -> Iterator[Mistake]:
    heads, groups = call.query.shape[1], call.key.shape[1]
    if groups in (1, heads):
        return
    values = {"heads": str(heads), "groups": str(groups)}
    how = "head h uses key head h % groups instead of h // (heads / groups)"
    yield Mistake("DX972", run_with_core(bench, AttentionCore(repeat=tile_heads)), values, how)
    for part in ("key", "value"):
        got = run_with_core(bench, AttentionCore(_tile_part(part, heads // groups)))
        yield Mistake("DX972", got, values, f"{how}, for {part}s alone", freedom=0.5, rank=1)

    def one(attn: AttentionCall) -> AttentionCall:
        return attn._replace(key=attn.key[:, :1].expand_as(attn.key), value=attn.value[:, :1].expand_as(attn.value))

    yield Mistake("DX972", run_with_core(bench, AttentionCore(one)), values, "all heads use the first key head")


def _tile_part(part: str, groups: int) -> Callable[[AttentionCall], AttentionCall]:
    def change(attn: AttentionCall) -> AttentionCall:
        heads = {
            "key": attn.key.repeat_interleave(groups, 1),
            "value": attn.value.repeat_interleave(groups, 1),
        }
        return attn._replace(**{**heads, part: tile_heads(getattr(attn, part), groups)})

    return change


def common_permutations(count: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the permutations that mistakes produce: reversed, rotated, read in the other order, two swapped."""
    seen_orders = {tuple(range(count))}
    for description, order in _named_permutations(count):
        if tuple(order) not in seen_orders:
            seen_orders.add(tuple(order))
            yield description, order


def _named_permutations(count: int) -> Iterator[tuple[str, list[int]]]:
    identity = list(range(count))
    for parts in (divisor for divisor in range(2, count) if count % divisor == 0):
        yield (
            f"{parts} parts interleaved",
            [row * parts + col for col in range(parts) for row in range(count // parts)],
        )
    yield "reversed", identity[::-1]
    yield "shifted by one", identity[1:] + identity[:1]
    yield "shifted back by one", identity[-1:] + identity[:-1]
    for half in (count // 2,):
        yield "halves exchanged", identity[half:] + identity[:half]
    pairs = [(one, other) for other in range(count) for one in range(other)]
    for one, other in pairs[:MOST_SWAPS]:
        order = identity.copy()
        order[one], order[other] = other, one
        yield f"{one} and {other} exchanged", order


def _head_order_mistakes(bench: ModuleBench, call: AttentionCall) -> Iterator[Mistake]:
    """Yield heads in another order: of the queries, of keys and values, or of what comes out."""
    changes: dict[str, tuple[str, ...]] = {
        "query heads": ("query",), "key and value heads": ("key", "value"), "key heads": ("key",),
        "value heads": ("value",), "heads of the result": (),
    }  # fmt: skip
    for which, names in changes.items():
        heads = call.key if set(names) & {"key", "value"} else call.query
        nearest: tuple[float, str, Outputs] | None = None
        for description, order in common_permutations(heads.shape[1]):
            got = run_with_core(bench, _core_in_order(names, order))
            wrong = bench.squared_error(got)
            if nearest is None or wrong < nearest[0]:
                nearest = wrong, description, got
        if nearest is not None:
            how = f"{which}: {nearest[1]}"
            yield Mistake("DX973", nearest[2], {"which": which, "order": nearest[1]}, how, freedom=1, rank=1)


def _core_in_order(names: tuple[str, ...], order: list[int]) -> AttentionCore:
    """Return attention with the heads of some of its inputs, or those of its result, in another order."""
    if not names:
        return AttentionCore(finish=lambda got: got[:, order])
    return AttentionCore(lambda attn: attn._replace(**{name: getattr(attn, name)[:, order] for name in names}))


def _softmax_dtype_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    for name in ("float16", "bfloat16"):
        low: Any = getattr(torch, name)
        values = {"dtype": name}
        for core, how in _low_precision_cores(low, name):
            yield Mistake("DX974", run_with_core(bench, core()), values, how)
            if bench.dtype in LOW_PRECISION_DTYPES:
                with bench.candidate_precision():
                    yield Mistake("DX974", run_with_core(bench, core()), values, how)


def _low_precision_cores(low: Any, name: str) -> Iterator[tuple[Callable[[], AttentionCore], str]]:
    """Yield attention whose scores, softmax or weights are of a narrow type, as kernels differ in where they round."""

    def narrow(scores: Tensor) -> Tensor:
        return scores.clamp(min=torch.finfo(low).min).to(low)

    def at_once(scores: Tensor) -> Tensor:
        return torch.softmax(narrow(scores), -1).to(scores.dtype)

    def step_by_step(scores: Tensor) -> Tensor:
        narrow_scores = narrow(scores)
        powers = (narrow_scores - narrow_scores.amax(-1, keepdim=True)).exp()
        return (powers / powers.sum(-1, keepdim=True)).to(scores.dtype)

    def scores_alone(scores: Tensor) -> Tensor:
        return torch.softmax(narrow(scores).to(scores.dtype), -1)

    def weights_alone(scores: Tensor) -> Tensor:
        return torch.softmax(scores, -1).to(low).to(scores.dtype)

    def rounded(call: AttentionCall) -> AttentionCall:
        return call._replace(query=call.query.to(low).to(call.query.dtype), key=call.key.to(low).to(call.key.dtype))

    yield lambda: AttentionCore(softmax=at_once), f"scores and softmax in {name}"
    yield lambda: AttentionCore(softmax=step_by_step), f"scores and each step of the softmax in {name}"
    yield lambda: AttentionCore(softmax=scores_alone), f"scores in {name}"
    yield lambda: AttentionCore(softmax=weights_alone), f"weights of attention in {name}"
    yield lambda: AttentionCore(rounded, softmax=at_once), f"queries, keys, scores and softmax in {name}"
    yield (
        lambda: AttentionCore(rounded, softmax=step_by_step),
        f"queries, keys, scores and each step of the softmax in {name}",
    )
