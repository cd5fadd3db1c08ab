"""Picking and placing: gather, scatter, one-hot, non-zero, reverse sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.tensorrt.layers.kernel_registry import (
    Kernel,
    kernel_on_arrays,
    register_kernel,
    register_torch_kernel,
    shape_along,
)
from trtdx.engines.tensorrt.network.values import Array, torch_dtype
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from trtdx.engines.tensorrt.network.graph import TrtLayer

MOVED_AS_BYTES = ("FP8", "FP4", "E8M0")  # torch does not move these everywhere


def move_as_bytes(kernel: Kernel, layer: TrtLayer) -> Kernel:
    """Return a kernel that moves 8 bit floats as bytes, for torch does not move them everywhere."""
    if layer.outputs[0].dtype not in MOVED_AS_BYTES:
        return kernel
    dtype = torch_dtype(layer.outputs[0].dtype)

    def compute(*values: Any) -> Any:
        raw = [value.view(torch.uint8) if value is not None and value.dtype == dtype else value for value in values]
        return kernel(*raw).view(dtype)

    return compute


def wrap_indices(index: Any, length: int) -> tuple[Any, Any]:
    """Return indices counted from the front, and where they are out of bounds (None: nowhere)."""
    index = index.to(torch.int64)
    if not index.numel():
        return index, None
    low, high = (limit.item() for limit in torch.aminmax(index))
    if low < 0:
        index = torch.where(index < 0, index + length, index)
    if high < length and low >= -length:
        return index, None
    outside = (index < 0) | (index >= length)
    return torch.where(outside, torch.zeros_like(index), index), outside


def _tuples_in_bounds(index: Any, lengths: tuple[int, ...]) -> tuple[list[Any], Any]:
    """Return the parts of the tuples along the last axis, as `wrap_indices` does with each of them."""
    parts, outside = [], None
    for number in range(index.shape[-1]):
        inside, missed = wrap_indices(index[..., number], lengths[number])
        parts.append(inside)
        outside = missed if outside is None else outside if missed is None else outside | missed
    return parts, outside


@register_kernel("GATHER")
def gather_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    mode, axis, batch = trt.mode.name, trt.axis, trt.num_elementwise_dims
    if mode == "ELEMENT":
        return kernel_on_arrays(move_as_bytes(lambda data, index: gather_elements(data, index, axis), layer), layer)
    if mode == "ND":
        anywhere = kernel_on_arrays(
            move_as_bytes(lambda data, index: gather_nd_torch(data, index, batch), layer), layer
        )
        return lambda data, index: gather_nd(data, index, batch, anywhere)
    if batch:
        return lambda data, index: gather_batched(data, index, axis)
    return lambda data, index: gather_default(data, index, axis)


def gather_default(data: Array, index: Array, axis: int) -> Array:
    """Return the slices of data along an axis that the indices name; zeros for one out of bounds."""
    length = data.shape[axis]
    shape = (*data.shape[:axis], *index.shape, *data.shape[axis + 1 :])
    if index.size == 1 and -length <= (number := index.item()) < length:  # a view will do
        return data[(*[slice(None)] * axis, slice(number % length, number % length + 1))].reshape(shape)
    if not length or not index.size:
        return np.zeros(shape, data.dtype)
    if index.min() >= -length and index.max() < length:
        return data.take(index, axis)
    outside = (index < -length) | (index >= length)
    picked = data.take(np.where(outside, 0, index), axis)
    picked[(*[slice(None)] * axis, outside)] = 0
    return picked


def gather_batched(data: Array, index: Array, axis: int) -> Array:
    """Return a gather done for each element of the first axis; a first axis of length 1 is for all."""
    count = max(data.shape[0], index.shape[0]) if data.shape[0] and index.shape[0] else 0
    if not count:
        return np.zeros((0, *data.shape[1:axis], *index.shape[1:], *data.shape[axis + 1 :]), data.dtype)
    gathered = [
        gather_default(data[min(number, len(data) - 1)], np.asarray(index[min(number, len(index) - 1)]), axis - 1)
        for number in range(count)
    ]
    return np.stack(gathered)


def gather_elements(data: Any, index: Any, axis: int) -> Any:
    inside, outside = wrap_indices(index, data.shape[axis])
    picked = torch.gather(data, axis, inside)
    return picked if outside is None else picked.masked_fill(outside, 0)


def gather_nd(data: Array, index: Array, batch: int, torch_gather: Kernel) -> Array:
    """Return the slices that the tuples along the last axis of the indices name."""
    width = index.shape[-1]
    lengths = data.shape[:width]
    if not batch and index.size:
        flat = index.reshape(-1, width)
        least, most = flat.min(0).tolist(), flat.max(0).tolist()
        if min(least) >= 0 and all(a < b for a, b in zip(most, lengths, strict=True)):
            place = np.ravel_multi_index(tuple(flat.T), lengths)
            picked = data.reshape(-1, *data.shape[width:]).take(place, 0)
            return np.reshape(picked, (*index.shape[:-1], *data.shape[width:]))
    picked_anywhere: Array = torch_gather(data, index)
    return picked_anywhere


def gather_nd_torch(data: Any, index: Any, batch: int) -> Any:
    """Return the same with torch: batch axes, negative indices, zeros for what is out of bounds."""
    parts, outside = _tuples_in_bounds(index, data.shape[batch:])
    picked = data[(*_batch_indices(index, batch), *parts)]
    if outside is None:
        return picked
    return picked.masked_fill(outside.reshape((*outside.shape, *[1] * (picked.dim() - outside.dim()))), 0)


def _batch_indices(index: Any, batch: int) -> list[Any]:
    """Return, for each batch axis, every place's own number along it."""
    rank = index.dim() - 1
    return [torch.arange(index.shape[axis]).reshape(shape_along(axis, rank)) for axis in range(batch)]


@register_torch_kernel("SCATTER")
def scatter_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    axis = trt.axis
    if trt.mode.name == "ND":
        return move_as_bytes(scatter_nd, layer)
    return move_as_bytes(lambda data, index, updates: scatter_elements(data, index, updates, axis), layer)


def scatter_elements(data: Any, index: Any, updates: Any, axis: int) -> Any:
    """Return data with updates written along an axis; the last of several writes to one place stays."""
    inside, outside = wrap_indices(index, data.shape[axis])
    if outside is not None:
        updates = torch.where(outside, torch.gather(data, axis, inside), updates)
    return torch.scatter(data, axis, inside, updates)


def scatter_nd(data: Any, index: Any, updates: Any) -> Any:
    """Return data with slices replaced; what is out of bounds is left out."""
    tuples = index.reshape(-1, index.shape[-1])
    slices = updates.reshape(tuples.shape[0], *data.shape[index.shape[-1] :])
    parts, outside = _tuples_in_bounds(tuples, data.shape)
    if outside is not None:
        parts = [part[~outside] for part in parts]
        slices = slices[~outside]
    return data.index_put(tuple(parts), slices) if parts else slices.reshape(data.shape)


@register_torch_kernel("ONE_HOT")
def one_hot_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    axis = trt.axis

    def compute(index: Any, values: Any, depth: Any) -> Any:
        count = int(depth.item())
        where = axis % (index.dim() + 1)
        classes = torch.arange(count).reshape(shape_along(where, index.dim() + 1))
        index = torch.where(index < 0, index + count, index).unsqueeze(where)
        return torch.where(index == classes, values[1], values[0])

    return move_as_bytes(compute, layer)


@register_torch_kernel("NON_ZERO")
def non_zero_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    dtype = torch_dtype(layer.outputs[0].dtype)
    return lambda value: torch.nonzero(value).t().to(dtype)


@register_torch_kernel("REVERSE_SEQUENCE")
def reverse_sequence_kernel(layer: TrtLayer, trt: Any) -> Kernel:
    batch, sequence = trt.batch_axis, trt.sequence_axis

    def compute(value: Any, lengths: Any) -> Any:
        count = value.shape[sequence]
        place = torch.arange(count)
        length = lengths.to(torch.int64).unsqueeze(1)
        index = torch.where(place < length, length - 1 - place, place)  # one row for each of the batch
        shape = [1] * value.dim()
        shape[batch], shape[sequence] = index.shape
        index = index if batch < sequence else index.t()
        return torch.gather(value, sequence, index.reshape(shape).expand(value.shape))

    return move_as_bytes(compute, layer)
