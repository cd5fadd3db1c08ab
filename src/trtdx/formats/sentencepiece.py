"""The vocabulary of a SentencePiece model or a tiktoken file, without their libraries."""

from __future__ import annotations

import base64
import binascii
import re

import msgspec

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
    count, offset = 0, 0
    special: dict[str, int] = {}
    while offset < len(data):
        try:
            field, start, end = _field(data, offset)
        except ValueError as err:
            return Pieces(count, special, f"is not a SentencePiece model: {err} at byte {offset:,}")
        if field == 1:
            kind, text = _piece(data[start : min(end, start + 4096)])
            if kind != ORDINARY and len(special) < 10_000:
                special[text] = count
            count += 1
        if count > MOST_PIECES:
            return Pieces(count, special, "has more pieces than any vocabulary")
        offset = end
    return Pieces(count, special, "" if count else "is not a SentencePiece model: it has no pieces")


def _field(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the number of the field at an offset, and where its value starts and ends."""
    tag, at = _varint(data, at)
    number, wire = tag >> 3, tag & 7
    if wire == 2:
        length, at = _varint(data, at)
        end = at + length
    elif wire == 0:
        _, end = _varint(data, at)
    elif wire in (1, 5):
        end = at + (8 if wire == 1 else 4)
    else:
        raise ValueError(f"wire type {wire}")
    if number == 0 or end > len(data):
        raise ValueError("a field that goes beyond the end")
    return number, at, end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number that is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number that does not end")


def _piece(data: bytes) -> tuple[int, str]:
    """Return the type and the text of one piece; what is not understood counts as ordinary."""
    kind, text, offset = ORDINARY, "", 0
    while offset < len(data):
        try:
            field, start, end = _field(data, offset)
            if field == 1:
                text = data[start:end].decode("utf-8", "replace")
            elif field == 3:
                kind, _ = _varint(data, start)
        except ValueError:
            break
        offset = end
    return kind, text


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
