"""Secrets out of text, before the text goes anywhere: by form, by place, by name, under encodings, by chance."""

from __future__ import annotations

import re
from urllib.parse import unquote

from trtdx.redact.entropy import redact_random_words
from trtdx.redact.keys import is_secret_name, is_stand_in
from trtdx.redact.mark import MARK
from trtdx.redact.places import redact_by_place
from trtdx.redact.private_keys import redact_private_keys
from trtdx.redact.vendor_tokens import (
    VENDOR_TOKEN,
    WEB_HOOK,
    base64_runs,
    decode_base64_text,
    is_base64_credential,
    redact_hex_keys,
    redact_pairs,
)

# Characters nobody sees, which would split a secret: zero widths, joiners, soft hyphens, directions.
_INVISIBLE = dict.fromkeys(
    (0xAD, 0x34F, 0x61C, 0x180E, 0xFEFF, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A))
)
_ESCAPE_INSIDE = re.compile(r"(?<=[A-Za-z0-9_-])\x1b\[[0-9;]{0,12}[A-Za-z](?=[A-Za-z0-9_-])")
_LONG_RUN = re.compile(r"[^\s\"'<>(){}\[\],;|`]{16,}")
_URL_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_UNICODE_ESCAPE = re.compile(r"(?<!\\)\\+(?:(?:u00|x)([0-7][0-9A-Fa-f])|(/))")
MOST_ENCODINGS = 3  # one inside the other

# user:password@, however odd the password, and token@; a port or a path before an @ is neither
_URL_PASSWORD = re.compile(
    r"\b([a-z][a-z0-9+.-]{1,20}:(?:\\?/){2})(?:[^\s/@:\"']{0,200}:(?!\d{1,5}(?:/|$))[^\s\"']{1,200}|[^\s/@:.\"']{8,200})@(?=[\w.\[-])",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<![\w.$-])(?P<name>(?!(?:OLD)?PWD\b)[\w.-]{2,200})\\{0,8}[\"']?\s{0,4}(?:=>|:=|[:=])\s{0,4}")
_VALUE = re.compile(
    r"(?P<quote>\\{0,8}[\"'])(?:(?!(?P=quote))[^\n]){1,8000}(?P=quote)|Secret(?:Str|Bytes)\(\\{0,8}[\"'][^\"'\n\\]{1,400}\\{0,8}[\"']\)|[^\s\"',;&}\[\\]{4,}(?:\\+/[^\s\"',;&}\[\\]*)*"
)


def redact_secrets(text: str) -> str:
    """Return the text without tokens, passwords, authorisation headers and private keys."""
    return _redact(text, MOST_ENCODINGS)


def _redact(text: str, encodings: int) -> str:
    if not text.isascii():
        text = text.translate(_INVISIBLE)
    if "\x1b" in text:
        text = _ESCAPE_INSIDE.sub("", text)
    text = redact_private_keys(text)
    if "://" in text or ":\\/\\/" in text:
        text = WEB_HOOK.sub(rf"\1{MARK}", _URL_PASSWORD.sub(rf"\1{MARK}@", text))
    if "AKIA" in text or "ASIA" in text:
        text = redact_pairs(text, MARK)
    text = _LONG_RUN.sub(lambda run: _redact_run(run[0], encodings), text)
    text = _redact_assignments(text)
    text = redact_by_place(text)
    return "\n".join(map(_redact_hex, text.split("\n"))) if _HEX_RUN.search(text) else text


_HEX_RUN = re.compile(r"[0-9a-f]{32}")


def _redact_hex(line: str) -> str:
    return redact_hex_keys(line, MARK) if _HEX_RUN.search(line) else line


def _redact_run(run: str, encodings: int) -> str:
    """Return a long run of characters without the tokens in it, plain or encoded."""
    run = VENDOR_TOKEN.sub(MARK, run)
    if encodings and _hides_secret(run, encodings - 1):
        return MARK
    if encodings:
        for part in reversed(base64_runs(run)):
            if _encodes_secret(part[0], encodings - 1):
                run = run[: part.start()] + MARK + run[part.end() :]
    return redact_random_words(run, MARK)


def _hides_secret(run: str, encodings: int) -> bool:
    r"""Whether a run holds a secret once its escapes (%3D, \\u003d) are undone."""
    plain = run
    if _URL_ESCAPE.search(run):
        plain = unquote(plain)
    if "\\" in plain:
        plain = _UNICODE_ESCAPE.sub(lambda match: match[2] or chr(int(match[1], 16)), plain)
    return plain != run and _redact(plain, encodings) != plain


def _encodes_secret(run: str, encodings: int) -> bool:
    plain = decode_base64_text(run)
    return bool(plain) and (is_base64_credential(plain) or _redact(plain, encodings) != plain)


def _redact_assignments(text: str) -> str:
    """Return the text with `[redacted]` for what is assigned to secrets' names (`=`, `:`, in JSON, in JSON in JSON)."""
    pieces, end = [], 0
    for match in _NAME.finditer(text):
        if match.start() < end or not is_secret_name(_full_name(text, match)):
            continue
        value = _VALUE.match(text, match.end())
        if value and not is_stand_in(match["name"], value[0]):
            pieces += [text[end : value.start()], MARK]
            end = value.end()
    return "".join(pieces) + text[end:] if pieces else text


def _full_name(text: str, match: re.Match[str]) -> str:
    """Return the name with the word before it where it is written in two: `api key: ...`."""
    if match["name"].lower().rstrip("s") != "key":
        return match["name"]
    words = text[max(0, match.start() - 20) : match.start()].split()
    return f"{words[-1]}_{match['name']}" if words else match["name"]
