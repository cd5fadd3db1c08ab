"""The types a tensor's elements can have: one name for each, whichever library it came from."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.errors import InputError
from trtdx.optional import import_optional

if TYPE_CHECKING:
    import numpy as np


class DType(NamedTuple):
    """A type: its size, the statistics kernel's number for it, and its names elsewhere."""

    name: str  # NumPy's, ml_dtypes' and torch's
    bytes: int
    code: int  # in _stats_core.h; -1: stored and hashed, not measured
    safetensors: str
    npy: str = ""  # the code in an NPY header


_ALL = (
    DType("float64", 8, 0, "F64", "f8"),
    DType("float32", 4, 1, "F32", "f4"),
    DType("float16", 2, 2, "F16", "f2"),
    DType("bfloat16", 2, 3, "BF16"),
    DType("float8_e4m3fn", 1, 4, "F8_E4M3"),
    DType("float8_e5m2", 1, 5, "F8_E5M2"),
    DType("int8", 1, 6, "I8", "i1"),
    DType("int16", 2, 7, "I16", "i2"),
    DType("int32", 4, 8, "I32", "i4"),
    DType("int64", 8, 9, "I64", "i8"),
    DType("uint8", 1, 10, "U8", "u1"),
    DType("uint16", 2, 11, "U16", "u2"),
    DType("uint32", 4, 12, "U32", "u4"),
    DType("uint64", 8, 13, "U64", "u8"),
    DType("bool", 1, 14, "BOOL", "b1"),
    DType("complex64", 8, -1, "C64", "c8"),
    DType("complex128", 16, -1, "C128", "c16"),
    DType("float8_e8m0fnu", 1, -1, "F8_E8M0"),
    DType("float8_e4m3fnuz", 1, -1, "F8_E4M3FNUZ"),
    DType("float8_e5m2fnuz", 1, -1, "F8_E5M2FNUZ"),
)
DTYPES = {dtype.name: dtype for dtype in _ALL}
DTYPES_BY_SAFETENSORS = {dtype.safetensors: dtype for dtype in _ALL}
DTYPES_BY_NPY = {dtype.npy: dtype for dtype in _ALL if dtype.npy} | {"?": DTYPES["bool"]}
FLOAT_DTYPES = {"float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"}


@cache
def find_dtype(dtype: Any) -> DType:
    """Return the type behind a NumPy or torch dtype, or a name."""
    name = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    known = DTYPES.get(name)
    if known is None:
        raise InputError(f"tensors of type {name} cannot be captured", fix=f"these can: {', '.join(DTYPES)}")
    return known


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy type, little-endian, of a type's name."""
    import numpy as np

    dtype = find_dtype(name)
    if dtype.npy:
        return np.dtype(f"<{dtype.npy}")
    types = import_optional("ml_dtypes", extra="capture", purpose=f"hold {name} values in NumPy")
    numpy_type: np.dtype[Any] = np.dtype(getattr(types, name))
    return numpy_type


def as_little_endian(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array with little-endian elements, contiguous; itself where it is so already."""
    import numpy as np

    if sys.byteorder == "big" or array.dtype.byteorder == ">":  # memory is hashed and stored as it is
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(array.shape)  # reshape: a 0-d array stays one
