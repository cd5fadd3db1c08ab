"""Element by element: elementwise, unary and select layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    compute_in_float32,
    identity_kernel,
    input_dtype,
    kernel_on_arrays,
    register_kernel,
)
from trtdx.engines.tensorrt.network.values import FLOAT_DTYPES, NUMPY_DTYPES, Array
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer

TORCH_FASTER_ELEMENTS = 1 << 18  # elements from which torch's several threads pay
NUMPY_FASTER_ELEMENTS = (
    1 << 12
)  # elements up to which numpy's functions without vector code are quicker than a call of torch

# On NaN: in MAX and MIN a number wins, NVIDIA/TensorRT#4758.
NUMPY_FLOAT_OPERATIONS: dict[str, Any] = {
    "SUM": np.add, "PROD": np.multiply, "SUB": np.subtract, "DIV": np.divide, "MAX": np.fmax, "MIN": np.fmin,
    "EQUAL": np.equal, "GREATER": np.greater, "LESS": np.less, "POW": np.power,
    "FLOOR_DIV": lambda left, right: np.floor(np.divide(left, right)),
}  # fmt: skip
NUMPY_INTEGER_OPERATIONS: dict[str, Any] = {
    "SUM": np.add, "PROD": np.multiply, "SUB": np.subtract,  # these wrap around
    "DIV": lambda left, right: divide_integers(left, right, truncate=True),
    "FLOOR_DIV": lambda left, right: divide_integers(left, right, truncate=False),
    "POW": lambda left, right: integer_power(left, right),
    "MAX": np.maximum, "MIN": np.minimum, "EQUAL": np.equal, "GREATER": np.greater, "LESS": np.less,
    "AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor,
}  # fmt: skip
TORCH_FLOAT_OPERATIONS = {
    "SUM": "add", "PROD": "mul", "SUB": "sub", "DIV": "div", "MAX": "fmax", "MIN": "fmin", "EQUAL": "eq",
    "GREATER": "gt", "LESS": "lt", "POW": "pow",
}  # fmt: skip


@register_kernel("ELEMENTWISE")
def elementwise_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    operation = trt.op.name
    if input_dtype(layer) not in FLOAT_DTYPES:
        return _array_result_kernel(NUMPY_INTEGER_OPERATIONS[operation])
    large = kernel_on_arrays(_torch_elementwise(operation, layer), layer)
    if input_dtype(layer) not in NUMPY_DTYPES:
        return large
    small = _array_result_kernel(NUMPY_FLOAT_OPERATIONS[operation])
    if operation == "POW":
        return _power_kernel(large)

    return lambda left, right: (
        large if left.size > TORCH_FASTER_ELEMENTS or right.size > TORCH_FASTER_ELEMENTS else small
    )(left, right)


def _array_result_kernel(function: Any) -> Kernel:
    """Return a numpy function that gives an array also where numpy would give a scalar."""

    def compute(*values: Array) -> Any:
        result = function(*values)
        return result if result.__class__ is np.ndarray else np.asarray(result)

    return compute


def _torch_elementwise(operation: str, layer: TrtLayer) -> Kernel:
    if operation == "FLOOR_DIV":
        return compute_in_float32(lambda left, right: torch.floor(torch.div(left, right)), layer)
    function = getattr(torch, TORCH_FLOAT_OPERATIONS[operation])
    # Of these torch computes all but the power in float32 and rounds once, whatever the type.
    kernel: Kernel = compute_in_float32(function, layer) if operation == "POW" else function
    return kernel


def _power_kernel(large: Kernel) -> Kernel:
    """Return the power of floats; by multiplication where the exponent is 2 or 3, as it mostly is."""

    def compute(base: Array, exponent: Array) -> Any:
        if exponent.size == 1 and base.size <= TORCH_FASTER_ELEMENTS:  # both have the same rank
            number = exponent.item()
            if number == 2:
                return np.asarray(np.multiply(base, base))
            if number == 3:
                return np.asarray(np.multiply(np.multiply(base, base), base))
        if base.size > NUMPY_FASTER_ELEMENTS or exponent.size > NUMPY_FASTER_ELEMENTS:
            return large(base, exponent)
        return np.asarray(np.power(base, exponent))

    return compute


def divide_integers(left: Array, right: Array, *, truncate: bool) -> Any:
    """Return an integer quotient; by zero it is -1, as NVIDIA's GPUs give."""
    if left.size == right.size == 1 and (divisor := right.item()) > 0 and (number := left.item()) >= 0:
        shape = left.shape if left.ndim >= right.ndim else right.shape
        return np.array(number // divisor, left.dtype).reshape(shape)  # as in arithmetic on shapes
    if not right.all():
        quotient = divide_integers(left, np.where(right == 0, np.ones_like(right), right), truncate=truncate)
        return np.where(right == 0, np.full_like(right, -1), quotient)
    floor = np.floor_divide(left, right)  # the least number by -1 wraps around to itself
    if not truncate:
        return floor
    return floor + ((floor < 0) & (np.multiply(floor, right) != left))


def integer_power(base: Array, exponent: Array) -> Any:
    """Return an integer power; one with a negative exponent is cut towards zero."""
    if not (exponent < 0).any():
        return np.power(base, exponent)
    inverse = np.where(base == -1, 1 - 2 * (exponent % 2), base == 1)
    return np.where(exponent < 0, inverse, np.power(base, np.maximum(exponent, 0))).astype(base.dtype)


NUMPY_UNARY_OPERATIONS: dict[str, Any] = {
    "EXP": np.exp, "LOG": np.log, "SQRT": np.sqrt, "RECIP": np.reciprocal, "ABS": np.abs, "NEG": np.negative,
    "SIN": np.sin, "COS": np.cos, "TAN": np.tan, "SINH": np.sinh, "COSH": np.cosh,
    "ASIN": np.arcsin, "ACOS": np.arccos, "ATAN": np.arctan, "ASINH": np.arcsinh, "ACOSH": np.arccosh,
    "ATANH": np.arctanh, "CEIL": np.ceil, "FLOOR": np.floor, "SIGN": np.sign,
    "ROUND": np.rint,  # ties to even
}  # fmt: skip
VECTORISED_UNARY = ("SQRT", "RECIP", "ABS", "NEG", "CEIL", "FLOOR", "SIGN", "ROUND", "EXP")


@register_kernel("UNARY")
def unary_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    operation, dtype = trt.op.name, input_dtype(layer)
    if operation == "NOT":
        return lambda value: np.asarray(np.logical_not(value))
    if dtype not in FLOAT_DTYPES:
        function: Any = {"ABS": np.abs, "NEG": np.negative, "SIGN": np.sign}.get(operation, identity_kernel)
        return lambda value: np.asarray(function(value))
    large = kernel_on_arrays(_torch_unary(operation, layer), layer)
    if dtype not in NUMPY_DTYPES or operation not in NUMPY_UNARY_OPERATIONS:
        return large
    small = _array_result_kernel(NUMPY_UNARY_OPERATIONS[operation])
    most = TORCH_FASTER_ELEMENTS if operation in VECTORISED_UNARY else NUMPY_FASTER_ELEMENTS

    return lambda value: (large if value.size > most else small)(value)


def _torch_unary(operation: str, layer: TrtLayer) -> Kernel:
    if operation in ("ISINF", "ISNAN"):
        kernel: Kernel = torch.isinf if operation == "ISINF" else torch.isnan
        return kernel
    names = {"RECIP": "reciprocal"}
    return compute_in_float32(getattr(torch, names.get(operation, operation.lower())), layer)


@register_kernel("SELECT")
def select_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    large = kernel_on_arrays(lambda condition, left, right: torch.where(condition, left, right), layer)
    return lambda condition, left, right: (
        large(condition, left, right)
        if left.size > TORCH_FASTER_ELEMENTS or right.size > TORCH_FASTER_ELEMENTS
        else np.where(condition, left, right)
    )
