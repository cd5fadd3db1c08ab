"""Which files of a directory are one set of weights, which are missing from it, and which belong to another save."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.formats.safetensors import read_safetensors_header

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.inspect.readers.folder import ArtifactFolder
    from trtdx.inspect.readers.hf.weights import WeightIndex

MAX_WEIGHT_FILES = 2_000  # headers read; the largest models have about 200 shards
MAX_STRAY_FILES = 8  # files beside the model that are looked into


def duplicate_weight_files(folder: ArtifactFolder, files: list[str], index: WeightIndex | None) -> list[str]:
    """Return files that hold the same tensors as the model's own, which are loaded too, in any order."""
    model_files = [name for name in files if (name in index.files if index else SHARD_NAME.fullmatch(name))]
    model_files = model_files or [name for name in files if name == "model.safetensors"]
    others = [name for name in files if name not in model_files and "consolidated" not in name]
    if not model_files or not others or len(others) > MAX_STRAY_FILES:
        return []
    model_tensors = set().union(*index.files.values()) if index else set()
    for name in () if index else model_files[:MAX_STRAY_FILES]:
        model_tensors |= read_safetensors_header(folder.host, folder.path_of(name)).tensors.keys()
    return [
        n
        for n in others
        if _are_mostly_known(read_safetensors_header(folder.host, folder.path_of(n)).tensors.keys(), model_tensors)
    ]


def _are_mostly_known(tensor_names: Iterable[str], model_tensors: set[str]) -> bool:
    tensors = list(tensor_names)
    return 2 * sum(tensor in model_tensors for tensor in tensors) > len(tensors)


SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")


def unindexed_shards(files: list[str], index: WeightIndex | None) -> list[str]:
    """Return files beside the model that look like shards of it: TensorRT-LLM loads every one of them.

    Its loader (1.2.1, HfWeightLoader) takes all *.safetensors but those named "consolidated".
    """
    if index is None:
        return _shards_of_incomplete_set(files)
    stems = {shard[1] for name in index.files if (shard := SHARD_NAME.fullmatch(name))}
    return [name for name in files if name not in index.files and _could_be_shard(name, stems)]


def _could_be_shard(name: str, stems: set[str]) -> bool:
    shard = SHARD_NAME.fullmatch(name)
    return shard[1] in stems if shard else name == "model.safetensors"


def _shards_of_incomplete_set(files: list[str]) -> list[str]:
    """Return the shards of an incomplete set beside a complete one: model-00001-of-00002 beside ...-of-00004."""
    sets: dict[tuple[str, int], list[str]] = {}
    for name in files:
        if shard := SHARD_NAME.fullmatch(name):
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


def missing_numbered_shards(files: list[str]) -> list[str]:
    """Return the shards that the names of the others promise."""
    numbered = [shard for name in files if (shard := SHARD_NAME.fullmatch(name))]
    totals = {(shard[1], shard[3], shard[4]) for shard in numbered}
    if len(totals) != 1 or len(numbered) != len(files):
        return []
    stem, total, end = totals.pop()
    if int(total) > MAX_WEIGHT_FILES:
        return []
    there = {int(shard[2]) for shard in numbered}
    return [f"{stem}-{n:05}-of-{total}{end}" for n in range(1, int(total) + 1) if n not in there]
