"""What happened to a weight in the candidate's file: lost, damaged, clipped, scaled by channel, shifted, or gate and up interleaved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.mistakes.mlp import INTERLEAVED, NOT_INTERLEAVED
from trtdx.engines.torch.lazy_import import torch
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    Tensor = Any

CLOSE_DISTANCE = 5e-3  # relative: what a named change may leave; rounding to bfloat16 leaves 2e-3
MIN_CLIPPED_WEIGHTS = 3  # weights at a limit
FLOAT16_MAX = 65504.0
ROUNDING_SHARE = 0.25  # how much of an offset by a whole step the rounding to steps may leave
UNIFORM_SPREAD = 0.02  # spread of factors up to which they are one


class WeightChange(NamedTuple):
    """A cause that the two weights show by themselves, with the values for its page."""

    code: str
    values: dict[str, str]


def classify_weight_change(
    name: str, reference: Tensor, candidate: Tensor, *, plus: float = 0.0
) -> WeightChange | None:
    """Return what was done to a weight; None if its numbers alone do not show it.

    Args:
        name: of the weight in its module.
        reference: the reference's.
        candidate: the candidate's.
        plus: what is added to the weight of a norm before it is used.
    """
    reference, candidate = reference.detach().double(), candidate.detach().double()
    if reference.shape != candidate.shape:
        return None
    lost = ~torch.isfinite(candidate)
    strange = int(lost.sum())
    if strange and bool((reference.abs()[lost] > FLOAT16_MAX).all()):
        return WeightChange("DX997", {"largest": f"{float(reference.abs().max()):.4g}"})
    if strange:
        return WeightChange("DX717", {"what": f"{name} holds {format_count(strange, 'number')} NaN or infinite"})
    # Where one is added, zero is a norm without its weight, which the norms' own causes name.
    if not plus and not bool(candidate.any()) and bool(reference.any()):
        bias = name.endswith("bias")
        return WeightChange("DX987" if bias else "DX933", {"what": f"{name} is zero everywhere"})
    checks = (_clipped_change, _interleaved_change, _expert_order_change, _channel_factor_change, _offset_change)
    for check in checks:
        change = check(name, reference + plus, candidate + plus)
        if change is not None:
            return change
    return None


def factor_beside_siblings(
    reference: Tensor, candidate: Tensor, siblings: Iterable[tuple[Tensor, Tensor]]
) -> float | None:
    """Return the factor by which a weight differs from its siblings after a norm was folded into all of them.

    Args:
        reference: the reference's weight.
        candidate: the candidate's.
        siblings: both weights of other products, some of which read the same input.
    """
    factors = _input_factors(reference, candidate)
    for pair in siblings if factors is not None else ():
        sibling_factors = _input_factors(*pair)
        if sibling_factors is None or sibling_factors.shape != factors.shape:  # type: ignore[union-attr]
            continue
        shares = factors / sibling_factors
        if float(shares.std()) < UNIFORM_SPREAD * float(shares.mean()):
            return float(shares.mean())
    return None


def _input_factors(reference: Tensor, candidate: Tensor) -> Tensor | None:
    """Return the factors on a matrix's input channels; None if it changed in another way, or not at all."""
    if reference.shape != candidate.shape or reference.ndim != 2:
        return None
    reference, candidate = reference.detach().double(), candidate.detach().double()
    factors = (reference * candidate).sum(0) / (reference * reference).sum(0).clamp(min=1e-300)
    even = float(factors.std()) < UNIFORM_SPREAD * float(factors.abs().mean())
    return None if even or bool((factors <= 0).any()) or not _are_close(candidate, reference * factors) else factors


def _are_close(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= CLOSE_DISTANCE * float(one.norm())


def _clipped_change(name: str, reference: Tensor, candidate: Tensor) -> WeightChange | None:
    limit = float(candidate.abs().max())
    clipped = int((candidate.abs() >= limit * (1 - 1e-6)).sum())
    if reference.ndim < 2 or clipped < MIN_CLIPPED_WEIGHTS or not _are_close(reference.clamp(-limit, limit), candidate):
        return None
    return WeightChange("DX929", {"limit": f"{limit:.4g}", "held": f"{100 * clipped / candidate.numel():.2g} %"})


def _interleaved_change(name: str, reference: Tensor, candidate: Tensor) -> WeightChange | None:
    """Return the cause if the two halves of a weight are interleaved instead of concatenated, or the reverse."""
    for axis in range(max(0, reference.ndim - 2), reference.ndim):
        size = reference.shape[axis]
        if size % 2 or reference.ndim < 2:
            continue
        woven = torch.arange(size).reshape(2, -1).T.reshape(-1)
        for order, direction in ((woven, INTERLEAVED), (torch.argsort(woven), NOT_INTERLEAVED)):
            if _are_close(reference.index_select(axis, order), candidate) and not _are_close(reference, candidate):
                return WeightChange("DX981", {"how": direction})
    return None


def _expert_order_change(name: str, reference: Tensor, candidate: Tensor) -> WeightChange | None:
    """Return the cause if the experts' matrices are in another order."""
    if reference.ndim != 3:
        return None
    rows, candidate_rows = reference.flatten(1), candidate.flatten(1)
    order = torch.cdist(candidate_rows, rows).argmin(1)
    if not _are_close(rows[order], candidate_rows) or bool((order == torch.arange(len(order))).all()):
        return None
    return expert_order(order)


def expert_order(order: Tensor) -> WeightChange:
    return WeightChange("DX956", {"order": " ".join(map(str, order[:16].tolist()))})


def _channel_factor_change(name: str, reference: Tensor, candidate: Tensor) -> WeightChange | None:
    """Return the cause if each channel of a matrix is multiplied by its own factor.

    Any two weights of a norm are such factors apart, so a vector tells nothing.
    """
    if reference.ndim != 2 or 1 in reference.shape:
        return None
    for channel, rows, candidate_rows in (
        ("output channel", reference, candidate),
        ("input channel", reference.T, candidate.T),
    ):
        factors = (rows * candidate_rows).sum(1) / (rows * rows).sum(1).clamp(min=1e-300)
        even = float(factors.std()) < UNIFORM_SPREAD * float(factors.abs().mean())
        if even or bool((factors <= 0).any()) or not _are_close(candidate_rows, factors[:, None] * rows):
            continue
        spread = f"{float(factors.min()):.3g} to {float(factors.max()):.3g}"
        what = f"{name} is multiplied by a factor for each {channel} ({spread}) that nothing makes up for"
        return WeightChange("DX930", {"what": what})
    return None


def _offset_change(name: str, reference: Tensor, candidate: Tensor) -> WeightChange | None:
    """Return the cause if all weights of an output channel are off by one constant: a zero point was not subtracted."""
    gap = candidate - reference
    if reference.ndim != 2 or 1 in reference.shape or not bool(gap.any()):
        return None
    offsets = gap.mean(1, keepdim=True)
    if float((gap - offsets).norm()) > ROUNDING_SHARE * float(gap.norm()):
        return None
    return WeightChange("DX950", {"which": name, "offset": f"{float(offsets.abs().mean()):.4g}"})
