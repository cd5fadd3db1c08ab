"""The vocabulary of a SentencePiece model or a tiktoken file, without their libraries."""

from __future__ import annotations

import base64
import binascii
import io
import re
from contextlib import suppress

import msgspec

from trtdx.formats.protobuf_wire import (
    LENGTH_DELIMITED,
    VARINT,
    WireError,
    WireLimitError,
    WireStream,
    iter_fields,
)

MAX_PIECES = 4_000_000
ORDINARY, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
TIKTOKEN_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) (\d{1,9})\r?(?:\n|\Z)")


class TokenPieces(msgspec.Struct, frozen=True):
    """How many pieces there are, and the ids of those that are not ordinary text."""

    count: int
    special_ids: dict[str, int] = {}
    problem: str = ""


def pieces_from_sentencepiece(data: bytes) -> TokenPieces:
    """Return the pieces of a tokenizer.model: field 1 of its protobuf, once for each piece."""
    count = 0
    special: dict[str, int] = {}
    source = WireStream(io.BytesIO(), len(data), most_fields=5 * MAX_PIECES)
    source.buffer = data  # all of it is at hand
    try:
        for number, wire_type, start, end in iter_fields(source, 0, len(data)):
            if number != 1 or wire_type != LENGTH_DELIMITED:
                continue
            kind, text = _read_piece(source, start, min(end, start + 4096))
            if kind != ORDINARY and len(special) < 10_000:
                special[text] = count
            count += 1
            if count > MAX_PIECES:
                return TokenPieces(count, special, "has more pieces than any vocabulary")
    except WireError as err:
        return TokenPieces(count, special, f"is not a SentencePiece model: {err} at byte {err.offset:,}")
    except WireLimitError:
        return TokenPieces(count, special, "has more fields than any vocabulary")
    return TokenPieces(count, special, "" if count else "is not a SentencePiece model: it has no pieces")


def _read_piece(source: WireStream, start: int, end: int) -> tuple[int, str]:
    """Return the type of one piece, and its text where it is not ordinary; what is not understood is."""
    kind, text = ORDINARY, (0, 0)
    with suppress(WireError):
        for number, wire_type, value, stop in iter_fields(source, start, end):
            if number == 1 and wire_type == LENGTH_DELIMITED:
                text = value, stop
            elif number == 3 and wire_type == VARINT:
                kind = value
    return kind, source.read_text(*text) if kind != ORDINARY else ""


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


def vocab_size_from_tiktoken(data: bytes) -> int:
    """Return the highest rank plus one."""
    return max((int(match[2]) for match in TIKTOKEN_LINE.finditer(data)), default=-1) + 1
