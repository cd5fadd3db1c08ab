"""Int8 in ONNX files: weights as DequantizeLinear of integers, activations through QuantizeLinear, and mistakes in both."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from .onnx_faults import after, array_of, constant, in_place_of, is_constant, linear, scope_of

LINEAR = ("MatMul", "Gemm")


def weights_in_int8(model: Any, *, per_tensor: tuple[str, ...] = (), scale: dict[str, float] | None = None,
                    zero_point: dict[str, int] | None = None) -> None:  # fmt: skip
    """Make the weights of all linear layers int8, a scale for each output channel.

    Args:
        model: the graph.
        per_tensor: modules whose weight has one scale.
        scale: modules whose scales are wrong by a factor.
        zero_point: modules whose zero points are wrong by so much.
    """
    for node in list(model.graph):
        weight = node.inputs[1] if node.op_type in LINEAR and len(node.inputs) > 1 else None
        if weight is None or not is_constant(weight) or len(array_of(weight).shape) != 2:
            continue
        scope, values = scope_of(node), array_of(weight)
        axis = 1  # both are [inputs, outputs] here
        step = np.abs(values).max(keepdims=True) if scope in per_tensor else np.abs(values).max(0, keepdims=True)
        step = step / 127
        codes = np.clip(np.round(values / step), -127, 127).astype(np.int8)
        step = (step * (scale or {}).get(scope, 1.0)).astype(values.dtype)
        step = step.reshape(()) if scope in per_tensor else step.reshape(-1)
        zero = np.full(step.shape, (zero_point or {}).get(scope, 0), np.int8)
        raw = constant(model, codes)
        node.replace_input_with(1, raw)
        made = after(
            model,
            raw,
            "DequantizeLinear",
            [constant(model, step), constant(model, zero)],
            users=[node],
            axis=axis,
        )
        made.type = weight.type


def one_channel_large(model: Any, up: str, down: str, channel: int, factor: float) -> None:
    """Make one channel between two linear layers large, and take it back in the second: the same function."""

    def grown(weight: Any) -> Any:
        weight[channel] *= factor
        return weight

    def shrunk(weight: Any) -> Any:
        weight[:, channel] /= factor
        return weight

    linear(model, up, grown)
    linear(model, down, shrunk)


def activations_in_int8(model: Any, ranges: dict[str, float], *, scale: dict[str, float] | None = None) -> None:
    """Put what enters linear layers through int8; the largest values are given, and factors for wrong ones."""
    for node in list(model.graph):
        scope = scope_of(node)
        if node.op_type not in LINEAR or scope not in ranges:
            continue
        x = node.inputs[0]
        step = constant(model, np.float32(ranges[scope] / 127 * (scale or {}).get(scope, 1.0)), like=x)
        zero = constant(model, np.int8(0))
        made = after(model, x, "QuantizeLinear", [step, zero], users=[node], near=node)
        made.type = ir.TensorType(ir.DataType.INT8)
        back = after(model, made, "DequantizeLinear", [step, zero], users=[node], near=node)
        back.type = x.type


def computed_in_int8(model: Any, scope: str) -> None:
    """Compute one linear layer in integers: activations of 8 bits made at run time, weights of 8 bits per channel."""
    node = next(each for each in model.graph if scope_of(each) == scope and each.op_type in LINEAR)
    x, values = node.inputs[0], array_of(node.inputs[1])
    step = np.abs(values).max(0) / 127
    codes = constant(model, np.clip(np.round(values / step), -127, 127).astype(np.int8))
    small = ir.node("DynamicQuantizeLinear", [x], num_outputs=3)
    whole = ir.node("MatMulInteger", [small.outputs[0], codes, small.outputs[2]])
    wide = ir.node("Cast", [whole.outputs[0]], attributes={"to": int(ir.DataType.FLOAT)})
    both = ir.node("Mul", [small.outputs[1], constant(model, step.astype(np.float32))])
    result = ir.node("Mul", [wide.outputs[0], both.outputs[0]])
    made = [small, whole, wide, both, result]
    if len(node.inputs) > 2:
        made.append(ir.node("Add", [result.outputs[0], node.inputs[2]]))
    kinds = [ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8, ir.DataType.INT32] + [ir.DataType.FLOAT] * 4
    for value, kind in zip((value for each in made for value in each.outputs), kinds, strict=False):
        value.type = ir.TensorType(kind)
    in_place_of(model, node, made)
