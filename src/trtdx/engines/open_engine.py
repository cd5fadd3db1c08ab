"""A model opened on an engine: which engines can, and how."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trtdx.errors import InputError
from trtdx.tensors.taps import Place, parse_selector
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from trtdx.engines.engine import Engine


class EngineOptions(NamedTuple):
    """How a model is computed; an engine takes from it what it knows."""

    optimisation: str = "all"  # onnxruntime
    memory_bytes: int | None = None  # onnxruntime: of selected tensors at once
    dtype: str = "auto"  # torch
    attention: str = ""  # torch
    compiled: bool = False  # torch
    threads: int = 0
    settings: tuple[tuple[str, str], ...] = ()  # onnxruntime: of the session
    disabled: tuple[str, ...] = ()  # onnxruntime: optimisers by name


WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")


class ComputableModel(NamedTuple):
    """A model on disk, and the engines that can compute it, best first."""

    path: Path
    engines: tuple[str, ...]


def find_model(path_text: str) -> ComputableModel:
    """Return the model that a path means: a Hugging Face folder, an ONNX file, or a folder with one in it."""
    try:
        return _model_from_path(Path(path_text))
    except OSError as err:  # a folder that may not be looked into
        raise InputError(f"cannot read {path_text}: {err.strerror or err}") from err


def _model_from_path(path: Path) -> ComputableModel:
    if path.is_dir():
        return _model_from_folder(path)
    if not path.exists():
        raise InputError(f"there is no {path}")
    if path.suffix != ".onnx":
        raise InputError(
            f"{path} is not a model that can be computed here",
            fix="name a Hugging Face folder or an .onnx file; of a plan or engine, `trtdx inspect` tells what is in it",
        )
    return ComputableModel(path, ("onnxruntime", "tensorrt"))


def _model_from_folder(folder: Path) -> ComputableModel:
    """Return a folder's model; one with weights and an ONNX export beside them is the model, not the export."""
    graphs = sorted(folder.glob("*.onnx"))
    weights = any(any(folder.glob(pattern)) for pattern in WEIGHT_FILES)
    if (folder / "config.json").is_file() and (weights or not graphs):
        return ComputableModel(folder, ("torch",))
    if len(graphs) == 1:
        return ComputableModel(graphs[0], ("onnxruntime", "tensorrt"))
    if graphs:
        fix = f"name one of them: {abbreviate_list(graphs, 4)}"
        raise InputError(f"{folder} holds {len(graphs)} ONNX files", fix=fix)
    raise InputError(
        f"{folder} holds neither the config.json of a Hugging Face model nor an ONNX file",
        fix="name the folder of a Hugging Face model, or an .onnx file",
    )


def choose_engine(model: ComputableModel, requested: str) -> str:
    """Return the engine asked for, or the best."""
    if not requested or requested == "auto":
        return model.engines[0]
    if requested not in model.engines:
        raise InputError(
            f"{requested} cannot compute {model.path}",
            fix=f"use --engine {' or '.join(model.engines)}"
            + ("; export the model to ONNX for the others" if model.engines == ("torch",) else ""),
        )
    return requested


def open_engine(model: ComputableModel, kind: str, selector: str, options: EngineOptions) -> Engine:
    """Return the model on an engine, ready to be computed."""
    if kind == "torch":
        from trtdx.engines.torch.engine import TorchEngine

        return TorchEngine(
            model.path, selector, dtype=options.dtype, attention=options.attention,
            compiled=options.compiled, threads=options.threads,
        )  # fmt: skip
    if kind == "onnxruntime":
        from trtdx.engines.onnxruntime.engine import OrtEngine

        return OrtEngine(
            model.path, selector, optimisation=options.optimisation, budget_bytes=options.memory_bytes,
            threads=options.threads, settings=dict(options.settings), disabled=options.disabled,
        )  # fmt: skip
    from trtdx.engines.tensorrt.evaluate.engine import TrtEngine

    return TrtEngine(model.path, selector)


class SelectedPlaces(NamedTuple):
    """The places that a selector hits; where only a run can tell, those that may be."""

    places: list[Place]
    is_certain: bool = True


def select_places(model: ComputableModel, kind: str, selector: str) -> SelectedPlaces:
    """Return the places that a selector hits, without reading a weight where the engine can do without.

    Raises:
        InputError: it hits nothing; the nearest names are told.
    """
    parsed = parse_selector(selector)
    if kind == "onnxruntime":
        from trtdx.engines.onnxruntime.engine import onnx_model_places

        return SelectedPlaces(parsed.select_or_raise(onnx_model_places(model.path)))
    if kind == "torch":
        from trtdx.engines.torch.hooks import module_places as places_of
        from trtdx.engines.torch.hugging_face import load_outline

        all_places = places_of(load_outline(model.path))
        selected, possible = parsed.select(all_places), parsed.candidates(all_places)
        if not possible:
            raise parsed.nothing_selected_error(all_places)
        parsed.check_terms(all_places)
        return SelectedPlaces(selected or possible, is_certain=bool(selected))
    engine = open_engine(model, kind, "", EngineOptions())
    try:
        return SelectedPlaces(parsed.select_or_raise(engine.places()))
    finally:
        engine.close()
