"""Element by element with parameters: activation, parametric ReLU and scale layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    compute_in_float32,
    input_dtype,
    kernel_on_arrays,
    register_kernel,
    register_torch_kernel,
    shape_along,
)
from trtdx.engines.tensorrt.network.values import (
    FLOAT_DTYPES,
    NUMPY_DTYPES,
    torch_converter,
    value_from_weights,
)
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer

NUMPY_FASTER_ELEMENTS = 1 << 13  # elements up to which several calls of numpy are quicker than one of torch


@register_kernel("ACTIVATION")
def activation_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    kernel: Kernel = ACTIVATIONS[trt.type.name](trt.alpha, trt.beta)
    if layer.outputs[0].dtype in FLOAT_DTYPES:
        kernel = compute_in_float32(kernel, layer)
    large = kernel_on_arrays(kernel, layer)
    if trt.type.name != "SIGMOID" or input_dtype(layer) not in NUMPY_DTYPES:
        return large
    return lambda value: (
        large(value) if value.size > NUMPY_FASTER_ELEMENTS or not value.ndim else 1 / (1 + np.exp(-value))
    )


def _clip_function(low: float, high: float) -> Kernel:
    def clip(value: Any) -> Any:
        if not value.is_floating_point():
            return torch.clamp(value, math.ceil(low), math.floor(high))
        # A NaN becomes the lower bound: NVIDIA/TensorRT#4773.
        return torch.clamp(torch.nan_to_num(value, nan=low, posinf=math.inf, neginf=-math.inf), low, high)

    return clip


ACTIVATIONS: dict[str, Any] = {
    "RELU": lambda alpha, beta: torch.relu,
    "SIGMOID": lambda alpha, beta: torch.sigmoid,
    "TANH": lambda alpha, beta: torch.tanh,
    "LEAKY_RELU": lambda alpha, beta: lambda x: torch.where(x >= 0, x, alpha * x),
    "ELU": lambda alpha, beta: lambda x: torch.where(x >= 0, x, alpha * torch.expm1(x)),
    "SELU": lambda alpha, beta: lambda x: beta * torch.where(x > 0, x, alpha * torch.expm1(x)),
    "SOFTSIGN": lambda alpha, beta: lambda x: x / (1 + torch.abs(x)),
    "SOFTPLUS": lambda alpha, beta: lambda x: alpha * torch.logaddexp(beta * x, torch.zeros_like(x)),
    "CLIP": _clip_function,
    "HARD_SIGMOID": lambda alpha, beta: lambda x: torch.clamp(alpha * x + beta, 0, 1),
    "SCALED_TANH": lambda alpha, beta: lambda x: alpha * torch.tanh(beta * x),
    "THRESHOLDED_RELU": lambda alpha, beta: lambda x: torch.where(x > alpha, x, torch.zeros_like(x)),
    "GELU_ERF": lambda alpha, beta: torch.nn.functional.gelu,
    "GELU_TANH": lambda alpha, beta: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


@register_torch_kernel("PARAMETRIC_RELU")
def parametric_relu_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    return compute_in_float32(lambda value, slope: torch.where(value < 0, value * slope, value), layer)


@register_torch_kernel("SCALE")
def scale_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    dtype = input_dtype(layer)
    mode, axis = trt.mode.name, trt.channel_axis
    arrays = [value_from_weights(weights, dtype) for weights in (trt.scale, trt.shift, trt.power)]
    coefficients = [None if array is None else torch_converter(dtype)(np.ascontiguousarray(array)) for array in arrays]

    def compute(value: Any) -> Any:
        factor, shift, power = (_broadcast_weights(weights, value, mode, axis) for weights in coefficients)
        value = value if factor is None else value * factor
        value = value if shift is None else value + shift
        return value if power is None else torch.pow(value, power)

    return _round_to_int8_output(compute_in_float32(compute, layer), layer)


def _broadcast_weights(weights: Any, value: Any, mode: str, axis: int) -> Any:
    """Return weights in the shape that meets a value's axes, or None for coefficients left out."""
    if weights is None:
        return None
    weights = weights.to(value.dtype)
    if mode == "UNIFORM":
        return weights.reshape(())
    if mode == "CHANNEL":
        return weights.reshape(shape_along(axis, value.dim()))
    return weights.reshape(value.shape[axis:])


def _round_to_int8_output(kernel: Kernel, layer: TrtLayer) -> Kernel:
    """Return the kernel followed by the rounding to INT8 that a scale layer may be used for."""
    if layer.outputs[0].dtype != "INT8" or input_dtype(layer) == "INT8":
        return kernel
    return lambda value: torch.clamp(torch.round(kernel(value)), -128, 127).to(torch.int8)
