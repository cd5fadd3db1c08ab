"""How fast tensors are measured and compared, beside memcpy, NumPy and torch; one run, one thread, as ratios.

Every candidate runs in every round, so that a busy machine slows all of them alike; the best and the median round
are shown. Run it with the Python of the tests' environment (`scripts/test` makes it).
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.tensors.difference import measure_difference
from trtdx.tensors.dtypes import DTYPES, numpy_dtype
from trtdx.tensors.statistics import (
    STATISTICS_STRUCT,
    TensorSource,
    content_hash,
    kernel_in_use,
    measure_into,
    source_from_array,
    source_from_torch,
    source_statistics,
    use_kernel,
    view_memory,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL, SMALL_COUNT = 512, 330  # what a decode step of a mid-sized model shows: hidden states, a few KiB each


def numpy_idiom(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """What a careful user writes: NaN and Inf apart, sums in double."""
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    nan, inf = np.isnan(wide).sum(), np.isinf(wide).sum()
    return (
        finite.min(), finite.max(), finite.mean(), finite.std(), np.abs(finite).max(),
        np.linalg.norm(finite), (finite == 0).sum(), nan, inf,
    )  # fmt: skip


def torch_idiom(tensor: Any) -> tuple[Any, ...]:
    """What a hook usually holds."""
    import torch

    return (
        tensor.min().item(), tensor.max().item(), tensor.mean().item(), tensor.std().item(),
        torch.isnan(tensor).sum().item(), torch.isinf(tensor).sum().item(),
    )  # fmt: skip


def numpy_difference(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    r, c = one.astype(np.float64), other.astype(np.float64)
    d = c - r
    size = np.abs(d)
    return (
        size.max(),
        (size / np.abs(r)).max(),
        np.sqrt((d * d).mean()),
        (r * c).sum(),
        (r * r).sum(),
        (c * c).sum(),
    )


def measured(array: np.ndarray[Any, Any]) -> Callable[[], object]:
    return measuring(source_from_array(array))


def measuring(source: TensorSource) -> Callable[[], object]:
    code = DTYPES[source.dtype].code
    row = bytearray(STATISTICS_STRUCT.size)

    def measure(_: Any = source.owner) -> int:  # the owner is kept as long as its address is used
        return measure_into(row, 0, source.address, source.elements, code)

    return measure


def candidates(elements: int) -> dict[str, tuple[Callable[[], object], int]]:
    import torch

    base = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    found: dict[str, tuple[Callable[[], object], int]] = {
        "memcpy (np.copyto) fp32": (partial(np.copyto, np.empty_like(base), base), base.nbytes)
    }
    for dtype in ("float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "int32", "bool"):
        array = base.astype(numpy_dtype(dtype)) if dtype != "bool" else base > 0
        found[f"kernel {dtype}"] = measured(array), array.nbytes
    source = source_from_array(base)
    found["xxh3-128"] = partial(content_hash, view_memory(source.address, source.bytes)), base.nbytes
    found["kernel float32 + hash"] = partial(source_statistics, source), base.nbytes
    holes = base.copy()
    holes[::97] = np.nan
    found["kernel float32, 1 % NaN"] = measured(holes), base.nbytes
    few = base[: elements // 8]
    tensor = torch.from_numpy(few)
    found["numpy idiom float32"] = partial(numpy_idiom, few), few.nbytes
    found["numpy idiom float16"] = partial(numpy_idiom, few.astype(np.float16)), few.nbytes // 2
    found["torch idiom float32"] = partial(torch_idiom, tensor), few.nbytes
    found["torch idiom bfloat16"] = partial(torch_idiom, tensor.bfloat16()), few.nbytes // 2
    near = base * np.float32(1.001)
    for one, other in (("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")):
        r, c = base.astype(numpy_dtype(one)), near.astype(numpy_dtype(other))
        found[f"compare {one}, {other}"] = (
            partial(measure_difference, r, c, row_length=4096),
            r.nbytes + c.nbytes,
        )
    found["compare numpy idiom"] = partial(numpy_difference, few, near[: few.size]), 2 * few.nbytes
    return found


def small() -> dict[str, Callable[[], object]]:
    import torch

    tensors = [torch.randn(SMALL) for _ in range(SMALL_COUNT)]
    sources = [source_from_torch(tensor) for tensor in tensors]
    kernel = [measuring(source) for source in sources]
    return {
        "kernel": lambda: [measure() for measure in kernel],
        "kernel and hash": lambda: [source_statistics(source) for source in sources],
        "torch idiom": lambda: [torch_idiom(tensor) for tensor in tensors],
        "numpy idiom": lambda: [numpy_idiom(tensor.numpy()) for tensor in tensors],
    }


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=64, help="of the float32 tensor")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    use_kernel("avx2")
    print(f"kernel in use: {kernel_in_use()}; {options.mebibytes} MiB of float32, {options.rounds} rounds\n")
    large = candidates(options.mebibytes << 18)
    speeds: dict[str, list[float]] = {name: [] for name in large}
    for _ in range(options.rounds):
        for name, (call, size) in large.items():
            speeds[name].append(size / timed(call) / 1e9)
    copied = speeds["memcpy (np.copyto) fp32"]
    print(f"{'':32}{'GB/s best':>10}{'median':>9}{'x memcpy best':>15}{'median':>9}")
    for name, all_of in speeds.items():
        best, middle = max(all_of), statistics.median(all_of)
        ratios = best / max(copied), statistics.median(a / b for a, b in zip(all_of, copied, strict=True))
        print(f"{name:32}{best:10.2f}{middle:9.2f}{ratios[0]:15.2f}{ratios[1]:9.2f}")
    print(f"\n{SMALL_COUNT} float32 tensors of {SMALL} elements: microseconds a tensor")
    for name, call in small().items():
        all_of = [timed(call) / SMALL_COUNT * 1e6 for _ in range(options.rounds)]
        print(f"{name:40}{min(all_of):8.2f} best{statistics.median(all_of):9.2f} median")


if __name__ == "__main__":
    main()
