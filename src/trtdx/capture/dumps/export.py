"""A capture's values as npz or safetensors, for other tools; one tensor in memory at a time."""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from trtdx.capture.store.format import CaptureError
from trtdx.errors import InputError
from trtdx.formats.npy import encode_npy_header
from trtdx.tensors.dtypes import DTYPES
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np

    from trtdx.capture.store.reader import Capture, TensorRecord

    Array = np.ndarray[Any, Any]

WIDENED_NOTE = "bfloat16 and float8 values were widened to float32, which npz files can hold"


class ExportResult(NamedTuple):
    """What came of an export."""

    tensors: int
    notes: tuple[str, ...] = ()


def export_capture(capture: Capture, path: str, records: Iterable[TensorRecord] | None = None) -> ExportResult:
    """Write the values kept, or those of some records, to a new `.npz` or `.safetensors` file.

    Raises:
        InputError: the suffix is another, or the file exists.
        CaptureError: no values were kept, or the disk refuses.
    """
    target = Path(path)
    write = {".npz": _write_npz, ".safetensors": _write_safetensors}.get(target.suffix)
    if write is None:
        raise InputError(f"{path} is neither .npz nor .safetensors")
    if target.exists():
        raise InputError(f"{path} already exists", fix="name a new file")
    every = list(capture.records() if records is None else records)
    with_values = [record for record in every if record.kept]
    if not with_values:
        raise CaptureError("no values were kept in this capture", fix="capture them with --values")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            notes = write(stream, capture, list(zip(_record_keys(with_values), with_values, strict=True)))
        part.replace(target)
    except OSError as err:
        raise CaptureError(f"cannot write {path}: {err.strerror or err}") from err
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    without = len(every) - len(with_values)
    return ExportResult(
        len(with_values),
        (*notes, *((f"{format_count(without, 'tensor')} with statistics only",) if without else ())),
    )


def _record_keys(records: list[TensorRecord]) -> Iterator[str]:
    """Yield a key for each record: its name, with rank and step where there are several of them."""
    several = len({(record.rank, record.step) for record in records}) > 1 or any(
        record.rank or record.step for record in records
    )
    counts: dict[str, int] = {}
    for record in records:
        key = f"rank{record.rank}/step{record.step}/{record.name}" if several else record.name
        counts[key] = counts.get(key, 0) + 1
        yield key if counts[key] == 1 else f"{key}#{counts[key]}"


def _write_npz(stream: BinaryIO, capture: Capture, named: list[tuple[str, TensorRecord]]) -> tuple[str, ...]:
    widened = False
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for key, record in named:
            array = capture.values(record)
            dtype = DTYPES[record.layout.dtype]
            if not dtype.npy:
                array, dtype, widened = array.astype("<f4"), DTYPES["float32"], True
            info = zipfile.ZipInfo(f"{_safe_member_name(key)}.npy")
            with archive.open(info, "w", force_zip64=True) as member:
                member.write(encode_npy_header(dtype, array.shape))
                member.write(_array_bytes(array))
    return (WIDENED_NOTE,) if widened else ()


def _safe_member_name(key: str) -> str:
    """Return a name that stays inside wherever the archive is unpacked."""
    return "/".join(part for part in key.split("/") if part not in ("", ".", "..")) or "tensor"


def _write_safetensors(stream: BinaryIO, capture: Capture, named: list[tuple[str, TensorRecord]]) -> tuple[str, ...]:
    entries = [(key, record.layout.dtype, record.layout.shape) for key, record in named]
    arrays = (_array_bytes(capture.values(record)) for _, record in named)
    write_safetensors(stream, entries, arrays, made_by=capture.header.made_by)
    return ()


def write_safetensors(
    stream: BinaryIO,
    entries: Iterable[tuple[str, str, tuple[int, ...]]],
    contents: Iterable[bytes | memoryview],
    *,
    made_by: str,
) -> None:
    """Write a safetensors file: keys, types and shapes, and the little-endian content of each."""
    at, header = 0, {}
    for key, dtype, shape in entries:
        end = at + math.prod(shape) * DTYPES[dtype].bytes
        header[key] = {"dtype": DTYPES[dtype].safetensors, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = msgspec.json.encode({"__metadata__": {"made_by": made_by}} | header)
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    for content in contents:
        stream.write(content)


def _array_bytes(array: Array) -> memoryview:
    return memoryview(array.tobytes())  # one tensor at a time, so the copy is bounded
