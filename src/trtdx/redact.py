"""Secrets out of text, before the text goes anywhere.

Every replacement is a fixed point: redacting twice is redacting once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "[redacted]"

_TOKENS = (
    r"\bhf_[A-Za-z0-9]{16,}",  # Hugging Face
    r"\b(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bglpat-[A-Za-z0-9_-]{16,}",
    r"\bnvapi-[A-Za-z0-9_-]{16,}",  # NVIDIA NGC
    r"\bsk-[A-Za-z0-9_-]{16,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # AWS
    r"\bAIza[A-Za-z0-9_-]{30,}",  # Google
    r"\bya29\.[A-Za-z0-9_-]{20,}",
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"\bpypi-[A-Za-z0-9_-]{30,}",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}",  # JSON web tokens
)
_SECRET = re.compile("|".join(_TOKENS))
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=:,.\\ \t\r\n-]{0,20000}?-----END [A-Z ]*PRIVATE KEY-----|"
    r"(?:\s*\n[ \t]*[A-Za-z0-9+/=]{1,76}(?=\s|$))*)"
)
# a line cut out of a key block
_KEY_LINE = re.compile(r"^[ \t]*[A-Za-z0-9+/]{60,}={0,2}[ \t]*$", re.MULTILINE)
# user:password@, however odd the password, and token@; a port or a path before an @ is neither
_URL_PASSWORD = re.compile(
    r"\b([a-z][a-z0-9+.-]{1,20}://)(?:[^\s/@:\"']{0,200}:(?!\d{1,5}(?:/|$))[^\s\"']{1,200}|[^\s/@:.\"']{8,200})@(?=[\w.\[-])",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"\b(authorization|proxy-authorization|x-api-key|cookie|set-cookie)(\"?'?\s{0,4}[:=]\s{0,4}\"?'?)[^\r\n\"']{1,4000}",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)\s{1,4}(?!\[redacted\])[A-Za-z0-9._~+/=-]{12,}", re.IGNORECASE)
# The key's beginning is looked for backwards from here: `[\w.-]{0,60}` in front would be tried at every character.
_ASSIGNED = re.compile(
    r"(?P<key>(?:pass(?:word|wd|phrase)?|pwd|secret|jwt|credential|token|"
    r"(?:api|access|account|private|secret|hmac|auth|encryption)[_-]?key(?:[_-]?id)?)s?)"
    r"(?P<is>[\"']?\s{0,4}[:=]\s{0,4})(?P<value>\"[^\"\n]{1,400}\"|'[^'\n]{1,400}'|[^\s\"',;&}\[]{4,})",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(
    r"(?:bos|eos|pad|unk|sep|cls|mask|num|max|min|special|image|stop|end|new|input|output|prompt|draft|total|gen\w*|per|all|first|last|next|cached|added|extra)\w*_?tokens?$",
    re.IGNORECASE,
)
_FLAG = re.compile(
    r"((?:--(?:[a-z]+-)*(?:token|password|api-key|secret)[= ]|\s-u |--user[= ](?=\S+:))[\"']?)(?!\[redacted\])[^\s\"']{4,}",
    re.IGNORECASE,
)
_QUERY = re.compile(
    r"([?&](?:token|key|sig|signature|password|x-amz-[a-z-]*(?:signature|credential|token))=)(?!\[redacted\])[^&\s\"']{4,}",
    re.IGNORECASE,
)

_IPV4 = re.compile(r"(?<![\d.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?::\d{2,5})?(?![\d.])")
_IPV6 = re.compile(r"(?<![\w:])(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE)
_HOST = re.compile(  # from the start of a run of such characters only, which keeps it linear
    r"(?<![a-z0-9.-])(?P<before>[.-]*)(?P<host>[a-z0-9][a-z0-9.-]*\.(?:com|net|org|io|ai|dev|local|internal|lan|corp|edu|gov|cloud)\b)",
    re.IGNORECASE,
)
_NCCL_HOST = re.compile(r"^(\s*)[\w.-]+(?=:\d+:\d+ \[)", re.MULTILINE)
_SHORT_IPV6 = re.compile(
    r"(?<![\w:])(?:[0-9a-f]{1,4}:){1,7}:(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?(?:%\w+)?(?![\w:])",
    re.IGNORECASE,
)
_JOURNAL_HOST = re.compile(
    r"^(\s*[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )[\w.-]+(?= [\w./@-]+(?:\[\d+\])?: )", re.MULTILINE
)
_SLURM_HOST = re.compile(r"((?:STEP|JOB) \S+ ON |srun: error: )[\w.-]+(?=[ :])")
_NAMED_HOST = re.compile(
    r"\b((?:host(?:name)?|node|nodename|nodelist|peer|master_addr)[\"']?\s*[:=]\s*[\"']?)(?!\[host\])[\w.-]{3,}",
    re.IGNORECASE,
)
_PUBLIC = re.compile(
    r"(?:^|\.)(?:github\.com|huggingface\.co|nvidia\.com|nvcr\.io|pypi\.org|localhost)$", re.IGNORECASE
)


def redact_secrets(text: str) -> str:
    """Return the text without tokens, passwords, authorisation headers and private keys."""
    if "-----BEGIN" in text:
        text = _PRIVATE_KEY.sub(MARK, text)
    text = _KEY_LINE.sub(MARK, text)
    text = _SECRET.sub(MARK, text)
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1{MARK}@", text)
    lower = text.lower()
    for words, pattern, replacement in _BY_WORD:  # to ask for the words first takes a fifth of the time
        if any(word in lower for word in words):
            text = pattern.sub(replacement, text)
    return text


def _redact_assignment(match: re.Match[str]) -> str:
    """Return `key=[redacted]`; what is called a token in a model's vocabulary, or is only counted, stays."""
    value, key = match["value"].strip("\"'"), _full_key(match)
    if value == MARK or _NOT_SECRET.search(key):
        return match[0]
    if "token" in key.lower() and (
        value.replace(".", "").lstrip("-").isdigit() or value.startswith("<") or len(value) < 4
    ):
        return match[0]
    return f"{match['key']}{match['is']}{MARK}"


def _full_key(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 60) : match.start()]
    start = re.match(r"[\w.-]*", before[::-1])
    return (start[0][::-1] if start else "") + match["key"]


_BY_WORD: tuple[tuple[tuple[str, ...], re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (("bearer", "basic"), _BEARER, rf"\1 {MARK}"),
    (("authorization", "x-api-key", "cookie"), _HEADER, rf"\1\2{MARK}"),
    (("pass", "pwd", "secret", "jwt", "credential", "token", "key"), _ASSIGNED, _redact_assignment),
    (("--", "-u"), _FLAG, rf"\1{MARK}"),
    (("?", "&"), _QUERY, rf"\1{MARK}"),
)


def make_redactor(*, hide_hosts: bool) -> Callable[[str], str]:
    """Return the function that takes out secrets, and host names and addresses too where asked."""
    return (lambda text: redact_hosts(redact_secrets(text))) if hide_hosts else redact_secrets


def redact_hosts(text: str) -> str:
    """Return the text without host names and addresses; loopback and public registries stay."""
    text = _NCCL_HOST.sub(r"\1[host]", text)
    text = _JOURNAL_HOST.sub(r"\1[host]", text)
    text = _SLURM_HOST.sub(r"\1[host]", text)
    text = _NAMED_HOST.sub(r"\1[host]", text)
    text = _SHORT_IPV6.sub("[address]", text)
    text = _IPV4.sub("[address]", text)
    text = _IPV6.sub("[address]", text)
    return _HOST.sub(lambda match: match[0] if _PUBLIC.search(match["host"]) else f"{match['before']}[host]", text)
