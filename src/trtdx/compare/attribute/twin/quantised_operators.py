"""Quantised operators on torch: ONNX's own, and those of ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.mistakes.quantization import quantise_to_uint8
from trtdx.engines.torch.lazy_import import torch
from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Tensor = Any
    Operator = Callable[[Sequence[Any], Mapping[str, Any], Any], Any]

MOST_INPUTS = 16


class UnknownOperatorError(InputError):
    """A graph has an operator that twins do not know."""


def pad_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Return inputs with none for those that are left out at the end."""
    return [*inputs, *[None] * (MOST_INPUTS - len(inputs))]


def _dequantize_op(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
    x, scale, zero = pad_inputs(inputs)[:3]
    axis, block = int(settings.get("axis", 1)), int(settings.get("block_size", 0))
    return _dequantise_tensor(x, scale, zero, dtype, axis, block)


def _quantize_op(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
    x, scale, zero = pad_inputs(inputs)[:3]
    return _quantise_tensor(x, scale.to(dtype), zero, int(settings.get("axis", 1)))


def broadcast_scale(scale: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    if scale.numel() == 1:
        return scale.reshape(())
    if block:
        return scale.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    shape = [1] * x.ndim
    shape[axis % x.ndim] = -1
    return scale.reshape(shape)


def _dynamic_quantize_op(inputs: Sequence[Any], _: Any, dtype: Any) -> Any:
    steps, scale, zero = quantise_to_uint8(inputs[0])
    return steps.to(torch.uint8), scale, zero.to(torch.uint8)


def _matmul_integer_op(inputs: Sequence[Any], _: Any, dtype: Any) -> Any:
    left, right, left_zero, right_zero = pad_inputs(inputs)[:4]
    left, right = left.to(torch.float64), right.to(torch.float64)
    left = left if left_zero is None else left - left_zero.to(torch.float64)
    right = right if right_zero is None else right - right_zero.to(torch.float64)
    return (left @ right).to(torch.int64)


def unpack_bits(data: Tensor, bits: int) -> Tensor:
    """Return the numbers that bytes hold along the last axis, the lowest bits first."""
    if bits == 8:
        return data.to(torch.int16)
    parts = [(data.to(torch.int16) >> at) & (2**bits - 1) for at in range(0, 8, bits)]
    return torch.stack(parts, -1).flatten(-2)


def nbits_weight(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Tensor:
    """Return the weight of a MatMulNBits, [out, in]."""
    data, scales, zeros, groups = pad_inputs(inputs)[1:5]
    if groups is not None:
        raise UnknownOperatorError("MatMulNBits with an order of groups cannot be computed here")
    rows, columns, bits = int(settings["N"]), int(settings["K"]), int(settings.get("bits", 4))
    numbers = unpack_bits(data.reshape(rows, -1, data.shape[-1]), bits).to(dtype)
    blocks = numbers.shape[1]
    centre: Any = float(2 ** (bits - 1))
    if zeros is not None:
        zero_points = zeros if zeros.is_floating_point() else unpack_bits(zeros.reshape(rows, -1), bits)
        centre = zero_points.reshape(rows, -1)[:, :blocks, None].to(dtype)
    weight = (numbers - centre) * scales.reshape(rows, blocks, 1).to(dtype)
    return weight.reshape(rows, -1)[:, :columns]


def _matmul_nbits_op(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
    bias = pad_inputs(inputs)[5]
    product = inputs[0] @ nbits_weight(inputs, settings, inputs[0].dtype).T
    return product if bias is None else product + bias


def _gather_blocks_op(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
    data, at, scales, zeros = pad_inputs(inputs)[:4]
    bits, packed = int(settings.get("bits", 4)), data.dtype == torch.uint8
    axis, stepped = int(settings.get("gather_axis", 0)), int(settings.get("quantize_axis", 1))
    if axis % data.ndim or stepped % data.ndim != data.ndim - 1:
        raise UnknownOperatorError("GatherBlockQuantized along these axes cannot be computed here")
    numbers = unpack_bits(data, bits) if packed else data
    block = int(settings.get("block_size", 128))
    centre: Any = float(2 ** (bits - 1)) if packed else 0.0
    if zeros is not None:
        zero_points = unpack_bits(zeros, bits) if packed else zeros
        centre = broadcast_scale(zero_points[..., : scales.shape[-1]], numbers, -1, block).to(dtype)
    table = (numbers.to(dtype) - centre) * broadcast_scale(scales.to(dtype), numbers, -1, block)
    return table[at.long()]


def _dequantise_tensor(
    x: Tensor, scale: Tensor, zero: Tensor | None, dtype: Any, axis: int = -1, block: int = 0
) -> Tensor:
    """Return integers as the numbers that they stand for."""
    numbers = x.to(dtype)
    if zero is not None:
        numbers = numbers - broadcast_scale(zero, x, axis, block).to(dtype)
    return numbers * broadcast_scale(scale.to(dtype), x, axis, block)


def _quantise_tensor(x: Tensor, scale: Tensor, zero: Tensor | None, axis: int = -1) -> Tensor:
    """Return numbers as integers."""
    kind = torch.uint8 if zero is None else zero.dtype
    limits = torch.iinfo(kind)
    steps = torch.round(x / broadcast_scale(scale.to(x.dtype), x, axis, 0))
    steps = steps if zero is None else steps + broadcast_scale(zero, x, axis, 0).to(steps.dtype)
    return steps.clamp(limits.min, limits.max).to(kind)


def _quantised_binary(function: Callable[[Any, Any], Any]) -> Operator:
    def run(inputs: Sequence[Any], _: Any, dtype: Any) -> Any:
        one, one_scale, one_zero, other, other_scale, other_zero, scale, zero = pad_inputs(inputs)[:8]
        result = function(
            _dequantise_tensor(one, one_scale, one_zero, dtype),
            _dequantise_tensor(other, other_scale, other_zero, dtype),
        )
        return _quantise_tensor(result, scale, zero)

    return run


def _quantised_unary(function: Callable[[Any, Mapping[str, Any]], Any]) -> Operator:
    def run(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
        x, scale, zero, new_scale, new_zero = pad_inputs(inputs)[:5]
        return _quantise_tensor(function(_dequantise_tensor(x, scale, zero, dtype), settings), new_scale, new_zero)

    return run


def _quantised_concat_op(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
    scale, zero, *rest = inputs
    parts = [_dequantise_tensor(rest[at], rest[at + 1], rest[at + 2], dtype) for at in range(0, len(rest), 3)]
    return _quantise_tensor(torch.cat(parts, int(settings["axis"])), scale, zero)


def _quantised_matmul_op(inputs: Sequence[Any], _: Any, dtype: Any) -> Any:
    one, one_scale, one_zero, other, other_scale, other_zero, scale, zero = inputs
    product = _dequantise_tensor(one, one_scale, one_zero, dtype, -2) @ _dequantise_tensor(
        other, other_scale, other_zero, dtype
    )
    return _quantise_tensor(product, scale, zero)


def _quantised_gemm_op(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
    one, one_scale, one_zero, other, other_scale, other_zero, bias, scale, zero = pad_inputs(inputs)[:9]
    axis = 0 if settings.get("transB") else -1
    left, right = (
        _dequantise_tensor(one, one_scale, one_zero, dtype),
        _dequantise_tensor(other, other_scale, other_zero, dtype, axis),
    )
    left = left.T if settings.get("transA") else left
    right = right.T if settings.get("transB") else right
    product = left @ right * float(settings.get("alpha", 1.0))
    if bias is not None:  # in steps of the product of both scales
        product = product + bias.to(dtype) * (one_scale * other_scale).to(dtype)
    return product if scale is None else _quantise_tensor(product, scale, zero)


def _dynamic_matmul_op(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
    x, weight, scale, zero, bias = pad_inputs(inputs)[:5]
    steps, own_scale, centre = _dynamic_quantize_op([x], settings, dtype)
    return _matmul_integer_to_float_op([steps, weight, own_scale, scale, centre, zero, bias], settings, dtype)


def _matmul_integer_to_float_op(inputs: Sequence[Any], _: Any, dtype: Any) -> Any:
    one, other, one_scale, other_scale, one_zero, other_zero, bias = pad_inputs(inputs)[:7]
    product = _dequantise_tensor(one, one_scale, one_zero, dtype) @ _dequantise_tensor(
        other, other_scale, other_zero, dtype
    )
    return product if bias is None else product + bias


QUANTISED_OPERATORS: dict[str, Operator] = {
    "DequantizeLinear": _dequantize_op, "QuantizeLinear": _quantize_op, "DynamicQuantizeLinear": _dynamic_quantize_op,
    "MatMulInteger": _matmul_integer_op, "QLinearMatMul": _quantised_matmul_op,
}  # fmt: skip
QUANTISED_CONTRIB_OPERATORS: dict[str, Operator] = {
    "MatMulNBits": _matmul_nbits_op, "GatherBlockQuantized": _gather_blocks_op,
    "DequantizeLinear": _dequantize_op, "QuantizeLinear": _quantize_op,
    "QLinearAdd": _quantised_binary(lambda a, b: a + b), "QLinearMul": _quantised_binary(lambda a, b: a * b),
    "QLinearConcat": _quantised_concat_op, "QGemm": _quantised_gemm_op,
    "QLinearSigmoid": _quantised_unary(lambda x, _: torch.sigmoid(x)),
    "QLinearSoftmax": _quantised_unary(lambda x, settings: torch.softmax(x, int(settings.get("axis", -1)))),
    "QLinearLeakyRelu": _quantised_unary(
        lambda x, settings: torch.nn.functional.leaky_relu(x, float(settings.get("alpha", 0.01)))
    ),
    "DynamicQuantizeMatMul": _dynamic_matmul_op, "MatMulIntegerToFloat": _matmul_integer_to_float_op,
}  # fmt: skip
