"""How a capture lies on disk.

A folder with, for every rank, `rank<N>.index` and `rank<N>.values`, and one `capture.json` that says what was run.

The index begins with eight bytes that name the format and goes on with frames: length, kind and CRC-32 (four bytes
each, little-endian), then that many bytes. A frame that is cut off or does not add up ends the capture there: what
stands before it holds. Places and layouts are told once, before the first row that refers to them by number; a row
is one tensor at one step. The values of a batch are written before its rows, so a row never points at what is not
there. A new kind of frame needs no new version: readers pass over kinds they do not know.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.errors import TrtdxError
from trtdx.tensors.dtypes import DTYPES
from trtdx.tensors.statistics import STATISTICS_STRUCT as STATISTICS
from trtdx.tensors.taps import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np

    Buffer = bytes | bytearray | memoryview

CAPTURE_VERSION = 1
HEADER_FILE = "capture.json"
INDEX_MAGIC = b"TRTDXIX1"
VALUES_MAGIC = b"TRTDXVL1".ljust(64, b"\0")
ALIGNMENT = 64  # of values, so that any processor reads them in place

FRAME = struct.Struct("<III")
HEADER, PLACES, LAYOUTS, ROWS, NOTE, END = range(1, 7)

# step, place, layout, where the values are (-1: not kept), their bytes, content hash, flags; then the statistics
ROW_HEAD = struct.Struct("<qIIqQ16sQ")
ROW_PLACE, ROW_PLACE_AT = struct.Struct("<I"), 8
ROW_BYTES = ROW_HEAD.size + STATISTICS.size
LEFT_OUT = 1  # a flag: values were asked for, but the budget was spent

MAX_FRAME_BYTES = 16 << 20
MAX_ROWS = MAX_FRAME_BYTES // ROW_BYTES  # in one frame
MAX_DEFINED = 1 << 20  # places or layouts; keeps a hostile index from becoming gigabytes of objects
MAX_TEXT = 4096
MAX_AXES = 64
MAX_BYTES = 1 << 62


class CaptureError(TrtdxError):
    """A capture cannot be read or written."""


class CaptureHeader(msgspec.Struct, frozen=True):
    """What a capture was made of."""

    run: str = ""  # the command or test, redacted
    engine: str = ""
    selector: str = ""
    kernel: str = ""  # what computed the statistics
    made_by: str = ""
    created: float = 0.0
    rank: int = 0
    details: dict[str, Any] = {}
    schema_version: int = CAPTURE_VERSION


class StepNoteFrame(msgspec.Struct, frozen=True):
    """What was said about a step: its tokens, its positions."""

    step: int
    data: dict[str, Any]


class EndFrame(msgspec.Struct, frozen=True):
    """The last frame of a capture that was closed."""

    records: int
    values_bytes: int
    left_out: int = 0  # tensors whose values did not fit the budget
    problem: str = ""


class TensorLayout(msgspec.Struct, frozen=True, array_like=True):
    """A tensor's type, shape and device."""

    dtype: str
    shape: tuple[int, ...]
    device: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPES[self.dtype].bytes


class Frame(NamedTuple):
    """A whole frame of an index."""

    kind: int
    offset: int  # of its content
    size: int


_PLACES = msgspec.json.Decoder(list[tuple[str, str, int, str, str, str, str]])
_LAYOUTS = msgspec.json.Decoder(list[TensorLayout])


def index_name(rank: int) -> str:
    return f"rank{rank}.index"


def values_name(rank: int) -> str:
    return f"rank{rank}.values"


def parquet_name(rank: int) -> str:
    return f"rank{rank}.parquet"


def encode_frame(kind: int, content: Buffer) -> bytes:
    """Return content framed."""
    start = struct.pack("<II", len(content), kind)
    return b"".join((start, struct.pack("<I", zlib.crc32(content, zlib.crc32(start))), content))


def parse_frames(index: memoryview, start: int) -> Iterator[Frame]:
    """Yield the whole frames of an index; the first that is not whole ends it."""
    at = start
    while at + FRAME.size <= len(index):
        size, kind, check = FRAME.unpack_from(index, at)
        content = at + FRAME.size
        if size > MAX_FRAME_BYTES or content + size > len(index):
            return
        if zlib.crc32(index[content : content + size], zlib.crc32(index[at : at + 8])) != check:
            return
        yield Frame(kind, content, size)
        at = content + size


def encode_places(places: Iterable[Place]) -> bytes:
    return encode_frame(PLACES, msgspec.json.encode([tuple(place) for place in places]))


def encode_layouts(layouts: Iterable[TensorLayout]) -> bytes:
    return encode_frame(LAYOUTS, msgspec.json.encode(list(layouts)))


def parse_places(content: Buffer) -> list[Place]:
    """Return the places a frame tells."""
    places = [Place(*fields) for fields in _PLACES.decode(content)]
    if any(len(text) > MAX_TEXT for place in places for text in place if isinstance(text, str)):
        raise ValueError("a name is too long")
    if any(not 0 <= place.number < 1 << 31 for place in places):
        raise ValueError("the number of an input or output is impossible")
    return places


def parse_layouts(content: Buffer) -> list[TensorLayout]:
    """Return the layouts a frame tells."""
    layouts = _LAYOUTS.decode(content)
    for layout in layouts:
        if layout.dtype not in DTYPES or len(layout.device) > MAX_TEXT:
            raise ValueError(f"no type is called {layout.dtype[:80]!r}")
        if len(layout.shape) > MAX_AXES or any(not 0 <= axis < MAX_BYTES for axis in layout.shape):
            raise ValueError("a shape is impossible")
        if layout.bytes > MAX_BYTES:
            raise ValueError("a shape is too large")
    return layouts


def row_dtype() -> np.dtype[Any]:
    """Return a row as NumPy sees it."""
    import numpy as np

    from trtdx.tensors.statistics import Statistics

    head = [("step", "<i8"), ("place", "<u4"), ("layout", "<u4"), ("offset", "<i8"), ("bytes", "<u8"),
            ("hash", "<u8", (2,)), ("flags", "<u8")]  # fmt: skip
    counts = [(name, "<u8") for name in Statistics._fields[:6]]
    return np.dtype([*head, *counts, *((name, "<f8") for name in Statistics._fields[6:-1])])
