"""What a capture was made from: the model's files and settings, and the machine. Two captures say what changed between them.

Weights are many gigabytes and are not read whole: their size and pieces spread evenly over each file are hashed.
Training moves every weight, so other weights are told; a single number changed by hand may not be.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.capture.store.format import CaptureHeader

WHOLE_BYTES = 4 << 20  # up to here a file is hashed whole
PIECES, PIECE_BYTES = 64, 1 << 16
MAX_CONFIG_BYTES = 1 << 18
MAX_FILES = 512
MAX_CHANGES = 8
CONFIG = "config.json"
_FOLDER_PATTERNS = (CONFIG, "generation_config.json", "*.safetensors", "*.bin", "*.py")
_GRAPH_FILE_NAMES = ("{name}", "{name}.data", "{name}_data", "{stem}.data", "{stem}.bin", "{stem}.weights")
# Not settings, or told otherwise.
_NOT_SETTINGS = ("caches", "notes", "model", "files", "config", "renamed", "lost", "cache")


def collect_origin(model: Path | None) -> dict[str, Any]:
    """Return what a capture's header says about the model it is of and the machine."""
    origin: dict[str, Any] = {"python": platform.python_version(), "cpu": _cpu_name()}
    if model is None:
        return origin
    origin["files"] = {path.name: _hash_file(path) for path in _model_files(model)}
    config = _read_config(model / CONFIG) if model.is_dir() else None
    return origin | ({"config": config} if config else {})


def describe_changes(before: CaptureHeader, after: CaptureHeader) -> list[str]:
    """Return what changed between two runs, in words: "torch 2.12.1 -> 2.13.0"; the likeliest cause first."""
    old, new = before.details, after.details
    changes = [] if before.engine == after.engine else [f"engine {before.engine or '?'} -> {after.engine or '?'}"]
    settings = _changed_config(old.get("config"), new.get("config"))
    changes += settings + _changed_files(old.get("files"), new.get("files"), known=CONFIG if settings else "")
    for name in sorted(old.keys() & new.keys() - set(_NOT_SETTINGS)):
        if old[name] != new[name]:
            changes.append(f"{name} {_shorten_value(old[name])} -> {_shorten_value(new[name])}")
    if before.made_by != after.made_by:
        changes.append(f"{before.made_by} -> {after.made_by}")
    return changes


def _changed_config(old: Any, new: Any) -> list[str]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return []
    before, after = dict(_flatten_settings(old)), dict(_flatten_settings(new))
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    lines = [
        f"{name} {_shorten_value(before.get(name, 'none'))} -> {_shorten_value(after.get(name, 'none'))} in config.json"
        for name in names
        if name not in ("transformers_version", "_name_or_path")
    ]
    more = [f"and {len(lines) - MAX_CHANGES} more settings in config.json"] if len(lines) > MAX_CHANGES else []
    return lines[:MAX_CHANGES] + more


def _flatten_settings(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _changed_files(old: Any, new: Any, *, known: str = "") -> list[str]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return []
    # An ONNX file may have been renamed: one file before and one after are the same model's.
    if len(old) == len(new) == 1:
        names = " / ".join(dict.fromkeys((*old, *new)))
        return [] if [*old.values()] == [*new.values()] else [f"the file {names} has other content"]
    other = [name for name in old if name in new and old[name] != new[name] and name != known]
    gone, more = [name for name in old if name not in new], [name for name in new if name not in old]
    words = (("other content", other), ("gone", gone), ("new", more))
    return [f"{what} in the model's folder: {abbreviate_list(names, 4)}" for what, names in words if names]


def _shorten_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _model_files(model: Path) -> list[Path]:
    if model.is_dir():
        paths = [path for pattern in _FOLDER_PATTERNS for path in sorted(model.glob(pattern))]
    else:
        names = (pattern.format(name=model.name, stem=model.stem) for pattern in _GRAPH_FILE_NAMES)
        paths = [model.parent / name for name in dict.fromkeys(names)]
    return [path for path in paths if path.is_file()][:MAX_FILES]


def _hash_file(path: Path) -> str:
    """Return a file's size and a hash of its content, or of pieces of it where it is large."""
    try:
        size = path.stat().st_size
        digest = hashlib.blake2b(digest_size=8)
        with path.open("rb") as stream:
            if size <= WHOLE_BYTES:
                digest.update(stream.read())
            else:
                for number in range(PIECES):
                    stream.seek((size - PIECE_BYTES) * number // (PIECES - 1))
                    digest.update(stream.read(PIECE_BYTES))
    except OSError as err:
        return f"not read: {err.strerror}"
    return f"{size} {digest.hexdigest()}"


def _read_config(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            return None
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def _cpu_name() -> str:
    """Return what the processor is called; kernels are chosen by it, and with them the order of sums."""
    try:
        with Path("/proc/cpuinfo").open() as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
