"""Where the tokens lie in a tensor, and the changes that bring two layouts together.

Layouts are told by shapes against the tokens that a step was fed, over all steps that have the tensor, so that as many
heads as tokens in one step confuse nobody. Tensors of the same shape are compared as they are.

Changes have texts, which a mapping file keeps:

    transpose 0 2 1 3           heads first to tokens first
    unsqueeze 0, reshape 4 8    packed tokens as a batch of one; the same elements in another shape
    expand 0 2                  what is the same for all sequences
    columns 0:128               the first columns of a row: a vocabulary without its padding
    part k of q:32 k:16 v:16    a part of a fused tensor; "2 x q:16 k:8 v:8": in two groups
    regroup 2 x q:16 k:8 v:8    fused shards side by side, as the parts of all of them side by side
    mask                        what is added to scores, as which of them are seen
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtdx.compare.align.fused_layouts import parse_fused_part
from trtdx.compare.nouns import LayoutChange
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtdx.capture.store.reader import TensorRecord
    from trtdx.compare.align.token_positions import StepTokens
    from trtdx.compare.nouns import Array


TOKENS_FIRST, HEADS_FIRST, FLAT, FLAT_HEADS, SHARED = "tokens", "heads", "flat", "flat heads", "shared"
ONE_ROW, LAST, FLAT_LAST, ONE_LAST = "one", "last", "flat last", "one last"
PACKED, ONE_PACKED = "packed", "one packed"  # of a batch with padding, the tokens that are none
HISTORY, PAST, COLUMNS = "history", "past", "columns"  # of the cache; a mask of all up to now
TOKENS_HELD = {LAST: "last", FLAT_LAST: "last", ONE_LAST: "last", HISTORY: "history", PAST: "past", COLUMNS: "history",
         PACKED: "real", ONE_PACKED: "real"}  # fmt: skip
_BY_HEADS = (HEADS_FIRST, HISTORY, PAST)
_AXES = {TOKENS_FIRST: 1, ONE_ROW: 1, LAST: 1, ONE_LAST: 1, COLUMNS: 1, HEADS_FIRST: 2, HISTORY: 2, PAST: 2, FLAT: 0,
         FLAT_LAST: 0, PACKED: 0, ONE_PACKED: 1}  # fmt: skip
MASK_THRESHOLD = -1e4  # what is added to scores that are to be seen is above
_HEADS_LIKELY = re.compile(r"mask|score|weights|key|value|cache|past|present", re.IGNORECASE)


class LayoutFit(NamedTuple):
    """The changes of layout that give two tensors the same rows."""

    reference_changes: tuple[LayoutChange, ...] = ()
    candidate_changes: tuple[LayoutChange, ...] = ()
    token_axis: int | None = None


def transpose_change(*axes: int) -> LayoutChange:
    return LayoutChange(f"transpose {' '.join(map(str, axes))}", lambda array: array.transpose(axes))


def unsqueeze_change(axis: int) -> LayoutChange:
    def apply(array: Array) -> Array:
        return array.reshape(*array.shape[:axis], 1, *array.shape[axis:])

    return LayoutChange(f"unsqueeze {axis}", apply)


def reshape_change(*shape: int) -> LayoutChange:
    return LayoutChange(f"reshape {' '.join(map(str, shape))}", lambda array: array.reshape(shape))


def expand_change(axis: int, count: int) -> LayoutChange:
    def apply(array: Array) -> Array:
        return np.broadcast_to(array, (*array.shape[:axis], count, *array.shape[axis + 1 :]))

    return LayoutChange(f"expand {axis} {count}", apply)


def columns_change(begin: int, end: int) -> LayoutChange:
    return LayoutChange(f"columns {begin}:{end}", lambda array: array[..., begin:end])


def mask_change() -> LayoutChange:
    return LayoutChange("mask", lambda array: array if array.dtype == bool else array > MASK_THRESHOLD)


def is_added_mask(record: TensorRecord) -> bool:
    """Whether a tensor is a mask to be added to scores, as its statistics tell: zeros, and one very negative number."""
    stats = record.statistics
    is_float = record.layout.dtype.startswith(("float", "bfloat"))
    if not is_float or not stats.zeros or stats.nan or stats.pos_inf or stats.max > 0:
        return False
    if stats.neg_inf:
        return stats.zeros + stats.neg_inf == stats.elements
    hidden = stats.elements - stats.zeros
    return stats.min < MASK_THRESHOLD and abs(stats.mean * stats.elements / stats.min - hidden) < 0.5


def are_masks(reference: TensorRecord, candidate: TensorRecord) -> bool:
    """Whether two tensors are masks of which one or both are added to scores: how negative they are says nothing."""
    is_bool = [record.layout.dtype == "bool" for record in (reference, candidate)]
    if is_bool[0] != is_bool[1]:
        return True
    return not is_bool[0] and is_added_mask(reference) and is_added_mask(candidate)


def parse_change(text: str) -> LayoutChange:
    """Return the change that a text states."""
    word, _, rest = text.strip().partition(" ")
    if word in ("part", "regroup"):
        return parse_fused_part(text.strip())
    numbers = [int(number) for number in re.findall(r"-?\d+", rest)]
    maker = {
        "transpose": (transpose_change, len(numbers) > 1 and sorted(numbers) == list(range(len(numbers)))),
        "unsqueeze": (unsqueeze_change, len(numbers) == 1 and numbers[0] >= 0),
        "reshape": (reshape_change, bool(numbers)),
        "expand": (expand_change, len(numbers) == 2 and min(numbers) >= 0),
        "columns": (columns_change, len(numbers) == 2 and 0 <= numbers[0] < numbers[1]),
        "mask": (mask_change, not rest),
    }.get(word)
    if maker is None or not maker[1]:
        raise InputError(
            f"{text.strip()!r} is not a change of layout",
            fix="write transpose 0 2 1 3, unsqueeze 0, reshape 4 -1, expand 0 2, columns 0:128, mask, "
            "part k of q:32 k:16 v:16, rank 0, sum, concatenate 1 or pages TABLE",
        )
    change: LayoutChange = maker[0](*numbers)  # type: ignore[operator]
    return change


def changed_shape(shape: Sequence[int], changes: Sequence[LayoutChange]) -> tuple[int, ...]:
    """Return the shape that changes give, without any values."""
    if not changes:
        return tuple(shape)
    array = np.broadcast_to(np.zeros((), np.int8), tuple(shape))
    try:
        for change in changes:
            array = change.apply(array)
    except (ValueError, IndexError) as err:
        texts = " | ".join(change.text for change in changes)
        raise InputError(f"{texts!r} cannot be done with a tensor of shape {list(shape)}: {err}") from err
    return array.shape


def token_forms(shape: tuple[int, ...], step_tokens: StepTokens, name: str = "") -> list[str]:
    """Return how a tensor of a shape can hold a step's tokens, the likeliest first."""
    possible = _packed_forms(shape, step_tokens) if len(step_tokens.shape) == 1 else _batch_forms(shape, step_tokens)
    if possible[:2] == [TOKENS_FIRST, HEADS_FIRST] and len(shape) == 4 and _HEADS_LIKELY.search(name):
        possible[:2] = [HEADS_FIRST, TOKENS_FIRST]
    return possible


def _batch_forms(shape: tuple[int, ...], step_tokens: StepTokens) -> list[str]:
    rows, count = step_tokens.shape
    possible = [
        (TOKENS_FIRST, shape[:2] == (rows, count)),
        (HEADS_FIRST, len(shape) > 2 and shape[0] == rows and shape[2] == count),
        (
            HISTORY,
            len(shape) == 4 and step_tokens.total > 0 and (shape[0], shape[2]) == (rows, step_tokens.total),
        ),
        (
            PAST,
            len(shape) == 4 and step_tokens.total > 0 and (shape[0], shape[2]) == (rows, step_tokens.total - count),
        ),
        (COLUMNS, step_tokens.total > 0 and shape == (rows, step_tokens.total)),
        (FLAT, shape[:1] == (rows * count,)),
        (PACKED, len(shape) > 1 and shape[0] == step_tokens.tokens < rows * count),
        (
            ONE_PACKED,
            len(shape) > 2 and shape[:2] == (1, step_tokens.tokens) and step_tokens.tokens < rows * count,
        ),
        (SHARED, rows > 1 and shape[:2] == (1, count)),
        (ONE_ROW, rows > 1 and shape[:2] == (1, rows * count)),
        (LAST, count > 1 and len(shape) > 2 and shape[:2] == (rows, 1)),
        (FLAT_LAST, count > 1 and len(shape) == 2 and shape[0] == rows),
        (ONE_LAST, count > 1 and rows > 1 and len(shape) == 3 and shape[:2] == (1, rows)),
    ]
    return [form for form, fits in possible if fits]


def _packed_forms(shape: tuple[int, ...], step_tokens: StepTokens) -> list[str]:
    count = step_tokens.shape[0]
    possible = [
        (FLAT, shape[:1] == (count,)),
        (TOKENS_FIRST, shape[:2] == (1, count)),
        (FLAT_HEADS, len(shape) == 3 and shape[1] == count),
        (FLAT_LAST, len(shape) > 1 and shape[0] == step_tokens.sequences < count),
        (
            ONE_LAST,
            len(shape) > 2 and shape[:2] == (1, step_tokens.sequences) and step_tokens.sequences < count,
        ),
    ]
    return [form for form, fits in possible if fits]


def consistent_forms(shapes: Sequence[tuple[tuple[int, ...], StepTokens]], name: str = "") -> list[str]:
    """Return the forms that a tensor can have at all its steps."""
    common: list[str] | None = None
    for shape, fed in shapes:
        here = token_forms(shape, fed, name)
        common = here if common is None else [form for form in common if form in here or _is_same_form(form, here)]
    return common or []


def _is_same_form(form: str, possible: list[str]) -> bool:
    """Whether a form is another where a step has a single token: the last token of each sequence is then each token."""
    same = {LAST: TOKENS_FIRST, ONE_LAST: TOKENS_FIRST, FLAT_LAST: FLAT, PACKED: FLAT, ONE_PACKED: ONE_ROW}
    return same.get(form, form) in possible


def features_per_token(shape: tuple[int, ...], form: str) -> int:
    """Return how many numbers a token has."""
    if form in _BY_HEADS:
        return math.prod(shape[1:2] + shape[3:])
    rows = {FLAT: shape[:1],
            FLAT_HEADS: shape[1:2], FLAT_LAST: shape[:1], PACKED: shape[:1]}.get(form, shape[:2])  # fmt: skip
    return math.prod(shape) // max(math.prod(rows), 1)


def _batch_changes(form: str, shape: tuple[int, ...], step_tokens: StepTokens) -> tuple[LayoutChange, ...]:
    """Return the changes that bring a tensor to [sequences, tokens, ...]."""
    axes = list(range(len(shape)))
    if form in _BY_HEADS:
        return (transpose_change(0, 2, 1, *axes[3:]),)
    if form in (FLAT, FLAT_LAST, PACKED):
        return (unsqueeze_change(0),)
    if form == FLAT_HEADS:
        return transpose_change(1, 0, *axes[2:]), unsqueeze_change(0)
    if form == SHARED:
        return (expand_change(0, step_tokens.shape[0]),)
    return ()


def fit_tokens(
    reference_shape: tuple[int, ...],
    candidate_shape: tuple[int, ...],
    reference_form: str,
    candidate_form: str,
    step_tokens: tuple[StepTokens, StepTokens],
) -> LayoutFit:
    """Return the changes that bring two tensors with tokens to the same rows; columns are ignored."""
    if reference_form == candidate_form and reference_form in _AXES:
        return LayoutFit((), (), _AXES[reference_form])
    return LayoutFit(
        _batch_changes(reference_form, reference_shape, step_tokens[0]),
        _batch_changes(candidate_form, candidate_shape, step_tokens[1]),
        1,
    )


def squeezed_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without its dimensions of one."""
    return tuple(size for size in shape if size != 1)


def fit_shapes(
    reference_shape: tuple[int, ...], candidate_shape: tuple[int, ...], *, weight: bool = False
) -> LayoutFit | None:
    """Return the changes that bring two tensors without tokens to the same shape; None if none is certain."""
    if reference_shape == candidate_shape:
        return LayoutFit()
    if squeezed_shape(reference_shape) == squeezed_shape(candidate_shape):
        return LayoutFit((), (reshape_change(*reference_shape),))
    if weight and len(reference_shape) == 2 and reference_shape == candidate_shape[::-1]:
        return LayoutFit((), (transpose_change(1, 0),))
    return None
