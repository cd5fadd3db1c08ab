"""How exporters name a key/value cache that goes in and comes out, and which of the two belong together."""

from __future__ import annotations

import re

PRESENT_NAME = re.compile(r"(?:present_key_values|present_kv|present|new_cache)[._](.+)")


def cache_key(name: str) -> str:
    """Return the part of a cache that a name means, the same for input and output: "3.key" of "past_3_key"; else ""."""
    match = PAST_NAME.fullmatch(name) or PRESENT_NAME.fullmatch(name)
    return re.sub(r"[._]+", ".", match[1]) if match else ""


# past_key_values.0.key -> present.0.key (Optimum, onnxruntime-genai), past.0.key, past_0, past_key_0, ...
PAST_NAME = re.compile(r"(?:past_key_values|past_kv|past|cache)[._](.+)")
