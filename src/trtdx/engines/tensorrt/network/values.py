"""Between TensorRT's types, weights and values, numpy arrays, and the torch tensors of heavy kernels.

A value is a numpy array of its own type, those that numpy lacks from ml_dtypes. On its way through torch it is
the torch type of the same name, but INT4 is one value per int8, and FP4 one per float8_e4m3fn, which holds all
of them exactly.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.torch.lazy_import import ml_dtypes, torch
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = np.ndarray[Any, np.dtype[Any]]

STORAGE_DTYPES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "INT32": "int32", "INT64": "int64",
    "BOOL": "bool", "UINT8": "uint8", "FP8": "float8_e4m3fn", "INT4": "int8", "FP4": "float8_e4m3fn",
    "E8M0": "float8_e8m0fnu",
}  # fmt: skip
ML_DTYPE_NAMES = {
    "BF16": "bfloat16", "FP8": "float8_e4m3fn", "INT4": "int4", "FP4": "float4_e2m1fn", "E8M0": "float8_e8m0fnu",
}  # fmt: skip
FLOAT_DTYPES = ("FLOAT", "HALF", "BF16", "FP8", "FP4", "E8M0")
WIDENED_DTYPES = ("HALF", "BF16", "FP8", "FP4", "E8M0")  # computed as float32, then rounded once
NUMPY_DTYPES = ("FLOAT", "INT8", "INT32", "INT64", "BOOL", "UINT8")  # numpy computes these as fast as torch
PACKED_DTYPES = ("INT4", "FP4")  # two values a byte in TensorRT's weights, the first in the low half


def torch_dtype(dtype: str) -> Any:
    """Return the torch type that holds a TensorRT type."""
    return getattr(torch, STORAGE_DTYPES[dtype])


def trt_numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return the numpy type that holds a TensorRT type."""
    named = getattr(ml_dtypes, ML_DTYPE_NAMES[dtype]) if dtype in ML_DTYPE_NAMES else STORAGE_DTYPES[dtype]
    held_dtype: np.dtype[Any] = np.dtype(named)
    return held_dtype


def dtype_name(dtype: str) -> str:
    """Return what a TensorRT type is called everywhere else: "bfloat16", "float8_e4m3fn", "int4"."""
    return ML_DTYPE_NAMES.get(dtype) or STORAGE_DTYPES[dtype]


def value_from_argument(argument: Any, dtype: str, name: str) -> Array:
    """Return an array or torch tensor of the caller as a value, or refuse another type than the network's."""
    if isinstance(argument, torch.Tensor):
        return _value_from_torch(argument, dtype, name)
    array = np.asarray(argument)
    network_dtype = trt_numpy_dtype(dtype)
    if dtype == "INT4" and array.dtype == np.int8:
        array = array.astype(network_dtype)
    if array.dtype != network_dtype:
        raise InputError(
            f"{name} is {array.dtype}, but the network wants {network_dtype} ({dtype})",
            fix=f"convert {name} to {network_dtype}",
        )
    return torch_readable_array(array)


def _value_from_torch(tensor: Any, dtype: str, name: str) -> Array:
    if tensor.dtype != torch_dtype(dtype):
        raise InputError(
            f"{name} is {tensor.dtype}, but the network wants {torch_dtype(dtype)} ({dtype})",
            fix=f"convert {name} to {torch_dtype(dtype)}",
        )
    array: Array = numpy_converter(dtype)(tensor.detach().cpu())
    return array


def torch_readable_array(array: Array) -> Array:
    """Return the array, or a copy where torch could not look at its memory."""
    fine = array.flags.writeable and array.flags.aligned and array.dtype.isnative
    return array if fine and all(stride >= 0 for stride in array.strides) else array.copy()


def torch_converter(dtype: str) -> Callable[[Array], Any]:
    """Return what makes a torch tensor of a value, over the same memory where both know the type."""
    if dtype == "BF16":
        return lambda array: torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if dtype in ("FP8", "E8M0"):
        storage_dtype = torch_dtype(dtype)
        return lambda array: torch.from_numpy(array.view(np.uint8)).view(storage_dtype)
    if dtype == "INT4":
        return lambda array: torch.from_numpy(array.astype(np.int8))
    if dtype == "FP4":
        return lambda array: torch.from_numpy(array.astype(np.float32)).to(torch.float8_e4m3fn)
    return torch.from_numpy  # type: ignore[no-any-return]


def numpy_converter(dtype: str) -> Callable[[Any], Array]:
    """Return what makes a value of a torch tensor, over the same memory where both know the type."""
    value_dtype = trt_numpy_dtype(dtype)
    if dtype == "BF16":
        return lambda tensor: tensor.view(torch.int16).numpy().view(value_dtype)
    if dtype in ("FP8", "E8M0"):
        return lambda tensor: tensor.view(torch.uint8).numpy().view(value_dtype)
    if dtype == "FP4":
        return lambda tensor: tensor.to(torch.float32).numpy().astype(value_dtype)
    if dtype == "INT4":
        return lambda tensor: tensor.numpy().astype(value_dtype)
    return torch.Tensor.numpy  # type: ignore[no-any-return]


def shape_matches(declared: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a shape is one that was declared, with -1 for any size."""
    return len(declared) == len(shape) and all(a in (-1, b) for a, b in zip(declared, shape, strict=True))


def memory_owner(array: Array) -> Any:
    """Return what holds an array's memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if array.base is None else array.base


class _TrtWeights(ctypes.Structure):
    """nvinfer1::Weights, whose address the bindings keep to themselves."""

    _fields_ = (("type", ctypes.c_int32), ("values", ctypes.c_void_p), ("count", ctypes.c_int64))


def value_from_weights(weights: Any, dtype: str, shape: tuple[int, ...] | None = None) -> Array | None:
    """Return a value over the weights' memory (a copy for packed types), or None where there are none."""
    if shape is None and not int(weights.size):
        return None
    flat = torch_readable_array(weights) if isinstance(weights, np.ndarray) else _unpack_weights(weights, dtype)
    return flat if shape is None else flat.reshape(shape)


def _unpack_weights(weights: Any, dtype: str) -> Array:
    """Return weights of a type numpy has no name for."""
    return value_from_bytes(_weights_bytes(weights, dtype), dtype, int(weights.size))


def byte_count(dtype: str, count: int) -> int:
    """Return how many bytes TensorRT keeps so many elements in."""
    return math.ceil(count / 2) if dtype in PACKED_DTYPES else count * trt_numpy_dtype(dtype).itemsize


def value_from_bytes(raw: Array, dtype: str, count: int) -> Array:
    """Return elements of any of TensorRT's types from its memory, those packed in pairs one by one."""
    if dtype not in PACKED_DTYPES:
        return raw.view(trt_numpy_dtype(dtype))
    nibbles = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)[:count]
    if dtype == "INT4":
        return ((nibbles ^ 8).astype(np.int8) - 8).astype(trt_numpy_dtype(dtype))
    return nibbles.view(trt_numpy_dtype(dtype))


def _weights_bytes(weights: Any, dtype: str) -> Array:
    """Return the memory of weights that the bindings hand out as an object without an address.

    It is a pybind11 instance, whose first field points to the C++ structure; count and type are compared before
    anything is read through it.
    """
    count = int(weights.size)
    size = byte_count(dtype, count)
    if not size:
        return np.zeros(0, np.uint8)
    if type(type(weights)).__name__ != "pybind11_type":
        raise InputError(f"these TensorRT bindings do not show weights of type {dtype}")
    address = ctypes.c_void_p.from_address(id(weights) + object.__basicsize__).value or 0
    structure = _TrtWeights.from_address(address)
    if structure.count != count or structure.type != int(weights.dtype):
        raise InputError(f"these TensorRT bindings do not show weights of type {dtype}")
    memory: Any = (ctypes.c_uint8 * size).from_address(structure.values)
    raw: Array = np.frombuffer(memory, np.uint8)
    return raw
