"""Memory of a GPU, by torch where it is there, else by cuda-python; and whether there is a GPU at all.

Nothing here has run on the machines trtdx is made on: they have none. Tests prove that the names exist.
"""

from __future__ import annotations

import ctypes
import importlib.util
from typing import TYPE_CHECKING, Any, Protocol

from trtdx.engines.torch.lazy_import import numpy as np
from trtdx.errors import MissingExtraError, TrtdxError
from trtdx.installation import install_packages
from trtdx.optional import import_optional

if TYPE_CHECKING:
    from trtdx.engines.engine import Array

DRIVER_LIBRARY = "libcuda.so.1"
VERIFY_COMMAND = "nvidia-smi -L"


class NoDriverError(TrtdxError):
    """There is no NVIDIA driver, or none that this TensorRT can use; `verify` is a command that shows it."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"a plan is executed by a GPU, and here {problem}",
            fix="run it where a GPU is (in a container: start it with --gpus all), or compute the network definition on "
            f"the CPU with trtdx.engines.tensorrt.evaluate; `{VERIFY_COMMAND}` shows whether there is a GPU",
        )
        self.verify = VERIFY_COMMAND


class DeviceError(TrtdxError):
    """The GPU refuses something."""


def driver_problem(library: str = DRIVER_LIBRARY) -> str:
    """Return why no GPU can be used, "" if one can; asks the driver itself, without TensorRT or torch."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return f"there is no NVIDIA driver ({library} is not found)"
    status = driver.cuInit(0)
    if not status:
        return ""
    message = ctypes.c_char_p()
    driver.cuGetErrorString(status, ctypes.byref(message))
    return f"the NVIDIA driver does not start: {(message.value or b'').decode()} (CUDA error {status})"


class DeviceMemory(Protocol):
    """A stream, and memory that it reads and writes."""

    stream: int

    def allocate(self, count: int) -> tuple[Any, int]:
        """Return so many bytes on the GPU, as long as the first is alive, and their address."""

    def write(self, allocation: Any, array: Array) -> None:
        """Copy bytes to the GPU."""

    def read(self, address: int, count: int, stream: int) -> Array:
        """Return bytes of the GPU once a stream has done what it was told."""

    def wait(self) -> None:
        """Wait until the stream has done everything."""


def open_device_memory() -> DeviceMemory:
    """Return what is there to manage a GPU's memory with."""
    if importlib.util.find_spec("torch") is not None:
        torch = import_optional("torch", extra="torch", purpose="hold a GPU's memory")
        if torch.cuda.is_available():
            return TorchDeviceMemory(torch)
    try:
        spec = importlib.util.find_spec("cuda.bindings.runtime")
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise MissingExtraError(
            "a torch with CUDA or cuda-python is needed to hold a GPU's memory",
            fix=install_packages("cuda-python"),
        )
    return CudaDeviceMemory(import_optional("cuda.bindings.runtime", extra="trt", purpose="hold a GPU's memory"))


class _CudaArrayView:
    """Memory of others, as torch takes it."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class TorchDeviceMemory:
    """A GPU's memory by torch."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._stream = torch.cuda.Stream()  # TensorRT warns of the default one
        self.stream: int = self._stream.cuda_stream

    def allocate(self, count: int) -> tuple[Any, int]:
        tensor = self._torch.empty(max(count, 1), dtype=self._torch.uint8, device="cuda")
        return tensor, tensor.data_ptr()

    def write(self, allocation: Any, array: Array) -> None:
        with self._torch.cuda.stream(self._stream):
            allocation[: array.size].copy_(self._torch.from_numpy(array))

    def read(self, address: int, count: int, stream: int) -> Array:
        cuda = self._torch.cuda
        with cuda.stream(cuda.ExternalStream(stream)):
            data: Array = self._torch.as_tensor(_CudaArrayView(address, count), device="cuda").cpu().numpy()
        return data

    def wait(self) -> None:
        self._stream.synchronize()


class CudaDeviceMemory:
    """A GPU's memory by cuda-python."""

    def __init__(self, cudart: Any) -> None:
        self._cuda = cudart
        self.stream = int(self._checked_result(self._cuda.cudaStreamCreate()))

    def _checked_result(self, result: tuple[Any, ...]) -> Any:
        status, *values = result
        if int(status):
            message = self._cuda.cudaGetErrorString(status)[1]
            raise DeviceError(f"the GPU refuses: {message.decode() if isinstance(message, bytes) else message}")
        return values[0] if values else None

    def allocate(self, count: int) -> tuple[Any, int]:
        address = int(self._checked_result(self._cuda.cudaMalloc(max(count, 1))))
        return _CudaAllocation(self._cuda, address), address

    def write(self, allocation: Any, array: Array) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._copy(allocation.address, array.ctypes.data, array.nbytes, kind, self.stream)

    def read(self, address: int, count: int, stream: int) -> Array:
        data = np.empty(count, np.uint8)
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._copy(data.ctypes.data, address, count, kind, stream)
        return data

    def _copy(self, target: int, source: int, count: int, kind: Any, stream: int) -> None:
        self._checked_result(self._cuda.cudaMemcpyAsync(target, source, count, kind, stream))
        self._checked_result(self._cuda.cudaStreamSynchronize(stream))

    def wait(self) -> None:
        self._checked_result(self._cuda.cudaStreamSynchronize(self.stream))


class _CudaAllocation:
    """Memory that is given back when nobody holds it any more."""

    def __init__(self, cuda: Any, address: int) -> None:
        self._cuda, self.address = cuda, address

    def __del__(self) -> None:
        self._cuda.cudaFree(self.address)
