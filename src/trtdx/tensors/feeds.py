"""What a model wants to be fed, and whether that is what it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import InputError, UnknownNameError
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    Array = np.ndarray[Any, Any]


class ModelInput(NamedTuple):
    """What a model wants to be fed: numbers are fixed sizes, names stand for sizes that may vary."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    optional: bool = False  # whether it may be left out

    def __str__(self) -> str:
        shape = "of any shape" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{self.dtype or 'any type'} {shape}"


def check_feeds(inputs: Mapping[str, ModelInput], feeds: Mapping[str, Any]) -> dict[str, Array]:
    """Return what is fed as arrays.

    Raises:
        InputError: something is missing, or of another type or shape than declared.
        UnknownNameError: something is fed that nobody wants.
    """
    import numpy as np

    for name in feeds:
        if name not in inputs:
            raise UnknownNameError("input", name, inputs, known_as=f"the model takes {abbreviate_list(inputs)}")
    missing = [spec for name, spec in inputs.items() if name not in feeds and not spec.optional]
    if missing:
        missing_inputs = "; ".join(f"{model_input.name}: {model_input}" for model_input in missing)
        raise InputError(f"{format_count(len(missing), 'input')} not given: {missing_inputs}")
    arrays = {name: np.asarray(feeds[name]) for name in inputs if name in feeds}
    for name, array in arrays.items():
        _check_array(inputs[name], array)
    return arrays


def _check_array(model_input: ModelInput, array: Array) -> None:
    if model_input.dtype and array.dtype.name != model_input.dtype:
        raise InputError(
            f"the input {model_input.name} is {array.dtype.name}, but the model wants {model_input}",
            fix=f"pass {model_input.name}.astype({model_input.dtype!r})",
        )
    if model_input.shape is None:
        return
    fits = len(array.shape) == len(model_input.shape) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(model_input.shape, array.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"the input {model_input.name} has shape {list(array.shape)}, but the model wants {model_input}"
        )
