"""What a compiling process and its parent tell each other: JSON, a line each."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import msgspec

from trtdx.engines.tensorrt.build.nouns import (
    Binding,
    BuildMessage,
    BuildOptions,
    MarkedTensor,
    ShapeProfile,
    UnmarkedTensor,
    Variant,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class BuildJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be compiled, and where the plan goes."""

    kind: str  # "onnx", "function", or "network" for one that lives in the process already
    name: str  # what a reader knows it by
    path: str = ""  # the ONNX file, or the module or file that holds the function
    function: str = ""
    selector: str = ""
    variant: Variant = "none"
    profiles: tuple[ShapeProfile, ...] = ()
    options: BuildOptions = BuildOptions()
    part: str = ""  # the file the plan is written to before it has its name
    began: float = 0.0  # by the monotonic clock


class MessageLogged(msgspec.Struct, frozen=True, tag="said"):
    message: BuildMessage


class StageStarted(msgspec.Struct, frozen=True, tag="stage"):
    """The child begins with something: a crash is told with it."""

    name: str


class PhaseEvent(msgspec.Struct, frozen=True, tag="step"):
    """An event of the progress monitor: a phase that starts with so many steps, does one, or ends."""

    event: str
    phase: str
    number: int = 0
    parent: str = ""


class NetworkDefined(msgspec.Struct, frozen=True, tag="defined"):
    inputs: tuple[Binding, ...]
    layers: int


class BuildFailed(msgspec.Struct, frozen=True, tag="failed"):
    stage: str
    message: str
    fix: str = ""
    code: str = ""
    problem: str = ""
    cancelled: bool = False


class BuildDone(msgspec.Struct, frozen=True, tag="done"):
    tensorrt: str
    plan_size: int
    outputs: tuple[Binding, ...]
    makers: dict[str, tuple[str, int]]  # of each output: the layer, and which of its outputs it is
    marked: tuple[MarkedTensor, ...]
    left_out: tuple[UnmarkedTensor, ...]


Frame = MessageLogged | StageStarted | PhaseEvent | NetworkDefined | BuildFailed | BuildDone


class FrameWriter:
    """The writing end, for any thread of the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, frame: Frame) -> None:
        with self._lock:
            write_all(self._fd, pack_frame(frame))


def pack_frame(frame: Frame | BuildJob) -> bytes:
    """Return a piece as a line; JSON has no line breaks inside."""
    return msgspec.json.encode(frame) + b"\n"


def write_all(fd: int, data: bytes) -> None:
    """Write everything, however little the pipe takes at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


class FrameReader:
    """Puts frames together from the pieces in which a pipe gives them."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Frame)
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete with this piece; what was cut off by a death is dropped."""
        *ends, rest = piece.split(b"\n")
        for end in ends:
            yield self._decoder.decode(b"".join((*self._pieces, end)))
            self._pieces.clear()
        self._pieces.append(rest)
