"""Other tools' dumps, read into a capture: TensorRT-LLM's, Polygraphy's, npz and safetensors.

A reader yields tensors rank by rank; what it cannot read it tells and passes over. Nothing is unpickled: torch
files go through `weights_only` loading, NPY objects are refused.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trtdx.capture.dumps.tensor_files import iter_npy, iter_npz, iter_polygraphy, iter_safetensors
from trtdx.capture.dumps.trtllm_dumps import (
    detect_folder_format,
    iter_cpp_dump,
    iter_hook_dump,
    iter_session_dump,
)
from trtdx.capture.store.format import CaptureError, CaptureHeader
from trtdx.capture.store.writer import CaptureWriter
from trtdx.errors import InputError
from trtdx.tensors.statistics import TensorSource
from trtdx.words import format_count, join_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.capture.dumps.tensor_files import DumpedTensor, DumpNotes
    from trtdx.host import Host

MAX_NOTES = 20


class DumpFormat(NamedTuple):
    """One tool's format."""

    engine: str
    read: Callable[[Host, str, DumpNotes], Iterator[DumpedTensor]]
    description: str


FORMATS = {
    "trtllm-session": DumpFormat("tensorrt_llm", iter_session_dump, "a dump of TensorRT-LLM's GenerationSession"),
    "trtllm-executor": DumpFormat("tensorrt_llm", iter_cpp_dump, "a dump of TensorRT-LLM's C++ executor"),
    "trtllm-hook": DumpFormat("tensorrt_llm", iter_hook_dump, "a dump of TensorRT-LLM's PyTorch debug hook"),
    "polygraphy": DumpFormat("polygraphy", iter_polygraphy, "Polygraphy's saved outputs or inputs"),
    "npz": DumpFormat("", iter_npz, "an npz file"),
    "npy": DumpFormat("", iter_npy, "an npy file"),
    "safetensors": DumpFormat("", iter_safetensors, "a safetensors file"),
}


class ImportResult(NamedTuple):
    """What came of an import."""

    records: int
    format: str
    notes: tuple[str, ...] = ()  # what was left out or is doubtful


def detect_dump_format(host: Host, path: str) -> str:
    """Return the format of a file or folder, by its name and what is in it."""
    kind = host.kind(path)
    if kind == "absent":
        raise InputError(f"{path} is not there")
    suffix = Path(path).suffix.removeprefix(".")
    detected = (
        detect_folder_format(host.files(path)) if kind == "directory" else "polygraphy" if suffix == "json" else suffix
    )
    if detected not in FORMATS:
        descriptions = join_words((dump_format.description for dump_format in FORMATS.values()), conjunction="or")
        raise InputError(f"{path} is not a dump that can be imported", fix=f"name {descriptions}")
    return detected


def import_capture(
    host: Host, path: str, folder: str, *, value_budget_bytes: int | None = None, runner: str = ""
) -> ImportResult:
    """Read a dump into a new capture, one tensor in memory at a time.

    Args:
        host: where it is read.
        path: a file or folder.
        folder: of the capture.
        value_budget_bytes: how many bytes of values to keep at most.
        runner: which run of a Polygraphy file, by name or number; the first where it is not told.

    Raises:
        InputError: it is of no known format, or nothing in it can be read.
    """
    kind = detect_dump_format(host, path)
    notes: list[str] = []
    count = 0
    if runner and kind != "polygraphy":
        raise InputError(f"{path} is {FORMATS[kind].description}, which has no runners")
    read = partial(iter_polygraphy, runner=runner) if runner else FORMATS[kind].read
    items = read(host, path, notes)
    for rank, some in groupby(items, key=lambda item: item.rank):
        header = CaptureHeader(
            run=f"imported from {path}", engine=FORMATS[kind].engine, rank=rank, details={"format": kind}
        )
        with CaptureWriter(folder, header, value_budget_bytes=value_budget_bytes) as writer:
            for item in some:
                writer.add(item.step, item.place, source_from_dump(item), values=True)
            count += writer.records
    if not count:
        raise InputError(f"nothing in {path} can be read", fix="; ".join(notes[:3]))
    more = (f"and {format_count(len(notes) - MAX_NOTES, 'file')} more",) if len(notes) > MAX_NOTES else ()
    return ImportResult(count, kind, (*notes[:MAX_NOTES], *more))


def source_from_dump(item: DumpedTensor) -> TensorSource:
    """Return where an imported tensor's elements lie."""
    import numpy as np

    raw = np.frombuffer(item.raw.data, np.uint8)
    address = raw.__array_interface__["data"][0] if raw.size else 0
    source = TensorSource(address, math.prod(item.raw.shape), item.raw.dtype, item.raw.shape, "cpu", raw)
    if source.bytes != raw.size:
        raise CaptureError(f"{item.place.name} has {raw.size} bytes where its shape needs {source.bytes}")
    return source
