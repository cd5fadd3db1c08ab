"""The header of a safetensors file: names, types, shapes and offsets, without touching the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trtdx.formats.documents import GIT_LFS_MAGIC, UnreadableError, read_range

if TYPE_CHECKING:
    from trtdx.host import Host

MAX_HEADER_BYTES = 100_000_000  # the safetensors library refuses a longer header
MAX_READ_BYTES = 32 << 20  # 200,000 tensors; the largest single file in use names about 100,000
MAX_ENTRIES = 400_000  # keeps a hostile header from becoming gigabytes of Python objects
FIRST_READ_BYTES = 256 << 10  # one read is enough for most headers

MAX_OFFSET = 2**63  # of an offset or a size
MAX_AXES = 64  # as PyTorch

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "C128": 128,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
FACT_DTYPES = {
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}  # in the facts' spelling

MISSING_SHAPE, MISSING_OFFSETS = (-1,), (0, -1)
LFS_POINTER, TRUNCATED, CORRUPT, UNREADABLE = "lfs-pointer", "truncated", "corrupt", "unreadable"


class TensorEntry(msgspec.Struct, frozen=True, gc=False):
    """What a header says of one tensor; offsets count from the end of the header.

    The defaults stand for what is not said, so that `__metadata__` decodes with the rest, in one go.
    """

    dtype: str = ""
    shape: tuple[int, ...] = MISSING_SHAPE
    data_offsets: tuple[int, int] = MISSING_OFFSETS

    @property
    def begin(self) -> int:
        return self.data_offsets[0]

    @property
    def end(self) -> int:
        return self.data_offsets[1]

    @property
    def data_bytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]


class SafetensorsHeader(msgspec.Struct, frozen=True):
    """A file's tensors; where something is wrong, `fault` names its kind and `problem` says it in words."""

    tensors: dict[str, TensorEntry] = {}
    metadata: dict[str, str] = {}
    fault: str = ""  # "" | LFS_POINTER | TRUNCATED | CORRUPT | UNREADABLE
    problem: str = ""
    file_bytes: int = 0
    unknown_dtypes: tuple[str, ...] = ()


class _SafetensorsMetadata(msgspec.Struct, frozen=True):
    value: dict[str, str] = msgspec.field(default_factory=dict, name="__metadata__")


class _UncheckedEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry before it is known to be one: `__metadata__` and broken entries decode as well."""

    dtype: Any = None
    shape: Any = None
    data_offsets: Any = None


class _HeaderFault(NamedTuple):
    kind: str
    problem: str


_ENTRIES_DECODER = msgspec.json.Decoder(dict[str, TensorEntry])
_UNCHECKED_DECODER = msgspec.json.Decoder(dict[str, _UncheckedEntry])
_METADATA_DECODER = msgspec.json.Decoder(_SafetensorsMetadata)


def read_safetensors_header(host: Host, path: str) -> SafetensorsHeader:
    """Return what a safetensors file says of itself; whatever is wrong with it is told, never raised."""
    try:
        if host.kind(path) != "file":
            return SafetensorsHeader(fault=UNREADABLE, problem="is not a file")
        start = read_range(host, path, 0, FIRST_READ_BYTES)
        size = host.size(path)
        fault = _start_fault(start, size)
        if fault:
            return SafetensorsHeader(fault=fault.kind, problem=fault.problem, file_bytes=size)
        length = int.from_bytes(start[:8], "little")
        missing = 8 + length - len(start)
        text = start[8 : 8 + length] if missing <= 0 else start[8:] + read_range(host, path, len(start), missing)
    except UnreadableError as err:
        return SafetensorsHeader(fault=UNREADABLE, problem=str(err))
    except (OSError, KeyError) as err:  # it vanished after it was listed
        return SafetensorsHeader(fault=UNREADABLE, problem=getattr(err, "strerror", None) or "is not there any more")
    return _parse_header(text, size)


def _start_fault(start: bytes, size: int) -> _HeaderFault | None:
    if start.startswith(GIT_LFS_MAGIC):
        return _HeaderFault(LFS_POINTER, "is a Git-LFS pointer, not the file itself")
    if size < 8 or len(start) < 8:
        return _HeaderFault(TRUNCATED, f"has {size} bytes, too few for a header" if size else "is empty")
    fault = _length_fault(int.from_bytes(start[:8], "little"), start, size)
    disguise = _actual_format(start) if fault and start[8:9] != b"{" else ""  # a length may look like anything
    return _HeaderFault(CORRUPT, f"is not a safetensors file but {disguise}") if disguise else fault


def _length_fault(length: int, start: bytes, size: int) -> _HeaderFault | None:
    if length > MAX_HEADER_BYTES:
        return _HeaderFault(CORRUPT, f"claims a header of {length:,} bytes")
    if start[8:9] not in (b"{", b""):
        return _HeaderFault(CORRUPT, "has no JSON header")
    if 8 + length > size:
        return _HeaderFault(TRUNCATED, f"ends inside its header ({size:,} bytes of {8 + length:,})")
    if length < 2:
        return _HeaderFault(CORRUPT, f"claims a header of {length} bytes")
    if length > MAX_READ_BYTES:
        return _HeaderFault(UNREADABLE, f"has a header of {length:,} bytes, too long to be read here")
    return None


def _actual_format(start: bytes) -> str:
    """Return what a file of another format is, by its first bytes."""
    if start.startswith(b"GGUF"):
        return "a GGUF file"
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        return "a PyTorch file (a pickle)"
    head = start[:256].lstrip().lower()
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page (the answer of a failed download)"
    if not any(start[:64]):
        return "only zeros where its header should be"
    return ""


def _parse_header(text: bytes, size: int) -> SafetensorsHeader:
    if text.count(b"{") > MAX_ENTRIES or text.count(b"[") > 4 * MAX_ENTRIES:
        return SafetensorsHeader(fault=UNREADABLE, problem="has a header with too many entries", file_bytes=size)
    try:
        tensors, broken = _decode_entries(text)
    except RecursionError:
        return SafetensorsHeader(fault=CORRUPT, problem="has a header that is nested too deeply", file_bytes=size)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        return SafetensorsHeader(fault=CORRUPT, problem=f"has a header that is not JSON: {err}", file_bytes=size)
    fault = _HeaderFault(CORRUPT, broken) if broken else _layout_fault(tensors, size - 8 - len(text))
    return SafetensorsHeader(
        tensors=tensors,
        metadata=_decode_metadata(text),
        fault=fault.kind if fault else "",
        problem=fault.problem if fault else "",
        file_bytes=size,
        unknown_dtypes=tuple(sorted({entry.dtype for entry in tensors.values()} - DTYPE_BITS.keys() - {""})),
    )


def _decode_entries(text: bytes) -> tuple[dict[str, TensorEntry], str]:
    """Return the entries, and what is wrong with the first one that is not of its form."""
    try:
        tensors = _ENTRIES_DECODER.decode(text)
    except msgspec.ValidationError:
        return _decode_unchecked_entries(text)
    tensors.pop("__metadata__", None)
    return tensors, ""


def _decode_unchecked_entries(text: bytes) -> tuple[dict[str, TensorEntry], str]:
    tensors: dict[str, TensorEntry] = {}
    broken = ""
    for name, loose in _UNCHECKED_DECODER.decode(text).items():
        if name == "__metadata__":
            continue
        try:
            tensors[name] = msgspec.convert(loose, TensorEntry, from_attributes=True)
        except msgspec.ValidationError:
            broken = broken or f"does not say type, shape and offsets of {name[:80]!r}"
    return tensors, broken


def _decode_metadata(text: bytes) -> dict[str, str]:
    try:
        return _METADATA_DECODER.decode(text).value if b'"__metadata__"' in text else {}
    except (msgspec.DecodeError, RecursionError):
        return {}


def _layout_fault(tensors: dict[str, TensorEntry], data_bytes: int) -> _HeaderFault | None:
    """Return why the offsets cannot be right: the library wants the tensors one after the other, no gaps."""
    at, before = 0, ""
    for name, entry in sorted(tensors.items(), key=_entry_offsets):
        begin, end = entry.data_offsets
        problem = _entry_problem(name, entry)
        if problem:
            return _HeaderFault(CORRUPT, problem)
        if begin < at:
            return _HeaderFault(CORRUPT, f"lets {name[:80]!r} overlap with {before[:80]!r}")
        if begin > at:
            return _HeaderFault(CORRUPT, f"leaves {begin - at:,} bytes unused before {name[:80]!r}")
        at, before = end, name
    if at > data_bytes:
        return _HeaderFault(TRUNCATED, f"has {data_bytes:,} bytes of weights where its header says {at:,}")
    if at < data_bytes:
        return _HeaderFault(CORRUPT, f"has {data_bytes - at:,} bytes more than its header says")
    return None


def _entry_offsets(item: tuple[str, TensorEntry]) -> tuple[int, int]:
    return item[1].data_offsets


def _entry_problem(name: str, entry: TensorEntry) -> str:
    (begin, end), shape = entry.data_offsets, entry.shape
    bits = DTYPE_BITS.get(entry.dtype)
    if bits and len(shape) <= MAX_AXES and 0 <= begin <= end < MAX_OFFSET and (not shape or min(shape) >= 0):
        needed = (math.prod(shape) * bits + 7) // 8
        if needed == end - begin:
            return ""
    return _entry_fault(name, entry)


def _entry_fault(name: str, entry: TensorEntry) -> str:
    (begin, end), shape = entry.data_offsets, entry.shape
    if not entry.dtype or shape == MISSING_SHAPE or entry.data_offsets == MISSING_OFFSETS:
        return f"does not say type, shape and offsets of {name[:80]!r}"
    outside = shape and not 0 <= min(shape) <= max(shape) < MAX_OFFSET
    if not 0 <= begin <= end < MAX_OFFSET or len(shape) > MAX_AXES or outside:
        return f"gives {name[:80]!r} impossible offsets or sizes"
    bits = DTYPE_BITS.get(entry.dtype)
    if bits is None:
        return ""  # told as an unknown type; its size cannot be checked
    needed = (math.prod(shape) * bits + 7) // 8
    return f"gives {name[:80]!r} {end - begin:,} bytes where its shape needs {needed:,}"
