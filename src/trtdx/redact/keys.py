"""Which names call their value a secret: of variables, options, fields, headers."""

from __future__ import annotations

import re
from functools import lru_cache

from trtdx.redact.mark import MARK

_NOUNS = (
    r"pass(?:word|wd|phrase|code)?|pwd|pw|psk|secret|jwt|credential|token|auth|dsn|pat|otp|cookie|bearer|"
    r"(?:identity|registry|refresh|session)token|connection[_-]?string|webhook(?:[_-]?url)?|dockerconfigjson|"
    r"(?:api|access|account|private|secret|hmac|auth|encryption|signing|fernet|master|client|subscription|licen[cs]e|"
    r"shared|storage|service|consumer|deploy|unseal|genie|app|admin|openai|azure|anthropic|groq|mistral|cohere|gemini|cipher|crypto|recovery|webhook|host|tls|ssl|ssh|gpg|pgp|jwt|aes|rsa)[_-]?key"
)
_SUFFIX = r"s?(?:[_-]?(?:id|data|value|b64|base64|string|hash|file[_-]?content))?"
_SECRET_NOUN = rf"(?:{_NOUNS}){_SUFFIX}"
_GLUED = r"ssh|vnc|bind|root|pg|my|db|sql|hf|ngc|user|root|admin|access|auth|refresh|id"
_WHOLE_KEY = re.compile(rf"(?:.*[\W_]|.*(?<=[a-z0-9])(?=[A-Z])|(?i:{_GLUED}))?(?i:{_SECRET_NOUN})")
# A model's vocabulary, and numbers of tokens; places of files, which are no secrets.
_NOT_SECRET = re.compile(
    r"(?i)(?:bos|eos|pad|unk|sep|cls|mask|num|max|min|special|image|stop|end|new|input|output|prompt|draft|total|gen\w*|"
    r"per|all|first|last|next|cached|added|extra|start|context|of|audio|video|vision|think\w*|tool\w*|ctx|batch\w*)"
    r"\w*[ _-]?tokens?(?:[_-]?ids?)?$|(?:^|[_-])(?:by|one|two|multi|single|forward|backward|first|second)[ _-]?pass(?:es)?$"
)
# What stands for a value instead of being one: variables, placeholders, emptiness.
_NO_VALUE = re.compile(
    r"(?i)(?:none|null|nil|true|false|yes|no|on|off|auto|default|empty|unset|undefined|required|optional|missing|"
    r"\*+|x{3,}|\.{3,}|…|str|string|int|bool|bytes|optional\[.*|type|object|set|not|os\.environ.*|os\.getenv.*|getpass.*|"
    r"env(?:iron)?\W.*|secretkeyref.*|valuefrom.*|file:.*|redacted|\[?redacted\]?|hidden|masked)"
)
_VARIABLE = re.compile(r"\$\{?\w+\}?|\$\(.*|\$\{\{.*|\{\{.*|%\w+%|\{\w*\}|<[^>]{1,60}>|@\S+")
_PLACEHOLDER = re.compile(
    r"(?=.*(?:TOKEN|KEY|PASSWORD|SECRET|USER|YOUR|HERE|VALUE|NAME|CREDENTIAL|PLACEHOLDER))[A-Z]+(?:_[A-Z]+)*"
)
_SPOKEN_OF = re.compile(r"tokens?$|^(?:auth|credentials?|passes|cookies?)$")
_PROSE = re.compile(r"^[a-z_./-]+[.:]?$|[*(){}|<>]|^.{1,3}$")
_NUMBERS = re.compile(r"[-+\d.,:;x/ ~]*")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable, option or field of that name holds a secret."""
    plain = name.strip("-\"' \\")
    return len(plain) <= 120 and bool(_WHOLE_KEY.fullmatch(plain)) and not _NOT_SECRET.search(plain)


def is_stand_in(name: str, value: str) -> bool:
    """Whether a value under a secret's name is none: a variable, a placeholder, a number of tokens."""
    plain = value.strip("\"'\\ `,;.")
    if plain == MARK or not plain:
        return True
    if _NO_VALUE.fullmatch(plain) or _VARIABLE.fullmatch(plain) or _PLACEHOLDER.fullmatch(plain):
        return True
    lower = name.lower()
    if _SPOKEN_OF.search(lower):  # people write about tokens: "tokens: raise the limit", "bytes/token = 2*22*64"
        return plain.startswith(("<", "{")) or bool(_NUMBERS.fullmatch(plain) or _PROSE.search(plain))
    return lower.endswith(("pass", "passes")) and bool(_NUMBERS.fullmatch(plain))
