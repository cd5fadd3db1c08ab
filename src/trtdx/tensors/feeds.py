"""What a model wants to be fed, and whether that is what it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import InputError, UnknownNameError
from trtdx.words import counted, listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    Array = np.ndarray[Any, Any]


class Input(NamedTuple):
    """What a model wants to be fed: numbers are fixed sizes, names stand for sizes that may vary."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    optional: bool = False  # whether it may be left out

    def __str__(self) -> str:
        shape = "of any shape" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{self.dtype or 'any type'} {shape}"


def checked_feeds(wanted: Mapping[str, Input], feeds: Mapping[str, Any]) -> dict[str, Array]:
    """Return what is fed as arrays.

    Raises:
        InputError: something is missing, or of another type or shape than declared.
        UnknownNameError: something is fed that nobody wants.
    """
    import numpy as np

    for name in feeds:
        if name not in wanted:
            raise UnknownNameError("input", name, wanted, known_as=f"the model takes {listed(wanted)}")
    missing = [spec for name, spec in wanted.items() if name not in feeds and not spec.optional]
    if missing:
        missing_inputs = "; ".join(f"{model_input.name}: {model_input}" for model_input in missing)
        raise InputError(f"{counted(len(missing), 'input')} not given: {missing_inputs}")
    arrays = {name: np.asarray(feeds[name]) for name in wanted if name in feeds}
    for name, array in arrays.items():
        _check(wanted[name], array)
    return arrays


def _check(wanted: Input, array: Array) -> None:
    if wanted.dtype and array.dtype.name != wanted.dtype:
        raise InputError(
            f"the input {wanted.name} is {array.dtype.name}, but the model wants {wanted}",
            fix=f"pass {wanted.name}.astype({wanted.dtype!r})",
        )
    if wanted.shape is None:
        return
    fits = len(array.shape) == len(wanted.shape) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(wanted.shape, array.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"the input {wanted.name} has shape {list(array.shape)}, but the model wants {wanted}"
        )
