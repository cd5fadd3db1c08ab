"""Readers of single files with tensors: npy, npz, safetensors, Polygraphy's JSON."""

from __future__ import annotations

import base64
import binascii
import io
import re
import zipfile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from trtdx.errors import InputError, UnknownNameError
from trtdx.formats.json_stream import iter_json_strings
from trtdx.formats.npy import RawTensor, read_exactly, read_npy
from trtdx.formats.safetensors import read_safetensors_header
from trtdx.tensors.dtypes import DTYPES_BY_SAFETENSORS
from trtdx.tensors.taps import place_from_name
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.host import Host
    from trtdx.tensors.taps import Place

    DumpNotes = list[str]

MAX_TENSOR_BYTES = 16 << 30  # of one that is packed, so that its file's size does not bound it
MAX_MEMBERS = 1_000_000
_KEY = re.compile(r"(?:rank(\d{1,5})/)?(?:step(\d{1,12})/)?(.+)", re.DOTALL)


class DumpedTensor(NamedTuple):
    """One tensor of a dump."""

    rank: int
    step: int
    place: Place
    raw: RawTensor


def split_export_key(key: str) -> tuple[int, int, str]:
    """Return rank, step and name of a key as the exporters write them."""
    match = _KEY.fullmatch(key)
    if match is None:
        return 0, 0, key
    return int(match[1] or 0), int(match[2] or 0), match[3]


def iter_npy(host: Host, path: str, notes: DumpNotes) -> Iterator[DumpedTensor]:
    """Yield the tensor of an NPY file."""
    with host.open(path) as stream:
        try:
            raw = read_npy(stream, host.size(path))
        except InputError as err:
            raise InputError(f"{path} {err.message}") from err
    yield DumpedTensor(0, 0, place_from_name(PurePosixPath(path).stem), raw)


def iter_npz(host: Host, path: str, notes: DumpNotes) -> Iterator[DumpedTensor]:
    """Yield the tensors of an npz file, which is a ZIP of NPY files."""
    with io.BufferedReader(cast("io.RawIOBase", host.open(path))) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                yield from _iter_npz_members(archive, notes)
        except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, RuntimeError) as err:
            raise InputError(f"{path} is not a readable npz file: {err}") from err


def _iter_npz_members(archive: zipfile.ZipFile, notes: DumpNotes) -> Iterator[DumpedTensor]:
    members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
    if len(members) > MAX_MEMBERS:
        raise InputError(f"the npz file names {len(members)} tensors")
    named = sorted(
        ((*split_export_key(member.filename.removesuffix(".npy")), member) for member in members),
        key=lambda row: row[:2],
    )
    for rank, step, name, member in named:
        if member.compress_size < member.file_size > MAX_TENSOR_BYTES:
            notes.append(f"{name} claims {member.file_size} bytes unpacked: left out")
            continue
        try:
            with archive.open(member) as stream:
                raw = read_npy(cast("BinaryIO", stream), member.file_size)
        except InputError as err:
            notes.append(f"{name} {err.message}")
            continue
        yield DumpedTensor(rank, step, place_from_name(name), raw)


def iter_safetensors(host: Host, path: str, notes: DumpNotes) -> Iterator[DumpedTensor]:
    """Yield the tensors of a safetensors file."""
    header = read_safetensors_header(host, path)
    if header.fault:
        raise InputError(f"{path} {header.problem}")
    named = sorted(
        ((*split_export_key(key), entry) for key, entry in header.tensors.items()),
        key=lambda row: (*row[:2], row[3].begin),
    )
    with host.open(path) as stream:
        data = 8 + int.from_bytes(read_exactly(stream, 8), "little")
        for rank, step, name, entry in named:
            if entry.dtype not in DTYPES_BY_SAFETENSORS:
                notes.append(f"{name} has the type {entry.dtype}, which cannot be captured")
                continue
            stream.seek(data + entry.begin)
            content = read_exactly(stream, entry.data_bytes)
            yield DumpedTensor(
                rank,
                step,
                place_from_name(name),
                RawTensor(DTYPES_BY_SAFETENSORS[entry.dtype].name, entry.shape, content),
            )


def iter_polygraphy(host: Host, path: str, notes: DumpNotes, runner: str = "") -> Iterator[DumpedTensor]:
    """Yield the arrays of `polygraphy run --save-outputs` or `--save-inputs`; an iteration is a step.

    A file with several runners holds several runs: one is read, the first or that of a name or number, the others
    are told.
    """
    runners: dict[int, str] = {}
    with host.open(path) as stream:
        try:
            for where, text in iter_json_strings(stream, max_string_bytes=MAX_TENSOR_BYTES // 3 * 4):
                if len(where) == 3 and where[0] == "lst" and where[2] == 0 and isinstance(where[1], int):
                    runners[where[1]] = text.decode("utf-8", "replace")
                if where[-1:] in (("array",), ("tensor",)) and _is_in_run(runner, where, runners):
                    item = _decode_polygraphy_tensor(where, text, notes)
                    if item:
                        yield item
        except InputError as err:
            raise InputError(f"{path} cannot be read: {err.message}") from err
    names = list(runners.values())
    chosen = [name for number, name in runners.items() if _is_chosen_runner(runner, number, runners)]
    if runner and not chosen:
        raise UnknownNameError("runner", runner, names)
    notes += [
        f"the runner {name} was left out: only one of a file is read, here {abbreviate_list(chosen)}; to compare the other: FILE?runner={name}"
        for name in names
        if name not in chosen
    ]


def _is_in_run(runner: str, where: tuple[str | int, ...], runners: Mapping[int, str]) -> bool:
    """Whether an array is of the run that is wanted; inputs are of no run."""
    return where[0] != "lst" or not isinstance(where[1], int) or _is_chosen_runner(runner, where[1], runners)


def _is_chosen_runner(runner: str, number: int, runners: Mapping[int, str]) -> bool:
    """Whether a run is the one that is wanted, by its name or number; the first where nothing is said."""
    return runner in (str(number), runners.get(number)) if runner else number == 0


def _decode_polygraphy_tensor(where: tuple[str | int, ...], text: bytes, notes: DumpNotes) -> DumpedTensor | None:
    keys = [key for key in where if isinstance(key, str) and key not in ("array", "tensor", "values")]
    steps = [index for index in where if isinstance(index, int)]
    name, step = keys[-1] if keys else "", steps[-1] if steps else 0
    try:
        data = base64.b64decode(text, validate=True)
        if where[-1] == "array":
            return DumpedTensor(0, step, place_from_name(name), read_npy(io.BytesIO(data), len(data)))
        from trtdx.capture.dumps.trtllm_dumps import raw_from_torch

        return DumpedTensor(0, step, place_from_name(name), raw_from_torch(io.BytesIO(data), len(data)))
    except binascii.Error as err:
        notes.append(f"{name} at iteration {step} is not base64: {err}")
    except InputError as err:
        notes.append(f"{name} at iteration {step} {err.message}")
    return None
