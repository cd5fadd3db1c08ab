"""The tensors in a model's files of weights, from their headers: those of all layers and experts in one row."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.formats.safetensors import DTYPES, read_header
from trtdx.inspect.profiles.dimensions import shape_text
from trtdx.model import Section
from trtdx.words import counted

if TYPE_CHECKING:
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact

STORING = ("hf", "checkpoint", "lora")
COLUMNS = ("name", "type", "shape", "tensors")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def stored_tensors(host: Host, artifact: Artifact) -> Section:
    """Return the tensors of a directory's safetensors files, or why they cannot be shown."""
    groups: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    names, faults = _files(host, artifact.path), []
    for name in names:
        header = read_header(host, f"{artifact.path.rstrip('/')}/{name}")
        faults += [f"{name} {header.problem}"] if header.problem else []
        for tensor, entry in header.tensors.items():
            key = (NUMBER.sub("{}", tensor), DTYPES.get(entry.dtype, entry.dtype), tuple(entry.shape))
            groups.setdefault(key, []).append(tensor)
    rows = tuple(
        (_spanned(alike), dtype, shape_text(shape), len(alike)) for (_, dtype, shape), alike in groups.items()
    )
    total = f"{counted(sum(map(len, groups.values())), 'tensor')} in {counted(len(names), 'file')}"
    note = "; ".join(faults) or (total if rows else _why_none(artifact, names))
    return Section("tensors", f"tensors of {artifact.path}", COLUMNS, rows, note)


def _files(host: Host, path: str) -> list[str]:
    try:
        return [name for name in host.entries(path) if name.endswith(".safetensors")]
    except InputError:
        return []


def _spanned(names: list[str]) -> str:
    """Return names that differ in numbers as one, with the spans: model.layers.{0..31}.mlp.up_proj.weight."""
    columns = zip(*([int(number) for number in NUMBER.findall(name)] for name in names), strict=True)
    spans = iter([(min(column), max(column)) for column in columns])

    def span(_: re.Match[str]) -> str:
        low, high = next(spans)
        return str(low) if low == high else f"{{{low}..{high}}}"

    return NUMBER.sub(span, names[0])


def _why_none(artifact: Artifact, files: list[str]) -> str:
    if files:
        return f"{counted(len(files), 'file')} of weights, and no tensor in any"
    kind = artifact.text("weights.format")
    if kind and kind != "safetensors":
        return f"the weights are stored as {kind}, which is not opened; only safetensors files tell their tensors"
    return "there are no files of weights in it"
