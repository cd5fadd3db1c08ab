"""What another weight in the candidate's file is: lost, damaged, cut off, scaled by channels, or with gate and up in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.ideas.mlp import APART, INTERLEAVED
from trtdx.engines.torch.lazy import torch
from trtdx.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    Tensor = Any

CLOSE = 5e-3  # relative: what a named change may leave; rounding to bfloat16 leaves 2e-3
LEAST_HELD = 3  # weights at a limit
LARGEST_HALF = 65504.0
EVEN = 0.02  # spread of factors up to which they are one


class WeightChange(NamedTuple):
    """A cause that a weight by itself tells, with the values for its page."""

    code: str
    values: dict[str, str]


def change_of(name: str, own: Tensor, other: Tensor, *, plus: float = 0.0) -> WeightChange | None:
    """Return what was done to a weight; none where it is nothing that the numbers tell by themselves.

    Args:
        name: of the weight in its module.
        own: the reference's.
        other: the candidate's.
        plus: what is added to the weight of a norm before it is used.
    """
    own, other = own.detach().double(), other.detach().double()
    if own.shape != other.shape:
        return None
    lost = ~torch.isfinite(other)
    strange = int(lost.sum())
    if strange and bool((own.abs()[lost] > LARGEST_HALF).all()):
        return WeightChange("DX997", {"largest": f"{float(own.abs().max()):.4g}"})
    if strange:
        return WeightChange("DX717", {"what": f"{name} holds {counted(strange, 'number')} NaN or infinite"})
    # Where one is added, zero is a norm without its weight, which the norms' own causes name.
    if not plus and not bool(other.any()) and bool(own.any()):
        bias = name.endswith("bias")
        return WeightChange("DX987" if bias else "DX933", {"what": f"{name} is zero everywhere"})
    for check in (_clipped, _woven, _experts_moved, _by_channel):
        change = check(name, own + plus, other + plus)
        if change is not None:
            return change
    return None


def factor_beside(own: Tensor, other: Tensor, siblings: Iterable[tuple[Tensor, Tensor]]) -> float | None:
    """Return the one factor by which a weight differs from what its siblings' have: a norm was folded into all of them.

    Args:
        own: the reference's weight.
        other: the candidate's.
        siblings: both weights of other products, some of which read the same input.
    """
    factors = _input_factors(own, other)
    for pair in siblings if factors is not None else ():
        sibling_factors = _input_factors(*pair)
        if sibling_factors is None or sibling_factors.shape != factors.shape:  # type: ignore[union-attr]
            continue
        shares = factors / sibling_factors
        if float(shares.std()) < EVEN * float(shares.mean()):
            return float(shares.mean())
    return None


def _input_factors(own: Tensor, other: Tensor) -> Tensor | None:
    """Return the factors of a matrix's input channels; none where it is changed otherwise, or not at all."""
    if own.shape != other.shape or own.ndim != 2:
        return None
    own, other = own.detach().double(), other.detach().double()
    factors = (own * other).sum(0) / (own * own).sum(0).clamp(min=1e-300)
    even = float(factors.std()) < EVEN * float(factors.abs().mean())
    return None if even or bool((factors <= 0).any()) or not _near(other, own * factors) else factors


def _near(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= CLOSE * float(one.norm())


def _clipped(name: str, own: Tensor, other: Tensor) -> WeightChange | None:
    limit = float(other.abs().max())
    clipped = int((other.abs() >= limit * (1 - 1e-6)).sum())
    if own.ndim < 2 or clipped < LEAST_HELD or not _near(own.clamp(-limit, limit), other):
        return None
    return WeightChange("DX929", {"limit": f"{limit:.4g}", "held": f"{100 * clipped / other.numel():.2g} %"})


def _woven(name: str, own: Tensor, other: Tensor) -> WeightChange | None:
    """Return that the two halves of a weight are in turn where one should follow the other, or the other way round."""
    for axis in range(max(0, own.ndim - 2), own.ndim):
        size = own.shape[axis]
        if size % 2 or own.ndim < 2:
            continue
        woven = torch.arange(size).reshape(2, -1).T.reshape(-1)
        for order, direction in ((woven, INTERLEAVED), (torch.argsort(woven), APART)):
            if _near(own.index_select(axis, order), other) and not _near(own, other):
                return WeightChange("DX981", {"how": direction})
    return None


def _experts_moved(name: str, own: Tensor, other: Tensor) -> WeightChange | None:
    """Return that the matrices of several experts stand in another order."""
    if own.ndim != 3:
        return None
    rows, candidate_rows = own.flatten(1), other.flatten(1)
    order = torch.cdist(candidate_rows, rows).argmin(1)
    if not _near(rows[order], candidate_rows) or bool((order == torch.arange(len(order))).all()):
        return None
    return expert_order(order)


def expert_order(order: Tensor) -> WeightChange:
    return WeightChange("DX956", {"order": " ".join(map(str, order[:16].tolist()))})


def _by_channel(name: str, own: Tensor, other: Tensor) -> WeightChange | None:
    """Return that each channel of a matrix is multiplied by a factor of its own.

    Any two weights of a norm are such factors apart, so a vector tells nothing.
    """
    if own.ndim != 2 or 1 in own.shape:
        return None
    for channel, rows, candidate_rows in (("output channel", own, other), ("input channel", own.T, other.T)):
        factors = (rows * candidate_rows).sum(1) / (rows * rows).sum(1).clamp(min=1e-300)
        even = float(factors.std()) < EVEN * float(factors.abs().mean())
        if even or bool((factors <= 0).any()) or not _near(candidate_rows, factors[:, None] * rows):
            continue
        spread = f"{float(factors.min()):.3g} to {float(factors.max()):.3g}"
        what = f"{name} is multiplied by a factor for each {channel} ({spread}) that nothing makes up for"
        return WeightChange("DX930", {"what": what})
    return None
