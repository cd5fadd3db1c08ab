"""The header of a TensorRT plan: product, release, stated length and the GPU it was built for.

The layout was read off real plans of TensorRT 8.2, 8.6.1.6, 10.0.1.6, 10.6.0.26 and 10.9.0.34 and of TensorRT-RTX
1.5.0 and 1.7.1; the tag and the version bytes are also in NVIDIA/TensorRT's `printPlanVersion`. The runtime itself
demands that the stated length is the file's ("plan.header.size == blobSize").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trtdx.formats.documents import GIT_LFS_MAGIC, UnreadableError, read_range
from trtdx.knowledge.versions import version_table

if TYPE_CHECKING:
    from trtdx.host import Host

TENSORRT_TAG, RTX_TAG, OLD_TAG = (
    b"ftrt",
    b"vtrt",
    b"ptrt",
)  # OLD: before 8.6 the engine archive had no header around it
PRODUCTS = {TENSORRT_TAG: "TensorRT", RTX_TAG: "TensorRT-RTX", OLD_TAG: "TensorRT"}
START_BYTES = 4096
HEADER_BYTES = 28  # trtexec --getPlanVersionOnly refuses a shorter file
OLD_HEADER_BYTES = 24

TRUNCATED, OVERLONG, FOREIGN, LFS_POINTER = "truncated", "overlong", "foreign", "lfs-pointer"
UNREADABLE = "unreadable"


NO_FILE = {"directory": "is a directory", "absent": "is a link to nothing"}


class PlanHeader(msgspec.Struct, frozen=True):
    """What a plan says of itself; where something is wrong, `fault` names its kind and `problem` says it."""

    bytes: int = 0
    product: str = ""
    version: str = ""
    stated_bytes: int | None = None
    sms: tuple[int, ...] = ()
    fault: str = ""  # "", a key of FACT_OF_FAULT, or UNREADABLE
    problem: str = ""


def read_plan_header(host: Host, path: str) -> PlanHeader:
    """Return what a plan file says of itself; whatever is wrong with it is told, never raised."""
    kind = host.kind(path)
    if kind != "file":  # a pipe would be waited for
        return PlanHeader(fault=UNREADABLE, problem=NO_FILE.get(kind, "is not a file"))
    try:
        start = read_range(host, path, 0, START_BYTES)
        return parse_plan_header(start, host.size(path))
    except UnreadableError as err:
        return PlanHeader(fault=UNREADABLE, problem=str(err))
    except (OSError, KeyError) as err:  # it vanished after it was listed
        return PlanHeader(fault=UNREADABLE, problem=getattr(err, "strerror", None) or "is not there any more")


def parse_plan_header(start: bytes, size: int) -> PlanHeader:
    """Return what the first bytes of a file of so many bytes say."""
    tag = start[:4]
    if start.startswith(GIT_LFS_MAGIC):
        return PlanHeader(size, fault=LFS_POINTER, problem="is a Git-LFS pointer, not the file itself")
    if tag not in PRODUCTS:
        return PlanHeader(size, fault=FOREIGN, problem=_describe_foreign_file(start, size))
    if size < HEADER_BYTES or len(start) < HEADER_BYTES:
        problem = f"has {size} bytes, too few for a plan's header"
        return PlanHeader(size, PRODUCTS[tag], fault=TRUNCATED, problem=problem)
    stated = _stated_bytes(start)
    fault, problem = _length_fault(stated, size)
    return PlanHeader(size, PRODUCTS[tag], _plan_version(start), stated, _compute_capabilities(start), fault, problem)


def _stated_bytes(start: bytes) -> int | None:
    """Return the length in the header; a header of an unknown format (bytes 4 to 7) is not trusted."""
    if start[4:8] != bytes(4):
        return None
    length = int.from_bytes(start[16:24], "little")
    return length + OLD_HEADER_BYTES if start.startswith(OLD_TAG) else length


def _length_fault(stated: int | None, size: int) -> tuple[str, str]:
    if stated is None or stated == size:
        return "", ""
    if stated > size:
        return TRUNCATED, f"has {size:,} bytes where its header says {stated:,}"
    return OVERLONG, f"has {size:,} bytes where its header says {stated:,}: something was appended"


def _plan_version(start: bytes) -> str:
    if start[4:8] != bytes(4):
        return ""
    if not start.startswith(OLD_TAG):
        return ".".join(map(str, start[24:28]))
    fields = _parse_fields(start[OLD_HEADER_BYTES:])[:4]
    return ".".join(str(value) for _, value in fields) if [tag for tag, _ in fields] == [BYTE] * 4 else ""


def _describe_foreign_file(start: bytes, size: int) -> str:
    """Return what a file that is no plan is, by its first bytes."""
    if not size:
        return "is empty"
    if not any(start[:64]):
        return "holds only zeros where a plan's header should be"
    if _has_ultralytics_header(start):
        return "has a header of Ultralytics before the plan, which TensorRT-LLM does not skip"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 100_000_000:
        return "is a safetensors file"
    for mark, words in FOREIGN_FILE_MARKS:
        if start[:64].lstrip().startswith(mark):
            return words
    return "does not begin with a plan's tag (ftrt)"


FOREIGN_FILE_MARKS = (
    (b"\x08", "is an ONNX model, or another protobuf"),
    (b"PK\x03\x04", "is a PyTorch file (a zip archive)"),
    (b"\x80", "is a PyTorch file (a pickle)"),
    (b"GGUF", "is a GGUF file"),
    (b"<", "is a web page (the answer of a failed download)"),
    (b"{", "is JSON"),
    (b"\x1f\x8b", "is compressed (gzip)"),
    (b"\x28\xb5\x2f\xfd", "is compressed (zstd)"),
)


def _has_ultralytics_header(start: bytes) -> bool:
    """Tell a plan behind a length and a JSON object, as `yolo export format=engine` writes it."""
    length = int.from_bytes(start[:4], "little")
    return start[4:5] == b"{" and length < START_BYTES - 8 and start[4 + length : 8 + length] == TENSORRT_TAG


# The engine archive inside a plan is a stream of fields, each behind a tag of four bytes that ends in 80 01 00.
BYTE, INT, LONG, SIZE = 0x02, 0x07, 0x08, 0x09
WIDTHS = {BYTE: 1, INT: 4, LONG: 8, SIZE: 8, 0x0A: 1}
DEVICE_MARK = bytes.fromhex("1280010010800100")  # what stands before the properties of the GPU
# Properties by layout, and where major and minor compute capability, clock, bus width and processors are.
DEVICE_LAYOUTS = (
    ((INT,) * 5 + (LONG,) * 2 + (INT,) * 4, (0, 1, 2, 4, 10)),  # 8.6.1.6, 10.0.1.6, 10.6.0.26
    ((SIZE, LONG, LONG) + (INT,) * 12, (12, 13, 3, 5, 8)),  # 10.9.0.34
)
RTX_TARGETS = (75, 80, 86, 89, 120, 121)  # bits of byte 32, measured with TensorRT-RTX 1.7.1


def _compute_capabilities(start: bytes) -> tuple[int, ...]:
    """Return the compute capabilities a plan is for; empty if the layout is not one that was seen."""
    if start.startswith(RTX_TAG):
        mask = start[32] if len(start) > 39 and not any(start[33:40]) else 0
        is_known = mask < 1 << len(RTX_TARGETS)  # with no target set, a further bit says so
        return tuple(sm for bit, sm in enumerate(RTX_TARGETS) if is_known and mask >> bit & 1)
    at = start.find(DEVICE_MARK)
    fields = _parse_fields(start[at + len(DEVICE_MARK) :]) if at >= 0 else []
    sms = (_device_sm(fields, *layout) for layout in DEVICE_LAYOUTS)
    return next(((sm,) for sm in sms if sm), ())


def _device_sm(fields: list[tuple[int, int]], layout: tuple[int, ...], where: tuple[int, ...]) -> int:
    """Return the compute capability, or 0 where the fields are not the properties of a GPU."""
    if tuple(tag for tag, _ in fields[: len(layout)]) != layout:
        return 0
    major, minor, clock_khz, bus_bits, processors = (fields[index][1] for index in where)
    plausible = 100_000 < clock_khz < 5_000_000 and 0 < bus_bits <= 16_384 and 0 < processors <= 1024
    sm = 10 * major + minor
    return sm if plausible and minor < 10 and str(sm) in version_table().sm else 0


def _parse_fields(data: bytes) -> list[tuple[int, int]]:
    """Return the (tag, value) pairs a stream of fields begins with."""
    fields: list[tuple[int, int]] = []
    at = 0
    while len(fields) < 32 and data[at + 1 : at + 4] == b"\x80\x01\x00" and data[at] in WIDTHS:
        width = WIDTHS[data[at]]
        value = data[at + 4 : at + 4 + width]
        if len(value) < width:
            break
        fields.append((data[at], int.from_bytes(value, "little")))
        at += 4 + width
    return fields
