"""Attention's scale, cap, masks, window, heads and softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.bench import LOW, Idea
from trtdx.compare.attribute.core import Call, Core, attended, causal_mask, own_call, tiled
from trtdx.compare.attribute.search import best
from trtdx.engines.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.compare.attribute.bench import Bench, Outputs, Tensor

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
    yield from _masks(bench, call)
    yield from _windows(bench, call)
    yield from _mappings(bench, call)
    yield from _softmaxes(bench)
    if not bench.solved:
        yield from _orders(bench, call)


def _attribute_scale(bench: Bench) -> Iterator[Idea]:
    """Change the scale where the module keeps it, if its attention cannot be computed here."""
    from trtdx.compare.attribute.bench import put

    owner = next(
        (each for each in bench.module.modules() if isinstance(getattr(each, "scaling", None), float)), None
    )
    if owner is None:
        return
    own = owner.scaling

    def outputs(factor: float) -> Outputs:
        with put(owner, scaling=own * factor):
            return bench.run()

    factor, found = best(bench, SCALES, outputs)
    yield _scale_idea(own, own * factor, found)


def _scale_idea(expected: float, found: float, outputs: Outputs) -> Idea:
    values = {"expected": f"{expected:.5g}", "found": f"{found:.5g}", "factor": f"{found / expected:.4g}"}
    return Idea("DX967", outputs, values, "scores of the reference multiplied by another scale", freedom=1)


def _scales(bench: Bench, call: Call) -> Iterator[Idea]:
    def outputs(factor: float) -> Outputs:
        return attended(bench, Core(lambda each: each._replace(scale=each.scale * factor)))

    factor, found = best(bench, SCALES, outputs)
    yield _scale_idea(call.scale, call.scale * factor, found)
    width = call.query.shape[-1]
    for scale in {1.0, width**-0.5, 1 / width}:
        if abs(scale - call.scale) > 1e-6 * scale:
            got = attended(bench, Core(_scaled(scale)))
            yield _scale_idea(call.scale, scale, got)._replace(freedom=0)


def _scaled(scale: float) -> Callable[[Call], Call]:
    return lambda each: each._replace(scale=scale)


def _caps(bench: Bench, call: Call) -> Iterator[Idea]:
    def capped(cap: float | None) -> Outputs:
        return attended(bench, Core(lambda each: each._replace(softcap=cap)))

    if call.softcap:
        yield Idea(
            "DX968",
            capped(None),
            {"expected": f"{call.softcap:g}", "found": "none"},
            "attention computed without its cap on scores",
        )
        return
    cap, found = best(bench, CAPS, capped, rounds=6)
    yield Idea(
        "DX968",
        found,
        {"expected": "none", "found": f"{cap:.4g}"},
        "attention computed with a cap on scores",
        freedom=1.5,
    )


def _valid_keys(bench: Bench, call: Call) -> Tensor:
    """Return which keys are of tokens that count, [batch or 1, 1, 1, all]."""
    counts = bench.suspect.counts
    new, total = call.query.shape[-2], call.key.shape[-2]
    if counts is not None and counts.shape[-1] == total and new == total:
        return torch.as_tensor(counts, dtype=torch.bool)[:, None, None, :]
    return call.allowed[:, :1].any(2, keepdim=True) if _window_of(call) else call.allowed[:, :1, -1:, :]


def _window_of(call: Call) -> int:
    """Return how many keys the last query sees at most, 0 if it sees all that are valid."""
    new, total = call.query.shape[-2], call.key.shape[-2]
    inside = call.allowed[:, 0].any(0)
    first = int(inside[-1].nonzero()[0]) if bool(inside[-1].any()) else 0
    early = bool(inside[:-1, :first].any()) if new > 1 else False
    return total - first if first and early else 0


def _with_mask(allowed: Tensor) -> Core:
    return Core(lambda each: each._replace(allowed=allowed))


def _masks(bench: Bench, call: Call) -> Iterator[Idea]:
    new, total = call.query.shape[-2], call.key.shape[-2]
    valid, causal = _valid_keys(bench, call), causal_mask(new, total)
    if new > 1:
        yield Idea(
            "DX969",
            attended(bench, _with_mask(valid.expand(-1, -1, new, -1))),
            {},
            "every token sees later ones",
        )
        shifted = [(causal_mask(new, total).roll(-1, -1) | causal, "each token sees one later token")]
        strict = causal_mask(new, total).clone()
        strict[..., range(new), range(total - new, total)] = False
        shifted.append((strict, "no token sees itself"))
        for mask, told in shifted:
            yield Idea("DX969", attended(bench, _with_mask(mask & valid)), {"how": told}, told, freedom=0.5)
    if not bool(valid.all()):
        base = causal_mask(new, total, _window_of(call)) if new > 1 else causal
        yield Idea("DX970", attended(bench, _with_mask(base)), {}, "padding is seen like any token")
        yield Idea(
            "DX969",
            attended(bench, _with_mask(torch.ones_like(base))),
            {"how": "nothing is masked, padding neither"},
            "nothing is masked",
            rank=1,
        )


def _windows(bench: Bench, call: Call) -> Iterator[Idea]:
    new, total = call.query.shape[-2], call.key.shape[-2]
    if total < 3:
        return
    valid, own = _valid_keys(bench, call), _window_of(call)
    expected = str(own) if own else "none"
    if own:
        mask = causal_mask(new, total) & valid
        yield Idea(
            "DX971",
            attended(bench, _with_mask(mask)),
            {"expected": expected, "found": "none"},
            "attention without its window",
        )
    sizes = sorted(
        {*range(1, min(total, 24)), *(2**power for power in range(5, 17) if 2**power < total), total - 1}
    )
    scored = [
        (bench.error(found), size, found)
        for size in sizes
        if size != own
        for found in [attended(bench, _with_mask(causal_mask(new, total, size) & valid))]
    ]
    if scored:
        _, size, found = min(scored, key=lambda each: each[0])
        yield Idea(
            "DX971",
            found,
            {"expected": expected, "found": str(size)},
            "attention with another window",
            freedom=1,
        )


def _mappings(bench: Bench, call: Call) -> Iterator[Idea]:
    heads, groups = call.query.shape[1], call.key.shape[1]
    if groups in (1, heads):
        return
    told = {"heads": str(heads), "groups": str(groups)}
    how = "head h uses key head h % groups instead of h // (heads / groups)"
    yield Idea("DX972", attended(bench, Core(repeat=tiled)), told, how)
    for part in ("key", "value"):
        got = attended(bench, Core(_tiled_part(part, heads // groups)))
        yield Idea("DX972", got, told, f"{how}, for {part}s alone", freedom=0.5, rank=1)

    def one(each: Call) -> Call:
        return each._replace(
            key=each.key[:, :1].expand_as(each.key), value=each.value[:, :1].expand_as(each.value)
        )

    yield Idea("DX972", attended(bench, Core(one)), told, "all heads use the first key head")


def _tiled_part(part: str, groups: int) -> Callable[[Call], Call]:
    def change(each: Call) -> Call:
        heads = {
            "key": each.key.repeat_interleave(groups, 1),
            "value": each.value.repeat_interleave(groups, 1),
        }
        return each._replace(**{**heads, part: tiled(getattr(each, part), groups)})

    return change


def orders(count: int) -> Iterator[tuple[str, list[int]]]:
    """Yield permutations that mistakes make: reversed, turned, read in the other order, two exchanged."""
    seen = {tuple(range(count))}
    for told, order in _orders_of(count):
        if tuple(order) not in seen:
            seen.add(tuple(order))
            yield told, order


def _orders_of(count: int) -> Iterator[tuple[str, list[int]]]:
    whole = list(range(count))
    for parts in (each for each in range(2, count) if count % each == 0):
        yield (
            f"{parts} parts interleaved",
            [row * parts + col for col in range(parts) for row in range(count // parts)],
        )
    yield "reversed", whole[::-1]
    yield "shifted by one", whole[1:] + whole[:1]
    yield "shifted back by one", whole[-1:] + whole[:-1]
    for half in (count // 2,):
        yield "halves exchanged", whole[half:] + whole[:half]
    pairs = [(one, other) for other in range(count) for one in range(other)]
    for one, other in pairs[:MOST_SWAPS]:
        order = whole.copy()
        order[one], order[other] = other, one
        yield f"{one} and {other} exchanged", order


def _orders(bench: Bench, call: Call) -> Iterator[Idea]:
    """Yield heads in another order: of the queries, of keys and values, or of what comes out."""
    changes: dict[str, tuple[int, Callable[[list[int]], Core]]] = {
        "query heads": (
            call.query.shape[1],
            lambda order: Core(lambda each: each._replace(query=each.query[:, order])),
        ),
        "key and value heads": (
            call.key.shape[1],
            lambda order: Core(
                lambda each: each._replace(key=each.key[:, order], value=each.value[:, order])
            ),
        ),
        "key heads": (
            call.key.shape[1],
            lambda order: Core(lambda each: each._replace(key=each.key[:, order])),
        ),
        "value heads": (
            call.key.shape[1],
            lambda order: Core(lambda each: each._replace(value=each.value[:, order])),
        ),
        "heads of the result": (call.query.shape[1], lambda order: Core(finish=lambda got: got[:, order])),
    }
    for which, (count, made) in changes.items():
        found: tuple[float, str, Outputs] | None = None
        for told, order in orders(count):
            got = attended(bench, made(order))
            wrong = bench.error(got)
            if found is None or wrong < found[0]:
                found = wrong, told, got
        if found is not None:
            yield Idea(
                "DX973",
                found[2],
                {"which": which, "order": found[1]},
                f"{which}: {found[1]}",
                freedom=1,
                rank=1,
            )


def _softmaxes(bench: Bench) -> Iterator[Idea]:
    for name in ("float16", "bfloat16"):
        low: Any = getattr(torch, name)

        def rounded(scores: Tensor, low: Any = low) -> Tensor:
            return torch.softmax(scores.clamp(min=torch.finfo(low).min).to(low), -1).to(scores.dtype)

        def weights(scores: Tensor, low: Any = low) -> Tensor:
            return torch.softmax(scores, -1).to(low).to(scores.dtype)

        told = {"dtype": name}
        for softmax, how in (
            (rounded, f"scores and softmax in {name}"),
            (weights, f"weights of attention in {name}"),
        ):
            yield Idea("DX974", attended(bench, Core(softmax=softmax)), told, how)
            if bench.dtype in LOW:
                with bench.as_candidate():
                    yield Idea("DX974", attended(bench, Core(softmax=softmax)), told, how)
