"""Attention masks that are missing, shifted, inverted, too weak or of another sequence, and attention windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.compare.attribute.mistakes.attention_core import (
    AttentionCall,
    AttentionCore,
    causal_mask,
    run_with_core,
)
from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.attribute.scalar_fit import fit_scalar
from trtdx.compare.judge.exact_types import HIDDEN_SCORE
from trtdx.engines.torch.lazy_import import torch
from trtdx.engines.torch.values import tensor_from_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.compare.attribute.module_bench import ModuleBench, Outputs, Tensor

MISSING_CODE, PADDING_CODE, WRONG_CODE, WINDOW_CODE = "DX969", "DX970", "DX935", "DX971"
MASK_SHIFTS = (1, 2, 3)
WEAK_PENALTIES = (
    0.1,
    0.3,
    1.0,
    3.0,
    10.0,
    30.0,
    100.0,
)  # what is taken from hidden scores, where it should be endless
MOST_ROWS = 6


def mask_mistakes(bench: ModuleBench, call: AttentionCall) -> Iterator[Mistake]:
    """Yield other masks and windows."""
    yield from _missing_mask_mistakes(bench, call)
    for description, mask in _wrong_masks(bench, call):
        yield Mistake(
            WRONG_CODE,
            run_with_core(bench, _core_with_mask(mask)),
            {"how": description},
            description,
            freedom=0.5,
        )
    yield from _weak_mask_mistakes(bench, call)
    yield from _window_mistakes(bench, call)


def mask_tensor_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield the cause of a mask that is itself wrong, before any attention has used it."""
    for reference_mask, candidate_mask in bench.suspect.masks.values():
        reference_visible, candidate_visible = (
            _visible_square(tensor_from_array(reference_mask)),
            _visible_square(tensor_from_array(candidate_mask)),
        )
        if (
            reference_visible is None
            or candidate_visible is None
            or reference_visible.shape != candidate_visible.shape
            or torch.equal(reference_visible, candidate_visible)
        ):
            continue
        apart = float((reference_visible != candidate_visible).sum())
        for code, description, mask in _candidate_masks(bench, reference_visible):
            share = 1 - float((mask.expand_as(candidate_visible) != candidate_visible).sum()) / apart
            values = {
                "how": description,
                "expected": str(_window_of_mask(reference_visible) or "none"),
                "found": description,
            }
            yield Mistake(
                code,
                bench.truth,
                values,
                description,
                share=share,
                freedom=0.5 * (code in (WRONG_CODE, WINDOW_CODE)),
            )
        return


def _visible_square(mask: Tensor) -> Tensor | None:
    """Return which keys each query sees, [batch, 1, new, all], from a mask with a row for each query."""
    if mask.ndim < 2 or mask.shape[-2] < 2:
        return None
    visible = mask if mask.dtype == torch.bool else mask > HIDDEN_SCORE
    return visible.reshape(-1, 1, *visible.shape[-2:])


def _candidate_masks(bench: ModuleBench, own_mask: Tensor) -> Iterator[tuple[str, str, Tensor]]:
    new, total = own_mask.shape[-2:]
    empty = torch.zeros((1, 1, new, 1))
    call = AttentionCall(empty, torch.zeros((1, 1, total, 1)), torch.zeros((1, 1, total, 1)), own_mask, None, 1.0, None)
    valid, causal, window = valid_keys(bench, call), causal_mask(new, total), _window_of_mask(own_mask)
    yield MISSING_CODE, "every token sees later ones", valid.expand(-1, -1, new, -1)
    yield MISSING_CODE, "nothing is masked", torch.ones_like(own_mask)
    if not bool(valid.all()):
        yield PADDING_CODE, "padding is seen like any token", causal_mask(new, total, window)
    for description, mask in _wrong_masks(bench, call):
        yield WRONG_CODE, description, mask
    for size in (0, *range(1, total)):
        if size != window:
            yield (
                WINDOW_CODE,
                str(size or "none"),
                (causal_mask(new, total, size) if size else causal) & valid,
            )


def valid_keys(bench: ModuleBench, call: AttentionCall) -> Tensor:
    """Return which keys are of tokens that count, [batch or 1, 1, 1, all]."""
    counts = bench.suspect.counted_tokens
    new, total = call.query.shape[-2], call.key.shape[-2]
    if counts is not None and counts.shape[-1] == total and new == total:
        return torch.tensor(counts, dtype=torch.bool)[:, None, None, :]
    return call.allowed[:, :1].any(2, keepdim=True) if _window_of_mask(call.allowed) else call.allowed[:, :1, -1:, :]


def _window_of_mask(allowed: Tensor) -> int:
    """Return the attention window of the last query; 0 if it sees all valid keys."""
    new, total = allowed.shape[-2:]
    inside = allowed[:, 0].any(0)
    first = int(inside[-1].nonzero()[0]) if bool(inside[-1].any()) else 0
    early = bool(inside[:-1, :first].any()) if new > 1 else False
    return total - first if first and early else 0


def _core_with_mask(allowed: Tensor) -> AttentionCore:
    return AttentionCore(lambda attn: attn._replace(allowed=allowed))


def _missing_mask_mistakes(bench: ModuleBench, call: AttentionCall) -> Iterator[Mistake]:
    new, total = call.query.shape[-2], call.key.shape[-2]
    valid, causal = valid_keys(bench, call), causal_mask(new, total)
    if new > 1:
        every = run_with_core(bench, _core_with_mask(valid.expand(-1, -1, new, -1)))
        yield Mistake(MISSING_CODE, every, {}, "every token sees later ones")
    if not bool(valid.all()):
        base = causal_mask(new, total, _window_of_mask(call.allowed)) if new > 1 else causal
        yield Mistake(PADDING_CODE, run_with_core(bench, _core_with_mask(base)), {}, "padding is seen like any token")
        every = run_with_core(bench, _core_with_mask(torch.ones_like(base)))
        yield Mistake(MISSING_CODE, every, {"how": "nothing is masked, padding neither"}, "nothing is masked", rank=1)


def _wrong_masks(bench: ModuleBench, call: AttentionCall) -> Iterator[tuple[str, Tensor]]:
    """Yield masks that hide the wrong keys, in words and as [batch or 1, 1, new, all]."""
    new, total = call.query.shape[-2], call.key.shape[-2]
    valid, own_mask = valid_keys(bench, call), call.allowed[:, :1]
    behind = torch.arange(total - new, total)[:, None] - torch.arange(total)[None, :]
    for shift in MASK_SHIFTS:
        if shift >= total:
            continue
        if new > 1:
            count = f"{shift} token" + "s" * (shift > 1)
            later = ((behind < 0) & (behind >= -shift))[None, None] & valid
            yield f"each token sees {count} later than itself", _see_at_least_self(own_mask | later, behind)
        hidden = own_mask & ~((behind >= 0) & (behind < shift))[None, None]
        description = "no token sees itself" if shift == 1 else f"no token sees itself and the {shift - 1} before it"
        yield description, hidden
        yield f"{description}, but the first", _see_at_least_self(hidden, behind)
    first = valid & (valid.int().cumsum(-1) == 1)
    yield "the first token is hidden from all others", _see_at_least_self(own_mask & ~first, behind)
    if new > 1:
        yield "the mask is turned round: what should be seen is hidden", ~own_mask & valid
        yield "the mask is of later tokens instead of earlier ones", (behind <= 0)[None, None] & valid
        half = torch.arange(total)[None, None, None] < (total - new) + new // 2
        yield (
            "the first half of the prompt sees all of itself",
            own_mask | (half & (behind[:, :1] < total // 2)[None, None] & valid),
        )
    if not bool(valid.all()):
        flipped, causal = valid.flip(-1), (behind >= 0)[None, None]
        yield "padding is masked on the other side", flipped & causal
        yield "padding is seen, and as many tokens as it has are hidden on the other side", flipped & own_mask
    yield from _masks_of_other_rows(call, own_mask, valid, behind)


def _see_at_least_self(mask: Tensor, behind: Tensor) -> Tensor:
    """Return a mask in which a query that would see no key sees its own."""
    return mask | (~mask.any(-1, keepdim=True) & (behind == 0)[None, None])


def _masks_of_other_rows(
    call: AttentionCall, own_mask: Tensor, valid: Tensor, behind: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield masks taken from another sequence of the batch."""
    rows = own_mask.shape[0]
    if rows < 2 or bool((own_mask == own_mask[:1]).all()):
        return
    for shift in range(1, min(rows, MOST_ROWS)):
        yield f"the mask is of the sequence {shift} further in the batch", own_mask.roll(shift, 0)
    for row in range(min(rows, MOST_ROWS)):
        yield f"all sequences have the mask of sequence {row}", own_mask[row : row + 1].expand_as(own_mask)


def _weak_mask_mistakes(bench: ModuleBench, call: AttentionCall) -> Iterator[Mistake]:
    """Yield a mask that subtracts too little from the scores it should hide."""
    hidden = ~call.allowed
    if not bool(hidden.any()):
        return

    def outputs(less: float) -> Outputs:
        def prepare(attn: AttentionCall) -> AttentionCall:
            penalty = torch.where(hidden, -less, 0.0).to(attn.query.dtype)
            bias = penalty if attn.bias is None else attn.bias + penalty
            return attn._replace(allowed=torch.ones_like(attn.allowed), bias=bias)

        return run_with_core(bench, AttentionCore(prepare))

    less, best_outputs = fit_scalar(bench, WEAK_PENALTIES, outputs, rounds=10, exact=(1.0, 10.0, 100.0))
    description = f"the mask takes {less:.3g} from hidden scores instead of hiding them"
    yield Mistake(WRONG_CODE, best_outputs, {"how": description}, description, freedom=1)


def _window_mistakes(bench: ModuleBench, call: AttentionCall) -> Iterator[Mistake]:
    new, total = call.query.shape[-2], call.key.shape[-2]
    if total < 3:
        return
    valid, own_window = valid_keys(bench, call), _window_of_mask(call.allowed)
    expected = str(own_window) if own_window else "none"
    if own_window:
        mask = causal_mask(new, total) & valid
        values = {"expected": expected, "found": "none"}
        yield Mistake(WINDOW_CODE, run_with_core(bench, _core_with_mask(mask)), values, "attention without its window")
    sizes = sorted({*range(1, min(total, 24)), *(2**power for power in range(5, 17) if 2**power < total), total - 1})
    scored = [
        (bench.squared_error(outputs), size, outputs)
        for size in sizes
        if size != own_window
        for outputs in [run_with_core(bench, _core_with_mask(causal_mask(new, total, size) & valid))]
    ]
    if scored:
        _, size, best_outputs = min(scored, key=lambda scored_window: scored_window[0])
        values = {"expected": expected, "found": str(size)}
        yield Mistake(WINDOW_CODE, best_outputs, values, "attention with another window", freedom=1)
