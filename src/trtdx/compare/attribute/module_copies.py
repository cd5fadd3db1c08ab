"""Copies of modules in another precision, changed for the time of a call, and what passes their borders."""

from __future__ import annotations

import copy
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trtdx.engines.torch.hooks import iterate_tensors
from trtdx.engines.torch.lazy_import import torch
from trtdx.engines.torch.replay import named_outputs
from trtdx.tensors.taps import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Tensor = Any
    Outputs = dict[str, Tensor]

MOST_FLOAT64_WEIGHTS = 40_000_000  # weights that are computed in float64; more in float32
HOOK_ATTRIBUTES = tuple(
    f"_forward_{kind}" for kind in ("hooks", "pre_hooks", "hooks_with_kwargs", "pre_hooks_with_kwargs")
)


@contextmanager
def override_attributes(owner: Any, **values: Any) -> Iterator[None]:
    """Give a module other weights or attributes inside the block."""
    before = {}
    for name, value in values.items():
        before[name] = getattr(owner, name)
        if name in owner._parameters:
            like = before[name]
            new_value = None if value is None else value.to(like.dtype if like is not None else torch.float64)
            owner._parameters[name] = None if new_value is None else torch.nn.Parameter(new_value, requires_grad=False)
        else:
            setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if name in owner._parameters:
                owner._parameters[name] = value
            else:
                setattr(owner, name, value)


@contextmanager
def transform_output(module: Any, change: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Let what leaves a module be `change(first input, first output)` inside the block."""

    def after(_: Any, args: Any, kwargs: Any, result: Any) -> Any:
        first = next((tensor for _, _, tensor in iterate_tensors(args, kwargs)), None)
        if isinstance(result, tuple):
            return (change(first, result[0]), *result[1:])
        return change(first, result)

    hook = module.register_forward_hook(after, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def view_as_real(tensor: Tensor) -> Tensor:
    """Return complex numbers as pairs of real ones."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def copy_in_dtype(module: Any, dtype: Any) -> Any:
    """Return a copy of a module in another type, without its hooks."""
    memo: dict[int, Any] = {
        id(getattr(submodule, name)): OrderedDict()
        for submodule in module.modules()
        for name in HOOK_ATTRIBUTES
        if hasattr(submodule, name)
    }
    module_copy = copy.deepcopy(module, memo).to(dtype).eval().requires_grad_(False)
    for submodule in module_copy.modules():
        if getattr(getattr(submodule, "config", None), "_experts_implementation", None):
            submodule.config._experts_implementation = "eager"  # the others do not take every type
    return module_copy


def cast_all(tensors: Mapping[str, Tensor], dtype: Any) -> Outputs:
    """Return tensors with those that are floating in another type."""
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def scale_output(factor: float) -> Callable[[Any, Any], Any]:
    """Return what multiplies a module's output, for `giving`."""
    return lambda _, output: output * factor


def capture_hook(captured: Outputs, path: str, captures_inputs: bool) -> Callable[..., None]:
    calls = 0

    def after(_: Any, args: Any, kwargs: Any, result: Any) -> None:
        nonlocal calls
        called = f"{path}#{calls}" if calls else path  # as captures name the second call of a module
        calls += 1
        if not captures_inputs:
            captured.update(named_outputs(called, result))
            return
        for number, name, tensor in iterate_tensors(args, kwargs):
            captured[Place(called, "in", number, name).name] = tensor

    return after
