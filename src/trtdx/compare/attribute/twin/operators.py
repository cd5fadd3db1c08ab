"""ONNX's operators on torch, in whatever precision is asked for: what a twin of a graph is computed with.

Only what inference graphs of language models are made of. Casts between floating types follow the precision that is
asked for: in float64 and float32 nothing is rounded on the way, in sixteen bits the graph's own casts are made.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trtdx.compare.attribute.twin.attention_operators import onnx_attention, onnx_rotary_embedding
from trtdx.compare.attribute.twin.norm_operators import norm_operator
from trtdx.compare.attribute.twin.quantised_operators import QUANTISED_OPERATORS, UnknownOperatorError
from trtdx.engines.torch.lazy_import import torch
from trtdx.engines.torch.values import tensor_from_array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.compare.attribute.twin.quantised_operators import Operator

    Tensor = Any

ONNX_FLOAT, ONNX_FLOAT16, ONNX_DOUBLE, ONNX_BFLOAT16 = 1, 10, 11, 16
_INTEGER_TYPES = {2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool"}
LARGEST_INDEX = 2**62
CONTRIB_DOMAIN = "com.microsoft"


def compute_operator(
    op: str, inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any, *, domain: str = ""
) -> tuple[Any, ...]:
    """Return what one operator makes.

    Args:
        op: its type.
        inputs: its inputs; empty if one is left out.
        settings: its attributes as plain values.
        dtype: the floating type that everything is computed in.
        domain: of the operator; ONNX Runtime has others of the same name.
    """
    from trtdx.compare.attribute.twin.contrib_operators import CONTRIB_OPERATORS

    contrib = CONTRIB_OPERATORS.get(op) if domain == CONTRIB_DOMAIN else None
    operator = contrib or OPERATORS.get(op) or CONTRIB_OPERATORS.get(op)
    if operator is None:
        raise UnknownOperatorError(f"the operator {op} cannot be computed here")
    outputs = operator(inputs, settings, dtype)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def node_settings(node: Any) -> dict[str, Any]:
    """Return a node's attributes as plain values; graphs inside it are not known here."""
    return {name: attribute.value for name, attribute in node.attributes.items() if "GRAPH" not in attribute.type.name}


def _promote_both(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return two tensors in the wider of their types."""
    wide = torch.promote_types(one.dtype, other.dtype)
    return one.to(wide), other.to(wide)


def _binary_operator(function: Callable[[Any, Any], Any]) -> Operator:
    def run(inputs: Sequence[Any], _: Any, __: Any) -> Any:
        return function(*_promote_both(inputs[0], inputs[1]))

    return run


def _unary_operator(function: Callable[[Any], Any]) -> Operator:
    return lambda inputs, _, __: function(inputs[0])


def _variadic_operator(function: Callable[[Any, Any], Any]) -> Operator:
    def run(inputs: Sequence[Any], _: Any, __: Any) -> Any:
        result = inputs[0]
        for operand in inputs[1:]:
            result = function(*_promote_both(result, operand))
        return result

    return run


def _divide_tensors(one: Tensor, other: Tensor) -> Tensor:
    return one / other if one.is_floating_point() else torch.div(one, other, rounding_mode="trunc")


def _integers_of(tensor: Tensor) -> list[int]:
    return [int(number) for number in tensor.reshape(-1).tolist()]


def cast_to(tensor: Tensor, to: int, dtype: Any) -> Tensor:
    if to in _INTEGER_TYPES:
        return tensor.to(getattr(torch, _INTEGER_TYPES[to]))
    if dtype.itemsize > 2 or not tensor.is_floating_point():
        return tensor.to(dtype)
    return tensor.to(torch.float32 if to in (ONNX_FLOAT, ONNX_DOUBLE) else dtype)


def _gemm_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    one, other = _promote_both(inputs[0], inputs[1])
    product = (one.T if settings.get("transA") else one) @ (other.T if settings.get("transB") else other)
    product = product * float(settings.get("alpha", 1.0))
    bias = inputs[2] if len(inputs) > 2 else None
    return product if bias is None else product + float(settings.get("beta", 1.0)) * bias


def _transpose_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    order = settings.get("perm")
    return inputs[0].permute(*(order if order is not None else range(inputs[0].ndim)[::-1]))


def _reshape_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    shape = _integers_of(inputs[1])
    if not settings.get("allowzero"):
        shape = [inputs[0].shape[at] if size == 0 else size for at, size in enumerate(shape)]
    return inputs[0].reshape(shape)


def _axes_of(inputs: Sequence[Any], settings: Mapping[str, Any]) -> list[int] | None:
    if len(inputs) > 1 and inputs[1] is not None:
        return _integers_of(inputs[1])
    axes = settings.get("axes")
    return None if axes is None else [int(axis) for axis in axes]


def _squeeze_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    axes = _axes_of(inputs, settings)
    return inputs[0].squeeze() if axes is None else inputs[0].squeeze(tuple(axes))


def _unsqueeze_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    result, axes = inputs[0], _axes_of(inputs, settings) or []
    rank = result.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        result = result.unsqueeze(axis)
    return result


def _concat_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    wide = inputs[0].dtype
    for tensor in inputs[1:]:
        wide = torch.promote_types(wide, tensor.dtype)
    return torch.cat([tensor.to(wide) for tensor in inputs], int(settings["axis"]))


def _split_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    x, axis = inputs[0], int(settings.get("axis", 0))
    if len(inputs) > 1 and inputs[1] is not None:
        return tuple(x.split(_integers_of(inputs[1]), axis))
    sizes = settings.get("split")
    if sizes is not None:
        return tuple(x.split([int(size) for size in sizes], axis))
    count = int(settings.get("num_outputs") or settings["_outputs"])
    return tuple(x.split(-(-x.shape[axis] // count), axis))


def _slice_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    x = inputs[0]
    if len(inputs) == 1:
        starts, ends = list(settings["starts"]), list(settings["ends"])
        axes, steps = list(settings.get("axes", range(len(starts)))), [1] * len(starts)
    else:
        starts, ends = _integers_of(inputs[1]), _integers_of(inputs[2])
        more = [*inputs[3:], None, None]
        axes = _integers_of(more[0]) if more[0] is not None else list(range(len(starts)))
        steps = _integers_of(more[1]) if more[1] is not None else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = range(x.shape[axis])[slice(start, None if step < 0 and end < -LARGEST_INDEX else end, step)]
        chosen = torch.tensor(list(at), dtype=torch.int64)
        x = x.narrow(axis, at.start, len(at)) if step == 1 and len(at) else x.index_select(axis, chosen)
    return x


def _gather_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    x, at, axis = inputs[0], inputs[1].long(), int(settings.get("axis", 0))
    axis %= x.ndim
    at = torch.where(at < 0, at + x.shape[axis], at)
    rows = x.index_select(axis, at.reshape(-1))
    return rows.reshape((*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]))


def _gather_elements_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    axis, at = int(settings.get("axis", 0)), inputs[1].long()
    return inputs[0].gather(axis, torch.where(at < 0, at + inputs[0].shape[axis], at))


def _gather_nd_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    x, at, batches = inputs[0], inputs[1].long(), int(settings.get("batch_dims", 0))
    ranges = [torch.arange(size) for size in x.shape[:batches]]
    batch_indices = [
        index.reshape([-1 if axis == number else 1 for axis in range(at.ndim - 1)])
        for number, index in enumerate(ranges)
    ]
    return x[(*batch_indices, *at.unbind(-1))]


def _scatter_nd_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    x, at, values = inputs[0], inputs[1].long(), inputs[2]
    x = x.to(torch.promote_types(x.dtype, values.dtype))
    depth, how = (
        at.shape[-1],
        {"mul": "prod", "max": "amax", "min": "amin"}.get(str(settings.get("reduction"))),
    )
    if how is None:
        return x.index_put(tuple(at.unbind(-1)), values.to(x.dtype), accumulate=settings.get("reduction") == "add")
    numbers = torch.arange(math.prod(x.shape[:depth])).reshape(x.shape[:depth])[tuple(at.unbind(-1))]
    rows = x.reshape(math.prod(x.shape[:depth]), -1)
    new = values.to(x.dtype).reshape(numbers.numel(), -1)
    return rows.scatter_reduce(0, numbers.reshape(-1, 1).expand_as(new), new, how).reshape(x.shape)


def _constant_op(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
    for name in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        if name in settings:
            return _constant_tensor(settings[name], dtype)
    raise UnknownOperatorError("a constant of text cannot be computed with")


def _constant_tensor(value: Any, dtype: Any) -> Any:
    tensor = tensor_from_array(value.numpy()) if hasattr(value, "numpy") else torch.tensor(value)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _constant_of_shape_op(inputs: Sequence[Any], settings: Mapping[str, Any], dtype: Any) -> Any:
    value = _constant_tensor(settings["value"], dtype) if "value" in settings else torch.zeros((), dtype=dtype)
    return value.reshape(()).expand(_integers_of(inputs[0])).clone()


def _range_op(inputs: Sequence[Any], _: Any, __: Any) -> Any:
    start, end, step = (tensor.reshape(()).item() for tensor in inputs)
    return torch.arange(start, end, step, dtype=inputs[0].dtype)


def _shape_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    shape = list(inputs[0].shape)[int(settings.get("start", 0)) : settings.get("end")]
    return torch.tensor(shape, dtype=torch.int64)


def _reduce_operator(function: Callable[[Any, list[int], bool], Any]) -> Operator:
    def run(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
        axes = _axes_of(inputs, settings)
        if not axes and settings.get("noop_with_empty_axes"):
            return function(inputs[0][None], [0], False)
        return function(inputs[0], axes or list(range(inputs[0].ndim)), bool(settings.get("keepdims", 1)))

    return run


def _clip_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    low, high = [*inputs[1:], None, None][:2] if len(inputs) > 1 else (settings.get("min"), settings.get("max"))
    result = inputs[0]
    result = result if low is None else result.clamp(min=float(low))
    return result if high is None else result.clamp(max=float(high))


def _trilu_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    by = _integers_of(inputs[1])[0] if len(inputs) > 1 and inputs[1] is not None else 0
    return torch.triu(inputs[0], by) if settings.get("upper", 1) else torch.tril(inputs[0], by)


def _cumsum_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    axis, x = _integers_of(inputs[1])[0], inputs[0]
    x = x.flip(axis) if settings.get("reverse") else x
    result = x.cumsum(axis, dtype=x.dtype)
    result = result - x if settings.get("exclusive") else result
    return result.flip(axis) if settings.get("reverse") else result


def _flatten_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    shape = tuple(inputs[0].shape)
    axis = int(settings.get("axis", 1))
    axis += len(shape) if axis < 0 else 0
    return inputs[0].reshape(math.prod(shape[:axis]), -1 if math.prod(shape) else math.prod(shape[axis:]))


def _mod_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    one, other = _promote_both(inputs[0], inputs[1])
    return torch.fmod(one, other) if settings.get("fmod") else torch.remainder(one, other)


def _prod_over_axes(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = x.prod(axis, keep, dtype=x.dtype)
    return x


def _is_inf_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    x = inputs[0]
    low, high = bool(settings.get("detect_negative", 1)), bool(settings.get("detect_positive", 1))
    return (torch.isneginf(x) & low) | (torch.isposinf(x) & high)


def _argmax_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    x, axis, keep = inputs[0], int(settings.get("axis", 0)), bool(settings.get("keepdims", 1))
    if not settings.get("select_last_index"):
        return x.argmax(axis, keep)
    return x.shape[axis] - 1 - x.flip(axis).argmax(axis, keep)


def _conv_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    x, weight, bias = [*inputs, None][:3]
    if settings.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise UnknownOperatorError("a convolution that pads by itself cannot be computed here")
    many = weight.ndim - 2
    pads = list(settings.get("pads") or [0] * (2 * many))
    both = [size for axis in reversed(range(many)) for size in (pads[axis], pads[axis + many])]
    run = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[many - 1]
    steps, apart = (list(settings.get(name) or [1] * many) for name in ("strides", "dilations"))
    groups = int(settings.get("group", 1))
    return run(torch.nn.functional.pad(x, both), weight, bias, steps, 0, apart, groups)


def _silu_op(inputs: Sequence[Any], settings: Mapping[str, Any], _: Any) -> Any:
    return inputs[0] * torch.sigmoid(float(settings.get("alpha", 1.0)) * inputs[0])


OPERATORS: dict[str, Operator] = {
    "Add": _binary_operator(lambda a, b: a + b), "Sub": _binary_operator(lambda a, b: a - b), "Mul": _binary_operator(lambda a, b: a * b),
    "Div": _binary_operator(_divide_tensors), "Pow": lambda inputs, _, __: torch.pow(inputs[0], inputs[1].to(inputs[0].dtype)),
    "Mod": _mod_op, "MatMul": _binary_operator(lambda a, b: torch.matmul(a, b)), "Gemm": _gemm_op,
    "Max": _variadic_operator(lambda a, b: torch.maximum(a, b)), "Min": _variadic_operator(lambda a, b: torch.minimum(a, b)),
    "Sum": _variadic_operator(lambda a, b: a + b),
    "And": _binary_operator(lambda a, b: a & b), "Or": _binary_operator(lambda a, b: a | b), "Xor": _binary_operator(lambda a, b: a ^ b),
    "Not": _unary_operator(lambda x: ~x), "Equal": _binary_operator(lambda a, b: a == b), "Less": _binary_operator(lambda a, b: a < b),
    "LessOrEqual": _binary_operator(lambda a, b: a <= b), "Greater": _binary_operator(lambda a, b: a > b),
    "GreaterOrEqual": _binary_operator(lambda a, b: a >= b),
    "Where": lambda inputs, _, __: torch.where(inputs[0], *_promote_both(inputs[1], inputs[2])),
    "Neg": _unary_operator(lambda x: -x), "Abs": _unary_operator(lambda x: x.abs()), "Sqrt": _unary_operator(lambda x: x.sqrt()),
    "Reciprocal": _unary_operator(lambda x: x.reciprocal()), "Exp": _unary_operator(lambda x: x.exp()), "Log": _unary_operator(lambda x: x.log()),
    "Sin": _unary_operator(lambda x: x.sin()), "Cos": _unary_operator(lambda x: x.cos()), "Tanh": _unary_operator(lambda x: x.tanh()),
    "Sigmoid": _unary_operator(lambda x: x.sigmoid()), "Relu": _unary_operator(lambda x: x.relu()), "Erf": _unary_operator(lambda x: x.erf()),
    "Floor": _unary_operator(lambda x: x.floor()), "Ceil": _unary_operator(lambda x: x.ceil()), "Round": _unary_operator(lambda x: x.round()),
    "Sign": _unary_operator(lambda x: x.sign()), "IsNaN": _unary_operator(lambda x: x.isnan()), "IsInf": _is_inf_op,
    "Softplus": _unary_operator(lambda x: torch.nn.functional.softplus(x)), "Mish": _unary_operator(lambda x: torch.nn.functional.mish(x)),
    "Gelu": lambda inputs, settings, _: torch.nn.functional.gelu(inputs[0], approximate=str(settings.get("approximate", "none"))),
    "Swish": _silu_op, "Silu": _silu_op, "HardSwish": _unary_operator(lambda x: torch.nn.functional.hardswish(x)),
    "LeakyRelu": lambda inputs, settings, _: torch.nn.functional.leaky_relu(inputs[0], float(settings.get("alpha", 0.01))),
    "Elu": lambda inputs, settings, _: torch.nn.functional.elu(inputs[0], float(settings.get("alpha", 1.0))),
    "Softmax": lambda inputs, settings, _: torch.softmax(inputs[0], int(settings.get("axis", -1))),
    "LogSoftmax": lambda inputs, settings, _: torch.log_softmax(inputs[0], int(settings.get("axis", -1))),
    "Clip": _clip_op, "Cast": lambda inputs, settings, dtype: cast_to(inputs[0], int(settings["to"]), dtype),
    "CastLike": lambda inputs, _, dtype: inputs[0].to(inputs[1].dtype),
    "Identity": _unary_operator(lambda x: x), "Dropout": _unary_operator(lambda x: x),
    "Transpose": _transpose_op, "Reshape": _reshape_op, "Squeeze": _squeeze_op,
    "Flatten": _flatten_op, "Unsqueeze": _unsqueeze_op, "Concat": _concat_op, "Split": _split_op, "Slice": _slice_op, "Gather": _gather_op,
    "GatherElements": _gather_elements_op, "GatherND": _gather_nd_op, "ScatterND": _scatter_nd_op,
    "Expand": lambda inputs, _, __: inputs[0].expand(torch.broadcast_shapes(tuple(inputs[0].shape), tuple(_integers_of(inputs[1])))),
    "Tile": lambda inputs, _, __: inputs[0].repeat(*_integers_of(inputs[1])), "Constant": _constant_op,
    "ConstantOfShape": _constant_of_shape_op, "Range": _range_op, "Shape": _shape_op,
    "Size": lambda inputs, _, __: torch.tensor(inputs[0].numel()), "CumSum": _cumsum_op, "Trilu": _trilu_op,
    "TopK": lambda inputs, settings, _: tuple(
        inputs[0].topk(_integers_of(inputs[1])[0], int(settings.get("axis", -1)), bool(settings.get("largest", 1)))
    ),
    "ArgMax": _argmax_op, "Conv": _conv_op,
    "ReduceMean": _reduce_operator(lambda x, axes, keep: x.mean(axes, keep)), "ReduceSum": _reduce_operator(lambda x, axes, keep: x.sum(axes, keep)),
    "ReduceMax": _reduce_operator(lambda x, axes, keep: x.amax(axes, keep)), "ReduceMin": _reduce_operator(lambda x, axes, keep: x.amin(axes, keep)),
    "ReduceProd": _reduce_operator(_prod_over_axes),
    "ReduceL1": _reduce_operator(lambda x, axes, keep: x.abs().sum(axes, keep)),
    "ReduceLogSumExp": _reduce_operator(lambda x, axes, keep: x.logsumexp(axes, keep)),
    "ReduceL2": _reduce_operator(lambda x, axes, keep: (x * x).sum(axes, keep).sqrt()),
    "ReduceSumSquare": _reduce_operator(lambda x, axes, keep: (x * x).sum(axes, keep)),
    "LayerNormalization": norm_operator(centred=True), "RMSNormalization": norm_operator(centred=False),
    "SimplifiedLayerNormalization": norm_operator(centred=False), "Attention": onnx_attention, "RotaryEmbedding": onnx_rotary_embedding,
    **QUANTISED_OPERATORS,
    "Einsum": lambda inputs, settings, _: torch.einsum(str(settings["equation"]), *inputs),
}  # fmt: skip
