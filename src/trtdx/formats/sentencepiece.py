"""The vocabulary of a SentencePiece model or a tiktoken file, without their libraries."""

from __future__ import annotations

import base64
import binascii
import io
import re
from contextlib import suppress

import msgspec

from trtdx.formats.wire import SPAN, VARINT, Source, TooMuchError, WireError, fields

MOST_PIECES = 4_000_000
ORDINARY, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
TIKTOKEN_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) (\d{1,9})\r?(?:\n|\Z)")


class Pieces(msgspec.Struct, frozen=True):
    """How many pieces there are, and the ids of those that are not ordinary text."""

    count: int
    special: dict[str, int] = {}
    problem: str = ""


def pieces_from_model(data: bytes) -> Pieces:
    """Return the pieces of a tokenizer.model: field 1 of its protobuf, once for each piece."""
    count = 0
    special: dict[str, int] = {}
    source = Source(io.BytesIO(), len(data), most_fields=5 * MOST_PIECES)
    source.buffer = data  # all of it is at hand
    try:
        for number, wire_type, start, end in fields(source, 0, len(data)):
            if number != 1 or wire_type != SPAN:
                continue
            kind, text = _piece(source, start, min(end, start + 4096))
            if kind != ORDINARY and len(special) < 10_000:
                special[text] = count
            count += 1
            if count > MOST_PIECES:
                return Pieces(count, special, "has more pieces than any vocabulary")
    except WireError as err:
        return Pieces(count, special, f"is not a SentencePiece model: {err} at byte {err.at:,}")
    except TooMuchError:
        return Pieces(count, special, "has more fields than any vocabulary")
    return Pieces(count, special, "" if count else "is not a SentencePiece model: it has no pieces")


def _piece(source: Source, start: int, end: int) -> tuple[int, str]:
    """Return the type of one piece, and its text where it is not ordinary; what is not understood is."""
    kind, text = ORDINARY, (0, 0)
    with suppress(WireError):
        for number, wire_type, value, stop in fields(source, start, end):
            if number == 1 and wire_type == SPAN:
                text = value, stop
            elif number == 3 and wire_type == VARINT:
                kind = value
    return kind, source.text(*text) if kind != ORDINARY else ""


def is_tiktoken(start: bytes) -> bool:
    """Return whether a file is lines of a token in base 64 and its rank, as tiktoken's are."""
    match = TIKTOKEN_LINE.match(start)
    if match is None:
        return False
    try:
        base64.b64decode(match[1], validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def size_from_tiktoken(data: bytes) -> int:
    """Return the highest rank plus one."""
    return max((int(match[2]) for match in TIKTOKEN_LINE.finditer(data)), default=-1) + 1
