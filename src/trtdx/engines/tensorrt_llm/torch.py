"""torch on a machine without CUDA, for code that says `device="cuda"`: it gets the CPU.

A tensor brought "to the GPU" is a copy, as it would be there: writing into one must not change the other.
"""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any

from trtdx.engines.tensorrt_llm.stand_ins import AbsentObject
from trtdx.engines.tensorrt_llm.tensorrt import AttributePatch

if TYPE_CHECKING:
    from collections.abc import Callable

NO_GPU_REASON = "there is no GPU here"
CUDA_MARK = "_trtdx_cuda"  # on tensors that would be on the GPU
CLAIMED_MEMORY_BYTES = 16 << 30  # what a test that asks for a GPU's memory is told


class CpuStream:
    """Stands in for a CUDA stream: all work is done when it is asked for."""

    cuda_stream, device_index, priority = 0, 0, 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def wait_stream(self, *_: Any) -> None: ...

    def wait_event(self, *_: Any) -> None: ...

    def __enter__(self) -> CpuStream:
        return self

    def __exit__(self, *_: Any) -> None: ...


def is_cuda_device(torch: Any, device: Any) -> bool:
    """Return whether a device is one of CUDA's."""
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


def cuda_is_cpu_mode(torch: Any) -> Any:
    """Return a mode in which every call that names a CUDA device gets the CPU."""
    from torch.overrides import TorchFunctionMode

    tensor = torch.Tensor
    simple: dict[Any, Any] = {
        tensor.cuda: copy_to_cuda,
        tensor.cpu: copy_to_cpu,
        tensor.pin_memory: lambda value: value,
    }

    class CudaIsCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in simple:
                return simple[func](args[0])
            if func is tensor.to:
                return self.to(func, args, kwargs)
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
            if is_cuda_device(torch, kwargs.get("device")):
                return mark_as_cuda(func(*args, **{**kwargs, "device": "cpu"}))
            return func(*args, **kwargs)

        def to(self, func: Any, args: Any, kwargs: Any) -> Any:
            where = kwargs.get("device", args[1] if len(args) > 1 else None)
            if not is_cuda_device(torch, where) and not (type(where) is int and "device" not in kwargs):
                onto_cpu = where is not None and str(where) == "cpu"
                return copy_to_cpu(func(*args, **kwargs)) if onto_cpu else func(*args, **kwargs)
            if "device" in kwargs:
                kwargs = {**kwargs, "device": "cpu"}
            else:
                args = (args[0], "cpu", *args[2:])
            result = func(*args, **kwargs)
            return copy_to_cuda(result) if result is args[0] else mark_as_cuda(result)

    return CudaIsCpu()


def mark_as_cuda(tensor: Any) -> Any:
    """Return a tensor that would be on the GPU, marked as such."""
    with contextlib.suppress(AttributeError):
        setattr(tensor, CUDA_MARK, True)
    return tensor


def copy_to_cuda(tensor: Any) -> Any:
    return tensor if hasattr(tensor, CUDA_MARK) else mark_as_cuda(tensor.clone())


def copy_to_cpu(tensor: Any) -> Any:
    return tensor.clone() if hasattr(tensor, CUDA_MARK) else tensor


def torch_patches(torch: Any, capability: tuple[int, int]) -> list[AttributePatch]:
    """Return what is exchanged in torch: what asks for a device before any tensor is there."""
    cuda, stream = torch.cuda, CpuStream()
    properties = types.SimpleNamespace(
        name="no GPU (trtdx on_cpu)",
        major=capability[0],
        minor=capability[1],
        total_memory=CLAIMED_MEMORY_BYTES,
    )

    cuda_attributes = {
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "stream": CpuStream,
        "device": CpuStream,
        "Stream": CpuStream,
        "Event": AbsentObject("torch.cuda.Event", NO_GPU_REASON),
        "CUDAGraph": AbsentObject("torch.cuda.CUDAGraph", NO_GPU_REASON),
        "synchronize": lambda *_: None,
        "set_device": lambda *_: None,
        "current_device": lambda: 0,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: capability,
        "get_device_name": lambda *_: properties.name,
        "mem_get_info": lambda *_: (CLAIMED_MEMORY_BYTES, CLAIMED_MEMORY_BYTES),
        "empty_cache": lambda: None,
    }
    from torch.utils._device import DeviceContext

    generator = torch.Generator
    plain_set, plain_init = torch.set_default_device, DeviceContext.__init__

    def cpu_for(device: Any) -> Any:
        return "cpu" if is_cuda_device(torch, device) else device

    return [
        *(AttributePatch(cuda, name, value) for name, value in cuda_attributes.items()),
        AttributePatch(torch, "set_default_device", lambda device: plain_set(cpu_for(device))),
        AttributePatch(DeviceContext, "__init__", lambda self, device: plain_init(self, torch.device(cpu_for(device)))),
        AttributePatch(torch, "Generator", _generator_class(generator, cpu_for)),
    ]


def _generator_class(real: type, cpu_for: Callable[[Any], Any]) -> type:
    """Return a class in the place of torch.Generator, whose instances are the real one's."""

    class Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, real)

    class Generator(metaclass=Kind):
        def __new__(cls, device: Any = "cpu") -> Any:
            return real(device=cpu_for(device))

    return Generator
