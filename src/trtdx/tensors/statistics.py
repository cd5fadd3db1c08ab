"""What a tensor's values look like, in one pass: the compiled kernel, or NumPy where it is absent.

Minimum, maximum, mean, deviation, l2 and quantiles are those of the finite values; NaN and infinities are counted
apart. Quantiles are those of a sample of at most 1024 elements, drawn evenly and always the same way. The content
hash is xxh3-128 of the raw bytes, little-endian and in C order; shape and type are not part of it.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.optional import import_optional
from trtdx.tensors.dtypes import DTYPES, as_little_endian, find_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

try:
    from trtdx import _stats
except ImportError:  # installed without a compiler
    _stats = None  # type: ignore[assignment]

STATISTICS_STRUCT = struct.Struct("<6Q13d")  # `Row` in _stats_core.h
NO_STATISTICS = (0,) * 5 + (float("nan"),) * 13
INSTRUCTIONS = ("avx512", "avx2", "plain", "numpy")  # best first


class Statistics(NamedTuple):
    """What was seen of one tensor."""

    elements: int
    nan: int
    pos_inf: int
    neg_inf: int
    zeros: int
    subnormals: int
    min: float  # NaN, as all below, where no value is finite
    max: float
    mean: float
    std: float  # of the population
    absmax: float
    l2: float
    p01: float
    p05: float
    p25: float
    p50: float
    p75: float
    p95: float
    p99: float
    hash: str

    @property
    def specials(self) -> str:
        """What is not finite, in words: "3 NaN and 1 +Inf"."""
        counts = ((self.nan, "NaN"), (self.pos_inf, "+Inf"), (self.neg_inf, "-Inf"))
        return " and ".join(f"{count} {name}" for count, name in counts if count)


class TensorSource(NamedTuple):
    """Where a tensor's elements lie: contiguous, in this process, kept there by their owner."""

    address: int
    elements: int
    dtype: str
    shape: tuple[int, ...]
    device: str = "cpu"
    owner: Any = None

    @property
    def bytes(self) -> int:
        return self.elements * DTYPES[self.dtype].bytes


def source_from_array(array: Any) -> TensorSource:
    """Return where a NumPy array's elements lie; a strided one is copied."""
    import numpy as np

    dense = as_little_endian(np.asarray(array))
    address = dense.__array_interface__["data"][0]
    return TensorSource(address, dense.size, find_dtype(dense.dtype).name, dense.shape, "cpu", dense)


def source_from_torch(tensor: Any) -> TensorSource:
    """Return where a torch tensor's elements lie; one that is strided or on another device is copied."""
    here = tensor.is_cpu
    dense = tensor if here and tensor.is_contiguous() else tensor.detach().cpu().contiguous()
    device = "cpu" if here else str(tensor.device)
    return TensorSource(
        dense.data_ptr(), dense.numel(), find_dtype(dense.dtype).name, tuple(dense.shape), device, dense
    )


def kernel_in_use() -> str:
    """Return what computes statistics: "avx512", "avx2" or "plain" C, or "numpy"."""
    return _in_use.name


def use_kernel(name: str) -> str:
    """Choose what computes statistics, and return what does now: the best there is up to the one named."""
    for instructions in INSTRUCTIONS[INSTRUCTIONS.index(name) :]:
        if instructions == "numpy" or (_stats is not None and _stats.instructions(instructions) == instructions):
            _in_use.name = instructions
            break
    return _in_use.name


def array_statistics(array: np.ndarray[Any, Any]) -> Statistics:
    """Return the statistics of a NumPy array of any strides."""
    return source_statistics(source_from_array(array))


def source_statistics(source: TensorSource) -> Statistics:
    """Return the statistics of a tensor."""
    row = bytearray(STATISTICS_STRUCT.size)
    measure_into(row, 0, source.address, source.elements, DTYPES[source.dtype].code)
    return Statistics._make(
        (*STATISTICS_STRUCT.unpack(row), content_hash(view_memory(source.address, source.bytes)).hex())
    )


def measure_into(rows: bytearray, offset: int, address: int, count: int, code: int) -> int:
    """Write the statistics of what lies at an address into a row; returns how much of it is NaN or infinite."""
    if code < 0:  # a type that is kept and hashed, not measured
        STATISTICS_STRUCT.pack_into(rows, offset, count, *NO_STATISTICS)
        return 0
    if _in_use.name != "numpy":
        return _stats.measure(rows, offset, address, count, code)
    from trtdx.tensors.statistics_numpy import measure_with_numpy

    row = measure_with_numpy(address, count, code)
    STATISTICS_STRUCT.pack_into(rows, offset, *row)
    return sum(row[1:4])


def content_hash(content: memoryview) -> bytes:
    """Return the 16 bytes that stand for a content."""
    return _xxh3_digest()(content)


def view_memory(address: int, size: int) -> memoryview:
    """Return a stretch of memory, not copied; its owner has to outlive it."""
    if _stats is not None:
        return _stats.view(address, size)
    return memoryview((ctypes.c_char * size).from_address(address) if size else b"").cast("B")


@cache
def _xxh3_digest() -> Callable[[Any], bytes]:
    digest: Callable[[Any], bytes] = import_optional("xxhash", extra="capture", purpose="hash tensors").xxh3_128_digest
    return digest


class _KernelInUse:
    """What computes statistics at present."""

    name = "numpy"


_in_use = _KernelInUse()
use_kernel(INSTRUCTIONS[0])
