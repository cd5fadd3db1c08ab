"""NPY files, read strictly: NumPy's own, and those of TensorRT-LLM's C++ runtime, which leave the byte order out.

Objects are never read: they would be pickles.
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from trtdx.errors import InputError
from trtdx.tensors.dtypes import DTYPES, DTYPES_BY_NPY, DType

if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview

NPY_MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 10_000  # NumPy's own bound
MAX_AXES = 64

_HEADER = re.compile(r"\{'descr': ?'([^']{1,16})', ?'fortran_order': ?(True|False), ?'shape': ?\(([\d, ]*)\),? ?\}\s*")


class RawTensor(NamedTuple):
    """A tensor as bytes: little-endian, in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: Buffer


class NpyHeader(NamedTuple):
    """What an NPY file says of itself."""

    dtype: DType
    is_big_endian: bool  # big-endian
    is_fortran_order: bool
    shape: tuple[int, ...]

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.bytes


def read_npy(stream: BinaryIO, size: int) -> RawTensor:
    """Return the tensor in a stream of `size` bytes.

    Raises:
        InputError: it is not NPY, of a type nobody can read, or shorter than it says.
    """
    start = read_exactly(stream, min(size, 8))
    if start[:6] != NPY_MAGIC or len(start) < 8 or start[6] not in (1, 2, 3):
        raise InputError("is not an NPY file")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(read_exactly(stream, width), "little")
    if length > MAX_HEADER_BYTES:
        raise InputError(f"claims a header of {length} bytes")
    header = parse_npy_header(read_exactly(stream, length).decode("latin-1"))
    if 8 + width + length + header.data_bytes > size:
        raise InputError(f"has {size} bytes where its shape {list(header.shape)} needs more: it is cut off")
    return _raw_tensor(header, read_exactly(stream, header.data_bytes))


def parse_npy_header(text: str) -> NpyHeader:
    """Return what a header states."""
    match = _HEADER.fullmatch(text)
    if match is None:
        raise InputError(f"has a header that is not a plain array's: {text[:80].strip()}")
    descr, order, shape = match.groups()
    sizes = [digits for digits in shape.replace(" ", "").split(",") if digits]
    if len(sizes) > MAX_AXES or any(len(digits) > 18 for digits in sizes):
        raise InputError("has an impossible shape")
    axes = tuple(map(int, sizes))
    return NpyHeader(_dtype_from_descr(descr), descr[0] == ">", order == "True", axes)


def _dtype_from_descr(descr: str) -> DType:
    code = descr.lstrip("<>|=")
    if code == "V2":  # how NumPy stores ml_dtypes' bfloat16
        return DTYPES["bfloat16"]
    if code == "x":
        raise InputError(
            "has the type 'x': TensorRT-LLM's C++ runtime writes it for types it cannot name (FP8, FP4, INT4), "
            "and what the bytes mean is lost"
        )
    if code not in DTYPES_BY_NPY:
        raise InputError(f"has the type {descr!r}, which holds no tensor")
    return DTYPES_BY_NPY[code]


def _raw_tensor(header: NpyHeader, data: bytes) -> RawTensor:
    if not (header.is_big_endian and header.dtype.bytes > 1) and not (
        header.is_fortran_order and len(header.shape) > 1
    ):
        return RawTensor(header.dtype.name, header.shape, data)
    import numpy as np

    code = header.dtype.npy or "u2"  # bfloat16 as its bits
    array = np.frombuffer(data, f"{'>' if header.is_big_endian else '<'}{code}")
    ordered = array.reshape(header.shape, order="F" if header.is_fortran_order else "C")
    return RawTensor(header.dtype.name, header.shape, ordered.astype(f"<{code}").tobytes("C"))


def encode_npy_header(dtype: DType, shape: tuple[int, ...]) -> bytes:
    """Return the header of an NPY file, padded so that the data is aligned."""
    axes = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    order = "|" if dtype.bytes == 1 else "<"
    text = f"{{'descr': '{order}{dtype.npy}', 'fortran_order': False, 'shape': ({axes}), }}"
    padded = text + " " * (-(10 + len(text) + 1) % 64) + "\n"
    return NPY_MAGIC + b"\x01\x00" + struct.pack("<H", len(padded)) + padded.encode("latin-1")


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    """Return the next bytes of a stream, which has to have as many."""
    data = bytearray()
    while len(data) < size:
        some = stream.read(min(size - len(data), 64 << 20))
        if not some:
            raise InputError(f"ends {size - len(data)} bytes early")
        data += some
    return bytes(data)
