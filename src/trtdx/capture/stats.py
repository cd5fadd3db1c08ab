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

from trtdx.capture.dtypes import DTYPES, dtype_of, native
from trtdx.optional import need

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

try:
    from trtdx import _stats
except ImportError:  # installed without a compiler
    _stats = None  # type: ignore[assignment]

ROW = struct.Struct("<6Q13d")  # `Row` in _stats_core.h
NO_STATISTICS = (0,) * 5 + (float("nan"),) * 13
INSTRUCTIONS = ("avx2", "plain", "numpy")  # best first


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


class Source(NamedTuple):
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


def source_from_array(array: Any) -> Source:
    """Return where a NumPy array's elements lie; a strided one is copied."""
    import numpy as np

    whole = native(np.asarray(array))
    address = whole.__array_interface__["data"][0]
    return Source(address, whole.size, dtype_of(whole.dtype).name, whole.shape, "cpu", whole)


def source_from_torch(tensor: Any) -> Source:
    """Return where a torch tensor's elements lie; one that is strided or on another device is copied."""
    device = _device_name(tensor.device)
    whole = tensor if device == "cpu" and tensor.is_contiguous() else tensor.detach().cpu().contiguous()
    dtype = dtype_of(whole.dtype).name
    return Source(whole.data_ptr(), whole.numel(), dtype, tuple(whole.shape), device, whole)


@cache
def _device_name(device: Any) -> str:
    return str(device)


def kernel_in_use() -> str:
    """Return what computes statistics: "avx2" or "plain" C, or "numpy"."""
    return _in_use.name


def use_kernel(name: str) -> str:
    """Choose what computes statistics, and return what does now: the best there is up to the one named."""
    for each in INSTRUCTIONS[INSTRUCTIONS.index(name) :]:
        if each == "numpy" or (_stats is not None and _stats.instructions(each) == each):
            _in_use.name = each
            break
    return _in_use.name


def statistics(array: np.ndarray[Any, Any]) -> Statistics:
    """Return the statistics of a NumPy array of any strides."""
    return statistics_of([source_from_array(array)])[0]


def statistics_at(address: int, count: int, dtype: str) -> Statistics:
    """Return the statistics of `count` elements at an address, which the caller keeps valid meanwhile."""
    return statistics_of([Source(address, count, dtype, (count,))])[0]


def statistics_of(sources: Sequence[Source]) -> list[Statistics]:
    """Return the statistics of many tensors, measured in one call."""
    rows = bytearray(ROW.size * len(sources))
    measure_into(rows, 0, ROW.size, sources)
    hashes = [content_hash(source.address, source.bytes).hex() for source in sources]
    return [Statistics._make((*row, each)) for row, each in zip(ROW.iter_unpack(rows), hashes, strict=True)]


def measure_into(rows: bytearray, at: int, stride: int, sources: Sequence[Source]) -> int:
    """Write the statistics of tensors into rows and return how many of all elements are NaN or infinite."""
    requests = [(source[0], source[1], DTYPES[source[2]].code) for source in sources]
    if all(code >= 0 for _, _, code in requests):
        return _in_use.measure(rows, at, stride, requests)
    special = 0
    for number, (source, request) in enumerate(zip(sources, requests, strict=True)):
        if request[2] < 0:
            ROW.pack_into(rows, at + number * stride, source.elements, *NO_STATISTICS)
        else:
            special += _in_use.measure(rows, at + number * stride, stride, [request])
    return special


def content_hash(address: int, size: int) -> bytes:
    """Return the 16 bytes that stand for the content of a stretch of memory."""
    return _digest()(memory(address, size))


def memory(address: int, size: int) -> memoryview:
    """Return a stretch of memory, not copied; its owner has to outlive it."""
    if _stats is not None:
        return _stats.view(address, size)
    return memoryview((ctypes.c_char * size).from_address(address) if size else b"").cast("B")


@cache
def _digest() -> Callable[[Any], bytes]:
    digest: Callable[[Any], bytes] = need("xxhash", extra="capture", to="hash tensors").xxh3_128_digest
    return digest


class _InUse:
    """What computes statistics at present."""

    name = "numpy"

    def measure(self, rows: bytearray, at: int, stride: int, requests: list[tuple[int, int, int]]) -> int:
        if self.name != "numpy":
            return _stats.measure(rows, at, stride, requests)
        from trtdx.capture.stats_numpy import measured

        special = 0
        for number, (address, count, code) in enumerate(requests):
            row = measured(address, count, code)
            ROW.pack_into(rows, at + number * stride, *row)
            special += sum(row[1:4])
        return special


_in_use = _InUse()
use_kernel(INSTRUCTIONS[0])
