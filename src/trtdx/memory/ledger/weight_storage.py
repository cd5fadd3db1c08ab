"""How many bytes a weight takes in each format: the numbers, their scales, and what kernels pad."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT_DTYPE = "count"  # a type of one byte, for counting parameters
FILE_LAYOUT = "FILES"  # experts as files have them, without padding
WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, COUNT_DTYPE: 1}
SCALARS = 12  # three float32 numbers beside a weight: its scale, its input's scale, their product
SCALE_BLOCK = 128  # of FP8_BLOCK_SCALES, both ways


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of one number that is not quantised."""
    return WIDTHS.get(dtype, 2)


def pad_to_multiple(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def ceil_div(size: int, parts: int) -> int:
    return -(-size // parts)


class WeightMatrix(NamedTuple):
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


def _plain_bytes(matrix: WeightMatrix) -> int:
    return matrix.numbers * matrix.width


def _fp8_bytes(matrix: WeightMatrix) -> int:
    return matrix.numbers + SCALARS


def _fp8_rowwise_bytes(matrix: WeightMatrix) -> int:
    return matrix.numbers + 4 * matrix.rows


def _fp8_blockwise_bytes(matrix: WeightMatrix) -> int:
    return matrix.numbers + 4 * ceil_div(matrix.rows, SCALE_BLOCK) * ceil_div(matrix.columns, SCALE_BLOCK)


def _mxfp8_bytes(matrix: WeightMatrix) -> int:
    return matrix.numbers + pad_to_multiple(matrix.rows, 128) * pad_to_multiple(ceil_div(matrix.columns, 32), 4)


def _fp4_bytes(vector: int) -> Callable[[WeightMatrix], int]:
    """Return the size of FP4 with an 8-bit scale per vector; the scales' table is padded to 128 x 4."""

    def size(matrix: WeightMatrix) -> int:
        scales = pad_to_multiple(matrix.rows, 128) * pad_to_multiple(ceil_div(matrix.columns, vector), 4)
        return ceil_div(matrix.numbers, 2) + scales + SCALARS

    return size


def _int8_bytes(matrix: WeightMatrix) -> int:
    return matrix.numbers + matrix.width * matrix.rows


def _int4_bytes(matrix: WeightMatrix) -> int:
    return ceil_div(matrix.numbers, 2) + matrix.width * matrix.rows


def _awq_bytes(matrix: WeightMatrix) -> int:
    return ceil_div(matrix.numbers, 2) + 2 * matrix.groups + matrix.width * matrix.columns  # and the inputs' scales


def _gptq_bytes(matrix: WeightMatrix) -> int:
    return ceil_div(matrix.numbers, 2) + 2 * 2 * matrix.groups  # scales and zero points


def _gptq8_bytes(matrix: WeightMatrix) -> int:
    return matrix.numbers + 2 * 2 * matrix.groups


def _qserve_bytes(matrix: WeightMatrix) -> int:
    return ceil_div(matrix.numbers, 2) + 2 * matrix.groups + 2 * 2 * matrix.rows


_FORMAT_BYTES: dict[str, Callable[[WeightMatrix], int]] = {
    "": _plain_bytes,
    "FP8": _fp8_bytes,
    "FP8_PER_CHANNEL_PER_TOKEN": _fp8_rowwise_bytes,
    "FP8_BLOCK_SCALES": _fp8_blockwise_bytes,
    "MXFP8": _mxfp8_bytes,
    "NVFP4": _fp4_bytes(16),
    "NVFP4_AWQ": _fp4_bytes(16),
    "W4A16_NVFP4": _fp4_bytes(16),
    "W4A8_NVFP4_FP8": _fp4_bytes(32),
    "W4A16_MXFP4": _fp4_bytes(32),
    "W4A8_MXFP4_FP8": _fp4_bytes(32),
    "W4A8_MXFP4_MXFP8": _fp4_bytes(32),
    "W8A16": _int8_bytes,
    "W4A16": _int4_bytes,
    "W4A16_AWQ": _awq_bytes,
    "W4A8_AWQ": _awq_bytes,
    "W4A16_GPTQ": _gptq_bytes,
    "W8A16_GPTQ": _gptq8_bytes,
    "W8A8_SQ_PER_CHANNEL": _fp8_rowwise_bytes,
    "W8A8_SQ_PER_TENSOR_PLUGIN": _fp8_bytes,
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": _fp8_rowwise_bytes,
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": _fp8_rowwise_bytes,
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": _fp8_bytes,
    "W4A8_QSERVE_PER_GROUP": _qserve_bytes,
    "W4A8_QSERVE_PER_CHANNEL": _int4_bytes,
    "MIXED_PRECISION": _fp8_bytes,  # which layers have which is not known from the name
}
MXFP4 = ("W4A16_MXFP4", "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8")
NVFP4 = ("NVFP4", "NVFP4_AWQ")


ALGOS = tuple(_FORMAT_BYTES)


def is_known_format(algo: str) -> bool:
    return algo in _FORMAT_BYTES


@lru_cache(maxsize=65536)
def linear_bytes(algo: str, matrix: WeightMatrix) -> int:
    """Return what a linear layer's weight takes; a format nobody knows is taken for eight bits."""
    if not matrix.numbers:
        return 0
    return _FORMAT_BYTES.get(algo, _fp8_bytes)(matrix)


class ExpertShard(NamedTuple):
    """One expert's share of a rank."""

    hidden: int
    inner: int
    gated: bool = True
    bias: bool = False
    width: int = 2
    group: int = 128


class _PaddedExpert(NamedTuple):
    """The sizes kernels want: the first product's inputs, the inner size, the second product's outputs."""

    hidden_in: int
    inner: int
    hidden_out: int


def _pad_expert(algo: str, backend: str, expert: ExpertShard) -> _PaddedExpert:
    """Return an expert's sizes as the MoE backends of the PyTorch flow allocate them (fused_moe/quantization.py)."""
    if backend == FILE_LAYOUT:
        return _PaddedExpert(expert.hidden, expert.inner, expert.hidden)
    if algo in MXFP4 and backend == "TRTLLM":
        return _PaddedExpert(
            pad_to_multiple(expert.hidden, 512),
            pad_to_multiple(expert.inner, 128),
            pad_to_multiple(expert.hidden, 128),
        )
    if algo in MXFP4 and backend != "TRITON":
        return _PaddedExpert(
            pad_to_multiple(expert.hidden, 128),
            pad_to_multiple(expert.inner, 128),
            pad_to_multiple(expert.hidden, 128),
        )
    if algo in NVFP4 and backend == "TRTLLM":
        if expert.hidden > 1024 and expert.hidden % 256:
            return _PaddedExpert(
                pad_to_multiple(expert.hidden, 256),
                pad_to_multiple(expert.inner, 256),
                pad_to_multiple(expert.hidden, 256),
            )
        return _PaddedExpert(
            pad_to_multiple(expert.hidden, 32),
            pad_to_multiple(expert.inner, 128),
            pad_to_multiple(expert.hidden, 32),
        )
    if algo in NVFP4:
        rows = 2 if expert.gated else 1
        return _PaddedExpert(expert.hidden, pad_to_multiple(rows * expert.inner, 128) // rows, expert.hidden)
    return _PaddedExpert(expert.hidden, expert.inner, expert.hidden)


_SCALE_VECTORS = {
    **dict.fromkeys(MXFP4, 32),
    **dict.fromkeys(NVFP4, 16),
    "W4A16_NVFP4": 16,
    "W4A8_NVFP4_FP8": 32,
}


@lru_cache(maxsize=65536)
def expert_bytes(algo: str, backend: str, expert: ExpertShard) -> int:
    """Return what one expert takes on a rank."""
    size = _pad_expert(algo, backend, expert)
    rows = (2 if expert.gated else 1) * size.inner
    bias = 0
    if expert.bias:
        wide = 4 if algo in _SCALE_VECTORS and backend == "TRTLLM" else expert.width
        bias = (rows + size.hidden_out) * wide
    if algo in _SCALE_VECTORS:
        vector = _SCALE_VECTORS[algo]
        count = rows * size.hidden_in + size.hidden_out * size.inner
        scales = rows * ceil_div(size.hidden_in, vector) + size.hidden_out * ceil_div(size.inner, vector)
        return ceil_div(count, 2) + scales + 8 + bias
    first = linear_bytes(algo, WeightMatrix(rows, size.hidden_in, expert.width, expert.group))
    return first + linear_bytes(algo, WeightMatrix(size.hidden_out, size.inner, expert.width, expert.group)) + bias
