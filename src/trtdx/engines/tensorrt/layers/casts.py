"""Between types: cast and identity layers, and those that hand a tensor on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    identity_kernel,
    input_dtype,
    kernel_on_arrays,
    register_kernel,
)
from trtdx.engines.tensorrt.network.values import (
    FLOAT_DTYPES,
    NUMPY_DTYPES,
    WIDENED_DTYPES,
    torch_dtype,
    trt_numpy_dtype,
)
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer

INTEGER_LIMITS = {
    "INT8": (-128, 127),
    "UINT8": (0, 255),
    "INT4": (-8, 7),
    "INT32": (-(2**31), 2**31 - 1),
    "INT64": (-(2**63), 2**63 - 1),
}


@register_kernel("CAST", "IDENTITY", "CONDITIONAL_INPUT", "ATTENTION_OUTPUT")
def cast_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    source, target = input_dtype(layer), layer.outputs[0].dtype
    if source == target:
        return identity_kernel
    if source in NUMPY_DTYPES and target in NUMPY_DTYPES and (source != "FLOAT" or target == "BOOL"):
        target_dtype = trt_numpy_dtype(target)
        return lambda value: value.astype(target_dtype)
    return kernel_on_arrays(_torch_cast(source, target), layer)


def _torch_cast(source: str, target: str) -> Kernel:
    dtype = torch_dtype(target)
    if target == "BOOL":
        return lambda value: (value.to(torch.float32) if source in WIDENED_DTYPES else value) != 0
    if target == "INT4":
        return lambda value: wrap_to_int4(value if source not in FLOAT_DTYPES else integers_from_floats(value, "INT32"))
    if target in INTEGER_LIMITS and source in FLOAT_DTYPES:
        return lambda value: integers_from_floats(value, target)
    if target == "FP8":
        return lambda value: torch.clamp(value.to(torch.float32), -448, 448).to(dtype)
    if target == "FP4":
        return lambda value: round_to_fp4(value.to(torch.float32)).to(dtype)
    return lambda value: value.to(dtype)


def integers_from_floats(value: Any, target: str) -> Any:
    """Return floats cut towards zero; a NaN is 0 and what is too large the limit: NVIDIA/TensorRT#4775."""
    low, high = INTEGER_LIMITS[target]
    wide = torch.nan_to_num(value.to(torch.float64), nan=0.0)
    clamped = torch.clamp(wide, float(low), float(high))
    if target != "INT64":
        return clamped.to(torch_dtype(target))
    too_large = wide >= 2.0**63
    return torch.where(too_large, high, torch.where(too_large, 0.0, clamped).to(torch.int64))


def wrap_to_int4(value: Any) -> Any:
    """Return the low four bits of integers as a signed number, as ONNX casts; TensorRT's documents do not tell."""
    return (((value + 8) & 15) - 8).to(torch.int8)


def round_to_fp4(value: Any) -> Any:
    """Return the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with the sign of each value; ties to even."""
    size = torch.clamp(torch.abs(value), max=6.0)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.copysign(torch.round(size / step) * step, value)
