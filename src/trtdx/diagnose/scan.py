"""Where in a block of bytes any of many fixed texts stands: the compiled kernel, or Python where it is absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trtdx.literals import fold, rarest_window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

try:
    from trtdx import _kernel
except ImportError:  # installed without a compiler
    _kernel = None  # type: ignore[assignment]

_MOST_HITS = 4096
_FOLD = bytes(byte | 0x20 for byte in range(256))
_DIGITS = b"0123456789"


class Scanner(Protocol):
    """Finds texts; a muted text (by its number) is no longer reported."""

    def hits(self, data: bytes, start: int, end: int, muted: bytearray) -> Iterator[tuple[int, int]]:
        """Yield (offset, number of the text)."""


def scanner_for(texts: Sequence[bytes]) -> Scanner:
    """Return the fastest scanner there is for these texts, each at least WINDOW bytes long."""
    return PythonScanner(texts) if _kernel is None else KernelScanner(texts)


def count_newlines(data: bytes, start: int, end: int) -> int:
    return data.count(b"\n", start, end) if _kernel is None else _kernel.newlines(data, start, end)


class KernelScanner:
    """One pass in C whatever the number of texts."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = [(text, rarest_window(text.decode())[0]) for text in texts]
        self._table, self._numbers = self._built(bytearray(len(texts)))
        self._muted = 0

    def _built(self, muted: bytearray) -> tuple[bytes, list[int]]:
        numbers = [number for number in range(len(self._texts)) if not muted[number]]
        return _kernel.build([self._texts[number] for number in numbers]), numbers

    def hits(self, data: bytes, start: int, end: int, muted: bytearray) -> Iterator[tuple[int, int]]:
        if sum(muted) != self._muted:  # a text that is no longer asked for must not stop the scan either
            self._table, self._numbers = self._built(muted)
            self._muted = sum(muted)
        silent = bytearray(len(self._numbers))
        while start < end:
            found, start = _kernel.scan(self._table, data, start, end, silent, _MOST_HITS)
            for offset, index in found:
                number = self._numbers[index]
                if muted[number]:
                    silent[index] = 1
                else:
                    yield offset, number


class PythonScanner:
    """One search per text, first in the block's distinct lines without digits, which is far less to search."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = [(fold(text), fold(text.translate(None, _DIGITS))) for text in texts]

    def hits(self, data: bytes, start: int, end: int, muted: bytearray) -> Iterator[tuple[int, int]]:
        folded = data[start:end].translate(_FOLD)
        newline = bytes([0x0A | 0x20])
        distinct = newline.join(set(data[start:end].translate(None, _DIGITS).translate(_FOLD).split(newline)))
        found: list[tuple[int, int]] = []
        for number, (text, sketch) in enumerate(self._texts):
            at = -1 if muted[number] or sketch not in distinct else folded.find(text)
            while at >= 0:
                found.append((start + at, number))
                at = folded.find(text, at + 1)
        yield from (hit for hit in sorted(found) if not muted[hit[1]])
