"""What a compiling process and its parent tell each other: JSON, each piece with its length before it."""

from __future__ import annotations

import os
import struct
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.engines.tensorrt.build.nouns import (
    Binding,
    BuildOptions,
    LeftOut,
    Marked,
    Message,
    Profile,
    Variant,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH = struct.Struct("<I")
LONGEST_FRAME = 1 << 30


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be compiled, and where the plan goes."""

    kind: str  # "onnx", "function", or "network" for one that lives in the process already
    name: str  # what a reader knows it by
    path: str = ""  # the ONNX file, or the module or file that holds the function
    function: str = ""
    selector: str = ""
    variant: Variant = "none"
    profiles: tuple[Profile, ...] = ()
    options: BuildOptions = BuildOptions()
    part: str = ""  # the file the plan is written to before it has its name
    began: float = 0.0  # by the monotonic clock


class Said(msgspec.Struct, frozen=True, tag="said"):
    message: Message


class Stage(msgspec.Struct, frozen=True, tag="stage"):
    """The child begins with something: a crash is told with it."""

    name: str


class Step(msgspec.Struct, frozen=True, tag="step"):
    """An event of the progress monitor: a phase that starts with so many steps, does one, or ends."""

    event: str
    phase: str
    number: int = 0
    parent: str = ""


class Defined(msgspec.Struct, frozen=True, tag="defined"):
    inputs: tuple[Binding, ...]
    layers: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    stage: str
    message: str
    fix: str = ""
    code: str = ""
    problem: str = ""
    cancelled: bool = False


class Done(msgspec.Struct, frozen=True, tag="done"):
    tensorrt: str
    plan_size: int
    outputs: tuple[Binding, ...]
    makers: dict[str, tuple[str, int]]  # of each output: the layer, and which of its outputs it is
    marked: tuple[Marked, ...]
    left_out: tuple[LeftOut, ...]


Frame = Said | Stage | Step | Defined | Failed | Done


class Pipe:
    """The writing end, for any thread of the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, frame: Frame) -> None:
        data = packed(frame)
        with self._lock:
            write_all(self._fd, data)


def packed(thing: Frame | Job) -> bytes:
    """Return a piece with its length before it."""
    data = msgspec.json.encode(thing)
    return LENGTH.pack(len(data)) + data


def write_all(fd: int, data: bytes) -> None:
    """Write everything, however little the pipe takes at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


class Frames:
    """Puts frames together from the pieces in which a pipe gives them."""

    def __init__(self, kind: Any = Frame) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._held = bytearray()

    def add(self, piece: bytes) -> Iterator[Any]:
        """Yield the frames that are complete with this piece; what was cut off by a death is dropped."""
        self._held += piece
        begin = 0
        while len(self._held) - begin >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._held, begin)
            end = begin + LENGTH.size + length
            if length > LONGEST_FRAME or end > len(self._held):
                break
            yield self._decoder.decode(self._held[begin + LENGTH.size : end])
            begin = end
        del self._held[:begin]
