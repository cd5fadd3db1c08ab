"""How many bytes a weight takes in each format: the numbers, their scales, and what kernels pad."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = "count"  # a type of one byte, for counting parameters
FILES = "FILES"  # experts as files have them, without padding
WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, COUNT: 1}
SCALARS = 12  # three float32 numbers beside a weight: its scale, its input's scale, their product
BLOCK = 128  # of FP8_BLOCK_SCALES, both ways


def width_of(dtype: str) -> int:
    """Return the bytes of one number that is not quantised."""
    return WIDTHS.get(dtype, 2)


def padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def ceil_div(size: int, parts: int) -> int:
    return -(-size // parts)


class Matrix(NamedTuple):
    """One weight on one rank: rows are outputs, columns inputs."""

    rows: int
    columns: int
    width: int = 2  # bytes of a number that is not quantised
    group: int = 128

    @property
    def numbers(self) -> int:
        return self.rows * self.columns

    @property
    def groups(self) -> int:
        return ceil_div(self.columns, max(self.group, 1)) * self.rows


def _plain(each: Matrix) -> int:
    return each.numbers * each.width


def _fp8(each: Matrix) -> int:
    return each.numbers + SCALARS


def _fp8_rows(each: Matrix) -> int:
    return each.numbers + 4 * each.rows


def _fp8_blocks(each: Matrix) -> int:
    return each.numbers + 4 * ceil_div(each.rows, BLOCK) * ceil_div(each.columns, BLOCK)


def _mxfp8(each: Matrix) -> int:
    return each.numbers + padded(each.rows, 128) * padded(ceil_div(each.columns, 32), 4)


def _four_bits(vector: int) -> Callable[[Matrix], int]:
    """Return the size of FP4 with an 8-bit scale per vector; the scales' table is padded to 128 x 4."""

    def size(matrix: Matrix) -> int:
        scales = padded(matrix.rows, 128) * padded(ceil_div(matrix.columns, vector), 4)
        return ceil_div(matrix.numbers, 2) + scales + SCALARS

    return size


def _int8_columns(each: Matrix) -> int:
    return each.numbers + each.width * each.rows


def _int4_columns(each: Matrix) -> int:
    return ceil_div(each.numbers, 2) + each.width * each.rows


def _awq(each: Matrix) -> int:
    return ceil_div(each.numbers, 2) + 2 * each.groups + each.width * each.columns  # and the inputs' scales


def _gptq(each: Matrix) -> int:
    return ceil_div(each.numbers, 2) + 2 * 2 * each.groups  # scales and zero points


def _gptq8(each: Matrix) -> int:
    return each.numbers + 2 * 2 * each.groups


def _qserve(each: Matrix) -> int:
    return ceil_div(each.numbers, 2) + 2 * each.groups + 2 * 2 * each.rows


_SIZES: dict[str, Callable[[Matrix], int]] = {
    "": _plain,
    "FP8": _fp8,
    "FP8_PER_CHANNEL_PER_TOKEN": _fp8_rows,
    "FP8_BLOCK_SCALES": _fp8_blocks,
    "MXFP8": _mxfp8,
    "NVFP4": _four_bits(16),
    "NVFP4_AWQ": _four_bits(16),
    "W4A16_NVFP4": _four_bits(16),
    "W4A8_NVFP4_FP8": _four_bits(32),
    "W4A16_MXFP4": _four_bits(32),
    "W4A8_MXFP4_FP8": _four_bits(32),
    "W4A8_MXFP4_MXFP8": _four_bits(32),
    "W8A16": _int8_columns,
    "W4A16": _int4_columns,
    "W4A16_AWQ": _awq,
    "W4A8_AWQ": _awq,
    "W4A16_GPTQ": _gptq,
    "W8A16_GPTQ": _gptq8,
    "W8A8_SQ_PER_CHANNEL": _fp8_rows,
    "W8A8_SQ_PER_TENSOR_PLUGIN": _fp8,
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": _fp8_rows,
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": _fp8_rows,
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": _fp8,
    "W4A8_QSERVE_PER_GROUP": _qserve,
    "W4A8_QSERVE_PER_CHANNEL": _int4_columns,
    "MIXED_PRECISION": _fp8,  # which layers have which is not known from the name
}
MXFP4 = ("W4A16_MXFP4", "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8")
NVFP4 = ("NVFP4", "NVFP4_AWQ")


ALGOS = tuple(_SIZES)


def known(algo: str) -> bool:
    return algo in _SIZES


@lru_cache(maxsize=65536)
def linear_bytes(algo: str, each: Matrix) -> int:
    """Return what a linear layer's weight takes; a format nobody knows is taken for eight bits."""
    if not each.numbers:
        return 0
    return _SIZES.get(algo, _fp8)(each)


class Expert(NamedTuple):
    """One expert's share of a rank."""

    hidden: int
    inner: int
    gated: bool = True
    bias: bool = False
    width: int = 2
    group: int = 128


class _Padded(NamedTuple):
    """The sizes kernels want: the first product's inputs, the inner size, the second product's outputs."""

    hidden_in: int
    inner: int
    hidden_out: int


def _padding(algo: str, backend: str, one: Expert) -> _Padded:
    """Return an expert's sizes as the MoE backends of the PyTorch flow allocate them (fused_moe/quantization.py)."""
    if backend == FILES:
        return _Padded(one.hidden, one.inner, one.hidden)
    if algo in MXFP4 and backend == "TRTLLM":
        return _Padded(padded(one.hidden, 512), padded(one.inner, 128), padded(one.hidden, 128))
    if algo in MXFP4 and backend != "TRITON":
        return _Padded(padded(one.hidden, 128), padded(one.inner, 128), padded(one.hidden, 128))
    if algo in NVFP4 and backend == "TRTLLM":
        if one.hidden > 1024 and one.hidden % 256:
            return _Padded(padded(one.hidden, 256), padded(one.inner, 256), padded(one.hidden, 256))
        return _Padded(padded(one.hidden, 32), padded(one.inner, 128), padded(one.hidden, 32))
    if algo in NVFP4:
        rows = 2 if one.gated else 1
        return _Padded(one.hidden, padded(rows * one.inner, 128) // rows, one.hidden)
    return _Padded(one.hidden, one.inner, one.hidden)


_VECTORS = {**dict.fromkeys(MXFP4, 32), **dict.fromkeys(NVFP4, 16), "W4A16_NVFP4": 16, "W4A8_NVFP4_FP8": 32}


@lru_cache(maxsize=65536)
def expert_bytes(algo: str, backend: str, one: Expert) -> int:
    """Return what one expert takes on a rank."""
    size = _padding(algo, backend, one)
    rows = (2 if one.gated else 1) * size.inner
    bias = 0
    if one.bias:
        wide = 4 if algo in _VECTORS and backend == "TRTLLM" else one.width
        bias = (rows + size.hidden_out) * wide
    if algo in _VECTORS:
        vector = _VECTORS[algo]
        count = rows * size.hidden_in + size.hidden_out * size.inner
        scales = rows * ceil_div(size.hidden_in, vector) + size.hidden_out * ceil_div(size.inner, vector)
        return ceil_div(count, 2) + scales + 8 + bias
    first = linear_bytes(algo, Matrix(rows, size.hidden_in, one.width, one.group))
    return first + linear_bytes(algo, Matrix(size.hidden_out, size.inner, one.width, one.group)) + bias
