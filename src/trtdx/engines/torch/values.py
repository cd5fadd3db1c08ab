"""Between NumPy arrays and torch tensors, over the same memory where the device allows it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trtdx.engines.torch.lazy_import import torch
from trtdx.tensors.dtypes import DTYPES, find_dtype, numpy_dtype

if TYPE_CHECKING:
    from trtdx.engines.engine import Array


def array_from_tensor(tensor: Any) -> Array:
    """Return an array over a tensor's memory; a copy if that is on another device."""
    detached = tensor.detach()
    if detached.device.type != "cpu":
        detached = detached.cpu()
    detached = detached.resolve_conj().resolve_neg()
    dtype = find_dtype(detached.dtype)
    if dtype.npy:
        array: Array = detached.numpy()
        return array
    view: Array = detached.view(getattr(torch, f"uint{8 * dtype.bytes}")).numpy()
    return view.view(numpy_dtype(dtype.name))


def tensor_from_array(value: Any, device: Any = "cpu") -> Any:
    """Return a tensor over an array's memory; a copy if the device is another one or torch cannot look there.

    An array that is read-only is copied: models add to their inputs in place, which ends the process where the
    memory is a mapped file.
    """
    if isinstance(value, torch.Tensor):
        return value.to(device)
    array = np.asarray(value)
    if any(stride < 0 for stride in array.strides) or not array.dtype.isnative or not array.flags.aligned:
        array = array.astype(array.dtype.newbyteorder("="), copy=True)
    if not array.flags.writeable:
        array = array.copy()
    known_dtype = DTYPES.get(array.dtype.name)
    if known_dtype is None or known_dtype.npy:
        return torch.from_numpy(array).to(device)
    raw = torch.from_numpy(array.view(f"uint{8 * known_dtype.bytes}"))
    return raw.view(getattr(torch, known_dtype.name)).to(device)


def tensors_from_arrays(value: Any, device: Any) -> Any:
    """Return a value with its arrays as tensors, looking into tuples, lists and dicts."""
    if isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
        return tensor_from_array(value, device)
    if isinstance(value, (tuple, list)):
        return type(value)(tensors_from_arrays(element, device) for element in value)
    if isinstance(value, Mapping):
        return {name: tensors_from_arrays(element, device) for name, element in value.items()}
    return value


def forward_parameters(module: Any) -> Mapping[str, inspect.Parameter]:
    """Return what a module's forward takes, by name."""
    return inspect.signature(module.forward).parameters


def model_device(model: Any) -> Any:
    """Return where a model takes its inputs: where its first weight is."""
    first = next(model.parameters(), None)
    if first is None:
        first = next(model.buffers(), None)
    return torch.device("cpu") if first is None else first.device
