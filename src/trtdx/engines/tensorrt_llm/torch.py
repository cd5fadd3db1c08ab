"""torch on a machine without CUDA, for code that says `device="cuda"`: it gets the CPU.

A tensor brought "to the GPU" is a copy, as it would be there: writing into one must not change the other.
"""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any

from trtdx.engines.tensorrt_llm.stand_ins import Absent
from trtdx.engines.tensorrt_llm.tensorrt import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

WHY = "there is no GPU here"
MARK = "_trtdx_cuda"  # on tensors that would be on the GPU
MEMORY_BYTES = 16 << 30  # what a test that asks for a GPU's memory is told


class Stream:
    """Stands in for a CUDA stream: all work is done when it is asked for."""

    cuda_stream, device_index, priority = 0, 0, 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def wait_stream(self, *_: Any) -> None: ...

    def wait_event(self, *_: Any) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...


def is_cuda(torch: Any, device: Any) -> bool:
    """Return whether a device is one of CUDA's."""
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


def device_mode(torch: Any) -> Any:
    """Return a mode in which every call that names a CUDA device gets the CPU."""
    from torch.overrides import TorchFunctionMode

    tensor = torch.Tensor
    simple: dict[Any, Any] = {tensor.cuda: moved, tensor.cpu: fetched, tensor.pin_memory: lambda given: given}

    class CudaIsCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in simple:
                return simple[func](args[0])
            if func is tensor.to:
                return self.to(func, args, kwargs)
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
            if is_cuda(torch, kwargs.get("device")):
                return marked(func(*args, **{**kwargs, "device": "cpu"}))
            return func(*args, **kwargs)

        def to(self, func: Any, args: Any, kwargs: Any) -> Any:
            where = kwargs.get("device", args[1] if len(args) > 1 else None)
            if not is_cuda(torch, where) and not (type(where) is int and "device" not in kwargs):
                onto_cpu = where is not None and str(where) == "cpu"
                return fetched(func(*args, **kwargs)) if onto_cpu else func(*args, **kwargs)
            if "device" in kwargs:
                kwargs = {**kwargs, "device": "cpu"}
            else:
                args = (args[0], "cpu", *args[2:])
            result = func(*args, **kwargs)
            return moved(result) if result is args[0] else marked(result)

    return CudaIsCpu()


def marked(made: Any) -> Any:
    """Return a tensor that would be on the GPU, marked as such."""
    with contextlib.suppress(AttributeError):
        setattr(made, MARK, True)
    return made


def moved(tensor: Any) -> Any:
    return tensor if hasattr(tensor, MARK) else marked(tensor.clone())


def fetched(tensor: Any) -> Any:
    return tensor.clone() if hasattr(tensor, MARK) else tensor


def patches(torch: Any, capability: tuple[int, int]) -> list[Patch]:
    """Return what is exchanged in torch: what asks for a device before any tensor is there."""
    cuda, stream = torch.cuda, Stream()
    properties = types.SimpleNamespace(
        name="no GPU (trtdx on_cpu)", major=capability[0], minor=capability[1], total_memory=MEMORY_BYTES
    )

    cuda_attributes = {
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "stream": Stream,
        "device": Stream,
        "Stream": Stream,
        "Event": Absent("torch.cuda.Event", WHY),
        "CUDAGraph": Absent("torch.cuda.CUDAGraph", WHY),
        "synchronize": lambda *_: None,
        "set_device": lambda *_: None,
        "current_device": lambda: 0,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: capability,
        "get_device_name": lambda *_: properties.name,
        "mem_get_info": lambda *_: (MEMORY_BYTES, MEMORY_BYTES),
        "empty_cache": lambda: None,
    }
    from torch.utils._device import DeviceContext

    generator = torch.Generator
    plain_set, plain_init = torch.set_default_device, DeviceContext.__init__

    def cpu_for(device: Any) -> Any:
        return "cpu" if is_cuda(torch, device) else device

    return [
        *(Patch(cuda, name, value) for name, value in cuda_attributes.items()),
        Patch(torch, "set_default_device", lambda device: plain_set(cpu_for(device))),
        Patch(
            DeviceContext, "__init__", lambda self, device: plain_init(self, torch.device(cpu_for(device)))
        ),
        Patch(torch, "Generator", _generator(generator, cpu_for)),
    ]


def _generator(real: type, cpu_for: Callable[[Any], Any]) -> type:
    """Return a class in the place of torch.Generator, whose instances are the real one's."""

    class Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, real)

    class Generator(metaclass=Kind):
        def __new__(cls, device: Any = "cpu") -> Any:
            return real(device=cpu_for(device))

    return Generator
