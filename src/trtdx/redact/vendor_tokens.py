"""Tokens that their issuers gave a form of their own, so that they are known wherever they stand."""

from __future__ import annotations

import base64
import binascii
import re

_PREFIXED = (  # what a token starts with, and the rest of its form
    r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}",  # Hugging Face
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}",
    r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct|wt)-[A-Za-z0-9_.-]{16,}|GR1348941[A-Za-z0-9_-]{16,}",  # GitLab
    r"nvapi-[A-Za-z0-9_-]{16,}",  # NVIDIA NGC
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, OpenRouter, Langfuse and others
    r"(?:sk|rk|pk|whsec|sess)_(?:live_|test_|prod_)?[A-Za-z0-9]{16,}",  # Stripe, ElevenLabs, Clerk
    r"(?:gsk|r8|fw|pplx|xai|pcsk|ls__|lsv2_[ps][kt]|csk|tgp_v1|jina|voyage|co|nk|ntn|secret|esecret)[_-]"
    r"(?=[A-Za-z0-9_-]{0,120}\d)[A-Za-z0-9_-]{20,}",  # Groq, Replicate, Fireworks, Perplexity, xAI, Pinecone, LangSmith ...
    r"(?:AKIA|ASIA|ABIA|ACCA|AIDA|AROA|AGPA|ANPA)[A-Z0-9]{16}(?![A-Z0-9])",  # AWS
    r"bedrock-api-key-[A-Za-z0-9+/=]{20,}|ABSK[A-Za-z0-9+/=]{60,}",
    r"AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}|1//0[A-Za-z0-9_-]{20,}",  # Google
    r"xox[abcdeoprs](?:\.xox[abp])?-[A-Za-z0-9-]{10,}|xapp-\d-[A-Za-z0-9-]{10,}|xwfp-[A-Za-z0-9-]{10,}",  # Slack
    r"pypi-[A-Za-z0-9_-]{30,}|npm_[A-Za-z0-9]{30,}|rubygems_[a-f0-9]{40,}|cio[A-Za-z0-9]{30,}|oy2[a-z0-9]{43}",
    r"dapi[a-f0-9]{32}(?:-\d)?|dkea[a-f0-9]{32}|dose[a-f0-9]{32}",  # Databricks
    r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
    r"(?:SK|AC)[0-9a-f]{32}(?![0-9a-f])",  # Twilio
    r"key-[0-9a-f]{32}|[0-9a-f]{32}-us\d{1,2}|xkeysib-[a-f0-9]{40,}(?:-\w+)?",  # Mailgun, Mailchimp, Brevo
    r"hv[sbr]\.[A-Za-z0-9_-]{20,}|s\.[A-Za-z0-9]{24}(?![A-Za-z0-9])",  # Vault
    r"do[opr]_v1_[a-f0-9]{40,}|HRKU-[A-Za-z0-9_-]{30,}|v1\.0-[a-f0-9]{20,}-[a-f0-9]{100,}",
    r"NR(?:AK|JS|II|AL)-[A-Za-z0-9]{20,}|gl(?:sa|c)_[A-Za-z0-9_+/=]{20,}|sntry[su]_[A-Za-z0-9_+/=]{20,}",
    r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9]{20,}|lin_(?:api|oauth)_[A-Za-z0-9]{20,}|figd_[A-Za-z0-9_-]{20,}",
    r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{20,}|EAAA[A-Za-z0-9_-]{40,}",
    r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.=-]{20,}|sbp_[a-f0-9]{40}|sb_secret_[A-Za-z0-9_-]{20,}",
    r"AGE-SECRET-KEY-1[0-9A-Z]{50,}|tskey-[a-z]+-[A-Za-z0-9-]{10,}|ops_ey[A-Za-z0-9_=-]{40,}",
    r"ATATT3[A-Za-z0-9_=-]{20,}|ATBB[A-Za-z0-9]{20,}|ATCTT3[A-Za-z0-9_=-]{20,}",  # Atlassian
    r"CCI(?:PAT|PRJ)_[A-Za-z0-9_]{20,}|bk(?:ua|ct|aa)_[a-z0-9]{30,}|AKCp[A-Za-z0-9]{10,}|cmVmd[A-Za-z0-9]{50,}",
    r"wandb_v1_[A-Za-z0-9_]{20,}|KGAT_[a-f0-9]{30,}|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{40,}",
    r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}|sl\.[A-Za-z0-9_-]{60,}|EAA[A-Za-z0-9]{60,}|PMAK-[a-f0-9]{24}-[a-f0-9]{34}",
    r"rpa_[A-Z0-9]{40,}|pul-[a-f0-9]{40}|sq[pua]_[a-f0-9]{40}|napi_[a-z0-9]{40,}|e2b_[a-f0-9]{40}|fc-[a-f0-9]{32}",
    r"local-[a-f0-9]{40}(?![a-f0-9])|GOOG1[A-Z0-9]{50,}|LTAI[A-Za-z0-9]{16,24}(?![A-Za-z0-9])|AKID[A-Za-z0-9]{32}",
    r"\d{8,10}:[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])",  # Telegram
    r"[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",  # Discord
    r"[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}|[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}",  # Microsoft Entra, Azure DevOps
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}|eyJ[A-Za-z0-9_-]{60,}={0,2}",  # JSON web tokens, JSON
    r"\$(?:2[abxy]|5|6|y|7|apr1|argon2\w*|scrypt)\$[A-Za-z0-9./$,=+-]{20,}|\{SSHA(?:\d+)?\}[A-Za-z0-9+/=]{20,}",
)
# A form that stands inside a longer name is none; to ask so first keeps the many forms off most characters.
VENDOR_TOKEN = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXED)})")
# What stands in a URL is the secret: the path of a web hook.
WEB_HOOK = re.compile(
    r"(https?://(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks|"
    r"[\w.-]+\.webhook\.office\.com|outlook\.office\.com/webhook|[\w.-]+\.logic\.azure\.com|"
    r"chat\.googleapis\.com/v1/spaces|events\.pagerduty\.com|maker\.ifttt\.com|qyapi\.weixin\.qq\.com|"
    r"oapi\.dingtalk\.com|open\.feishu\.cn)/)[^\s\"'<>\\]{6,}"
)
_PAIR = re.compile(r"((?:AKIA|ASIA)[A-Z0-9]{16}[\s:,/|\"']{1,8})[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])")
# A line that speaks of a secret makes a bare digest in it one: "wandb: logging in with 0123..."
_HEX = re.compile(r"(?<![0-9a-zA-Z/@-])[0-9a-f]{32,64}(?![0-9a-zA-Z])")
_SECRET_WORDS = re.compile(r"(?i)wandb|api.?key|token|secret|passw|credential|licen[cs]e.?key|\blog(?:ging)? ?in\b")
_DIGEST_WORDS = re.compile(r"(?i)sha\d|md5|digest|commit|hash|blake|xxh|uuid|fingerprint|checksum|revision|snapshot")
_NGC_LEGACY = re.compile(r"[a-z0-9]{20,40}:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_USER_PASSWORD = re.compile(r"[\w.@+$-]{1,64}:\S{3,200}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
LONGEST_BASE64 = 16384


def redact_pairs(text: str, mark: str) -> str:
    """Return the text without the second half of AWS key pairs."""
    return _PAIR.sub(rf"\g<1>{mark}", text)


def redact_hex_keys(text: str, mark: str) -> str:
    """Return a line without bare hexadecimal keys, where it speaks of a secret and not of a digest."""
    if not _SECRET_WORDS.search(text) or _DIGEST_WORDS.search(text):
        return text
    return _HEX.sub(mark, text)


def is_base64_credential(text: str) -> bool:
    """Whether decoded base64 is a user's name and password, or a key of NGC as they were before 2024."""
    return bool(_NGC_LEGACY.fullmatch(text) or _USER_PASSWORD.fullmatch(text))


def base64_runs(run: str) -> list[re.Match[str]]:
    """Return the parts of a run that can be base64, longest look bounded."""
    return [match for match in _BASE64.finditer(run) if len(match[0]) <= LONGEST_BASE64]


def decode_base64_text(run: str) -> str:
    """Return the printable text that a run of base64 encodes; empty where it encodes none."""
    body = run.rstrip("=").replace("-", "+").replace("_", "/")
    if len(body) % 4 == 1:
        return ""
    try:
        text = base64.b64decode(body + "=" * (-len(body) % 4), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return ""
    return text if all(character.isprintable() or character in "\r\n\t" for character in text) else ""
