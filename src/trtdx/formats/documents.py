"""Files read within bounds: so many bytes, so much depth, and a reason in words when it cannot be done."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.errors import InputError

if TYPE_CHECKING:
    from trtdx.host import Host

MAX_JSON_BYTES = 4 << 20  # no configuration comes near; parsed, hostile JSON takes forty times its size
MAX_YAML_BYTES = 4 << 20
GIT_LFS_MAGIC = b"version https://git-lfs"


class UnreadableError(Exception):
    """Why a file cannot be used; ends as a fact or a note of the artifact, never as a traceback."""


class Document:
    """A parsed file that knows the place of each of its values."""

    def __init__(self, path: str, data: dict[str, Any]) -> None:
        self.path, self.data = path, data

    def value_at(self, dotted: str) -> Any:
        """Return the value at "a.b.c", or None where there is none."""
        value: Any = self.data
        for part in dotted.split("."):
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        return value

    def place_of(self, dotted: str) -> str:
        return f"{self.path}: {dotted}"

    def has_value(self, dotted: str) -> bool:
        return self.value_at(dotted) is not None


def read_file_bytes(host: Host, path: str, max_bytes: int) -> bytes:
    """Return a whole file, refusing one that is larger than `most`."""
    data = read_range(host, path, 0, max_bytes + 1)
    if len(data) > max_bytes:
        raise UnreadableError(f"is larger than {max_bytes:,} bytes, which no such file is")
    return data


def read_range(host: Host, path: str, offset: int, length: int) -> bytes:
    """Return up to `length` bytes from `offset`; fewer at the end of the file."""
    parts: list[bytes] = []
    left = length
    if host.kind(path) == "other":
        raise UnreadableError("is not a regular file")  # opening a pipe would wait for somebody to write
    try:
        with host.open(path) as stream:
            stream.seek(offset)
            while left > 0:
                part = stream.read(min(left, 1 << 20))
                if not part:
                    break
                parts.append(part)
                left -= len(part)
    except InputError as err:
        raise UnreadableError(err.message.partition(": ")[2] or err.message) from err
    except OSError as err:
        raise UnreadableError(err.strerror or str(err)) from err
    return b"".join(parts)


def read_json(host: Host, path: str, max_bytes: int = MAX_JSON_BYTES) -> Document:
    """Return a JSON object; comments are tolerated because TensorRT-LLM's own parser tolerates them."""
    return Document(path, parse_json(read_file_bytes(host, path, max_bytes)))


def parse_json(data: bytes) -> dict[str, Any]:
    if data.startswith(GIT_LFS_MAGIC):
        raise UnreadableError("is a Git-LFS pointer, not the file itself")
    if not data.strip():
        raise UnreadableError("is empty")
    value = _decode_json(data)
    if not isinstance(value, dict):
        raise UnreadableError(f"holds {JSON_TYPE_NAMES.get(type(value), 'something else')}, not an object")
    return value


JSON_TYPE_NAMES = {
    type(None): "null",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
}


def encoding_fault(data: bytes) -> str:
    """Return why Python's json refuses a file that can be read otherwise; "" if it does not."""
    if data.startswith(b"\xef\xbb\xbf"):
        return "begins with a byte-order mark, at which Python's json stops"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is written in UTF-16, but is read as UTF-8"
    return ""


def _decode_json(data: bytes) -> Any:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        data = data.decode("utf-16", "replace").encode()
    try:
        return msgspec.json.decode(data)
    except RecursionError as err:
        raise UnreadableError("is nested too deeply") from err
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        problem = str(err)
    for lenient in (_decode_python_json, _decode_commented_json):
        with suppress(ValueError, RecursionError):
            return lenient(data)
    raise UnreadableError(f"is not JSON: {problem}")


def _decode_python_json(data: bytes) -> Any:
    """Return JSON with NaN and Infinity, which Python writes and reads (Nemotron's time_step_limit)."""
    if b"NaN" not in data and b"Infinity" not in data:
        raise ValueError("nothing that only Python reads")
    value = json.loads(data)
    msgspec.json.encode(value)  # raises for halves of characters, which could not be shown
    return value


def _decode_commented_json(data: bytes) -> Any:
    """Return JSON that has // and /* */ comments; text inside strings stays."""
    pattern = rb'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/'
    plain = re.sub(pattern, lambda m: m[0] if m[0].startswith(b'"') else b" ", data, flags=re.DOTALL)
    return msgspec.json.decode(plain)
