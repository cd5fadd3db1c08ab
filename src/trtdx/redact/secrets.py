"""Secrets out of text, before the text goes anywhere: by form, by place, by name, under encodings, by chance."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from trtdx.redact.entropy import redact_random_words
from trtdx.redact.keys import is_secret_name, is_stand_in
from trtdx.redact.mark import MARK
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

if TYPE_CHECKING:
    from collections.abc import Callable

    Replacement = str | Callable[[re.Match[str]], str]

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
_HEADER = re.compile(
    r"\b(authorization|proxy-authorization|x-api-key|cookie|set-cookie)(\\{0,8}\"?'?\s{0,4}[:=]\s{0,4}\\{0,8}\"?'?)(?P<value>[^\r\n\"'\\]{1,4000})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)\s{1,4}(?!\[redacted\])[A-Za-z0-9._~+/=-]{12,}", re.IGNORECASE)
_NAME = re.compile(r"(?<![\w.$-])(?P<name>(?!(?:OLD)?PWD\b)[\w.-]{2,200})\\{0,8}[\"']?\s{0,4}(?:=>|:=|[:=])\s{0,4}")
_VALUE = re.compile(
    r"(?P<quote>\\{0,8}[\"'])(?:(?!(?P=quote))[^\n]){1,400}(?P=quote)|[^\s\"',;&}\[\\]{4,}(?:\\+/[^\s\"',;&}\[\\]*)*"
)
_OPTION = re.compile(
    r"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]{2,60})(?P<is>=|[ \t]+(?:\\\n\s*)?)(?P<quote>[\"']?)(?P<value>[^\s\"']{3,})"
)
_QUERY = re.compile(
    r"([?&](?:token|key|sig|signature|password|code|x-amz-[a-z-]*(?:signature|credential|token))=)(?!\[redacted\])[^&\s\"']{4,}",
    re.IGNORECASE,
)
_LOGIN_OPTION = re.compile(  # -p and the like mean a password only to these programs
    r"(?P<before>\b(?:\w+ +(?:registry +)?login\b[^\n|;&]{0,200}?\s-p[ =]?|sshpass\s+-p ?|"
    r"(?:mysql|mariadb)\w*\b[^\n|;&]{0,200}?\s-p|redis-cli\b[^\n|;&]{0,200}?\s-a\s+|"
    r"ldap\w+\b[^\n|;&]{0,200}?\s-w\s+|smbclient\b[^\n|;&]{0,200}?\s-U\s+[\w.-]+%))(?P<quote>[\"']?)(?P<value>[^\s\"']{3,})"
)
_USER_OPTION = re.compile(
    r"(?P<before>\s(?:-u|--user|--proxy-user)[ =]?[\"']?[^\s:\"']{1,100}:)(?P<value>[^\s\"']{3,})"
)
_NETRC = re.compile(
    r"(?P<before>\blogin\s{1,40}\S{1,200}\s{1,40}(?:account\s{1,40}\S{1,200}\s{1,40})?password\s{1,40}|^[ \t]{0,40}password[ \t]{1,40}(?=\S+[ \t]{0,40}$))(?P<value>\S{3,})",
    re.MULTILINE,
)
_PGPASS = re.compile(r"^(?P<before>[\w.*-]+:(?:\d{1,5}|\*):[\w.*-]+:[\w.*-]+:)(?P<value>\S{3,})$", re.MULTILINE)
_MAIL_PAIR = re.compile(
    r"(?P<before>\b(?!git@)[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+:)(?![/~.\d]|[\w.-]*/)(?P<value>[^\s\"',;]{4,})"
)
_SENTENCE = re.compile(
    r"(?P<before>\b(?P<noun>(?:pass(?:word|phrase|code)|pwd|(?:api|access|secret)[ _-]key|secret|token)s?)\s{1,4}(?:is|was|are|=|set to)\s{0,4}:?\s{1,4}[\"'`]?)"
    r"(?P<value>[^\s\"'`,;|]{4,})",
    re.IGNORECASE,
)
_ORDINARY_WORD = re.compile(r"[a-z]+(?:[-'][a-z]+)*[.!?:)]*|\d{1,3}[.%]?|[A-Z][a-z]+[.!?]*", re.ASCII)
_KUBERNETES_DATA = re.compile(
    r"^(?P<indent>[ ]*)(?:data|stringData):[ ]*\n(?P<body>(?:(?P=indent)[ ]+\S.*\n?)+)", re.MULTILINE
)
_DATA_VALUE = re.compile(r"^(\s+[\w./-]+:\s+)(?!\[redacted\])\S.*$", re.MULTILINE)


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
    lower = text.lower()
    for words, pattern, replacement in _BY_WORD:
        for word in words:  # to ask for the words first takes a fifth of the time
            if word in lower:
                text = pattern.sub(replacement, text)
                break
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


def _redact_option(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or is_stand_in(match["name"], match["value"]):
        return match[0]
    return f"{match['name']}{match['is']}{match['quote']}{MARK}"


def _redact_value_after(match: re.Match[str]) -> str:
    value = match["value"]
    if is_stand_in("password", value) or value.replace(":", "").isdigit():
        return match[0]
    return match["before"] + match.groupdict().get("quote", "") + MARK


def _redact_header(match: re.Match[str]) -> str:
    scheme, _, value = match["value"].strip().rpartition(" ")
    if is_stand_in("password", value) and len(scheme) < 20:
        return match[0]
    return match[1] + match[2] + MARK


def _redact_sentence(match: re.Match[str]) -> str:
    """Return "password is [redacted]"; "password is required" stays."""
    if _ORDINARY_WORD.fullmatch(match["value"]) or is_stand_in(match["noun"].lower(), match["value"]):
        return match[0]
    return match["before"] + MARK


def _redact_kubernetes_data(match: re.Match[str]) -> str:
    head = match[0][: match.start("body") - match.start()]
    return head + _DATA_VALUE.sub(rf"\1{MARK}", match["body"])


_BY_WORD: tuple[tuple[tuple[str, ...], re.Pattern[str], Replacement], ...] = (
    (("kind: secret",), _KUBERNETES_DATA, _redact_kubernetes_data),
    (("bearer", "basic"), _BEARER, rf"\1 {MARK}"),
    (("authorization", "x-api-key", "cookie"), _HEADER, _redact_header),
    (("login", "sshpass", "mysql", "mariadb", "redis-cli", "ldap", "smbclient"), _LOGIN_OPTION, _redact_value_after),
    ((" -", "--"), _OPTION, _redact_option),
    ((" -u", "--user", "--proxy-user"), _USER_OPTION, _redact_value_after),
    (("?", "&"), _QUERY, rf"\1{MARK}"),
    (("password",), _NETRC, _redact_value_after),
    ((":",), _PGPASS, _redact_value_after),
    (("@",), _MAIL_PAIR, _redact_value_after),
    (("pass", "pwd", "key", "secret", "token"), _SENTENCE, _redact_sentence),
)
