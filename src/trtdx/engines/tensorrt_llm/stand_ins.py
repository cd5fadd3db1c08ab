"""Modules that stand in for what needs CUDA, or what only the other half of TensorRT-LLM needs.

A stand-in can be imported, named in an annotation, used as a decorator, a default or a key. It computes nothing:
whoever calls it, counts with it or asks whether it is true is told what was asked for.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any, NoReturn

from trtdx.errors import TrtdxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


class CudaOnlyError(TrtdxError, ImportError):
    """Something was used that cannot be had on a machine without CUDA.

    It is an ImportError too, because code that tries an import and goes on without is right to do so here.
    """


# Always replaced: they look for a driver or a launcher when they are imported or first called.
REPLACED_PACKAGES = ("cuda", "mpi4py", "nvtx", "pynvml")
# Replaced where they are not installed, for TensorRT-LLM's own code only: others would take them for the real thing.
OPTIONAL_PACKAGES = (
    "aenum", "click_option_group", "colored", "datasets", "evaluate", "flashinfer", "h5py", "janus", "llguidance",
    "modelopt", "onnx_graphsurgeon", "openai_harmony", "ordered_set", "pandas", "prometheus_client", "psutil", "pulp", "ray",
    "setproctitle", "strenum", "torchao", "triton", "xgrammar", "zmq",
)  # fmt: skip
COMPILED_SUBMODULES = (
    "bindings",
    "deep_ep",
    "deep_gemm",
    "flash_mla",
    "libs",
    "deep_ep_cpp_tllm",
    "deep_gemm_cpp_tllm",
)


class AbsentObject:
    """Something that is not there: a name to hold on to, and an error to whoever uses it."""

    def __init__(self, name: str, why: str) -> None:
        self.__dict__.update(_name=name, _why=why, _parts={}, __name__=name.rpartition(".")[2], __doc__=None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        parts = self.__dict__["_parts"]
        if name not in parts:
            parts[name] = AbsentObject(f"{self._name}.{name}", self._why)
        return parts[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return AbsentObject(f"{self._name}({args[0].__qualname__})", self._why)  # a decorator
        if not args and kwargs and self.__dict__["__name__"] in DECORATORS:
            return self
        return self._refuse("called")

    def __mro_entries__(self, bases: Any) -> tuple[type]:
        def refuse(instance: Any, *args: Any, **kwargs: Any) -> None:
            self._refuse("made an instance of")

        return (type(self.__dict__["__name__"], (), {"__init__": refuse, "__init_subclass__": _ignore_arguments}),)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, AbsentObject) and value in self.__dict__["_parts"].values()

    def __subclasscheck__(self, kind: type) -> bool:
        return False

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, f"[{getattr(key, '__name__', key)}]")

    def __or__(self, other: Any) -> Any:  # in annotations
        return Any

    __ror__ = __or__

    def __bool__(self) -> bool:
        self._refuse("asked for its truth")

    def __iter__(self) -> Any:
        self._refuse("iterated over")

    def __len__(self) -> int:
        self._refuse("asked for its length")

    def __int__(self) -> int:
        self._refuse("used as a number")

    __index__ = __float__ = __int__

    def __enter__(self) -> Any:
        self._refuse("entered")

    def __exit__(self, *_: Any) -> None: ...

    def __repr__(self) -> str:
        return f"<{self._name}, which is not there: {self._why}>"

    def __hash__(self) -> int:
        return hash(self.__dict__["_name"])

    def __eq__(self, other: object) -> bool:
        return self is other

    def _refuse(self, what: str) -> NoReturn:
        raise CudaOnlyError(f"{self._name} was {what}, but {self._why}", fix="run this part where CUDA is")


DECORATORS = ("jit", "autotune", "heuristics", "custom_op", "annotate", "njit")


def _ignore_arguments(cls: type, *args: Any, **kwargs: Any) -> None:
    """Take whatever a class statement says."""


class StandInModule(types.ModuleType):
    """A module of which some names are answered and all others are absent."""

    def __init__(self, name: str, why: str, names_by_module: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(name, f"A stand-in of trtdx: {why}.")
        self.__path__: list[str] = []
        self._why = why
        self._modules = {
            module.rsplit(".", back)[0] for module in names_by_module for back in range(module.count(".") + 1)
        }
        self.__dict__.update(names_by_module.get(name, {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"{self.__name__} has no {name}")
        full = f"{self.__name__}.{name}"
        if full in self._modules:
            return importlib.import_module(full)
        absent = self.__dict__[name] = AbsentObject(full, self._why)
        return absent


class StandInFinder(MetaPathFinder, Loader):
    """Finds a stand-in for each name it was told, and notes which were asked for."""

    def __init__(
        self,
        why: Callable[[str], str | None],
        names_by_module: Mapping[str, Mapping[str, Any]],
        only_for: str = "",
    ) -> None:
        self._why, self._names_by_module, self._only_for = why, names_by_module, only_for
        self.imported_modules: dict[str, str] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._why(name) is None or not _importing_file().startswith(self._only_for):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        why = self._why(spec.name) or ""
        self.imported_modules[spec.name] = why
        return StandInModule(spec.name, why, self._names_by_module)

    def exec_module(self, module: types.ModuleType) -> None: ...


def _importing_file() -> str:
    """Return the file of the code that imports something now."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""


def replacement_reason(name: str) -> str | None:
    """Return why a module that may be installed is replaced nevertheless."""
    top, _, rest = name.partition(".")
    if top == "tensorrt_llm" and rest.split(".")[0] in COMPILED_SUBMODULES:
        return "it is a compiled part of TensorRT-LLM, which needs CUDA to load"
    if top in REPLACED_PACKAGES:
        return "there is no GPU here"
    return None


def absence_reason_function(extra: Sequence[str]) -> Callable[[str], str | None]:
    """Return what tells why a module that is not installed gets a stand-in."""
    names = {*OPTIONAL_PACKAGES, *extra}

    def why(name: str) -> str | None:
        top = name.partition(".")[0]
        return f"{top} is not installed" if top in names else None

    return why


class _StrEnum(str, enum.Enum):
    """What the package strenum offers: members are strings, and `auto()` is the member's own name."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[Any]) -> str:
        return name

    def __str__(self) -> str:
        return str(self.value)


class _NvtxAnnotate(contextlib.ContextDecorator):
    """Marks a range for a profiler; nobody is listening."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> _NvtxAnnotate:
        return self

    def __exit__(self, *_: Any) -> None: ...


class _SingleRankCommunicator:
    """An MPI communicator of one rank; MPI's capitals are those of whoever calls."""

    rank, size = 0, 1

    def get_rank(self) -> int:
        return 0

    def get_size(self) -> int:
        return 1

    def barrier(self) -> None: ...

    def split(self, *args: Any, **kwargs: Any) -> _SingleRankCommunicator:
        return self

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def gather(self, value: Any, root: int = 0) -> list[Any]:
        return [value]

    split_type = dup = clone = split
    allreduce = bcast
    allgather = gather

    def __getattr__(self, name: str) -> Any:
        method = getattr(type(self), name.lower(), None)
        if method is None:
            return AbsentObject(f"mpi4py.MPI.COMM_WORLD.{name}", "there is only one rank here")
        return method.__get__(self)


class NVMLError(Exception):
    """What NVML raises where there is no driver."""


def _raise_nvml_error(*_: Any) -> NoReturn:
    raise NVMLError("there is no GPU here")


def _driver_names(capability: tuple[int, int]) -> dict[str, Any]:
    """Return the few calls of the driver that tests ask for a device's architecture with."""

    class CUresult:
        CUDA_SUCCESS: Any = None

    done = CUresult.CUDA_SUCCESS = CUresult()
    attributes = types.SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=1
    )
    return {
        "CUresult": CUresult,
        "CUdevice_attribute": attributes,
        "cuInit": lambda flags: (done,),
        "cuDeviceGet": lambda number: (done, number),
        "cuDeviceGetAttribute": lambda attribute, device: (done, capability[attribute]),
    }


def stand_in_names(capability: tuple[int, int]) -> dict[str, dict[str, Any]]:
    """Return what stand-ins do answer, by module: no more than a machine without a GPU can say."""
    driver, alone = _driver_names(capability), _SingleRankCommunicator()
    nvrtc = {"nvrtcResult": type("nvrtcResult", (), {})}
    return {
        "cuda.cuda": driver,
        "cuda.bindings.driver": driver,
        "cuda.nvrtc": nvrtc,
        "cuda.bindings.nvrtc": nvrtc,
        "nvtx": {
            "annotate": _NvtxAnnotate,
            "push_range": _ignore_arguments,
            "pop_range": _ignore_arguments,
            "mark": _ignore_arguments,
        },
        "mpi4py.MPI": {
            "COMM_WORLD": alone,
            "COMM_SELF": alone,
            "COMM_TYPE_SHARED": 0,
            "OMPI_COMM_TYPE_HOST": 0,
        },
        "mpi4py.util.pkl5": {"Intracomm": lambda communicator: communicator},
        "pynvml": {
            "__version__": "0",
            "nvmlSystemGetDriverVersion": lambda: "0",
            "NVMLError": NVMLError,
            "NVMLError_Uninitialized": NVMLError,
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: 0,
            "nvmlDeviceGetHandleByIndex": _raise_nvml_error,
        },
        "strenum": {"StrEnum": _StrEnum},
        "tensorrt_llm.bindings.BuildInfo": {"ENABLE_MULTI_DEVICE": False},
    }


@contextlib.contextmanager
def hide_modules(belongs: Callable[[str], bool]) -> Iterator[None]:
    """Take modules out of `sys.modules`, and put them back afterwards in the place of what came meanwhile."""
    before = {name: module for name, module in sys.modules.items() if belongs(name)}
    for name in before:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if belongs(name)]:
            del sys.modules[name]
        sys.modules.update(before)
