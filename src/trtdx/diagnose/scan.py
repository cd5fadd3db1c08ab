"""Where in a block of bytes any of many fixed texts stands: the compiled kernel, or Python where it is absent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from trtdx.knowledge.literals import PIECE, STRIDE, fold_case, healthy_pieces, rarest_window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

try:
    from trtdx import _kernel
except ImportError:  # installed without a compiler
    _kernel = None  # type: ignore[assignment]

_MAX_HITS_PER_CALL = 1024
_TWO_THREADS_BYTES = 256 << 10  # bytes from which on two threads are quicker than one
_FOLD = bytes(byte | 0x20 for byte in range(256))
_DIGITS = b"0123456789"


class TextScanner(Protocol):
    """Finds texts; a muted text (by its number) is no longer reported."""

    def find_hits(self, data: bytes, start: int, end: int, muted: bytearray) -> Iterator[tuple[int, int]]:
        """Yield (offset, number of the text)."""


def make_scanner(texts: Sequence[bytes]) -> TextScanner:
    """Return the fastest scanner there is for these texts, each at least WINDOW bytes long."""
    return PythonScanner(texts) if _kernel is None else KernelScanner(texts)


def count_newlines(data: bytes, start: int, end: int) -> int:
    return data.count(b"\n", start, end) if _kernel is None else _kernel.newlines(data, start, end)


class KernelScanner:
    """One pass in C whatever the number of texts."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._table = _kernel.build([(text, rarest_window(text.decode())[0]) for text in texts])

    def find_hits(self, data: bytes, start: int, end: int, muted: bytearray) -> Iterator[tuple[int, int]]:
        if end - start >= _TWO_THREADS_BYTES:
            middle = start + (end - start) // (2 * STRIDE) * STRIDE
            second = _scan_executor().submit(list, self._scan(data, middle, end, bytearray(muted)))
            parts = [self._scan(data, start, middle, muted), _iterate_future(second)]
        else:
            parts = [self._scan(data, start, end, muted)]
        return (hit for hit in chain.from_iterable(parts) if not muted[hit[1]])

    def _scan(self, data: bytes, start: int, end: int, muted: bytearray) -> Iterator[tuple[int, int]]:
        while start < end:
            hits, start = _kernel.scan(self._table, data, start, end, muted, _MAX_HITS_PER_CALL)
            yield from hits


@cache
def _scan_executor() -> ThreadPoolExecutor:
    """Return the second pair of eyes; the kernel leaves the interpreter free while it scans."""
    return ThreadPoolExecutor(1, thread_name_prefix="trtdx-scan")


def _iterate_future(future: Future[list[tuple[int, int]]]) -> Iterator[tuple[int, int]]:
    yield from future.result()


class PythonScanner:
    """One search per text that can be there at all.

    Which can is told by the runs of PIECE bytes in the block's distinct lines without digits: far less to look at
    than the block, and one look-up per text however many texts there are.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = [fold_case(text) for text in texts]
        self._pieces = [_rarest_piece(text.translate(None, _DIGITS)) for text in texts]

    def find_hits(self, data: bytes, start: int, end: int, muted: bytearray) -> Iterator[tuple[int, int]]:
        folded = data[start:end].translate(_FOLD)
        distinct = b"\n".join(set(data[start:end].translate(None, _DIGITS).split(b"\n"))).translate(_FOLD)
        present = {distinct[offset : offset + PIECE] for offset in range(len(distinct))}
        hits: list[tuple[int, int]] = []
        for number, piece in enumerate(self._pieces):
            if muted[number] or (piece and piece not in present):
                continue
            offset = folded.find(self._texts[number])
            while offset >= 0:
                hits.append((start + offset, number))
                offset = folded.find(self._texts[number], offset + 1)
        yield from (hit for hit in sorted(hits) if not muted[hit[1]])


def _rarest_piece(text: bytes) -> bytes:
    """Return the folded run of PIECE bytes least expected in healthy lines; nothing for a text shorter than that."""
    folded = fold_case(text)
    pieces = [folded[at : at + PIECE] for at in range(len(folded) - PIECE + 1)]
    return min(pieces, key=lambda piece: healthy_pieces()[piece], default=b"")
