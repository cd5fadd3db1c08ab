"""A model opened on an engine: which engines can, and how."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trtdx.capture.taps import parse_selector
from trtdx.errors import InputError

if TYPE_CHECKING:
    from trtdx.capture.taps import Place
    from trtdx.engines.engine import Engine

ENGINES = ("torch", "onnxruntime", "tensorrt")


class Options(NamedTuple):
    """How a model is computed; an engine takes from it what it knows."""

    optimisation: str = "all"  # onnxruntime
    memory_bytes: int | None = None  # onnxruntime: of selected tensors at once
    dtype: str = "auto"  # torch
    attention: str = ""  # torch
    compiled: bool = False  # torch
    threads: int = 0
    settings: tuple[tuple[str, str], ...] = ()  # onnxruntime: of the session
    disabled: tuple[str, ...] = ()  # onnxruntime: optimisers by name


class Model(NamedTuple):
    """A model on disk, and the engines that can compute it, best first."""

    path: Path
    engines: tuple[str, ...]


def find_model(given: str) -> Model:
    """Return the model that a path means: a Hugging Face folder, an ONNX file, or a folder with one in it."""
    try:
        return _model_at(Path(given))
    except OSError as err:  # a folder that may not be looked into
        raise InputError(f"cannot read {given}: {err.strerror or err}") from err


def _model_at(path: Path) -> Model:
    if path.is_dir():
        if (path / "config.json").is_file() and not any(path.glob("*.onnx")):
            return Model(path, ("torch",))
        files = sorted(path.glob("*.onnx"))
        if len(files) != 1:
            raise InputError(
                f"{path} has {len(files) or 'no'} ONNX files and no model of Hugging Face",
                fix="name a folder with a config.json, or an .onnx file",
            )
        return Model(files[0], ("onnxruntime", "tensorrt"))
    if not path.exists():
        raise InputError(f"there is no {path}")
    if path.suffix != ".onnx":
        raise InputError(
            f"{path} is no model that can be computed here",
            fix="name a Hugging Face folder or an .onnx file; of a plan or engine, `trtdx inspect` tells what is in it",
        )
    return Model(path, ("onnxruntime", "tensorrt"))


def chosen_engine(model: Model, wanted: str) -> str:
    """Return the engine asked for, or the best."""
    if not wanted or wanted == "auto":
        return model.engines[0]
    if wanted not in model.engines:
        raise InputError(
            f"{wanted} cannot compute {model.path}",
            fix=f"use --engine {' or '.join(model.engines)}"
            + ("; export the model to ONNX for the others" if model.engines == ("torch",) else ""),
        )
    return wanted


def open_engine(model: Model, kind: str, selector: str, options: Options) -> Engine:
    """Return the model on an engine, ready to be computed."""
    if kind == "torch":
        from trtdx.engines.torch_model import TorchEngine

        return TorchEngine(
            model.path, selector, dtype=options.dtype, attention=options.attention,
            compiled=options.compiled, threads=options.threads,
        )  # fmt: skip
    if kind == "onnxruntime":
        from trtdx.engines.onnxruntime import OrtEngine

        return OrtEngine(
            model.path, selector, optimisation=options.optimisation, budget_bytes=options.memory_bytes,
            threads=options.threads, settings=dict(options.settings), disabled=options.disabled,
        )  # fmt: skip
    from trtdx.engines.tensorrt.engine import TrtEngine

    return TrtEngine(model.path, selector)


class Hit(NamedTuple):
    """The places that a selector hits; where only a run can tell, those that may be."""

    places: list[Place]
    sure: bool = True


def places_in(model: Model, kind: str, selector: str) -> Hit:
    """Return the places that a selector hits, without reading a weight where the engine can do without.

    Raises:
        InputError: it hits nothing; the nearest names are told.
    """
    parsed = parse_selector(selector)
    if kind == "onnxruntime":
        from trtdx.engines.onnxruntime import places

        return Hit(parsed.selected(places(model.path)))
    if kind == "torch":
        from trtdx.engines.torch import places as places_of
        from trtdx.engines.torch_load import outline

        known = places_of(outline(model.path))
        found, possible = parsed.select(known), parsed.candidates(known)
        if not possible:
            raise parsed.nothing_among(known)
        parsed.check_terms(known)
        return Hit(found or possible, sure=bool(found))
    engine = open_engine(model, kind, "", Options())
    try:
        return Hit(parsed.selected(engine.places()))
    finally:
        engine.close()
