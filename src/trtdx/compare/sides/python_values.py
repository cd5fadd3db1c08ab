"""What a script hands in as a side, as a `Spec`: texts, paths, opened captures, live modules, arrays by name."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.capture.dumps.files import name_parts
from trtdx.capture.store.format import Header
from trtdx.capture.store.reader import Capture
from trtdx.capture.store.writer import CaptureWriter
from trtdx.compare.sides.side import Spec, parse_side
from trtdx.errors import InputError
from trtdx.optional import need
from trtdx.tensors.statistics import source_from_array
from trtdx.tensors.taps import place_of

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.engines.engine import Engine
    from trtdx.host import Host


class Live(Spec, frozen=True):
    """A torch module of the caller's. Runs that change it, to try out mistakes or other types, get a copy."""

    module: Any = None
    copied: bool = True

    @property
    def text(self) -> str:
        return f"live {type(self.module).__name__}"

    def open(self, selector: str = "", **changed: str) -> Engine:
        from trtdx.engines.torch.engine import TorchEngine

        return TorchEngine(self._copy(**changed) if self.copied or changed else self.module, selector)

    def _copy(self, dtype: str = "", attention: str = "", **_: str) -> Any:
        module = copy.deepcopy(self.module)
        if dtype:
            module = module.to(getattr(need("torch", extra="torch", to="run a module"), dtype))
        if attention and hasattr(module, "set_attn_implementation"):
            module.set_attn_implementation(attention)
        return module


def spec_of(host: Host, given: Any, folder: Path, *, copied: bool = True) -> Spec:
    """Return what was handed in as one side of a comparison.

    It may be a text or path, an opened capture, a torch module, or arrays by name. Arrays go into the folder as a
    capture, and a module's settings too. A module is copied before it is run where it is taken apart: the reference's.

    Raises:
        InputError: it is nothing that can be compared.
    """
    if isinstance(given, (str, PathLike)):
        return parse_side(host, str(given))
    if isinstance(given, Capture):
        return Spec("capture", str(given.folder))
    if hasattr(given, "named_modules"):
        return Live("hf", str(_settings_of(given, folder)), {}, given, copied)
    if isinstance(given, Mapping):
        _capture_of(given, folder)
        return Spec("capture", str(folder))
    raise InputError(
        f"a {type(given).__name__} cannot be compared",
        fix="give a text such as 'hf:DIR', a path, a Capture, a torch module, or arrays by name",
    )


def _settings_of(module: Any, folder: Path) -> Path:
    """Write a module's config where that of a model's folder is."""
    folder.mkdir(parents=True)
    config: Any = getattr(module, "config", None)
    text = config.to_json_string() if hasattr(config, "to_json_string") else "{}"
    (folder / "config.json").write_text(text, "utf-8")
    return folder


def _capture_of(arrays: Mapping[str, Any], folder: Path) -> None:
    """Write arrays by name as a capture; "step3/name" is of step 3."""
    if not arrays:
        raise InputError("there are no arrays in it", fix="give arrays by name")
    named = sorted(
        ((*name_parts(str(name)), array) for name, array in arrays.items()), key=lambda parts: parts[:2]
    )
    with CaptureWriter(folder, Header(run="arrays", details={"format": "arrays"}), parquet=False) as writer:
        for _, step, name, array in named:
            writer.add(step, place_of(name), source_from_array(_plain(name, array)), values=True)


def saved_arrays(arrays: Mapping[str, Any], file: Path) -> Path:
    """Write what a model is fed as an npz file."""
    np.savez(file, **{str(name): _plain(str(name), array) for name, array in arrays.items()})
    return file


def _plain(name: str, array: Any) -> Any:
    """Return an array or tensor as an array of numbers."""
    if hasattr(array, "detach"):  # torch
        from trtdx.engines.torch.values import array_from_tensor

        return array_from_tensor(array.contiguous())
    plain = np.ascontiguousarray(array)
    if plain.dtype.kind in "OSUmM":
        raise InputError(f"{name} is not an array of numbers but of {plain.dtype}")
    return plain
