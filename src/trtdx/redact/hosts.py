"""Host names and addresses out of text, where the user asked for that."""

from __future__ import annotations

import re

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
