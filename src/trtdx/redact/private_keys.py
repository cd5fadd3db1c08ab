"""Private keys in text: PEM, OpenSSH, PGP and PuTTY blocks, also with a prefix on every line, cut or escaped."""

from __future__ import annotations

import re

from trtdx.redact.mark import MARK

_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d")
_END = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|Private-MAC: \w+")
_ONE_LINE = re.compile(  # escaped into one line, as in JSON: "-----BEGIN ...-----\nMIIE...\n-----END ...-----"
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?:(?!-----BEGIN)[A-Za-z0-9+/=:,.\\ \t-]){0,20000}?"
    r"-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
)
_KEY_WORD = re.compile(r"[A-Za-z0-9+/]+={0,2}(?:\\n|\\r|[\\\"',])*")
_HEADER = re.compile(r"(?:Proc-Type|DEK-Info|Version|Comment|Hash|Encryption|Public-Lines|Private-Lines|Charset): ?.*")
# a line cut out of a key block, whatever stands before it
_KEY_LINE = re.compile(
    r"(?m)(^|[\s:|>\]])(?![0-9a-f]+(?:\s|$))[A-Za-z0-9+/]{60,76}={0,2}(?=[ \t\"',\\]{0,8}(?:\\n[\"',]{0,8})?[ \t]{0,8}\r?$)"
)
_FIRST_WORD = re.compile(r"\s*((?=[A-Za-z+/]*\d|[a-z]*[A-Z]+[a-z]*[A-Z])[A-Za-z0-9+/]{8,}={0,2})(?=\s|$)")
LONGEST_BLOCK = 400  # lines


def redact_private_keys(text: str) -> str:
    """Return the text without private keys; of a block without an end the lines that can be key material go."""
    if "PRIVATE KEY" in text or "PuTTY-User" in text:
        text = _ONE_LINE.sub(MARK, text)
        text = _redact_blocks(text)
    return _KEY_LINE.sub(rf"\1{MARK}", text)


def _redact_blocks(text: str) -> str:
    lines = text.split("\n")
    left = 0  # how many more lines can belong to the block
    for number, line in enumerate(lines):
        if _BEGIN.search(line):
            lines[number], left = _redact_begin_line(line)
        elif left:
            lines[number], left = _redact_key_line(line, left - 1)
    return "\n".join(lines)


def _redact_begin_line(line: str) -> tuple[str, int]:
    """Return a block's first line without key material; words after it say that it is only mentioned."""
    before, *parts = _BEGIN.split(line)
    last = parts[-1].strip(" \t\r\"',\\")
    is_block = not last or _is_key_word(last)
    rest = "" if last and is_block else parts[-1]
    return before + MARK * len(parts) + rest, LONGEST_BLOCK if is_block else 0


def _redact_key_line(line: str, left: int) -> tuple[str, int]:
    """Return a line of a block without its key material, and how many lines can still follow."""
    end = _END.search(line)
    if end:
        return line[: end.start()] + MARK + line[end.end() :], 0
    bare = line.rstrip()
    if not bare or _HEADER.search(bare):
        return line, left
    start = max(bare.rfind(mark) for mark in ' \t>|"') + 1
    if _is_key_word(bare[start:]):
        return line[:start] + MARK, left
    first = _FIRST_WORD.match(line)
    return (line[: first.start(1)] + MARK + line[first.end(1) :] if first else line), 0


def _is_key_word(word: str) -> bool:
    return bool(_KEY_WORD.fullmatch(word)) and not (word.isalpha() and word.islower())
