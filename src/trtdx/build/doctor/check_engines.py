"""Whether engines in the project are newer than the checkpoints they were built from, and whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.build.doctor.cleanup import CleanupCommands
from trtdx.build.doctor.trouble import report_trouble
from trtdx.formats.safetensors import TRUNCATED as CUT_WEIGHTS
from trtdx.formats.safetensors import read_safetensors_header
from trtdx.formats.tensorrt.plan_header import TRUNCATED, read_plan_header
from trtdx.words import abbreviate_list, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trtdx.build.doctor.project import BuildProject
    from trtdx.build.nouns import TreeTrouble

STALE_ENGINE, HALF_WRITTEN = "DX1199", "DX1188"
MAX_CONFIG_BYTES = 4 << 20
SECOND_NS = 1_000_000_000


class ModelFolder(NamedTuple):
    """A folder with a config.json and the files of all ranks."""

    path: Path
    config: dict[str, Any]
    files: tuple[Path, ...]

    @property
    def oldest_ns(self) -> int:
        return min(path.stat().st_mtime_ns for path in self.files)

    @property
    def newest(self) -> Path:
        return max((*self.files, self.path / "config.json"), key=lambda path: path.stat().st_mtime_ns)


def check_engines(project: BuildProject) -> Iterator[TreeTrouble]:
    """Engines are whole, and were built after their checkpoint was written."""
    engines = list(_find_folders(project, "rank*.engine", "build_config"))
    checkpoints = list(_find_folders(project, "rank*.safetensors", "architecture"))
    yield from _check_weights(project, checkpoints)
    for engine in engines:
        yield from _check_plans(project, engine)
        checkpoint = _checkpoint_of(engine, checkpoints)
        if checkpoint is not None:
            yield from _check_age(project, engine, checkpoint)


def _find_folders(project: BuildProject, pattern: str, key: str) -> Iterator[ModelFolder]:
    for file in project.files:
        if file.path.name != "config.json" or not 0 < file.size <= MAX_CONFIG_BYTES:
            continue
        files = tuple(sorted(file.path.parent.glob(pattern)))
        if not files:
            continue
        try:
            config = msgspec.json.decode(file.path.read_bytes())
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(config, dict) and key in config:
            yield ModelFolder(file.path.parent, config, files)


def _check_plans(project: BuildProject, engine: ModelFolder) -> Iterator[TreeTrouble]:
    broken = [
        path
        for path in engine.files
        if read_plan_header(project.host, str(path)).fault == TRUNCATED or not path.stat().st_size
    ]
    if broken:
        yield report_trouble(
            HALF_WRITTEN,
            project,
            None,
            [(project.show(path), "breaks off") for path in broken],
            command=CleanupCommands(project).remove(broken),
            first=f"the engine {project.show(broken[0])} breaks off",
            more=f", and {format_count(len(broken) - 1, 'other file')} too" if len(broken) > 1 else "",
        )


def _check_weights(project: BuildProject, checkpoints: list[ModelFolder]) -> Iterator[TreeTrouble]:
    paths = [path for checkpoint in checkpoints for path in checkpoint.files]
    headers = {path: read_safetensors_header(project.host, str(path)) for path in paths}
    broken = [path for path, header in headers.items() if header.fault == CUT_WEIGHTS]
    if broken:
        yield report_trouble(
            HALF_WRITTEN,
            project,
            None,
            [(project.show(path), headers[path].problem) for path in broken[:8]],
            command=CleanupCommands(project).remove(broken),
            first=f"the checkpoint {project.show(broken[0])} {headers[broken[0]].problem}",
            more=f", and {format_count(len(broken) - 1, 'other file')} too" if len(broken) > 1 else "",
            explains=(STALE_ENGINE,),
        )


def _checkpoint_of(engine: ModelFolder, checkpoints: list[ModelFolder]) -> ModelFolder | None:
    """Return the checkpoint an engine can have been built from: the same model and ranks; the nearest of several."""
    model = engine.config.get("pretrained_config")
    fitting = [
        checkpoint
        for checkpoint in checkpoints
        if isinstance(model, dict)
        and all(
            model.get(key) == checkpoint.config.get(key) for key in ("architecture", "num_hidden_layers", "hidden_size")
        )
        and len(checkpoint.files) == len(engine.files)
    ]
    fitting.sort(key=lambda checkpoint: -len(set(checkpoint.path.parts) & set(engine.path.parts)))
    return fitting[0] if len(fitting) == 1 or (fitting and _shares_name(engine.path, fitting[0].path)) else None


def _shares_name(first: Path, second: Path) -> bool:
    words = {"engine", "engines", "ckpt", "checkpoint", "checkpoints", "trt", "llm", "out", "output"}
    names = [set(path.name.lower().replace("-", "_").split("_")) - words for path in (first, second)]
    return bool(names[0] & names[1])


def _check_age(project: BuildProject, engine: ModelFolder, checkpoint: ModelFolder) -> Iterator[TreeTrouble]:
    changed = _changed_settings(engine, checkpoint)
    newest = checkpoint.newest
    if not changed and newest.stat().st_mtime_ns <= engine.oldest_ns + SECOND_NS:
        return
    quote = CleanupCommands(project).quote
    evidence = (
        [(project.show(newest), "is newer than the engine")] if newest.stat().st_mtime_ns > engine.oldest_ns else []
    )
    evidence += [(project.show(checkpoint.path / "config.json"), change) for change in changed[:6]]
    yield report_trouble(
        STALE_ENGINE,
        project,
        None,
        evidence,
        command=CleanupCommands(project).remove(engine.files),
        engine=abbreviate_list((project.show(path) for path in engine.files), 2),
        verb="was" if len(engine.files) == 1 else "were",
        checkpoint=project.show(checkpoint.path),
        reason=f": {abbreviate_list(changed, 2)}" if changed else f": {project.show(newest)} is newer",
        again=f"trtllm-build --checkpoint_dir {quote(checkpoint.path)} --output_dir {quote(engine.path)}",
    )


def _changed_settings(engine: ModelFolder, checkpoint: ModelFolder) -> list[str]:
    """Return what the checkpoint says now and the engine was not built with."""
    model = engine.config.get("pretrained_config", {})
    keys = ("dtype", "quantization", "vocab_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    return [
        f"{key}: {_short(model[key])} → {_short(checkpoint.config[key])}"
        for key in keys
        if key in model and key in checkpoint.config and not _agrees(model[key], checkpoint.config[key])
    ]


def _agrees(built: Any, stated: Any) -> bool:
    """Whether a value is the one built with; an engine's configuration lists defaults that a checkpoint leaves out."""
    if isinstance(built, dict) and isinstance(stated, dict):
        return all(_agrees(built[key], value) for key, value in stated.items() if key in built)
    return bool(built == stated)


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode() if isinstance(value, dict | list) else str(value)
    return text if len(text) < 60 else text[:57] + "..."
