"""Secrets known by the place they stand in: after an option, in a header, in a line of .netrc, in a sentence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.redact.keys import is_secret_name, is_stand_in
from trtdx.redact.mark import MARK

if TYPE_CHECKING:
    from collections.abc import Callable

    Replacement = str | Callable[[re.Match[str]], str]

_HEADER = re.compile(
    r"\b(authorization|proxy-authorization|x-api-key|cookie|set-cookie)(\\{0,8}\"?'?\s{0,4}[:=]\s{0,4}\\{0,8}\"?'?)(?P<value>[^\r\n\"'\\]{1,4000})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)\s{1,4}(?!\[redacted\])[A-Za-z0-9._~+/=-]{12,}", re.IGNORECASE)
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


def redact_by_place(text: str) -> str:
    """Return the text without what stands where programs and people put secrets."""
    lower = text.lower()
    for words, pattern, replacement in _BY_WORD:
        if any(word in lower for word in words):  # to ask for the words first takes a fifth of the time
            text = pattern.sub(replacement, text)
    return text


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
