"""Documents as lines that survive a launcher: marked, numbered, and short enough to be written in one piece."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import socket
import zlib
from typing import Any, Dict, List

PROBE_MARK = "@trtdx-probe"
SMOKE_MARK = "@trtdx-smoke"
LINE = 1024  # launchers read 1, 4 or 64 KiB at a time and cut there: with lines that divide these, between lines
CHUNK = 850  # of a line; the rest is its mark and its name
COPIES = 2
# mpirun --tag-output puts these wherever a piece of a rank's output ends, in the middle of lines too.
LAUNCHER_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err|diag)>:? ?")
MOST_BYTES = 8 << 20  # of one document, unpacked


def print_marked(mark: str, document: Any, number: int = 0) -> None:
    """Print a document on standard output, twice, so that a line that another process's output spoils is not missed."""
    data = base64.b64encode(zlib.compress(json.dumps(document).encode(), 9)).decode()
    pieces = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    name = f"{socket.gethostname()[:60]}.{os.getpid()}.{number}"
    for _ in range(COPIES):
        for piece_number, piece in enumerate(pieces):
            line = f"{mark} {name} {piece_number + 1}/{len(pieces)} {zlib.crc32(piece.encode()):08x} {piece}"
            os.write(1, f"\n{line:<{LINE - 2}}\n".encode())


def parse_marked(mark: str, text: str) -> List[Any]:
    """Return the documents that are whole in a launcher's output, whatever stands around the marked lines."""
    text = LAUNCHER_TAG.sub("", text)
    pieces: Dict[str, Dict[int, str]] = {}
    totals: Dict[str, int] = {}
    marked = rf"{re.escape(mark)} (\S+) (\d{{1,6}})/(\d{{1,6}}) ([0-9a-f]{{8}}) ([A-Za-z0-9+/=]+)"
    for name, number, total, check, piece in re.findall(marked, text):
        if zlib.crc32(piece.encode()) == int(check, 16):
            pieces.setdefault(name, {})[int(number)] = piece
            totals[name] = int(total)
    documents = []
    for name, numbered in pieces.items():
        if len(numbered) == totals[name]:
            documents += _unpack("".join(numbered[number] for number in sorted(numbered)))
    return documents


def _unpack(data: str) -> List[Any]:
    try:
        unpacker = zlib.decompressobj()
        return [json.loads(unpacker.decompress(base64.b64decode(data), MOST_BYTES))]
    except (binascii.Error, zlib.error, ValueError):
        return []
