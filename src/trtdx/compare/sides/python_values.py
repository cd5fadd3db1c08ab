"""What a script hands in as a side, as a `Spec`: texts, paths, opened captures, live modules, arrays by name."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.capture.dumps.tensor_files import split_export_key
from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.reader import Capture
from trtdx.capture.store.writer import CaptureWriter
from trtdx.compare.sides.side import SideSpec, parse_side
from trtdx.errors import InputError
from trtdx.optional import import_optional
from trtdx.tensors.statistics import source_from_array
from trtdx.tensors.taps import place_from_name

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.engines.engine import Engine
    from trtdx.host import Host


class LiveModule(SideSpec, frozen=True):
    """The caller's own torch module. Runs that change it, to try out mistakes or other types, use a copy."""

    module: Any = None
    copied: bool = True

    @property
    def text(self) -> str:
        return f"live {type(self.module).__name__}"

    def open(self, selector: str = "", **changed: str) -> Engine:
        from trtdx.engines.torch.engine import TorchEngine

        return TorchEngine(self._copy_module(**changed) if self.copied or changed else self.module, selector)

    def _copy_module(self, dtype: str = "", attention: str = "", **_: str) -> Any:
        module = copy.deepcopy(self.module)
        if dtype:
            module = module.to(getattr(import_optional("torch", extra="torch", purpose="run a module"), dtype))
        if attention and hasattr(module, "set_attn_implementation"):
            try:
                module.set_attn_implementation(attention)
            except ValueError as err:  # Gemma 2 and GPT-OSS have no sdpa
                raise InputError(f"{type(module).__name__} cannot be computed with {attention} attention") from err
        return module


def spec_from_value(host: Host, value: Any, folder: Path, *, copied: bool = True) -> SideSpec:
    """Return what was handed in as one side of a comparison.

    It may be a text or path, an opened capture, a torch module, or arrays by name. Arrays go into the folder as a
    capture, and a module's settings too. A module is copied before it is run where it is taken apart: the reference's.

    Raises:
        InputError: it is nothing that can be compared.
    """
    if isinstance(value, (str, PathLike)):
        return parse_side(host, str(value))
    if isinstance(value, Capture):
        return SideSpec("capture", str(value.folder))
    if hasattr(value, "named_modules"):
        return LiveModule("hf", str(_write_config(value, folder)), {}, value, copied)
    if isinstance(value, Mapping):
        _write_capture(value, folder)
        return SideSpec("capture", str(folder))
    raise InputError(
        f"a {type(value).__name__} cannot be compared",
        fix="give a text such as 'hf:DIR', a path, a Capture, a torch module, or arrays by name",
    )


def _write_config(module: Any, folder: Path) -> Path:
    """Write a module's config where that of a model's folder is."""
    folder.mkdir(parents=True)
    config: Any = getattr(module, "config", None)
    text = config.to_json_string() if hasattr(config, "to_json_string") else "{}"
    (folder / "config.json").write_text(text, "utf-8")
    return folder


def _write_capture(arrays: Mapping[str, Any], folder: Path) -> None:
    """Write arrays by name as a capture; "step3/name" is of step 3."""
    if not arrays:
        raise InputError("there are no arrays in it", fix="give arrays by name")
    named = sorted(
        ((*split_export_key(str(name)), array) for name, array in arrays.items()), key=lambda parts: parts[:2]
    )
    with CaptureWriter(folder, CaptureHeader(run="arrays", details={"format": "arrays"}), parquet=False) as writer:
        for _, step, name, array in named:
            writer.add(step, place_from_name(name), source_from_array(_numpy_array(name, array)), values=True)


def write_arrays(arrays: Mapping[str, Any], file: Path) -> Path:
    """Write what a model is fed as an npz file."""
    np.savez(file, **{str(name): _numpy_array(str(name), array) for name, array in arrays.items()})
    return file


def _numpy_array(name: str, array: Any) -> Any:
    """Return an array or tensor as an array of numbers."""
    if hasattr(array, "detach"):  # torch
        from trtdx.engines.torch.values import array_from_tensor

        return array_from_tensor(array.contiguous())
    plain = np.ascontiguousarray(array)
    if plain.dtype.kind in "OSUmM":
        raise InputError(f"{name} is not an array of numbers but of {plain.dtype}")
    return plain
