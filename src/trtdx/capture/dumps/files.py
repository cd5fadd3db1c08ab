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
from trtdx.formats.json_stream import iter_texts
from trtdx.formats.npy import Raw, read_exactly, read_npy
from trtdx.formats.safetensors import read_header
from trtdx.tensors.dtypes import BY_SAFETENSORS
from trtdx.tensors.taps import place_of
from trtdx.words import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.host import Host
    from trtdx.tensors.taps import Place

    Told = list[str]

MOST_TENSOR_BYTES = 16 << 30  # of one that is packed, so that its file's size does not bound it
MOST_MEMBERS = 1_000_000
_KEY = re.compile(r"(?:rank(\d{1,5})/)?(?:step(\d{1,12})/)?(.+)", re.DOTALL)


class Item(NamedTuple):
    """One tensor of a dump."""

    rank: int
    step: int
    place: Place
    raw: Raw


def name_parts(key: str) -> tuple[int, int, str]:
    """Return rank, step and name of a key as the exporters write them."""
    match = _KEY.fullmatch(key)
    if match is None:
        return 0, 0, key
    return int(match[1] or 0), int(match[2] or 0), match[3]


def iter_npy(host: Host, path: str, told: Told) -> Iterator[Item]:
    """Yield the tensor of an NPY file."""
    with host.open(path) as stream:
        try:
            raw = read_npy(stream, host.size(path))
        except InputError as err:
            raise InputError(f"{path} {err.message}") from err
    yield Item(0, 0, place_of(PurePosixPath(path).stem), raw)


def iter_npz(host: Host, path: str, told: Told) -> Iterator[Item]:
    """Yield the tensors of an npz file, which is a ZIP of NPY files."""
    with io.BufferedReader(cast("io.RawIOBase", host.open(path))) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                yield from _members(archive, told)
        except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, RuntimeError) as err:
            raise InputError(f"{path} is not a readable npz file: {err}") from err


def _members(archive: zipfile.ZipFile, told: Told) -> Iterator[Item]:
    members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
    if len(members) > MOST_MEMBERS:
        raise InputError(f"the npz file names {len(members)} tensors")
    named = sorted(
        ((*name_parts(member.filename.removesuffix(".npy")), member) for member in members),
        key=lambda each: each[:2],
    )
    for rank, step, name, member in named:
        if member.compress_size < member.file_size > MOST_TENSOR_BYTES:
            told.append(f"{name} claims {member.file_size} bytes unpacked: left out")
            continue
        try:
            with archive.open(member) as stream:
                raw = read_npy(cast("BinaryIO", stream), member.file_size)
        except InputError as err:
            told.append(f"{name} {err.message}")
            continue
        yield Item(rank, step, place_of(name), raw)


def iter_safetensors(host: Host, path: str, told: Told) -> Iterator[Item]:
    """Yield the tensors of a safetensors file."""
    header = read_header(host, path)
    if header.fault:
        raise InputError(f"{path} {header.problem}")
    named = sorted(
        ((*name_parts(key), entry) for key, entry in header.tensors.items()),
        key=lambda each: (*each[:2], each[3].begin),
    )
    with host.open(path) as stream:
        data = 8 + int.from_bytes(read_exactly(stream, 8), "little")
        for rank, step, name, entry in named:
            if entry.dtype not in BY_SAFETENSORS:
                told.append(f"{name} has the type {entry.dtype}, which cannot be captured")
                continue
            stream.seek(data + entry.begin)
            content = read_exactly(stream, entry.bytes)
            yield Item(
                rank, step, place_of(name), Raw(BY_SAFETENSORS[entry.dtype].name, entry.shape, content)
            )


def iter_polygraphy(host: Host, path: str, told: Told, runner: str = "") -> Iterator[Item]:
    """Yield the arrays of `polygraphy run --save-outputs` or `--save-inputs`; an iteration is a step.

    A file with several runners holds several runs: one is read, the first or that of a name or number, the others
    are told.
    """
    runners: dict[int, str] = {}
    with host.open(path) as stream:
        try:
            for where, text in iter_texts(stream, most_text_bytes=MOST_TENSOR_BYTES // 3 * 4):
                if len(where) == 3 and where[0] == "lst" and where[2] == 0 and isinstance(where[1], int):
                    runners[where[1]] = text.decode("utf-8", "replace")
                if where[-1:] in (("array",), ("tensor",)) and _is_of(runner, where, runners):
                    item = _polygraphy_item(where, text, told)
                    if item:
                        yield item
        except InputError as err:
            raise InputError(f"{path} cannot be read: {err.message}") from err
    names = list(runners.values())
    chosen = [name for number, name in runners.items() if _is_runner(runner, number, runners)]
    if runner and not chosen:
        raise UnknownNameError("runner", runner, names)
    told += [
        f"the runner {name} was left out: only one of a file is read, here {listed(chosen)}; to compare the other: FILE?runner={name}"
        for name in names
        if name not in chosen
    ]


def _is_of(wanted: str, where: tuple[str | int, ...], runners: Mapping[int, str]) -> bool:
    """Whether an array is of the run that is wanted; inputs are of no run."""
    return where[0] != "lst" or not isinstance(where[1], int) or _is_runner(wanted, where[1], runners)


def _is_runner(wanted: str, number: int, runners: Mapping[int, str]) -> bool:
    """Whether a run is the one that is wanted, by its name or number; the first where nothing is said."""
    return wanted in (str(number), runners.get(number)) if wanted else number == 0


def _polygraphy_item(where: tuple[str | int, ...], text: bytes, told: Told) -> Item | None:
    keys = [key for key in where if isinstance(key, str) and key not in ("array", "tensor", "values")]
    steps = [index for index in where if isinstance(index, int)]
    name, step = keys[-1] if keys else "", steps[-1] if steps else 0
    try:
        data = base64.b64decode(text, validate=True)
        if where[-1] == "array":
            return Item(0, step, place_of(name), read_npy(io.BytesIO(data), len(data)))
        from trtdx.capture.dumps.trees import raw_from_torch

        return Item(0, step, place_of(name), raw_from_torch(io.BytesIO(data), len(data)))
    except binascii.Error as err:
        told.append(f"{name} at iteration {step} is not base64: {err}")
    except InputError as err:
        told.append(f"{name} at iteration {step} {err.message}")
    return None
