"""Attention's scale, cap, heads and softmax; masks and windows are in masks.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.experiment import LOW, Idea
from trtdx.compare.attribute.ideas import masks
from trtdx.compare.attribute.ideas.attention_core import Call, Core, attended, own_call, tiled
from trtdx.compare.attribute.scalar_fit import best
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.experiment import Bench, Outputs, Tensor

SCALES = (0.01, 0.03, 0.0625, 0.125, 0.25, 0.354, 0.5, 0.707, 0.84, 0.93, 0.97, 1.03, 1.07, 1.2, 1.41, 2, 2.83, 4, 8, 16, 64)  # fmt: skip
CAPS = (5.0, 10.0, 20.0, 30.0, 50.0)
MOST_SWAPS = 66


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield what could be wrong between the projections of an attention module."""
    call = own_call(bench)
    if call is None:
        yield from _attribute_scale(bench)
        return
    yield from _scales(bench, call)
    yield from _caps(bench, call)
    yield from masks.ideas(bench, call)
    yield from _mappings(bench, call)
    yield from _merged(bench)
    yield from _axes(bench, call)
    yield from _sinks(bench, call)
    yield from _softmaxes(bench)
    if not bench.solved:
        yield from _orders(bench, call)


def _merged(bench: Bench) -> Iterator[Idea]:
    """Yield heads put side by side in another order than a head's numbers after the other's."""

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
        yield Idea("DX973", attended(bench, Core(finish=finish)), values, f"heads {order}")


def _axes(bench: Bench, call: Call) -> Iterator[Idea]:
    """Yield a softmax over something else than the keys."""
    axes = ((-2, "the queries"), (1, "the heads"), (0, "the batch"))
    for axis, over in axes:
        if call.query.shape[axis] == 1:
            continue

        def softmax(scores: Tensor, axis: int = axis) -> Tensor:
            return torch.softmax(scores, axis)

        yield Idea("DX926", attended(bench, Core(softmax=softmax)), {"over": over}, f"softmax over {over}")


def _sinks(bench: Bench, call: Call) -> Iterator[Idea]:
    """Yield attention without the scores that take weight from the keys."""
    if call.sinks is not None:
        got = attended(bench, Core(lambda attn: attn._replace(sinks=None)))
        yield Idea("DX934", got, {"found": "left out"}, "attention without its sinks")
        got = attended(bench, Core(lambda attn: attn._replace(sinks=torch.zeros_like(call.sinks))))
        yield Idea("DX934", got, {"found": "all zero"}, "attention whose sinks are all zero")


def _attribute_scale(bench: Bench) -> Iterator[Idea]:
    """Change the scale where the module keeps it, if its attention cannot be computed here."""
    from trtdx.compare.attribute.module_copies import put

    owner = next(
        (module for module in bench.module.modules() if isinstance(getattr(module, "scaling", None), float)),
        None,
    )
    if owner is None:
        return
    own_scale = owner.scaling

    def outputs(factor: float) -> Outputs:
        with put(owner, scaling=own_scale * factor):
            return bench.run()

    factor, best_outputs = best(bench, SCALES, outputs)
    yield _scale_idea(own_scale, own_scale * factor, best_outputs)


def _scale_idea(expected: float, found: float, outputs: Outputs) -> Idea:
    values = {"expected": f"{expected:.5g}", "found": f"{found:.5g}", "factor": f"{found / expected:.4g}"}
    return Idea("DX967", outputs, values, "scores of the reference multiplied by another scale", freedom=1)


def _scales(bench: Bench, call: Call) -> Iterator[Idea]:
    def outputs(factor: float) -> Outputs:
        return attended(bench, Core(lambda attn: attn._replace(scale=attn.scale * factor)))

    factor, best_outputs = best(bench, SCALES, outputs)
    yield _scale_idea(call.scale, call.scale * factor, best_outputs)
    width = call.query.shape[-1]
    for scale in {1.0, width**-0.5, 1 / width}:
        if abs(scale - call.scale) > 1e-6 * scale:
            got = attended(bench, Core(_scaled(scale)))
            yield _scale_idea(call.scale, scale, got)._replace(freedom=0)


def _scaled(scale: float) -> Callable[[Call], Call]:
    return lambda attn: attn._replace(scale=scale)


def _caps(bench: Bench, call: Call) -> Iterator[Idea]:
    def capped(cap: float | None) -> Outputs:
        return attended(bench, Core(lambda attn: attn._replace(softcap=cap)))

    expected = f"{call.softcap:g}" if call.softcap else "none"
    if call.softcap:
        values = {"expected": expected, "found": "none"}
        yield Idea("DX968", capped(None), values, "attention computed without its cap on scores")
    own_caps = [call.softcap * factor for factor in (0.1, 0.2, 0.5, 2, 5)] if call.softcap else []
    cap, best_outputs = best(bench, [*CAPS, *own_caps], capped, rounds=14, exact=CAPS)
    values, how = (
        {"expected": expected, "found": f"{cap:.4g}"},
        f"attention computed with a cap of {cap:.4g} on scores",
    )
    yield Idea("DX968", best_outputs, values, how, freedom=1.0 if call.softcap else 1.5)


def _mappings(bench: Bench, call: Call) -> Iterator[Idea]:
    heads, groups = call.query.shape[1], call.key.shape[1]
    if groups in (1, heads):
        return
    values = {"heads": str(heads), "groups": str(groups)}
    how = "head h uses key head h % groups instead of h // (heads / groups)"
    yield Idea("DX972", attended(bench, Core(repeat=tiled)), values, how)
    for part in ("key", "value"):
        got = attended(bench, Core(_tiled_part(part, heads // groups)))
        yield Idea("DX972", got, values, f"{how}, for {part}s alone", freedom=0.5, rank=1)

    def one(attn: Call) -> Call:
        return attn._replace(
            key=attn.key[:, :1].expand_as(attn.key), value=attn.value[:, :1].expand_as(attn.value)
        )

    yield Idea("DX972", attended(bench, Core(one)), values, "all heads use the first key head")


def _tiled_part(part: str, groups: int) -> Callable[[Call], Call]:
    def change(attn: Call) -> Call:
        heads = {
            "key": attn.key.repeat_interleave(groups, 1),
            "value": attn.value.repeat_interleave(groups, 1),
        }
        return attn._replace(**{**heads, part: tiled(getattr(attn, part), groups)})

    return change


def orders(count: int) -> Iterator[tuple[str, list[int]]]:
    """Yield permutations that mistakes make: reversed, turned, read in the other order, two exchanged."""
    seen_orders = {tuple(range(count))}
    for description, order in _orders_of(count):
        if tuple(order) not in seen_orders:
            seen_orders.add(tuple(order))
            yield description, order


def _orders_of(count: int) -> Iterator[tuple[str, list[int]]]:
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


def _orders(bench: Bench, call: Call) -> Iterator[Idea]:
    """Yield heads in another order: of the queries, of keys and values, or of what comes out."""
    changes: dict[str, tuple[str, ...]] = {
        "query heads": ("query",), "key and value heads": ("key", "value"), "key heads": ("key",),
        "value heads": ("value",), "heads of the result": (),
    }  # fmt: skip
    for which, names in changes.items():
        heads = call.key if set(names) & {"key", "value"} else call.query
        nearest: tuple[float, str, Outputs] | None = None
        for description, order in orders(heads.shape[1]):
            got = attended(bench, _core_in_order(names, order))
            wrong = bench.error(got)
            if nearest is None or wrong < nearest[0]:
                nearest = wrong, description, got
        if nearest is not None:
            how = f"{which}: {nearest[1]}"
            yield Idea("DX973", nearest[2], {"which": which, "order": nearest[1]}, how, freedom=1, rank=1)


def _core_in_order(names: tuple[str, ...], order: list[int]) -> Core:
    """Return attention with the heads of some of its inputs, or those of its result, in another order."""
    if not names:
        return Core(finish=lambda got: got[:, order])
    return Core(lambda attn: attn._replace(**{name: getattr(attn, name)[:, order] for name in names}))


def _softmaxes(bench: Bench) -> Iterator[Idea]:
    for name in ("float16", "bfloat16"):
        low: Any = getattr(torch, name)
        values = {"dtype": name}
        for core, how in _low_cores(low, name):
            yield Idea("DX974", attended(bench, core()), values, how)
            if bench.dtype in LOW:
                with bench.as_candidate():
                    yield Idea("DX974", attended(bench, core()), values, how)


def _low_cores(low: Any, name: str) -> Iterator[tuple[Callable[[], Core], str]]:
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

    def rounded(call: Call) -> Call:
        return call._replace(
            query=call.query.to(low).to(call.query.dtype), key=call.key.to(low).to(call.key.dtype)
        )

    yield lambda: Core(softmax=at_once), f"scores and softmax in {name}"
    yield lambda: Core(softmax=step_by_step), f"scores and each step of the softmax in {name}"
    yield lambda: Core(softmax=scores_alone), f"scores in {name}"
    yield lambda: Core(softmax=weights_alone), f"weights of attention in {name}"
    yield lambda: Core(rounded, softmax=at_once), f"queries, keys, scores and softmax in {name}"
    yield (
        lambda: Core(rounded, softmax=step_by_step),
        f"queries, keys, scores and each step of the softmax in {name}",
    )
