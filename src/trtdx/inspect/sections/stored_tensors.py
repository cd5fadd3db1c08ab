"""The tensors in a model's files of weights, from their headers: those of all layers and experts in one row."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.errors import InputError
from trtdx.formats.safetensors import FACT_DTYPES, read_safetensors_header
from trtdx.inspect.profiles.dimensions import shape_text
from trtdx.model import Section
from trtdx.words import format_count

if TYPE_CHECKING:
    from trtdx.host import Host
    from trtdx.inspect.facts.artifact import Artifact

STORING_KINDS = ("hf", "checkpoint", "lora")
TENSOR_COLUMNS = ("name", "type", "shape", "tensors")
NAME_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def stored_tensor_section(host: Host, artifact: Artifact) -> Section:
    """Return the tensors of a directory's safetensors files, or why they cannot be shown."""
    groups: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    names, faults = _safetensors_files(host, artifact.path), []
    for name in names:
        header = read_safetensors_header(host, f"{artifact.path.rstrip('/')}/{name}")
        faults += [f"{name} {header.problem}"] if header.problem else []
        for tensor, entry in header.tensors.items():
            key = (
                NAME_NUMBER.sub("{}", tensor),
                FACT_DTYPES.get(entry.dtype, entry.dtype),
                tuple(entry.shape),
            )
            groups.setdefault(key, []).append(tensor)
    rows = tuple(
        (_merge_numbered_names(alike), dtype, shape_text(shape), len(alike))
        for (_, dtype, shape), alike in groups.items()
    )
    total = f"{format_count(sum(map(len, groups.values())), 'tensor')} in {format_count(len(names), 'file')}"
    note = "; ".join(faults) or (total if rows else _why_no_tensors(artifact, names))
    return Section("tensors", f"tensors of {artifact.path}", TENSOR_COLUMNS, rows, note)


def _safetensors_files(host: Host, path: str) -> list[str]:
    try:
        return [name for name in host.entries(path) if name.endswith(".safetensors")]
    except InputError:
        return []


def _merge_numbered_names(names: list[str]) -> str:
    """Return names that differ in numbers as one, with the spans: model.layers.{0..31}.mlp.up_proj.weight."""
    columns = zip(*([int(number) for number in NAME_NUMBER.findall(name)] for name in names), strict=True)
    spans = iter([(min(column), max(column)) for column in columns])

    def span(_: re.Match[str]) -> str:
        low, high = next(spans)
        return str(low) if low == high else f"{{{low}..{high}}}"

    return NAME_NUMBER.sub(span, names[0])


def _why_no_tensors(artifact: Artifact, files: list[str]) -> str:
    if files:
        return f"{format_count(len(files), 'file')} of weights, and no tensor in any"
    kind = artifact.text("weights.format")
    if kind and kind != "safetensors":
        return f"the weights are stored as {kind}, which is not opened; only safetensors files tell their tensors"
    return "there are no files of weights in it"
