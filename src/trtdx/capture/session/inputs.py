"""What a model is fed: from files, from text, or made up where nobody says."""

from __future__ import annotations

import math
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.capture.dumps.import_dump import FORMATS, detect_dump_format
from trtdx.errors import InputError, TrtdxError
from trtdx.optional import import_optional, is_installed
from trtdx.tensors.dtypes import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtdx.engines.engine import Array
    from trtdx.host import Host
    from trtdx.tensors.feeds import ModelInput

DUMMY_PROMPT = tuple(range(3, 11))  # small numbers: in every vocabulary, and seldom special
DUMMY_LENGTH = 8  # of axes that may have any length, other than the batch
MAX_DUMMY_ELEMENTS = 1 << 28  # elements


def feeds_from_file(host: Host, path: str) -> Iterator[dict[str, Array]]:
    """Yield what each run is fed, from an npz, safetensors or Polygraphy file; several steps in it are several runs."""
    import numpy as np

    notes: list[str] = []
    items = FORMATS[detect_dump_format(host, path)].read(host, path, notes)
    empty = True
    for _, some in groupby(items, key=lambda item: item.step):
        empty = False
        yield {
            item.place.name: np.frombuffer(item.raw.data, numpy_dtype(item.raw.dtype)).reshape(item.raw.shape)
            for item in some
        }
    if notes:
        raise InputError(f"not all of {path} can be read: {notes[0]}")
    if empty:
        raise InputError(f"{path} has no tensors in it")


def dummy_feeds(inputs: Mapping[str, ModelInput], seed: int = 0) -> dict[str, Array]:
    """Return numbers in the place of what nobody gave: reals around 0, ones for whole numbers and truths."""
    import numpy as np

    source = np.random.default_rng(seed)
    feeds = {}
    for name, model_input in inputs.items():
        shape = [_dummy_size(dim) for dim in model_input.shape or ()]
        if math.prod(shape) > MAX_DUMMY_ELEMENTS:
            raise InputError(
                f"no input was given, and {name} ({model_input}) is too large to make one up",
                fix="use --inputs FILE",
            )
        real = "float" in model_input.dtype
        numbers: Any = source.standard_normal(shape) if real else np.ones(shape)
        feeds[name] = np.asarray(numbers).astype(numpy_dtype(model_input.dtype or "float32"))
    return feeds


def _dummy_size(dim: int | str) -> int:
    if isinstance(dim, int):
        return dim
    return 1 if "batch" in dim.lower() else DUMMY_LENGTH


def parse_token_ids(texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return token ids, a row for each text: "1,15,27" or "1 15 27"."""
    rows = []
    for text in texts:
        try:
            row = tuple(int(part) for part in text.replace(",", " ").split())
        except ValueError as err:
            raise InputError(f"{text!r} is not a list of token ids", fix="write ids as 1,15,27") from err
        if not row or min(row) < 0:
            raise InputError(f"{text!r} is not a list of token ids", fix="write ids as 1,15,27")
        rows.append(row)
    return tuple(rows)


def open_token_decoder(model: object) -> Callable[[int], str] | None:
    """Return what tells a token's text, quoted, by the tokenizer beside a model; None where there is none to be read."""
    file = _tokenizer_file(Path(model)) if isinstance(model, str) else None
    if file is None or not is_installed("tokenizers"):
        return None
    try:
        tokenizer = _open_tokenizer(file)
    except TrtdxError:
        return None
    return lambda token: repr(tokenizer.decode([token], skip_special_tokens=False))


def _tokenizer_file(model: Path) -> Path | None:
    file = (model if model.is_dir() else model.parent) / "tokenizer.json"
    return file if file.is_file() else None


def _open_tokenizer(file: Path) -> Any:
    tokenizers = import_optional("tokenizers", extra="torch", purpose="read prompts as text")
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as err:  # the package raises plain Exception
        raise InputError(f"{file} is not a tokenizer: {err}") from err


def token_ids_from_texts(texts: Sequence[str], model: Path) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of texts by the tokenizer beside a model."""
    file = _tokenizer_file(model)
    if file is None:
        folder = model if model.is_dir() else model.parent
        raise InputError(
            f"{folder} has no tokenizer.json to read a prompt with", fix="give token ids: --tokens 1,15,27"
        )
    tokenizer = _open_tokenizer(file)
    return tuple(tuple(tokenizer.encode(text).ids) for text in texts)
