"""Products: matrix multiplication, einsum, mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.errors import LayerError
from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    compute_in_float32,
    dims_tuple,
    input_dtype,
    read_attribute,
    register_shortcut,
    register_torch_kernel,
)
from trtdx.engines.tensorrt.layers.quantization import quantize_scaled
from trtdx.engines.tensorrt.network.values import FLOAT_DTYPES, Array, torch_dtype
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer

EINSUM_ROWS = 2  # up to which a matrix is better gone through once from front to end
ONE_THREAD_ELEMENTS = 1 << 20  # elements of a matrix up to which one thread is enough
BLAS_THREAD_ELEMENTS, BLAS_THREAD_MULTIPLICATIONS = (
    9216,
    1 << 18,
)  # elements and multiplications up to which OpenBLAS uses one thread


@register_torch_kernel("MATRIX_MULTIPLY")
def matrix_multiply_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    left_op, right_op = trt.op0.name, trt.op1.name

    def kernel(left: Any, right: Any) -> Any:
        return multiply_matrices(_matrix_operand(left, left_op, -2), _matrix_operand(right, right_op, -1))

    if "VECTOR" in (left_op, right_op):
        kernel = _squeeze_vector_axes(kernel, left_op, right_op)
    if input_dtype(layer) in FLOAT_DTYPES:
        return compute_in_float32(kernel, layer)
    dtype = torch_dtype(layer.outputs[0].dtype)
    return lambda left, right: kernel(left.to(torch.int32), right.to(torch.int32)).to(dtype)


def _matrix_operand(value: Any, operation: str, new_axis: int) -> Any:
    if operation == "VECTOR":
        return value.unsqueeze(new_axis)
    return value.transpose(-1, -2) if operation == "TRANSPOSE" else value


def _squeeze_vector_axes(kernel: Kernel, left_op: str, right_op: str) -> Kernel:
    """Return a product without the axes that vectors had to be given for it."""

    def compute(left: Any, right: Any) -> Any:
        result = kernel(left, right)
        if right_op == "VECTOR":
            result = result.squeeze(-1)
        return result.squeeze(-1 if right_op == "VECTOR" else -2) if left_op == "VECTOR" else result

    return compute


def multiply_matrices(left: Any, right: Any) -> Any:
    """Return a batched product; weights that all of the batch shares are multiplied once, as one matrix."""
    if right.dim() > 2 and right.numel() == right.shape[-1] * right.shape[-2]:
        return torch.matmul(left, right.reshape(right.shape[-2], right.shape[-1]))
    return torch.matmul(left, right)


@register_shortcut("MATRIX_MULTIPLY")
def small_matrix_multiply_kernel(layer: TrtLayer, trt: Any, large: Kernel) -> Kernel:
    """Return the product of arrays, with numpy where that is quicker than torch, which has the rest.

    A row or two times a matrix is done by einsum, without BLAS: it goes through the matrix from front to end, and
    weights that are in no cache come twice as fast. Products of heads are small and many; numpy's BLAS computes
    those in one thread.
    """
    turned = trt.op0.name == "TRANSPOSE", trt.op1.name == "TRANSPOSE"
    if input_dtype(layer) != "FLOAT" or "VECTOR" in (trt.op0.name, trt.op1.name) or turned[0]:
        return large

    def compute(left: Array, right: Array) -> Any:
        matrix = right.swapaxes(-1, -2) if turned[1] else right
        inner, width = matrix.shape[-2:]
        if right.size == inner * width and left.size <= EINSUM_ROWS * inner and right.size <= ONE_THREAD_ELEMENTS:
            rows = np.einsum("mk,kn->mn", left.reshape(-1, inner), matrix.reshape(inner, width))
            return rows.reshape(*left.shape[:-1], width)
        if inner * width <= BLAS_THREAD_ELEMENTS and left.shape[-2] * inner * width <= BLAS_THREAD_MULTIPLICATIONS:
            return np.matmul(left, matrix)
        return large(left, right)

    return compute


@register_torch_kernel("EINSUM")
def einsum_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    equation = trt.equation
    return compute_in_float32(lambda *values: torch.einsum(equation, *values), layer)


@register_torch_kernel("MOE")
def moe_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    """Return the layer's kernel: for each token the sum of its experts' outputs by their scores.

    An expert is down(swish(gate(x)) * (up(x) + beta)), with gate cut at `limit` from above and up on both
    sides, and swish(y) = y * sigmoid(alpha * y).
    """
    activation = trt.activation_type.name
    limit, alpha, beta = trt.swiglu_param_limit, trt.swiglu_param_alpha, trt.swiglu_param_beta
    to_type = trt.quantization_to_type.name
    scaled = to_type != "FLOAT"
    biased = len(layer.inputs) - 3 - 3 - scaled >= 3
    if dims_tuple(read_attribute(lambda: trt.quantization_block_shape)):
        raise LayerError(f"layer {layer.name!r} quantises dynamically, which is not computed", layer=layer.name)
    if activation not in ("NONE", "SILU"):
        raise LayerError(f"the activation {activation} of layer {layer.name!r} is not known", layer=layer.name)

    def between(gate: Any, up: Any) -> Any:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        if activation == "SILU":
            gate = gate * torch.sigmoid(alpha * gate)
        return gate * (up + beta)

    def compute(hidden: Any, chosen: Any, scores: Any, *parameters: Any) -> Any:
        weights, rest = parameters[:3], parameters[3:]
        biases = rest[:3] if biased else (None, None, None)
        scale = rest[-1] if scaled else None
        tokens = hidden.reshape(-1, hidden.shape[-1])
        experts = chosen.reshape(tokens.shape[0], -1)
        shares = scores.reshape(tokens.shape[0], -1)
        total = torch.zeros_like(tokens)
        for expert in torch.unique(experts).tolist():
            token, place = torch.nonzero(experts == expert, as_tuple=True)
            gate, up, down = (
                _expert_linear(expert, weight, bias) for weight, bias in zip(weights, biases, strict=True)
            )
            inner = between(gate(tokens[token]), up(tokens[token]))
            if scale is not None:
                inner = _quantize_dequantize(inner, scale.reshape(-1)[expert if scale.numel() > 1 else 0], to_type)
            total.index_add_(0, token, down(inner) * shares[token, place].unsqueeze(-1))
        return total.reshape(hidden.shape)

    return compute_in_float32(compute, layer)


def _expert_linear(expert: int, weights: Any, bias: Any) -> Kernel:
    if bias is None:
        return lambda value: value @ weights[expert]
    return lambda value: value @ weights[expert] + bias[expert]


def _quantize_dequantize(value: Any, scale: Any, dtype: str) -> Any:
    """Return a value after quantisation and back."""
    return quantize_scaled(value / scale, dtype).to(torch.float32) * scale
