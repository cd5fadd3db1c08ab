"""The texts in a JSON document of any size, with their paths, one at a time and in bounded memory."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, BinaryIO

from trtdx.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    Path = tuple[str | int, ...]

MOST_DEPTH = 64
MOST_KEY_BYTES = 1 << 16
BLOCK = 1 << 20

_SPACE_OR_SCALAR = re.compile(rb"[^\"\[\]{}:,]*")


class _Reader:
    """Bytes ahead, refilled as they are used up."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._ahead, self._at = stream, b"", 0

    def mark(self) -> bytes:
        """Return the next structural character, passing over spaces, numbers and words; b"" at the end."""
        while True:
            self._at = _SPACE_OR_SCALAR.match(self._ahead, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._ahead):
                self._at += 1
                return self._ahead[self._at - 1 : self._at]
            if not self._fill():
                return b""

    def text(self, most: int) -> bytes:
        """Return the rest of a text whose opening quote is behind, still escaped."""
        parts: list[bytes] = []
        length = 0
        while True:
            end = self._ahead.find(b'"', self._at)
            while end >= 0 and self._escaped(end, parts):
                end = self._ahead.find(b'"', end + 1)
            parts.append(self._ahead[self._at : end if end >= 0 else len(self._ahead)])
            length += len(parts[-1])
            if length > most:
                raise InputError(f"a text in the JSON document is longer than {most} bytes")
            if end >= 0:
                self._at = end + 1
                return b"".join(parts)
            if not self._fill():
                raise InputError("the JSON document ends inside a text: it is cut off")

    def _escaped(self, quote: int, parts: list[bytes]) -> bool:
        """Whether a quote follows an odd number of backslashes, which may begin in a block before."""
        at = quote
        while at > self._at and self._ahead[at - 1] == ord("\\"):
            at -= 1
        run = quote - at
        for part in reversed(parts if at == self._at else []):
            run += len(part) - len(part.rstrip(b"\\"))
            if part.rstrip(b"\\"):
                break
        return run % 2 == 1

    def _fill(self) -> bool:
        self._ahead, self._at = self._stream.read(BLOCK) or b"", 0
        return bool(self._ahead)


def iter_texts(stream: BinaryIO, *, most_text_bytes: int) -> Iterator[tuple[Path, bytes]]:
    """Yield (path, text) for every text that is a value; texts are not unescaped.

    Raises:
        InputError: it is not JSON, is nested too deeply, is cut off or has a text that is too long.
    """
    reader = _Reader(stream)
    path: list[str | int | None] = []  # None: a key is next
    while mark := reader.mark():
        if mark == b'"' and path and path[-1] is None:
            path[-1] = _unescaped(reader.text(MOST_KEY_BYTES))
        elif mark == b'"':
            yield tuple(key for key in path if key is not None), reader.text(most_text_bytes)
        elif mark == b"," and path:
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else None
        elif mark in b"]}":
            _close(path, mark)
        elif mark in b"[{":
            _open(path, mark)
    if path:
        raise InputError("the JSON document ends early: it is cut off")


def _open(path: list[str | int | None], mark: bytes) -> None:
    if len(path) == MOST_DEPTH:
        raise InputError("the JSON document is nested too deeply")
    path.append(0 if mark == b"[" else None)


def _close(path: list[str | int | None], mark: bytes) -> None:
    if not path or isinstance(path.pop(), int) != (mark == b"]"):
        raise InputError("the JSON document's brackets do not match")


def _unescaped(text: bytes) -> str:
    try:
        return str(json.loads(b'"' + text + b'"'))
    except ValueError as err:
        raise InputError(f"a key in the JSON document is broken: {err}") from err
