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
    r"\b(authorization|proxy-authorization|x-api-key|cookie|set-cookie)(\\{0,8}\"?'?\s{0,4}[:=]\s{0,4}\\{0,8}\"?'?)(?P<value>[^\r\n\"'\\]{0,40}[ ]\\{0,8}[\"'][^\r\n\"'\\]{1,4000}|[^\r\n\"'\\]{1,4000})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)\s{1,4}(?!\[redacted\])[A-Za-z0-9._~+/=-]{12,}", re.IGNORECASE)
_OPTION = re.compile(
    r"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]{2,60})(?P<is>=|[ \t]+(?:\\\n\s*)?)(?P<quote>[\"']?)(?P<value>[^\s\"']{3,})"
)
_QUERY = re.compile(
    r"([?&](?:token|key|sig|signature|password|code|x-(?:amz|goog)-[a-z-]*(?:signature|credential|token))=)[\"']?(?!\[redacted\])[^&\s\"']{4,}",
    re.IGNORECASE,
)
_LOGIN_OPTION = re.compile(  # -p and the like mean a password only to these programs
    r"(?P<before>\b(?:\w+ +(?:registry +)?login\b[^\n|;&]{0,200}?\s-p[ =]?|sshpass\s+-p ?|"
    r"(?:mysql|mariadb)\w*\b[^\n|;&]{0,200}?\s-p|redis-cli\b[^\n|;&]{0,200}?\s-a\s+|"
    r"ipmitool\b[^\n|;&]{0,200}?\s-P\s+|ldap\w+\b[^\n|;&]{0,200}?\s-w\s+|smbclient\b[^\n|;&]{0,200}?\s-U\s+[\w.-]+%))(?P<quote>[\"']?)(?P<value>[^\s\"']{3,})"
)
_USER_OPTION = re.compile(
    r"(?P<before>\s(?:-u|--user|--proxy-user)[ =]?[\"']?[^\s:\"']{1,100}:)(?P<quote>[\"']?)(?P<value>[^\s\"']{3,})"
)
_NETRC = re.compile(
    r"(?P<before>\blogin\s{1,40}\S{1,200}\s{1,40}(?:account\s{1,40}\S{1,200}\s{1,40})?password\s{1,40}|^[ \t]{0,40}password[ \t]{1,40}(?=\S+[ \t]{0,40}$))(?P<value>\S{3,})",
    re.MULTILINE,
)
_PGPASS = re.compile(r"^(?P<before>[\w.*-]+:(?:\d{1,5}|\*):[\w.*-]+:[\w.*-]+:)(?P<value>\S{3,})$", re.MULTILINE)
_MIXED = (  # what people take for a password and nobody for a word: letters and digits, or capitals in the middle
    r"(?=[^\s\"'<>|]{0,60}?(?:[A-Za-z][^\s\"'<>|]{0,30}\d|\d[^\s\"'<>|]{0,30}[A-Za-z]|[a-z][A-Z]+[a-z]+[A-Z]|[A-Z]{2}[a-z]+[A-Z]))"
    r"(?P<value>[^\s\"'<>|,;\\(){}\[\]]{6,})"
)
_PGPASS_INSIDE = re.compile(
    rf"(?<=[\s\"'=])(?P<before>[\w.*-]{{1,253}}:(?:\d{{2,5}}|\*):[\w*-]{{1,63}}:[\w*-]{{1,63}}:){_MIXED}"
)
_NEAR_WORD = re.compile(  # "user bob, password X", "passphrase for the key: X", "credentials: bob / X", "bindpw X"
    r"(?P<before>\b(?:password|passphrase|passcode|passwd|bindpw|rootpw|credentials?|unseal key(?: \d)?|geniekey)\b(?:[ :=]{1,3}(?:for|of|to|the|is|user|key|new|your|my|with)\b){0,4}"
    r"(?: ['\"`]?[\w:/.@-]{1,80}['\"`]?)?(?: ?[:=/] ?| {1,4}|: {1,4})[\"'`]?)" + _MIXED,
    re.IGNORECASE,
)
_PIPED = re.compile(
    r"(?P<before>\b(?:echo|printf)(?: -\w+| '?%s(?:\\n)?'?)* [\"']?)(?P<value>[^\s\"']{3,})(?=[\"']? ?\| ?(?:sudo\b[^\n|]{0,40} -\w*S|[^\n|]{0,200}-stdin\b))"
)
_ELEMENT = re.compile(r"(?P<before><(?P<name>[\w:.-]{2,60})>)(?P<value>[^<>\s]{3,400})(?=</(?P=name)>)")
_PAIR_OF_FIELDS = re.compile(  # {"Key": "DB_PASSWORD", "Value": "..."}, <add key="ApiKey" value="..."/>
    r"(?P<before>\b(?:name|key|variable)\\{0,8}[\"']?\s{0,4}[:=]\s{0,4}\\{0,8}[\"']?(?P<name>[\w.-]{2,120})\\{0,8}[\"']?[,;]?\s{1,12}(?:\\n\s{0,12})?\\{0,8}[\"']?value\\{0,8}[\"']?\s{0,4}[:=]\s{0,4}|"
    r"\b(?:name|key|variable)\\{0,8}[\"']:\s{0,4}\\{0,8}[\"'](?P<name_tight>[\w.-]{2,120})\\{0,8}[\"'],\s{0,12}\\{0,8}[\"']value\\{0,8}[\"']:\s{0,4})"
    r"(?P<quote>\\{0,8}[\"']?)(?P<value>[^\s\"'\\,}]{3,400})",
    re.IGNORECASE,
)
_SET_VARIABLE = re.compile(  # fish, csh, Dockerfiles, `ngc config set`
    r"(?P<before>\b(?:set(?:env)?|ENV|ARG|setx)\s{1,4}(?:-\w+\s{1,4})*(?P<name>\w{2,120})\s{1,4})(?P<quote>[\"']?)(?P<value>[^\s\"'=\\]{4,})"
)
_LITERAL = re.compile(r"(?P<before>--from-literal[ =][\"']?[\w.-]{1,120}=)(?P<quote>[\"']?)(?P<value>[^\s\"']{3,})")
_BLOCK = re.compile(
    r"(?P<before>(?<![\w.-])(?P<name>[\w.-]{2,120})[\"']?:[ ]{1,4}[|>][-+]?(?:\s*\n[^\n\w]{0,200}|\\+n *))(?P<value>[^\s\"'\\]{3,400})"
)
_CALL = re.compile(
    r"(?P<before>\b(?:SecretStr|SecretBytes|Secret|Password|ApiKey)\(\\{0,8}[\"'])(?P<value>[^\"'\\\s]{3,400})"
)
_MAIL_PAIR = re.compile(
    r"(?P<before>\b(?!git@)[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+:)(?P<quote>[\"']?)(?![/~.\d]|[\w.-]*/)(?P<value>[^\s\"',;]{4,})"
)
_MAIL_BESIDE = re.compile(rf"(?P<before>\b[\w.+-]{{1,64}}@[\w-]{{1,63}}(?:\.[\w-]{{1,63}})+ ?[/|,;] ?){_MIXED}")
_SENTENCE = re.compile(
    r"(?P<before>\b(?P<noun>(?:pass(?:word|phrase|code)|pwd|(?:api|access|secret)[ _-]key|secret|token)s?)\s{1,4}(?:is|was|are|=|(?:(?:is|was) )?set to)\s{0,4}:?\s{1,4}[\"'`]?)"
    r"(?P<value>[^\s\"'`,;|]{4,})",
    re.IGNORECASE,
)
_ORDINARY_WORD = re.compile(r"[a-z]+(?:[-'][a-z]+)*[.!?:)]*|\d{1,3}[.%]?|[A-Z][a-z]+[.!?]*", re.ASCII)
_NO_PASSWORD = re.compile(
    r"^[/.~]|://|\w/\w+/|^\[redacted|\.(?:py|cpp|json|yaml|log|txt|onnx)\b|^[\w.]+:\d+$|^[A-Z]+[_A-Z0-9]*$|\$|^0x|^\w+_\w+_?\w*$"
)
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


def _redact_named(match: re.Match[str]) -> str:
    """Return the text without its value where the name beside it is a secret's."""
    names = [match[name] for name in ("name", "name_tight") if match.groupdict().get(name)]
    if not names or not is_secret_name(names[0]) or is_stand_in(names[0], match["value"]):
        return match[0]
    return match["before"] + match.groupdict().get("quote", "") + MARK


def _redact_mixed(match: re.Match[str]) -> str:
    """Return the text without a word that only a password looks like; paths and addresses are none."""
    if is_stand_in("password", match["value"]) or _NO_PASSWORD.search(match["value"]):
        return match[0]
    return match["before"] + MARK


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
    (
        ("login", "sshpass", "mysql", "mariadb", "redis-cli", "ipmitool", "ldap", "smbclient"),
        _LOGIN_OPTION,
        _redact_value_after,
    ),
    ((" -", "--"), _OPTION, _redact_option),
    ((" -u", "--user", "--proxy-user"), _USER_OPTION, _redact_value_after),
    (("?", "&"), _QUERY, rf"\1{MARK}"),
    (("password",), _NETRC, _redact_value_after),
    ((":",), _PGPASS, _redact_value_after),
    ((":",), _PGPASS_INSIDE, _redact_mixed),
    (("@",), _MAIL_BESIDE, _redact_mixed),
    (("pass", "bindpw", "rootpw", "credential", "unseal", "geniekey"), _NEAR_WORD, _redact_mixed),
    (("echo ", "printf "), _PIPED, _redact_value_after),
    (("</",), _ELEMENT, _redact_named),
    (("value",), _PAIR_OF_FIELDS, _redact_named),
    (("set", "env ", "arg "), _SET_VARIABLE, _redact_named),
    (("--from-literal",), _LITERAL, _redact_value_after),
    ((": |", ": >"), _BLOCK, _redact_named),
    (("secretstr(", "secretbytes(", "secret(", "password(", "apikey("), _CALL, _redact_value_after),
    (("@",), _MAIL_PAIR, _redact_value_after),
    (("pass", "pwd", "key", "secret", "token"), _SENTENCE, _redact_sentence),
)
