"""What a compile is asked for, and what it gives: the plan, its kernels and memory, and all that was said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from trtdx.formats.tensorrt.nouns import Kernel

Variant = Literal["none", "outputs", "debug-tensors"]
Shape = tuple[int, ...]
ShapeProfile = dict[str, tuple[Shape, Shape, Shape]]  # input: (min, opt, max)
REASON_CHARS = 300  # of an error, in the reason why a tensor was left out
ALARMING_SEVERITIES = ("INTERNAL_ERROR", "ERROR", "WARNING")
# Without a driver TensorRT looks for the GPU of the machine after each error, and says that there is none.
NO_DRIVER_ECHO = re.compile(r"catchCudaError.*cudaError 35")
SEVERITY_LETTERS = {"INTERNAL_ERROR": "F", "ERROR": "E", "WARNING": "W", "INFO": "I", "VERBOSE": "V"}


class BuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to compile; what is left out stays as TensorRT has it."""

    package: str = ""  # "tensorrt" or "tensorrt_rtx"; the first that is there
    strongly_typed: bool = True
    compute_capabilities: tuple[str, ...] = ()  # "8.9": for these GPUs instead of this machine's (RTX only)
    flags: tuple[str, ...] = ()  # names of BuilderFlag
    optimization_level: int | None = None
    workspace_bytes: int | None = None
    timeout_s: float | None = None
    cancel_s: float = 10.0  # how long a cancelled compile may take to stop by itself
    most_retries: int = 24  # how many tensors may prove impossible to mark before giving up


class BuildMessage(msgspec.Struct, frozen=True, array_like=True):
    """One thing that TensorRT, or what runs beside it in its process, said."""

    seconds: float  # since the compile began
    severity: str  # "ERROR"; "OUTPUT" for what was printed past the logger
    text: str

    @property
    def line(self) -> str:
        """Return it as TensorRT's own logger would print it."""
        letter = SEVERITY_LETTERS.get(self.severity)
        return f"[TRT] [{letter}] {self.text}" if letter else self.text


class Binding(msgspec.Struct, frozen=True):
    """An input or output of the engine; an unnamed dynamic dimension is "?"."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]
    most_bytes: int | None = None  # at the largest shapes that the profiles allow
    marked: bool = False  # for looking at, not an output of the model


class MarkedTensor(msgspec.Struct, frozen=True):
    """A tensor that was marked: the names it was asked for by, and its own in the network."""

    name: str
    tensor: str


class UnmarkedTensor(msgspec.Struct, frozen=True):
    """A tensor that could not be marked."""

    name: str
    reason: str


class BuiltPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and all that is known of it."""

    source: str
    variant: Variant
    tensorrt: str  # "tensorrt_rtx 1.7.1.116"
    plan_path: str  # "" where it is in memory
    plan_size: int
    seconds: float
    layers: int  # of the network definition
    profiles: tuple[ShapeProfile, ...] = ()
    inputs: tuple[Binding, ...] = ()
    outputs: tuple[Binding, ...] = ()
    marked: tuple[MarkedTensor, ...] = ()
    left_out: tuple[UnmarkedTensor, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    activation_bytes: tuple[int, ...] = ()  # by profile
    weights_bytes: int | None = None
    messages: tuple[BuildMessage, ...] = ()
    content: bytes = b""  # the plan, where it was not written to a file

    @property
    def output_bytes(self) -> int | None:
        """Return what all outputs take at the largest shapes, None where one of them is unknown."""
        sizes = [binding.most_bytes for binding in self.outputs]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def plan_bytes(self) -> bytes:
        """Return the plan itself."""
        return self.content or Path(self.plan_path).read_bytes()


class BuildProgress(msgspec.Struct, frozen=True):
    """How far a compile is: the phase it is in, and the part of the whole that is done."""

    phase: str
    step: int
    steps: int
    fraction: float  # of everything; it never goes back
