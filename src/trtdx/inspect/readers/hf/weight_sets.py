"""Which files of a directory are one set of weights, which are missing from it, and which belong to another save."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.formats.safetensors import read_header

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.inspect.readers.folder import Folder
    from trtdx.inspect.readers.hf.weights import Index

MOST_FILES = 2_000  # headers read; the largest models have about 200 shards
MOST_STRAY = 8  # files beside the model that are looked into


def doubled(folder: Folder, files: list[str], index: Index | None) -> list[str]:
    """Return files that hold the same tensors as the model's own, which are loaded too, in any order."""
    model_files = [name for name in files if (name in index.files if index else SHARD.fullmatch(name))]
    model_files = model_files or [name for name in files if name == "model.safetensors"]
    others = [name for name in files if name not in model_files and "consolidated" not in name]
    if not model_files or not others or len(others) > MOST_STRAY:
        return []
    model_tensors = set().union(*index.files.values()) if index else set()
    for name in () if index else model_files[:MOST_STRAY]:
        model_tensors |= read_header(folder.host, folder.at(name)).tensors.keys()
    return [
        n for n in others if _mostly(read_header(folder.host, folder.at(n)).tensors.keys(), model_tensors)
    ]


def _mostly(names: Iterable[str], known: set[str]) -> bool:
    tensors = list(names)
    return 2 * sum(tensor in known for tensor in tensors) > len(tensors)


SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")


def unindexed(files: list[str], index: Index | None) -> list[str]:
    """Return files beside the model that look like shards of it: TensorRT-LLM loads every one of them.

    Its loader (1.2.1, HfWeightLoader) takes all *.safetensors but those named "consolidated".
    """
    if index is None:
        return _other_generation(files)
    stems = {shard[1] for name in index.files if (shard := SHARD.fullmatch(name))}
    return [name for name in files if name not in index.files and _could_be_shard(name, stems)]


def _could_be_shard(name: str, stems: set[str]) -> bool:
    shard = SHARD.fullmatch(name)
    return shard[1] in stems if shard else name == "model.safetensors"


def _other_generation(files: list[str]) -> list[str]:
    """Return the shards of an incomplete set beside a complete one: model-00001-of-00002 beside ...-of-00004."""
    sets: dict[tuple[str, int], list[str]] = {}
    for name in files:
        if shard := SHARD.fullmatch(name):
            sets.setdefault((shard[1], int(shard[3])), []).append(name)
    complete_sets = [key for key, names in sets.items() if len(names) == key[1]]
    if len(sets) < 2 or len(complete_sets) != 1:
        return []
    return [
        name
        for key, names in sets.items()
        if key not in complete_sets and key[0] == complete_sets[0][0]
        for name in names
    ]


def missing_by_name(files: list[str]) -> list[str]:
    """Return the shards that the names of the others promise."""
    numbered = [shard for name in files if (shard := SHARD.fullmatch(name))]
    totals = {(shard[1], shard[3], shard[4]) for shard in numbered}
    if len(totals) != 1 or len(numbered) != len(files):
        return []
    stem, total, end = totals.pop()
    if int(total) > MOST_FILES:
        return []
    there = {int(shard[2]) for shard in numbered}
    return [f"{stem}-{n:05}-of-{total}{end}" for n in range(1, int(total) + 1) if n not in there]
