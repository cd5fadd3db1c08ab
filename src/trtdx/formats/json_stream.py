"""The texts in a JSON document of any size, with their paths, one at a time and in bounded memory."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, BinaryIO

from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    Path = tuple[str | int, ...]

MAX_JSON_DEPTH = 64
MAX_KEY_BYTES = 1 << 16
BLOCK_BYTES = 1 << 20

_SPACE_OR_SCALAR = re.compile(rb"[^\"\[\]{}:,]*")


class _JsonScanner:
    """Bytes ahead, refilled as they are used up."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._buffer, self._offset = stream, b"", 0

    def next_delimiter(self) -> bytes:
        """Return the next structural character, passing over spaces, numbers and words; b"" at the end."""
        while True:
            self._offset = _SPACE_OR_SCALAR.match(self._buffer, self._offset).end()  # type: ignore[union-attr]
            if self._offset < len(self._buffer):
                self._offset += 1
                return self._buffer[self._offset - 1 : self._offset]
            if not self._read_block():
                return b""

    def read_string(self, max_bytes: int) -> bytes:
        """Return the rest of a text whose opening quote is behind, still escaped."""
        parts: list[bytes] = []
        length = 0
        while True:
            end = self._buffer.find(b'"', self._offset)
            while end >= 0 and self._is_escaped(end, parts):
                end = self._buffer.find(b'"', end + 1)
            parts.append(self._buffer[self._offset : end if end >= 0 else len(self._buffer)])
            length += len(parts[-1])
            if length > max_bytes:
                raise InputError(f"a text in the JSON document is longer than {max_bytes} bytes")
            if end >= 0:
                self._offset = end + 1
                return b"".join(parts)
            if not self._read_block():
                raise InputError("the JSON document ends inside a text: it is cut off")

    def _is_escaped(self, quote: int, parts: list[bytes]) -> bool:
        """Whether a quote follows an odd number of backslashes, which may begin in a block before."""
        at = quote
        while at > self._offset and self._buffer[at - 1] == ord("\\"):
            at -= 1
        run = quote - at
        for part in reversed(parts if at == self._offset else []):
            run += len(part) - len(part.rstrip(b"\\"))
            if part.rstrip(b"\\"):
                break
        return run % 2 == 1

    def _read_block(self) -> bool:
        self._buffer, self._offset = self._stream.read(BLOCK_BYTES) or b"", 0
        return bool(self._buffer)


def iter_json_strings(stream: BinaryIO, *, max_string_bytes: int) -> Iterator[tuple[Path, bytes]]:
    """Yield (path, text) for every text that is a value; texts are not unescaped.

    Raises:
        InputError: it is not JSON, is nested too deeply, is cut off or has a text that is too long.
    """
    reader = _JsonScanner(stream)
    path: list[str | int | None] = []  # None: a key is next
    while mark := reader.next_delimiter():
        if mark == b'"' and path and path[-1] is None:
            path[-1] = _unescape_key(reader.read_string(MAX_KEY_BYTES))
        elif mark == b'"':
            yield tuple(key for key in path if key is not None), reader.read_string(max_string_bytes)
        elif mark == b"," and path:
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else None
        elif mark in b"]}":
            _close_bracket(path, mark)
        elif mark in b"[{":
            _open_bracket(path, mark)
    if path:
        raise InputError("the JSON document ends early: it is cut off")


def _open_bracket(path: list[str | int | None], mark: bytes) -> None:
    if len(path) == MAX_JSON_DEPTH:
        raise InputError("the JSON document is nested too deeply")
    path.append(0 if mark == b"[" else None)


def _close_bracket(path: list[str | int | None], mark: bytes) -> None:
    if not path or isinstance(path.pop(), int) != (mark == b"]"):
        raise InputError("the JSON document's brackets do not match")


def _unescape_key(text: bytes) -> str:
    try:
        return str(json.loads(b'"' + text + b'"'))
    except ValueError as err:
        raise InputError(f"a key in the JSON document is broken: {err}") from err
