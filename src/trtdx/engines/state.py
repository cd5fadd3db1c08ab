"""Where a generation stands, as a value: it can be kept in a folder after any step and taken up again.

The folder holds `state.json` and one `.npy` for each array. `state.json` is replaced last and in one go, so that a
process killed while saving leaves the state before.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.capture.dtypes import numpy_dtype
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np

    Array = np.ndarray[Any, Any]

STATE_VERSION = 1
_STATE = "state.json"


class Sampling(NamedTuple):
    """How the next token is chosen: the likeliest at temperature 0, else drawn from what the limits leave."""

    temperature: float = 0.0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    seed: int = 0
    eos: tuple[int, ...] = ()  # a row that chose one of these is done
    pad: int = 0  # what a row that is done goes on with, and what fills shorter prompts on their left


class State(NamedTuple):
    """All that the next step depends on."""

    tokens: Array  # [batch, length]: prompts, filled up on the left, and what was chosen since
    mask: Array  # [batch, length]: 1 where there is a token
    done: Array  # [batch]
    past: Mapping[str, Array]  # the cache, by the names of the model's inputs
    cached: int  # how many positions are in the cache
    step: int  # how many steps were computed
    sampling: Sampling
    generator: tuple[int, int]  # where the random numbers stand: PCG64's state and increment


class _Kept(msgspec.Struct, frozen=True):
    """An array's file and type."""

    file: str
    dtype: str


class _Document(msgspec.Struct, frozen=True):
    """`state.json`."""

    schema_version: int
    step: int
    cached: int
    sampling: Sampling
    generator: tuple[str, str]  # 128 bits each: more than a JSON number holds
    arrays: dict[str, _Kept]  # "tokens", "mask", "done", "past/<input>"


def save_state(state: State, folder: str | Path) -> None:
    """Keep a state in a folder, in the place of one that was there."""
    at = Path(folder)
    arrays = {"tokens": state.tokens, "mask": state.mask, "done": state.done}
    arrays |= {f"past/{name}": array for name, array in state.past.items()}
    kept = {
        name: _Kept(f"step{state.step:06}-{number:03}.npy", array.dtype.name)
        for number, (name, array) in enumerate(arrays.items())
    }
    generator = (str(state.generator[0]), str(state.generator[1]))
    document = _Document(STATE_VERSION, state.step, state.cached, state.sampling, generator, kept)
    try:
        at.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            _write_array(at / kept[name].file, array)
        part = at / f"{_STATE}.part"
        part.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        part.replace(at / _STATE)
    except OSError as err:
        raise InputError(f"cannot keep the state in {at}: {err.strerror or err}") from err
    _sweep(at, {each.file for each in kept.values()})


def _write_array(path: Path, array: Array) -> None:
    import numpy as np

    if array.dtype.isbuiltin != 1:  # bfloat16 and the like, which NPY cannot name
        array = array.view(f"uint{8 * array.itemsize}")
    np.save(path, array, allow_pickle=False)


def _sweep(folder: Path, wanted: Iterable[str]) -> None:
    """Remove the arrays of the state before."""
    for path in folder.glob("step*-*.npy"):
        if path.name not in wanted:
            with contextlib.suppress(OSError):
                path.unlink()


def load_state(folder: str | Path) -> State:
    """Return the state kept in a folder.

    Raises:
        InputError: there is none, or it is not whole.
    """
    at = Path(folder)
    try:
        document = msgspec.json.decode((at / _STATE).read_bytes(), type=_Document)
        arrays = {name: _read_array(at, each) for name, each in document.arrays.items()}
        first, second = map(int, document.generator)
    except OSError as err:
        raise InputError(
            f"no state can be read from {at}: {err.strerror or err}",
            fix="name a folder that save_state wrote",
        ) from err
    except (ValueError, msgspec.MsgspecError) as err:
        raise InputError(f"the state in {at} is damaged: {err}") from err
    if document.schema_version > STATE_VERSION or not {"tokens", "mask", "done"} <= arrays.keys():
        raise InputError(f"the state in {at} is not one this trtdx can read", fix="update trtdx")
    past = {name.removeprefix("past/"): array for name, array in arrays.items() if name.startswith("past/")}
    return State(
        arrays["tokens"], arrays["mask"], arrays["done"], past, document.cached, document.step,
        document.sampling, (first, second),
    )  # fmt: skip


def _read_array(folder: Path, kept: _Kept) -> Array:
    import numpy as np

    if Path(kept.file).name != kept.file:
        raise ValueError(f"{kept.file!r} is not a file of the folder")
    array: Array = np.load(folder / kept.file, allow_pickle=False)
    return array if array.dtype.name == kept.dtype else array.view(numpy_dtype(kept.dtype))
